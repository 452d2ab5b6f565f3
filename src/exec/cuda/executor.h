// The executor of GPUs: what executor.cc runs and prepare.cc makes ready.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "overlace/runtime.h"
#include "src/exec/backend.h"
#include "src/exec/cuda/cells.h"
#include "src/exec/cuda/cublaslt.h"
#include "src/exec/cuda/net.h"
#include "src/exec/cuda/recorder.h"
#include "src/exec/cuda/streams.h"
#include "src/exec/timeline.h"
#include "src/runtime/backend/cuda_peer/captures.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/stream_words.h"
#include "src/runtime/state.h"

namespace overlace::exec {

namespace node = runtime::cuda_peer;

/// Per Program: who waits for whom across streams.
struct Prepared {
  explicit Prepared(size_t instances)
      : done(instances), ready(instances), lanes(0), sent(1), last_round(instances, -1) {}
  Events done;   // of instances with a dependent on another stream
  Events ready;  // of instances with messages: they may leave
  Events lanes;  // fork, then the join of each copy lane
  Events sent;   // the last data of the call have left and come; signals that travel alone are not waited for
  std::vector<spec::Lane> copy_lanes;
  std::vector<spec::Step> steps;   // in order of issue
  std::vector<int> last_round;     // as in Timetable
  int last_data = -1;              // as in Timetable
  std::unique_ptr<NetRounds> net;  // null: nothing crosses to another host
  bool has_previous = false;
  node::StreamWords counters;          // signals of scope device, kCounterPitch bytes apart; 0 between calls
  std::vector<uint64_t> full;          // per counter: what a call adds
  std::optional<spec::Lane> emptying;  // the only lane that waits for counters: there they are set to 0 again
  std::optional<KernelContext> kernel;
  std::shared_ptr<void> kernel_state;  // KernelContext::of_schedule
  int first_part = -1;                 // of the kernel, in `steps`: there it is launched
};

/// The lane of messages, which no schedule has.
inline constexpr spec::Lane kNetLane{spec::Engine::nic, -1};
inline constexpr const char* kNetLaneName = "net";

inline bool is_sm(const spec::Lane& lane) { return lane.engine == spec::Engine::sm; }

/// The marks of a traced instance: its stream has reached its waits, they are over, its work is done.
struct Marks {
  size_t reached = 0, begin = 0, end = 0;
};

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(Channel& channel, std::unique_ptr<CublasLt> blas)
      : channel_(channel),
        team_(channel.team()),
        device_(team_.runtime().device()),
        stream_(static_cast<cudaStream_t>(channel.stream().cuda_stream)),
        blas_(std::move(blas)) {}
  ~CudaExecutor() override {
    DeviceScope scope(device_);
    (void)cudaDeviceSynchronize();  // side streams may still run
    free_spare(0);
  }

  Domain domain() const override { return Domain::stream; }

  base::Status allocate(size_t bytes, const char* name, void** out) override;
  void deallocate(void* memory) override;
  size_t workspace_bytes() const override { return used_bytes_; }

  base::Status can_prepare() override {
    follow_channel();
    const base::Result<node::Capture> capture = node::capture_of(stream_);
    if (!capture.ok()) return capture.status();
    if (*capture)
      return base::error(Errc::capture, "first use of these sizes inside graph capture, wanted: one call before it");
    return {};
  }
  /// NOTE: loading a kernel may wait for all that runs on the device, with locks of the driver held which peers that
  /// are threads of this process need to queue what this rank's kernels wait for. So nothing may run any more then.
  base::Status finish_calls() override {
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
    return lanes_.synchronize();
  }
  bool prepares_beside_calls(const Program& program, const Bodies& bodies) const override;

  /// Ranks of one process share locks of the driver, which a kernel that is being loaded holds.
  bool prepares_beside_peers() const override { return !team_.runtime().state().control->in_process(); }
  base::Status prepare(Program& program, const Bindings& bindings, const Bodies& bodies) override;
  base::Status retain(const Call& call, const std::function<std::shared_ptr<void>()>& hold) override;
  std::optional<bool> is_captured() const override { return is_captured_; }
  bool has_barrier() const override {
    const std::vector<int> groups = groups_of(team_);  // by loads and stores
    return std::all_of(groups.begin(), groups.end(), [&](int group) { return group == groups.front(); });
  }
  base::Status run(const Call& call) override;
  base::Status drain() override {
    DeviceScope scope(device_);
    OVERLACE_TRY(team_.runtime().state().backend->finish_calls(channel_.pod().channel_id));
    return lanes_.synchronize();  // signals that travel alone to another host are not joined to the call's stream
  }
  void finish() override {
    DeviceScope scope(device_);
    (void)cudaDeviceSynchronize();
  }
  base::Status prepare_trace() override {
    DeviceScope scope(device_);
    return recorder_.reserve();
  }
  base::Status run_traced(base::Trace&, std::string_view label, const char* name,
                          const std::function<base::Status()>& work) override;
  base::Result<base::Trace> collect() override {
    DeviceScope scope(device_);
    return recorder_.collect(stream_);
  }

 private:
  void free_spare(size_t most);
  base::Status prepare_steps(const Program& program, Prepared& prepared);
  base::Status rehearse(Program& program, const Bindings& bindings, const Bodies& bodies);
  base::Status prepare_kernel(Program& program, const Bodies& bodies, Prepared& prepared);
  base::Status make_counters(const Program& program, Prepared& prepared);
  base::Status count_adds(const Program& program, const Bodies& bodies, Prepared& prepared);
  base::Status launch_kernel(const Call& call, Prepared& prepared);
  base::Status prologue(const Call& call, Prepared& prepared);
  base::Status issue(const Call& call, Prepared& prepared, int index);
  base::Status issue_round(const Call& call, Prepared& prepared, int index);
  base::Status wait_for_deps(const Call& call, Prepared& prepared, const spec::Instance& instance, cudaStream_t stream);
  base::Status wait_for_signals(const Call& call, const Prepared& prepared, const spec::Instance& instance,
                                cudaStream_t stream);
  base::Status wait_for_counter(const Call& call, const Prepared& prepared, const spec::ResolvedWait& wait,
                                cudaStream_t stream);
  base::Status execute(const Call& call, const spec::Instance& instance, cudaStream_t stream);
  base::Status gemm(const Call& call, const spec::Instance& instance);
  base::Status copy(const Call& call, const spec::Instance& instance, cudaStream_t stream);
  base::Status send_signals(const Call& call, const spec::Instance& instance, cudaStream_t stream);
  base::Status epilogue(const Call& call, Prepared& prepared);
  base::Status launch_waits(node::WaitList& list, cudaStream_t stream);

  /// A channel may be used from another stream; the runtime keeps its calls in order.
  void follow_channel() { stream_ = static_cast<cudaStream_t>(channel_.stream().cuda_stream); }
  cudaStream_t stream_of(const spec::Lane& lane) {
    cudaStream_t stream = stream_;
    if (!is_sm(lane)) lanes_.get(lane, &stream).or_throw();  // made in prepare
    return stream;
  }
  static const Cells& cells_of(const Program& program) { return *static_cast<Cells*>(program.shared->cells.get()); }
  node::WaitItem wait_item(const Call& call, const spec::ResolvedWait& wait) const;
  bool is_far(int peer) const { return team_.reach(peer) == Reach::net; }
  /// Nothing unless this call is traced.
  base::Status mark(cudaStream_t stream, size_t* number) {
    return is_traced_ ? recorder_.mark(stream, number) : base::Status();
  }
  void record(const Call& call, const spec::Instance& instance, const Marks& marks, bool has_work);
  void record_sent(const Call& call, const std::vector<spec::ResolvedSet>& sets, const std::string& lane, size_t mark);

  Channel& channel_;
  Team& team_;
  int device_;
  cudaStream_t stream_;
  std::map<void*, size_t> workspaces_;  // in use
  std::multimap<size_t, void*> spare_;  // workspaces that were given back, by size
  size_t used_bytes_ = 0, spare_bytes_ = 0;
  std::unique_ptr<CublasLt> blas_;
  std::shared_ptr<void> kernels_state_;  // KernelContext::of_channel
  LaneStreams lanes_;
  Recorder recorder_;
  bool is_traced_ = false;    // the call that is being queued
  bool is_captured_ = false;  // that one, too
  uint64_t calls_ = 0;        // made on this channel: the same on all ranks
};

}  // namespace overlace::exec
