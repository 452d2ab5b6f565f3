#include "src/runtime/backend/cuda_peer/state.h"

#include <algorithm>
#include <atomic>

#include "src/runtime/engine/nccl/engine.h"

namespace overlace::runtime::cuda_peer {

CudaPeerState& cuda_peer_state(BackendState& state) {
  OVERLACE_ASSERT(state.kind() == Backend::cuda_peer);
  return static_cast<CudaPeerState&>(state);
}

CudaPeerState::~CudaPeerState() { close(true); }

Caps CudaPeerState::caps(int world_rank) const {
  const bool is_near = reach(world_rank) != Reach::net;
  Caps caps;
  caps.load_store = is_near;
  caps.device_initiated = is_near && !sharing_.between_processes;
  caps.multi_writer_signals = is_near && atomics_;
  caps.remote_add = is_near && atomics_;
  caps.copy_engine = is_near;
  caps.stream_wait = is_near && stream_caps_.wait_value;
  caps.collectives = options_.net_engine != "none" && !sharing_.any && nccl::is_available();
  caps.compute_capability = facts_[static_cast<size_t>(world_rank)].compute_capability;
  return caps;
}

Reach CudaPeerState::reach(int world_rank) const {
  if (world_rank == rank_) return Reach::self;
  return std::binary_search(local_.begin(), local_.end(), world_rank) ? Reach::lsa : Reach::net;
}

std::unique_ptr<NetEngine> CudaPeerState::make_engine(Team& team, int max_ctas) {
  if (options_.net_engine == "none") return nullptr;
  const bool is_wanted = options_.net_engine == "nccl";
  if (sharing_.any) {
    if (is_wanted)
      throw_error(Errc::not_supported, "engine nccl: two ranks of the world share a device; wanted one device a rank");
    return nullptr;
  }
  nccl::Options options;
  options.device = device_;
  options.max_ctas = max_ctas;
  options.timeout_ms = options_.timeout_ms;
  options.is_required = is_wanted;
  base::Result<std::unique_ptr<NetEngine>> engine = nccl::open_engine(team, options, *this);
  engine.status().or_throw();
  return std::move(*engine);
}

std::string CudaPeerState::device_name() const {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, device_) == cudaSuccess ? properties.name : std::string();
}

base::Result<int> CudaPeerState::place_of(const void* address) {
  const DeviceGuard guard(device_);
  cudaPointerAttributes found{};
  OVERLACE_TRY(cuda_status(cudaPointerGetAttributes(&found, address), "cudaPointerGetAttributes"));
  if (found.type == cudaMemoryTypeManaged) return kManagedMemory;
  return found.type == cudaMemoryTypeDevice ? found.device : kHostMemory;
}

base::Result<void*> CudaPeerState::allocate_local(size_t bytes, StreamRef stream) {
  const DeviceGuard guard(device_);
  if (is_capturing(stream))
    return base::error(Errc::capture, "{} bytes of device memory: allocate before the capture", bytes);
  void* memory = nullptr;
  OVERLACE_TRY(cuda_status(cudaMalloc(&memory, bytes), "cudaMalloc (local memory)"));
  local_memory_.push_back(memory);
  OVERLACE_TRY(cuda_status(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync (local memory)"));
  OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return memory;
}

void CudaPeerState::free_local(void* memory) {
  const DeviceGuard guard(device_);
  if (std::erase(local_memory_, memory) != 0) (void)cudaFree(memory);
}

base::Status CudaPeerState::zero_local(void* memory, size_t bytes, StreamRef stream) {
  const DeviceGuard guard(device_);
  return stream_reset(memory, bytes, static_cast<cudaStream_t>(stream.cuda_stream));
}

base::Status CudaPeerState::copy(void* dst, const void* src, size_t bytes) {
  const DeviceGuard guard(device_);
  OVERLACE_TRY(cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync"));
  return cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

base::Result<char* const*> CudaPeerState::make_table(std::span<char* const> bases) {
  const DeviceGuard guard(device_);
  base::Result<Pinned<char*>> table = allocate_pinned<char*>(bases.size());
  if (!table.ok()) return table.status();
  std::copy(bases.begin(), bases.end(), table->get());
  return more_bases_.emplace_back(std::move(*table)).get();
}

base::Status CudaPeerState::synchronize() {
  const DeviceGuard guard(device_);
  OVERLACE_TRY(cuda_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  return check_pipelines();
}

base::Status CudaPeerState::fetch_pipeline_word() {
  return cuda_status(
      cudaMemcpyAsync(&host_[0].pipeline, pipeline_word(), sizeof(uint32_t), cudaMemcpyDeviceToHost, watch_stream_),
      "cudaMemcpyAsync (pipeline word)");
}

base::Status CudaPeerState::check_pipelines() {
  OVERLACE_TRY(fetch_pipeline_word());
  OVERLACE_TRY(cuda_status(cudaStreamSynchronize(watch_stream_), "cudaStreamSynchronize"));
  if (host_[0].pipeline == 0) return {};
  const AbortCause found = cause();
  return {found.code, found.message};
}

base::Status CudaPeerState::check_quiescent() {
  const DeviceGuard guard(device_);
  OVERLACE_TRY(synchronize());
  const size_t words = size_t{layout_.num_ids} * layout_.slot_stride;
  std::vector<uint64_t> tickets(words), slots(words * layout_.slot_pitch / sizeof(uint64_t));
  const auto fetch = [&](std::vector<uint64_t>& to, const void* from) {
    return cuda_status(
        cudaMemcpyAsync(to.data(), from, to.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost, watch_stream_),
        "cudaMemcpyAsync (signals)");
  };
  OVERLACE_TRY(fetch(tickets, ticket_));
  OVERLACE_TRY(fetch(slots, heap_->base(rank_) + layout_.slots.offset));
  OVERLACE_TRY(cuda_status(cudaStreamSynchronize(watch_stream_), "cudaStreamSynchronize"));
  for (size_t i = 0; i < words; ++i) {
    const uint64_t slot = slots[i * layout_.slot_pitch / sizeof(uint64_t)];
    if (slot == tickets[i]) continue;
    const auto id = static_cast<uint32_t>(i / layout_.slot_stride);
    return base::error(Errc::internal, "rank {}: signal {} ({}) of sender {} is {}, but {} were consumed", rank_, id,
                       names_.id(id), i % layout_.slot_stride, slot, tickets[i]);
  }
  return {};
}

void CudaPeerState::poison(uint64_t offset, uint64_t bytes) {
  if (!options_.adversary.enabled) return;
  const DeviceGuard guard(device_);
  (void)cudaMemsetAsync(heap_->base(rank_) + offset, 0xff, bytes, stream_);
  (void)cudaStreamSynchronize(stream_);
}

bool CudaPeerState::set_cause(const AbortCause& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (cause_.code != Errc::ok) return false;
    cause_ = cause;
    if (host_) std::atomic_ref<uint32_t>(host_[0].abort_word).store(1, std::memory_order_release);
  }
  wake_.notify_all();
  return true;
}

void CudaPeerState::set_cause_and_spread(const AbortCause& cause) {
  if (set_cause(cause)) control_.spread(cause);
}

void CudaPeerState::abort(const AbortCause& cause) { (void)set_cause(cause); }

int CudaPeerState::world_rank_of(uint32_t team, uint32_t team_rank) const {
  const int world_rank = names_.world_rank(team, team_rank);
  return world_rank >= 0 ? world_rank : static_cast<int>(team_rank);
}

AbortCause CudaPeerState::recorded_cause() {
  TimeoutRecord record = host_[0].record;
  record.rank = static_cast<uint32_t>(rank_);
  record.peer = static_cast<uint32_t>(world_rank_of(record.team, record.peer));
  std::string text = names_.timeout_text(record, control_.peer_state(static_cast<int>(record.peer)));
  if (const std::string at = engines_.pending(); !at.empty()) text += "; meanwhile in " + at;
  return {Errc::timeout, text};
}

AbortCause CudaPeerState::cause() {
  // A kernel that timed out has left its record before it completed: whoever synchronised with it sees the cause here,
  // without waiting for the watcher. A pipeline's word has no record, and comes to the host by a copy.
  const auto load = [](uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); };
  const bool has_record = host_ && load(host_[0].record.magic) == TimeoutRecord::kMagic;
  if (has_record || (host_ && load(host_[0].pipeline) != 0)) {
    bool is_known;
    {
      const std::lock_guard lock(mutex_);
      is_known = cause_.code != Errc::ok;
    }
    if (!is_known)
      set_cause_and_spread(has_record ? recorded_cause()
                                      : AbortCause{Errc::timeout, pipeline_text(rank_, timeout_ns())});
  }
  const std::lock_guard lock(mutex_);
  return cause_;
}

void CudaPeerState::close(bool aborted) {
  if (is_closed_) return;
  is_closed_ = true;
  if (watcher_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_all();
    watcher_.join();
  }
  if (device_ < 0) return;
  const DeviceGuard guard(device_);
  // After an abort kernels still run to their end, on memory that must stay until then.
  if (aborted && host_) std::atomic_ref<uint32_t>(host_[0].abort_word).store(1, std::memory_order_release);
  watch_streams(aborted);
  // Waits that their streams had not reached then are released as they are.
  while (aborted && !guarded_.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    watch_streams(true);
  }
  (void)cudaDeviceSynchronize();
  for (const GuardedWait& guarded : guarded_) {
    (void)cudaEventDestroy(guarded.done);
    if (guarded.reached != nullptr) (void)cudaEventDestroy(guarded.reached);
  }
  for (cudaEvent_t event : spare_events_) (void)cudaEventDestroy(event);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  if (watch_stream_ != nullptr) (void)cudaStreamDestroy(watch_stream_);
  if (ticket_ != nullptr) (void)cudaFree(ticket_);
  for (const LastCall& call : last_calls_) (void)cudaEventDestroy(call.done);
  last_calls_.clear();
  for (void* memory : local_memory_) (void)cudaFree(memory);
  local_memory_.clear();
  guarded_.clear();
  spare_events_.clear();
  word_pool_.reset();
  stream_ = watch_stream_ = nullptr;
  ticket_ = nullptr;
  more_bases_.clear();
  host_.reset();
  heap_.reset();
  (void)cudaGetLastError();
}

}  // namespace overlace::runtime::cuda_peer
