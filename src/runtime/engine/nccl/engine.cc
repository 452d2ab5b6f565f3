#include "src/runtime/engine/nccl/engine.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/clock.h"
#include "src/runtime/engine/nccl/captures.h"
#include "src/runtime/engine/nccl/deadlines.h"
#include "src/runtime/engine/nccl/endings.h"
#include "src/runtime/engine/nccl/library.h"
#include "src/runtime/engine/watch.h"

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

class NcclEngine final : public NetEngine, public EngineWatch {
 public:
  NcclEngine(const Library& lib, const Options& options, const Team& team, EngineHost& host)
      : lib_(lib), options_(options), rank_(team.rank()), size_(team.size()), host_(host) {
    for (int rank = 0; rank < size_; ++rank) {
      world_ranks_.push_back(team.world_rank(rank));
      if (rank != rank_) others_.insert(rank);
    }
  }
  ~NcclEngine() override {
    if (is_watched_) host_.remove_engine(this);
    const DeviceGuard guard(options_.device);
    const std::lock_guard lock(mutex_);
    drop_group();
    const bool is_held = captures_.alive() > 0;  // an abort waits for those graphs
    if (is_aborting_ && !is_held) (void)has_ended(abort_ns());
    if (is_aborting_) {
      given_up_ = std::exchange(child_, nullptr);
      abort_in_thread();
    } else if (const ncclComm_t comm = comm_.exchange(nullptr); comm != nullptr) {
      finish_in_thread(comm);
    }
    if (!is_aborting_ || !is_held) (void)has_ended(is_aborting_ ? abort_ns() : timeout_ns());
  }

  base::Status open(const ncclUniqueId& id) {
    const DeviceGuard guard(options_.device);
    host_.add_engine(this);  // before the peers are met: an abort must end that wait too
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
    const EndOfGroup end(*this);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, false, "all_gather");
    call("ncclAllGather", queue,
         [&](ncclComm_t comm) { return lib_.ncclAllGather(send, recv, count, type, comm, queue); });
  }
  void reduce_scatter(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const EndOfGroup end(*this);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, true, "reduce_scatter");
    call("ncclReduceScatter", queue,
         [&](ncclComm_t comm) { return lib_.ncclReduceScatter(send, recv, count, type, ncclSum, comm, queue); });
  }
  void all_reduce(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const EndOfGroup end(*this);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, true, "all_reduce");
    call("ncclAllReduce", queue,
         [&](ncclComm_t comm) { return lib_.ncclAllReduce(send, recv, count, type, ncclSum, comm, queue); });
  }
  void all_to_all(const void* send, void* recv, size_t count, DType dtype, StreamRef stream) override {
    const EndOfGroup end(*this);
    (void)stream_of(stream);
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
    const EndOfGroup end(*this);
    check_peer("broadcast", "root", root);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, false, "broadcast");
    call("ncclBroadcast", queue,
         [&](ncclComm_t comm) { return lib_.ncclBroadcast(buffer, buffer, count, type, root, comm, queue); });
  }
  void reduce(const void* send, void* recv, size_t count, DType dtype, int root, StreamRef stream) override {
    const EndOfGroup end(*this);
    check_peer("reduce", "root", root);
    const cudaStream_t queue = stream_of(stream);
    const ncclDataType_t type = type_of(dtype, true, "reduce");
    call("ncclReduce", queue,
         [&](ncclComm_t comm) { return lib_.ncclReduce(send, recv, count, type, ncclSum, root, comm, queue); });
  }
  void send(const void* data, size_t bytes, int peer, StreamRef stream) override {
    const EndOfGroup end(*this);
    check_peer("send", "peer", peer);
    const cudaStream_t queue = stream_of(stream);
    group_peers_.insert(peer);
    call("ncclSend", queue, [&](ncclComm_t comm) { return lib_.ncclSend(data, bytes, ncclUint8, peer, comm, queue); });
  }
  void recv(void* data, size_t bytes, int peer, StreamRef stream) override {
    const EndOfGroup end(*this);
    check_peer("recv", "peer", peer);
    const cudaStream_t queue = stream_of(stream);
    group_peers_.insert(peer);
    call("ncclRecv", queue, [&](ncclComm_t comm) { return lib_.ncclRecv(data, bytes, ncclUint8, peer, comm, queue); });
  }
  void group_begin(std::string_view what) override {
    const EndOfGroup end(*this);
    call("ncclGroupStart", std::nullopt, [&](ncclComm_t) {
      const ncclResult_t code = lib_.ncclGroupStart();
      if (code != ncclSuccess || groups_++ > 0) return code;
      group_thread_ = std::this_thread::get_id();
      group_peers_.clear();
      group_what_ = what;
      group_stream_.reset();  // that of the last group may be gone
      return code;
    });
  }
  void group_end() override {
    if (groups_ == 0) {
      if (is_aborting_) aborted("ncclGroupEnd").or_throw();
      throw_error(Errc::invalid_argument,
                  "nccl group_end: no group is open, wanted a group_begin before; an error in a group has ended it");
    }
    call(
        "ncclGroupEnd", group_stream_, [&](ncclComm_t) { return lib_.ncclGroupEnd(); }, true);
  }

  /// Kernels of the communicator end; its calls throw from now on. One that is stuck sees NCCL's abort flag and
  /// returns; NCCL has no way to set that flag and leave the communicator's memory until then. So the communicator of
  /// an open group stays for a while, until the thread that opened it has left the group.
  void abort() override {
    constexpr int64_t kOfACallNs = 100'000'000;
    is_aborting_ = true;
    if (comm_ == nullptr) return;
    std::unique_lock lock(mutex_, std::try_to_lock);  // NOTE: the thread sanitizer does not know timed mutexes
    for (const int64_t until = now_ns() + kOfACallNs; !lock.owns_lock() && now_ns() < until; (void)lock.try_lock())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (lock.owns_lock() && groups_ > 0) {
      if (group_thread_ == std::this_thread::get_id()) drop_group();
      if (abort_since_ns_ == 0) abort_since_ns_ = now_ns();
      if (groups_ > 0 && now_ns() - abort_since_ns_ < kGroupGraceNs) return;  // the watcher asks again
    }
    abort_in_thread();
  }
  bool has_captures() override {
    constexpr int64_t kGraceNs = 200'000'000;
    for (const int64_t until = now_ns() + kGraceNs; captures_.alive() > 0 && now_ns() < until;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return captures_.alive() > 0;
  }
  void forget() override {
    const std::lock_guard lock(mutex_);
    drop_group();
    comm_ = nullptr;
  }
  base::Status poll() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (const std::string what = deadlines_.overdue(options_.timeout_ms); !what.empty()) return timed_out(what);
    if (!lock.owns_lock()) return stuck();
    if (comm_ == nullptr) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t code = lib_.ncclCommGetAsyncError(comm_, &state);
    if (code != ncclSuccess) return failure("ncclCommGetAsyncError", code);
    if (state == ncclSuccess || state == ncclInProgress) return {};
    return failure(base::format("work behind {}", call_name_.load()).c_str(), state);
  }
  std::string pending() override {
    const DeviceGuard guard(options_.device);
    return deadlines_.running();
  }

 private:
  static constexpr int64_t kAbortNs = 5'000'000'000;       // longest wait for an abort under way
  static constexpr int64_t kGroupGraceNs = 1'000'000'000;  // of an abort for a thread inside a group

  /// An error inside a group ends it: whoever leaves by an exception has no other chance to.
  class EndOfGroup {
   public:
    explicit EndOfGroup(NcclEngine& engine) : engine_(engine) {}
    ~EndOfGroup() {
      if (std::uncaught_exceptions() == before_) return;
      const std::lock_guard lock(engine_.mutex_);
      engine_.drop_group();
    }
    EndOfGroup(const EndOfGroup&) = delete;
    EndOfGroup& operator=(const EndOfGroup&) = delete;

   private:
    NcclEngine& engine_;
    const int before_ = std::uncaught_exceptions();
  };

  int64_t timeout_ns() const { return options_.timeout_ms * 1'000'000; }
  int64_t abort_ns() const { return std::min(timeout_ns(), kAbortNs); }
  base::Status failure(const char* what, ncclResult_t code) const {
    return base::error(Errc::engine, "nccl {}: {} failed on rank {} of {}: {} (code {})", version(), what, rank_, size_,
                       lib_.ncclGetErrorString(code), static_cast<int>(code));
  }
  /// A peer that died breaks the communicator too, maybe before the control plane has seen it, which names it.
  base::Status failure_or_cause(const char* what, ncclResult_t code) const {
    const int64_t until = now_ns() + kPeerLostGraceNs;
    while (host_.cause().code == Errc::ok && now_ns() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return host_.cause().code == Errc::ok ? failure(what, code) : aborted(what);
  }
  /// Why the runtime was aborted, where that is known: it names the rank.
  base::Status aborted(const char* what) const {
    const auto cause = host_.cause();
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
    if (since == 0 || now_ns() - since < timeout_ns()) return {};
    return timed_out(base::format("a call of {}", call_name_.load()));
  }

  /// Makes comm_ with the peers, in two steps, as NCCL's modes want it. A non-blocking communicator can be given up
  /// while the peers are awaited, but starts a thread for each call, which costs the caller several times what a call
  /// of a blocking one does; whose own meeting could not be given up. So the first one only makes the second. (With
  /// NCCL_COMM_BLOCKING=1 in the environment both block, and the meeting has no deadline.) Precondition: mutex_ held.
  base::Status meet(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t code = lib_.ncclCommInitRankConfig(&meeting_, size_, id, rank_, &config);
    comm_ = meeting_;  // a failed one too is to be aborted
    OVERLACE_TRY(begun("ncclCommInitRankConfig", code));
    OVERLACE_TRY(settle("ncclCommInitRankConfig"));
    config.blocking = 1;
    if (options_.max_ctas > 0) config.maxCTAs = options_.max_ctas;
    OVERLACE_TRY(begun("ncclCommSplit", lib_.ncclCommSplit(meeting_, 0, rank_, &child_, &config)));
    OVERLACE_TRY(settle("ncclCommSplit"));
    OVERLACE_TRY(begun("ncclCommFinalize", lib_.ncclCommFinalize(meeting_)));
    OVERLACE_TRY(settle("ncclCommFinalize"));
    if (ncclComm_t met = meeting_; !comm_.compare_exchange_strong(met, child_)) return aborted("ncclCommFinalize");
    child_ = nullptr;
    (void)lib_.ncclCommDestroy(meeting_);
    return {};
  }
  base::Status begun(const char* what, ncclResult_t code) const {
    if (code == ncclSuccess || code == ncclInProgress) return {};
    return failure(what, code);
  }

  /// Waits until what a non-blocking communicator does is done. Precondition: mutex_ held.
  base::Status settle(const char* what) {
    const int64_t deadline = now_ns() + timeout_ns();
    for (int spins = 0;; ++spins) {
      const ncclComm_t comm = comm_;
      if (is_aborting_ || comm == nullptr) return aborted(what);
      ncclResult_t state = ncclSuccess;
      const ncclResult_t code = lib_.ncclCommGetAsyncError(comm, &state);
      if (code != ncclSuccess) return failure_or_cause(base::format("{}, ncclCommGetAsyncError", what).c_str(), code);
      if (state == ncclSuccess) return {};
      if (state != ncclInProgress) return failure_or_cause(what, state);
      if (now_ns() > deadline)
        return base::error(Errc::timeout, "nccl {}: rank {} of {} waited {} ms for its peers", what, rank_, size_,
                           options_.timeout_ms);
      if (spins > 1000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  /// Waits for the peers, who may never come: behind the deadline the communicator stays with the process until they
  /// do. Precondition: mutex_ held.
  void finish_in_thread(ncclComm_t comm) {
    const std::lock_guard lock(ending_mutex_);
    ending_ = end_in_thread(options_.device, [&lib = lib_, comm, deadline = now_ns() + timeout_ns()] {
      ncclResult_t code = lib.ncclCommFinalize(comm);
      while (code == ncclInProgress && now_ns() < deadline) {  // NCCL_COMM_BLOCKING=0
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        ncclResult_t state = ncclSuccess;
        code = lib.ncclCommGetAsyncError(comm, &state);
        if (code == ncclSuccess) code = state;
      }
      if (code == ncclSuccess) {
        (void)lib.ncclCommDestroy(comm);
      } else if (code != ncclInProgress) {
        (void)lib.ncclCommAbort(comm);
      }
    });
  }

  /// It waits for graphs that hold calls, and NCCL is known to wait for more. The child is of a split that was given
  /// up. Any thread; of several one ends each communicator.
  void abort_in_thread() {
    const std::lock_guard lock(ending_mutex_);
    const std::array<ncclComm_t, 2> comms = {comm_.exchange(nullptr), std::exchange(given_up_, nullptr)};
    if (comms[0] == nullptr && comms[1] == nullptr) return;
    ending_ = end_in_thread(options_.device, [&lib = lib_, comms] {
      for (const ncclComm_t comm : comms)
        if (comm != nullptr) (void)lib.ncclCommAbort(comm);
    });
  }
  bool has_ended(int64_t limit_ns) {
    Ending ending;
    {
      const std::lock_guard lock(ending_mutex_);
      ending = ending_;
    }
    return ending.wait_until(now_ns() + limit_ns);
  }

  /// Leaves NCCL's group of this thread, or later calls of the thread, of whatever communicator, would wait in it for
  /// ever. Nothing of it runs: NCCL drops a group in which a call has failed, as one without a communicator does. Where
  /// an abort has taken the communicator from under the group, that stays open: its end would touch freed memory.
  /// Precondition: mutex_ held.
  void drop_group() {
    if (groups_ == 0 || group_thread_ != std::this_thread::get_id()) return;
    group_peers_.clear();
    group_what_.clear();
    group_stream_.reset();
    const int open = groups_.exchange(0);
    if (comm_ == nullptr) return;
    const DeviceGuard guard(options_.device);
    (void)lib_.ncclSend(nullptr, 0, ncclUint8, 0, nullptr, nullptr);
    for (int i = 0; i < open; ++i) (void)lib_.ncclGroupEnd();
  }

  /// `queue`: where the call puts work, if it does; in a group its end does.
  template <class Function>
  void call(const char* what, std::optional<cudaStream_t> queue, const Function& function, bool is_group_end = false) {
    const DeviceGuard guard(options_.device);
    std::unique_lock lock(mutex_);
    const ncclComm_t comm = comm_;
    if (comm == nullptr || is_aborting_) {
      drop_group();
      lock.unlock();
      aborted(what).or_throw();
    }
    const int groups_behind = groups_ - (is_group_end ? 1 : 0);
    if (groups_behind > 0 && queue) group_stream_ = queue;
    const bool is_queued = groups_behind == 0 && queue;
    if (is_queued) {
      if (const base::Status noted = captures_.note(*queue); !noted.ok()) {  // before NCCL has the graph
        drop_group();
        lock.unlock();
        noted.or_throw();
      }
      const bool is_group = !group_peers_.empty();
      deadlines_.begin(waiting_text(what, is_group ? group_peers_ : others_, is_group ? group_what_ : ""), *queue);
      group_peers_.clear();
      group_what_.clear();
    }
    groups_ = groups_behind;
    call_name_ = what;
    call_since_ns_ = now_ns();
    const ncclResult_t code = function(comm);
    call_since_ns_ = 0;
    base::Status status;
    if (code == ncclInProgress && groups_ == 0) {  // NCCL_COMM_BLOCKING=0
      status = settle(what);
      if (is_queued && !status.ok()) deadlines_.drop();
    } else if (code != ncclSuccess && code != ncclInProgress) {
      drop_group();
      if (is_queued) deadlines_.drop();
      lock.unlock();
      status = failure_or_cause(what, code);
    }
    if (is_queued && status.ok()) deadlines_.end(*queue);
    status.or_throw();
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
    const int64_t deadline = now_ns() + timeout_ns();
    while (status.ok()) {
      const cudaError_t code = cudaStreamQuery(stream);
      if (code == cudaSuccess && !is_aborting_) break;  // an abort ends the work too
      if (code != cudaSuccess && code != cudaErrorNotReady) status = cuda_status(code, "nccl warm-up");
      if (status.ok()) status = poll();
      if (status.ok() && is_aborting_) status = aborted("warm-up");
      if (status.ok() && now_ns() > deadline)
        status = base::error(Errc::timeout, "nccl warm-up: rank {} of {} waited {} ms for its peers", rank_, size_,
                             options_.timeout_ms);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!status.ok()) abort();
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
    if (status.ok() || has_ended(abort_ns())) {  // else the device still uses them, maybe for ever
      (void)cudaFree(from);
      (void)cudaFree(to);
    }
    (void)cudaGetLastError();
    return status;
  }

  const Library& lib_;
  const Options options_;
  const int rank_, size_;
  std::vector<int> world_ranks_;
  EngineHost& host_;
  std::mutex mutex_;  // calls, and comm_ but for the abort of a stuck one
  Deadlines deadlines_;
  Captures captures_;
  std::atomic<ncclComm_t> comm_ = nullptr;
  ncclComm_t meeting_ = nullptr, child_ = nullptr;  // of `meet`: NCCL writes them from a thread of its own
  std::atomic<int64_t> call_since_ns_ = 0;          // of the call in progress; 0: none
  std::atomic<const char*> call_name_ = "";
  std::atomic<bool> is_aborting_ = false;
  bool is_watched_ = false;
  std::mutex ending_mutex_;
  Ending ending_;                  // of the communicator; under ending_mutex_
  ncclComm_t given_up_ = nullptr;  // as child_ was
  int64_t abort_since_ns_ = 0;     // that an abort waits for a group
  std::atomic<int> groups_ = 0;    // open ones; calls inside finish with the last
  std::thread::id group_thread_;
  std::optional<cudaStream_t> group_stream_;
  std::set<int> others_, group_peers_;  // ranks of the team: all others, those of the open group
  std::string group_what_;
};

/// What a rank brings to the first meeting.
struct Offer {
  int version = 0;                  // 0: no library here
  ncclResult_t code = ncclSuccess;  // of ncclGetUniqueId
  ncclUniqueId id{};
};

}  // namespace

bool is_available() { return library().ok(); }

base::Result<std::unique_ptr<NetEngine>> open_engine(Team& team, const Options& options, EngineHost& host) {
  const base::Result<const Library*> lib = library();
  Offer mine;
  if (lib.ok()) {
    mine.version = (*lib)->version;
    if (team.rank() == 0) {
      const DeviceGuard guard(options.device);
      mine.code = (*lib)->ncclGetUniqueId(&mine.id);
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
      if (!lib.ok()) return lib.status();
      return base::error(Errc::not_supported, "engine nccl: rank {} of team \"{}\" has no libnccl.so.2", rank,
                         team.name());
    }
    if (offer.version != first.version)
      return base::error(Errc::version_mismatch, "engine nccl: rank 0 has version {}, rank {} has {}", first.version,
                         rank, offer.version);
  }
  if (first.code != ncclSuccess) {
    if (!options.is_required) return std::unique_ptr<NetEngine>();
    return base::error(Errc::engine, "nccl {}: ncclGetUniqueId failed on rank 0 of {}: {} (code {})",
                       (*lib)->version_text(), team.size(), (*lib)->ncclGetErrorString(first.code),
                       static_cast<int>(first.code));
  }
  auto engine = std::make_unique<NcclEngine>(**lib, options, team, host);
  OVERLACE_TRY(engine->open(first.id));
  return std::unique_ptr<NetEngine>(std::move(engine));
}

}  // namespace overlace::runtime::nccl
