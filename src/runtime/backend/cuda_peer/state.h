// One rank on a GPU: its heap, words that kernels and host share, and the watcher.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/runtime/backend.h"
#include "src/runtime/backend/cuda_peer/device_heap.h"
#include "src/runtime/backend/cuda_peer/host_block.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "src/runtime/backend/cuda_peer/stream_words.h"
#include "src/runtime/engine/watch.h"

namespace overlace::runtime::cuda_peer {

/// A wait that a stream makes by itself and that therefore sees neither deadline nor abort.
struct StreamWait {
  uint64_t* word = nullptr;
  uint64_t value = 0;
  uint32_t peer = 0, team = 0, id = 0;  // for the record; team rank
};

class CudaPeerState final : public BackendState, public EngineHost {
 public:
  static base::Result<std::unique_ptr<CudaPeerState>> open(const OpenContext& context);
  ~CudaPeerState() override;

  Backend kind() const override { return Backend::cuda_peer; }
  int device() const override { return device_; }
  std::string device_name() const override;
  base::Result<int> place_of(const void* address) override;
  Caps caps(int world_rank) const override;
  Reach reach(int world_rank) const override;
  char* heap_base(int world_rank) const override { return heap_->base(world_rank); }
  uint64_t user_offset() const override { return layout_.user.offset; }
  uint64_t user_bytes() const override { return layout_.user.bytes; }
  base::Status grow_heap(uint64_t bytes) override;
  TeamPod make_pod(const std::vector<int>& members, int rank, uint32_t team_id) override;
  std::unique_ptr<NetEngine> make_engine(Team& team, int max_ctas) override;
  base::Result<void*> allocate_local(size_t bytes, StreamRef stream) override;
  void free_local(void* memory) override;
  base::Status zero_local(void* memory, size_t bytes, StreamRef stream) override;
  base::Result<char* const*> make_table(std::span<char* const> bases) override;
  base::Status copy(void* dst, const void* src, size_t bytes) override;
  uint64_t stripe_granule(std::string* why) const override;
  base::Result<StripeMemory> stripe(const StripePlan& plan) override;
  uint32_t* pipeline_word() override;
  int sm_room() const override { return sm_room_; }
  base::Status begin_call(const CallSite& call, Stats& stats) override;
  base::Status end_call(const CallSite& call, std::optional<bool> is_captured) override;
  bool is_capturing(StreamRef stream) const override;
  base::Status finish_calls(uint32_t channel) override;
  base::Status drain(StreamRef stream) override;
  base::Status synchronize() override;
  base::Status check_quiescent() override;
  void poison(uint64_t offset, uint64_t bytes) override;
  void abort(const AbortCause& cause) override;
  AbortCause cause() override;
  void close(bool aborted) override;

  /// Equal for ranks that reach each other with loads and stores: the first of them.
  int group(int world_rank) const { return groups_[static_cast<size_t>(world_rank)]; }
  const StreamCaps& stream_caps() const { return stream_caps_; }
  /// stream_post may be used: proven by the self-test of this open, on all pairs.
  bool copy_then_flag() const { return copy_then_flag_; }
  const char* heap_kind() const { return heap_->kind(); }  // "vmm" | "ipc"
  /// Right after stream_wait on that stream, outside capture: the watcher ends the wait at the deadline and on abort by
  /// writing the word past the value, so that the queue drains.
  base::Status guard_stream_wait(cudaStream_t stream, const StreamWait& wait);
  /// stream_wait for a word of this device, and its guard: the deadline begins when the stream has reached the wait.
  /// Outside capture.
  base::Status wait_in_stream(cudaStream_t stream, const StreamWait& wait);
  /// Counters for wait_in_stream and stream_wait.
  base::Result<StreamWords> stream_words(uint32_t count, const char* what) {
    return StreamWords::take(word_pool_, count, what);
  }
  void add_engine(EngineWatch* engine) override { engines_.add(engine); }
  void remove_engine(EngineWatch* engine) override { engines_.remove(engine); }

 private:
  struct GuardedWait {
    StreamWait wait;
    cudaEvent_t reached = nullptr, done = nullptr;  // reached: null once it is known to be
    int64_t begin_ns = 0;
    bool released = false;
  };

  /// The last call of a channel, as far as it may still run.
  struct LastCall {
    uint32_t channel = 0;
    int sms = 0;
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
    bool is_live = false;
  };

  explicit CudaPeerState(const OpenContext& context);
  LastCall& last_call(const CallSite& call);
  void forget_ended_calls();
  base::Status open_device(const OpenContext& context);
  base::Status find_local(const OpenContext& context);
  base::Status open_heap(const OpenContext& context);
  base::Status open_memory();
  base::Status check_peers();
  base::Status prove_pairs();
  /// The cause as one text; sets the abort word. True if it is the first.
  bool set_cause(const AbortCause& cause);
  void set_cause_and_spread(const AbortCause& cause);
  /// From a TimeoutRecord that a kernel left, and where the engines are.
  AbortCause recorded_cause();
  /// Queues a copy of pipeline_word() to where cause() looks for it.
  base::Status fetch_pipeline_word();
  /// Does so and waits for the copy; gives what it finds.
  base::Status check_pipelines();
  uint64_t timeout_ns() const { return static_cast<uint64_t>(options_.timeout_ms) * 1'000'000; }
  int world_rank_of(uint32_t team, uint32_t team_rank) const;
  void watch();
  void watch_streams(bool aborted);
  void release_word(GuardedWait& guarded);
  base::Status spare_event(cudaEvent_t* out);
  base::Status record_event(cudaStream_t stream, cudaEvent_t* out);

  Control& control_;
  Names& names_;
  const RuntimeOptions options_;
  int rank_, world_, device_ = -1;
  int sm_room_ = 0;
  std::vector<DeviceFacts> facts_;
  std::vector<int> local_;   // world ranks that loads and stores reach, ascending
  std::vector<int> groups_;  // by world rank
  bool atomics_ = false, copy_then_flag_ = false;
  Sharing sharing_;
  StreamCaps stream_caps_;
  RuntimeLayout layout_;
  std::unique_ptr<DeviceHeap> heap_;
  std::shared_ptr<StreamWordPool> word_pool_;
  uint64_t* ticket_ = nullptr;  // device memory
  std::vector<void*> local_memory_;
  Pinned<HostBlock> host_;
  std::vector<Pinned<char*>> more_bases_;  // tables of teams beyond kPodPeers
  std::list<LastCall> last_calls_;         // by age of the last call, one per channel
  cudaStream_t stream_ = nullptr, watch_stream_ = nullptr;
  bool is_closed_ = false;

  mutable std::mutex mutex_;  // cause_, guarded_, spare_events_, is_stopping_
  AbortCause cause_;
  std::list<GuardedWait> guarded_;
  std::vector<cudaEvent_t> spare_events_;
  bool is_stopping_ = false;
  std::condition_variable wake_;
  EngineList engines_;
  std::thread watcher_;
};

/// The state of a runtime whose backend is cuda_peer.
CudaPeerState& cuda_peer_state(BackendState& state);

}  // namespace overlace::runtime::cuda_peer
