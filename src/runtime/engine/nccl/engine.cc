#include "src/runtime/engine/nccl/engine.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "src/runtime/backend/cuda_peer/state.h"
#include "src/runtime/clock.h"
#include "src/runtime/engine/nccl/captures.h"
#include "src/runtime/engine/nccl/deadlines.h"
#include "src/runtime/engine/nccl/library.h"

namespace overlace::runtime::nccl {
namespace {

using cuda_peer::cuda_status;
using cuda_peer::DeviceGuard;

cudaStream_t stream_of(StreamRef stream) {
  if (stream.kind != StreamRef::Kind::cuda)
    throw_error(Errc::invalid_argument, "engine nccl: the stream is a CPU lane, wanted a CUDA stream");
  return static_cast<cudaStream_t>(stream.cuda_stream);
}

/// 8-bit floats can be moved, not added.
ncclDataType_t type_of(DType dtype, bool adds, const char* call) {
  switch (dtype) {
    case DType::fp64:
      return ncclFloat64;
    case DType::fp32:
      return ncclFloat32;
    case DType::fp16:
      return ncclFloat16;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::i8:
      return ncclInt8;
    case DType::u8:
      return ncclUint8;
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  if (adds)
    throw_error(Errc::not_supported,
                base::format("nccl {}: dtype is {}, wanted one that can be added", call, dtype_name(dtype)));
  return ncclUint8;
}

class NcclEngine final : public NetEngine, public cuda_peer::EngineWatch {
 public:
  NcclEngine(const Library& lib, const Options& options, const Team& team, cuda_peer::CudaPeerState* state)
      : lib_(lib), options_(options), rank_(team.rank()), size_(team.size()), state_(state) {
    for (int rank = 0; rank < size_; ++rank) {
      world_ranks_.push_back(team.world_rank(rank));
      if (rank != rank_) others_.insert(rank);
    }
  }
  ~NcclEngine() override {
    if (is_watched_) state_->remove_engine(this);
    const DeviceGuard guard(options_.device);
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr && child_ == nullptr) return;
    if (is_aborting_) {
      (void)lib_.ncclCommAbort(comm_);
      if (child_ != nullptr) (void)lib_.ncclCommAbort(child_);  // of a split that was given up
      return;
    }
    const int code = finalize();
    if (code == ncclSuccess) {
      (void)lib_.ncclCommDestroy(comm_);
    } else if (code != ncclInProgress) {
      (void)lib_.ncclCommAbort(comm_);
    }
  }

  base::Status open(const ncclUniqueId& id) {
    const DeviceGuard guard(options_.device);
    state_->add_engine(this);  // before the peers are met: an abort must end that wait too
    is_watched_ = true;
    {
      const std::lock_guard lock(mutex_);
      if (base::Status met = meet(id); !met.ok()) {
        is_aborting_ = true;
        return met;
      }
    }
    return warm_up();
  }

  std::string name() const override { return "nccl"; }
  std::string version() const override { return lib_.version_text(); }

  void all_gather(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, false, "all_gather");
    call("ncclAllGather", queue, [&] { return lib_.ncclAllGather(send, recv, count, type, comm_, queue); });
  }
  void reduce_scatter(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, true, "reduce_scatter");
    call("ncclReduceScatter", queue,
         [&] { return lib_.ncclReduceScatter(send, recv, count, type, ncclSum, comm_, queue); });
  }
  void all_reduce(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, true, "all_reduce");
    call("ncclAllReduce", queue, [&] { return lib_.ncclAllReduce(send, recv, count, type, ncclSum, comm_, queue); });
  }
  void all_to_all(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const size_t bytes = count * dtype_bytes(dtype);
    group_begin("all_to_all");
    for (int step = 0; step < size_; ++step) {
      const int to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
      this->send(static_cast<const char*>(send) + static_cast<size_t>(to) * bytes, bytes, to, stream);
      this->recv(static_cast<char*>(recv) + static_cast<size_t>(from) * bytes, bytes, from, stream);
    }
    group_end();
  }
  void broadcast(void* buffer, size_t count, DType dtype, int root, StreamRef stream) override {
    check_peer("broadcast", "root", root);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, false, "broadcast");
    call("ncclBroadcast", queue, [&] { return lib_.ncclBroadcast(buffer, buffer, count, type, root, comm_, queue); });
  }
  void reduce(const void* send, void* recv, size_t count, DType dtype, int root, StreamRef stream) override {
    check_peer("reduce", "root", root);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, true, "reduce");
    call("ncclReduce", queue, [&] { return lib_.ncclReduce(send, recv, count, type, ncclSum, root, comm_, queue); });
  }
  void send(const void* data, size_t bytes, int peer, StreamRef stream) override {
    check_peer("send", "peer", peer);
    group_peers_.insert(peer);
    const cudaStream_t queue = stream_of(stream);
    call("ncclSend", queue, [&] { return lib_.ncclSend(data, bytes, ncclUint8, peer, comm_, queue); });
  }
  void recv(void* data, size_t bytes, int peer, StreamRef stream) override {
    check_peer("recv", "peer", peer);
    group_peers_.insert(peer);
    const cudaStream_t queue = stream_of(stream);
    call("ncclRecv", queue, [&] { return lib_.ncclRecv(data, bytes, ncclUint8, peer, comm_, queue); });
  }
  void group_begin(std::string_view what) override {
    call("ncclGroupStart", nullptr, [&] { return lib_.ncclGroupStart(); });
    if (groups_++ > 0) return;
    group_peers_.clear();
    group_what_ = what;
    group_stream_ = nullptr;  // that of the last group may be gone
  }
  void group_end() override {
    --groups_;
    call("ncclGroupEnd", group_stream_, [&] { return lib_.ncclGroupEnd(); });
  }

  /// Kernels of the communicator end; its calls throw from now on. One that is stuck sees NCCL's abort flag and
  /// returns; NCCL has no way to set that flag and leave the communicator's memory until then.
  void abort() override {
    constexpr std::chrono::milliseconds kOfACall{100};
    is_aborting_ = true;
    if (comm_ == nullptr) return;
    const std::unique_lock lock(mutex_, kOfACall);
    const ncclComm_t comm = comm_.exchange(nullptr);
    if (comm == nullptr) return;
    const auto end = [&lib = lib_, device = options_.device, comm] {
      const DeviceGuard guard(device);
      (void)lib.ncclCommAbort(comm);
    };
    if (captures_.alive() == 0) return end();
    end_behind_graphs(end);  // its kernels end at once, the rest when the graphs are gone
  }
  bool has_captures() override {
    constexpr int64_t kGraceNs = 200'000'000;
    for (const int64_t until = now_ns() + kGraceNs; captures_.alive() > 0 && now_ns() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return captures_.alive() > 0;
  }
  void forget() override {
    const std::lock_guard lock(mutex_);
    comm_ = nullptr;
  }
  base::Status poll() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (const std::string what = deadlines_.overdue(options_.timeout_ms); !what.empty()) return timed_out(what);
    if (!lock.owns_lock()) return stuck();
    if (comm_ == nullptr) return {};
    ncclResult_t state = ncclSuccess;
    if (lib_.ncclCommGetAsyncError(comm_, &state) != ncclSuccess || state == ncclSuccess || state == ncclInProgress)
      return {};
    return failure("asynchronous", state);
  }
  std::string pending() override {
    const DeviceGuard guard(options_.device);
    return deadlines_.running();
  }

 private:
  base::Status failure(const char* what, ncclResult_t code) const {
    return base::error(Errc::engine, "nccl {}: {} failed on rank {} of {}: {} (code {})", version(), what, rank_, size_,
                       lib_.ncclGetErrorString(code), static_cast<int>(code));
  }
  /// A peer that died breaks the communicator too, maybe before the control plane has seen it, which names it.
  base::Status failure_or_cause(const char* what, ncclResult_t code) const {
    const int64_t until = now_ns() + cuda_peer::kPeerLostGraceNs;
    while (state_->cause().code == Errc::ok && now_ns() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return state_->cause().code == Errc::ok ? failure(what, code) : aborted(what);
  }
  /// Why the runtime was aborted, where that is known: it names the rank.
  base::Status aborted(const char* what) const {
    const auto cause = state_->cause();
    if (cause.code == Errc::ok) return base::error(Errc::aborted, "nccl {}: the communicator was aborted", what);
    return base::error(cause.code, "nccl {}: {}", what, cause.message);
  }
  base::Status timed_out(const std::string& what) const {
    return base::error(Errc::timeout, "timeout after {:.1f} s: rank {} waited in {}",
                       static_cast<double>(options_.timeout_ms) * 1e-3, world_ranks_[static_cast<size_t>(rank_)], what);
  }
  /// "ncclGroupEnd for ranks 0, 1: arrived[0] of rank 0"; `peers` are ranks of the team.
  std::string waiting_text(const char* call_name, const std::set<int>& peers, const std::string& what) const {
    std::string text = base::format("{} for rank{}", call_name, peers.size() > 1 ? "s" : "");
    for (const int peer : peers)
      text += base::format("{} {}", peer == *peers.begin() ? "" : ",", world_ranks_[static_cast<size_t>(peer)]);
    return what.empty() ? text : text + ": " + what;
  }
  void check_peer(const char* call_name, const char* argument, int peer) const {
    if (peer < 0 || peer >= size_)
      throw_error(Errc::invalid_argument,
                  base::format("nccl {}: {} is {}, wanted 0 to {}", call_name, argument, peer, size_ - 1));
  }

  /// A call that is queued, but does not return: it connects, or waits for room in NCCL's queue, which takes a peer.
  base::Status stuck() const {
    const int64_t since = call_since_ns_;
    if (since == 0 || now_ns() - since < options_.timeout_ms * 1'000'000) return {};
    return timed_out(base::format("a call of {}", call_name_.load()));
  }

  /// Makes comm_ with the peers, in two steps, as NCCL's modes want it. A non-blocking communicator can be given up
  /// while the peers are awaited, but starts a thread for each call, which costs the caller several times what a call
  /// of a blocking one does; whose own meeting could not be given up. So the first one only makes the second. (With
  /// NCCL_COMM_BLOCKING=1 in the environment both block, and the meeting has no deadline.) Precondition: mutex_ held.
  base::Status meet(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    OVERLACE_TRY(begun("ncclCommInitRankConfig", lib_.ncclCommInitRankConfig(&meeting_, size_, id, rank_, &config)));
    comm_ = meeting_;
    OVERLACE_TRY(settle("ncclCommInitRankConfig"));
    config.blocking = 1;
    if (options_.max_ctas > 0) config.maxCTAs = options_.max_ctas;
    OVERLACE_TRY(begun("ncclCommSplit", lib_.ncclCommSplit(meeting_, 0, rank_, &child_, &config)));
    OVERLACE_TRY(settle("ncclCommSplit"));
    OVERLACE_TRY(begun("ncclCommFinalize", lib_.ncclCommFinalize(meeting_)));
    OVERLACE_TRY(settle("ncclCommFinalize"));
    comm_ = std::exchange(child_, nullptr);
    (void)lib_.ncclCommDestroy(meeting_);
    return {};
  }
  base::Status begun(const char* what, ncclResult_t code) const {
    if (code == ncclSuccess || code == ncclInProgress) return {};
    return failure(what, code);
  }

  /// Waits until what a non-blocking communicator does is done. Precondition: mutex_ held.
  base::Status settle(const char* what) {
    const int64_t deadline = now_ns() + options_.timeout_ms * 1'000'000;
    for (int spins = 0;; ++spins) {
      if (is_aborting_) return aborted(what);
      ncclResult_t state = ncclSuccess;
      const ncclResult_t code = lib_.ncclCommGetAsyncError(comm_, &state);
      if (code != ncclSuccess) return failure_or_cause(what, code);
      if (state == ncclSuccess) return {};
      if (state != ncclInProgress) return failure_or_cause(what, state);
      if (now_ns() > deadline)
        return base::error(Errc::timeout, "nccl {}: rank {} of {} waited {} ms for its peers", what, rank_, size_,
                           options_.timeout_ms);
      if (spins > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// Waits for the peers, who may never come: in a thread, so that there is a deadline; behind it the communicator
  /// stays with the process. Precondition: mutex_ held.
  int finalize() try {
    const auto code = std::make_shared<std::atomic<int>>(ncclInProgress);
    std::thread([code, comm = comm_.load(), device = options_.device, &lib = lib_] {
      const DeviceGuard guard(device);
      *code = lib.ncclCommFinalize(comm);
    }).detach();
    const int64_t deadline = now_ns() + options_.timeout_ms * 1'000'000;
    while (*code == ncclInProgress && now_ns() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return *code;
  } catch (const std::system_error&) {  // no thread to be had
    return ncclInProgress;
  }

  /// `queue`: where the call puts work, or null; in a group its end does.
  template <class Function>
  void call(const char* what, cudaStream_t queue, const Function& function) {
    const DeviceGuard guard(options_.device);
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr || is_aborting_) aborted(what).or_throw();
    if (groups_ > 0 && queue != nullptr) group_stream_ = queue;
    const bool is_queued = groups_ == 0 && queue != nullptr;
    if (is_queued) {
      captures_.note(queue).or_throw();  // before NCCL has the graph: what comes behind may throw
      const bool is_group = !group_peers_.empty();
      deadlines_.begin(waiting_text(what, is_group ? group_peers_ : others_, is_group ? group_what_ : ""), queue);
      group_peers_.clear();
      group_what_.clear();
    }
    call_name_ = what;
    call_since_ns_ = now_ns();
    const ncclResult_t code = function();
    call_since_ns_ = 0;
    if (code != ncclSuccess && code != ncclInProgress) failure_or_cause(what, code).or_throw();
    if (code == ncclInProgress && groups_ == 0) settle(what).or_throw();  // NCCL_COMM_BLOCKING=0
    if (is_queued) deadlines_.end(queue);
  }

  /// First uses connect: done here, not on a hot path.
  base::Status warm_up() {
    const DeviceGuard guard(options_.device);
    const size_t count = 256, bytes = count * sizeof(float) * static_cast<size_t>(size_);
    void *from = nullptr, *to = nullptr;
    cudaStream_t stream = nullptr;
    base::Status status = cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    if (status.ok()) status = cuda_status(cudaMalloc(&from, bytes), "cudaMalloc");
    if (status.ok()) status = cuda_status(cudaMalloc(&to, bytes), "cudaMalloc");
    if (status.ok()) status = cuda_status(cudaMemsetAsync(from, 0, bytes, stream), "cudaMemsetAsync");
    try {
      status.or_throw();
      const StreamRef ref = StreamRef::cuda(stream);
      all_reduce(from, to, count, DType::fp32, ref);
      all_gather(from, to, count, DType::fp32, ref);
      reduce_scatter(from, to, count, DType::fp32, ref);
      all_to_all(from, to, count, DType::fp32, ref);
    } catch (...) {
      status = base::status_of_current_exception();
    }
    const int64_t deadline = now_ns() + options_.timeout_ms * 1'000'000;
    while (status.ok()) {
      const cudaError_t code = cudaStreamQuery(stream);
      if (code == cudaSuccess) break;
      if (code != cudaErrorNotReady) status = cuda_status(code, "nccl warm-up");
      if (status.ok()) status = poll();
      if (status.ok() && (is_aborting_ || now_ns() > deadline))
        status = base::error(Errc::timeout, "nccl warm-up: rank {} of {} waited {} ms for its peers", rank_, size_,
                             options_.timeout_ms);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!status.ok()) abort();
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
    (void)cudaFree(from);
    (void)cudaFree(to);
    (void)cudaGetLastError();
    return status;
  }

  const Library& lib_;
  const Options options_;
  const int rank_, size_;
  std::vector<int> world_ranks_;
  cuda_peer::CudaPeerState* const state_;
  std::timed_mutex mutex_;  // calls, and comm_ but for the abort of a stuck one
  Deadlines deadlines_;
  Captures captures_;
  std::atomic<ncclComm_t> comm_ = nullptr;
  ncclComm_t meeting_ = nullptr, child_ = nullptr;  // of `meet`: NCCL writes them from a thread of its own
  std::atomic<int64_t> call_since_ns_ = 0;          // of the call in progress; 0: none
  std::atomic<const char*> call_name_ = "";
  std::atomic<bool> is_aborting_ = false;
  bool is_watched_ = false;
  int groups_ = 0;  // open ones; calls inside finish with the last
  cudaStream_t group_stream_ = nullptr;
  std::set<int> others_, group_peers_;  // ranks of the team: all others, those of the open group
  std::string group_what_;
};

/// What a rank brings to the first meeting.
struct Offer {
  int version = 0;  // 0: no library here
  ncclUniqueId id{};
};

}  // namespace

bool is_available() { return library().ok(); }

base::Result<std::unique_ptr<NetEngine>> open_engine(Team& team, const Options& options,
                                                     cuda_peer::CudaPeerState* state) {
  const base::Result<const Library*> lib = library();
  Offer mine;
  base::Status status = lib.status();
  if (lib.ok()) {
    mine.version = (*lib)->version;
    if (team.rank() == 0) {
      const DeviceGuard guard(options.device);
      const ncclResult_t code = (*lib)->ncclGetUniqueId(&mine.id);
      if (code != ncclSuccess) {
        mine.version = 0;
        status = base::error(Errc::engine, "ncclGetUniqueId: {}", (*lib)->ncclGetErrorString(code));
      }
    }
  }
  const std::vector<Bytes> all = team.exchange(std::as_bytes(std::span(&mine, 1)));
  Offer first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Offer offer;
    if (all[rank].size() == sizeof offer) std::memcpy(&offer, all[rank].data(), sizeof offer);
    if (rank == 0) first = offer;
    if (offer.version == 0) {
      if (!options.is_required) return std::unique_ptr<NetEngine>();
      if (!status.ok()) return status;
      return base::error(Errc::not_supported, "engine nccl: rank {} of team \"{}\" has no libnccl.so.2", rank,
                         team.name());
    }
    if (offer.version != first.version)
      return base::error(Errc::version_mismatch, "engine nccl: rank 0 has version {}, rank {} has {}", first.version,
                         rank, offer.version);
  }
  auto engine = std::make_unique<NcclEngine>(**lib, options, team, state);
  OVERLACE_TRY(engine->open(first.id));
  return std::unique_ptr<NetEngine>(std::move(engine));
}

}  // namespace overlace::runtime::nccl
