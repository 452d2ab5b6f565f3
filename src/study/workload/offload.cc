#include "src/study/workload/offload.h"

#include <algorithm>

namespace overlace::study {
namespace {

constexpr int kMostSlots = 1024;

/// Computation, the link to the host's memory for weights, the host's disk, the link for residual streams.
enum OffloadLane { kOffloadCompute, kOffloadHost, kOffloadDisk, kOffloadStreams };
constexpr int kStreamSlots = 2;

double real(int64_t value) { return static_cast<double>(value); }

base::Status check_offload_run(const OffloadRun& run) {
  for (const double us : {run.compute_us, run.host_us, run.disk_us, run.streams_us})
    if (!(us >= 0) || !(us <= 1e12))
      return base::invalid_argument("offload: a layer takes {} us, wanted 0 to 1e12", us);
  if (run.slots < 2 || run.slots > kMostSlots || run.disk_slots < 2 || run.disk_slots > kMostSlots)
    return base::invalid_argument("offload: {} slots of the device and {} of the host, wanted 2 to {} each", run.slots,
                                  run.disk_slots, kMostSlots);
  if (run.layers.empty() || run.passes < 4 || run.micro_batches < 1)
    return base::invalid_argument("offload: {} layers, {} passes, {} micro-batches, wanted at least 1, 4 and 1",
                                  run.layers.size(), run.passes, run.micro_batches);
  const double of_batch = run.streams_us > 0 ? 3 : 1;
  const double tasks = real(std::ssize(run.layers)) * (of_batch * run.micro_batches + 2.0) * run.passes;
  if (tasks > real(kMostTasks))
    return base::invalid_argument(
        "offload: {} layers x {} micro-batches{} and two transfers x {} passes are {:.0f} tasks, wanted at most {}",
        run.layers.size(), run.micro_batches, run.streams_us > 0 ? ", each brought and taken away," : "", run.passes,
        tasks, kMostTasks);
  return {};
}

int64_t streamed_layers(const OffloadRun& run) {
  return std::ssize(run.layers) - std::count(run.layers.begin(), run.layers.end(), Resting::device);
}

class Passes {
 public:
  explicit Passes(const OffloadRun& run)
      : run_(run), step_(1, {"compute", "host", "disk", "streams"}), weights_us_(run.host_us) {
    // What comes in beside the weights takes its part of the link; one layer that streams stands for those that stay.
    const int64_t streamed = streamed_layers(run);
    if (run.is_ahead && streamed > 0) weights_us_ += run.streams_us * real(std::ssize(run.layers)) / real(streamed);
    for (int use = 0; run.is_ahead && use < kStreamSlots; ++use) move("in", spec::Load::ce_in, {});
    for (int pass = 0; pass < run.passes; ++pass) {
      for (size_t layer = 0; layer < run.layers.size(); ++layer) add(layer);
      ends_.push_back(last_);
    }
  }

  const Step& step() const { return step_; }
  /// The last task of each pass.
  const std::vector<int>& ends() const { return ends_; }

 private:
  void add(size_t layer) {
    const int weights = run_.layers[layer] == Resting::device ? -1 : bring(layer);
    for (int i = 0; i < run_.micro_batches; ++i) {
      if (!run_.is_ahead) move("in", spec::Load::ce_in, {last_, i == 0 ? weights : -1});
      const int came = came_.empty() ? -1 : came_[came_.size() - (run_.is_ahead ? kStreamSlots : 1)];
      last_ = step_.add({.name = base::format("layer {}", layer),
                         .us = run_.compute_us / run_.micro_batches,
                         .load = spec::Load::gemm_tensor,
                         .flops = run_.flops / run_.micro_batches},
                        {i == 0 ? weights : -1, came});
      const int left = move("out", spec::Load::ce_out, {last_});
      if (run_.is_ahead) {
        move("in", spec::Load::ce_in, {});
      } else {
        last_ = std::max(last_, left);
      }
    }
    if (weights >= 0) used_.push_back(last_);
  }

  /// A micro-batch's stream, behind what was moved before: one that comes into a slot behind the one that leaves it.
  int move(const char* way, spec::Load load, std::initializer_list<int> after) {
    if (run_.streams_us == 0) return -1;
    const int moved = step_.add({.name = base::format("micro-batch {}", way),
                                 .lane = kOffloadStreams,
                                 .us = run_.streams_us / run_.micro_batches,
                                 .load = load,
                                 .bytes = run_.streams_bytes / run_.micro_batches,
                                 .kind = "other"},
                                after);
    if (load == spec::Load::ce_in) came_.push_back(moved);
    return moved;
  }

  /// Into a slot that the use of so many transfers before has left, read from the disk into one of the host before.
  int bring(size_t layer) {
    const int free = run_.is_ahead ? before(used_, run_.slots) : last_;
    int read = -1;
    if (run_.layers[layer] == Resting::disk) {
      read = step_.add({.name = base::format("read layer {}", layer),
                        .lane = kOffloadDisk,
                        .us = run_.disk_us,
                        .bytes = run_.layer_bytes,
                        .is_apart = true,
                        .kind = "other"},
                       {run_.is_ahead ? before(read_, run_.disk_slots) : last_});
    }
    const int brought = step_.add({.name = base::format("weights of layer {}", layer),
                                   .lane = kOffloadHost,
                                   .us = weights_us_,
                                   .load = spec::Load::ce_in,
                                   .bytes = run_.layer_bytes,
                                   .kind = "other"},
                                  {free, read});
    if (read >= 0) read_.push_back(brought);
    return brought;
  }

  static int before(const std::vector<int>& done, int slots) {
    const auto back = static_cast<size_t>(slots);
    return done.size() < back ? -1 : done[done.size() - back];
  }

  const OffloadRun& run_;
  Step step_;
  int last_ = -1;                 // of computation; where nothing is ahead, behind what it has to wait for
  double weights_us_;             // of a layer, over the link
  std::vector<int> used_, read_;  // what frees slots of the device and of the host, in order
  std::vector<int> came_;         // what brought streams of micro-batches, in order
  std::vector<int> ends_;
};

}  // namespace

double OffloadTime::bound_us() const { return std::max({compute_us, host_us, disk_us}); }

std::string OffloadTime::binds() const {
  if (compute_us >= bound_us()) return "compute";
  return disk_us >= bound_us() ? "disk" : "host link";
}

base::Result<OffloadTime> offload_passes(const OffloadRun& run, std::span<const spec::Contention> contention,
                                         base::Trace* timeline) {
  OVERLACE_TRY(check_offload_run(run));
  const Passes passes(run);
  const base::Result<StepTime> time = passes.step().run(contention);
  if (!time.ok()) return time.status();
  const auto end_of = [&](int pass) {
    const int task = passes.ends()[static_cast<size_t>(pass)];
    return sim::us_of_ps(time->end[static_cast<size_t>(task)]);
  };
  const auto of = [&](Resting where) { return real(std::count(run.layers.begin(), run.layers.end(), where)); };
  OffloadTime out;
  const int half = run.passes / 2;
  out.us = time->us;
  out.pass_us = (end_of(run.passes - 2) - end_of(half - 1)) / (run.passes - 1 - half);
  out.compute_us = real(std::ssize(run.layers)) * run.compute_us;
  const double streams_us = real(std::ssize(run.layers)) * run.streams_us;
  out.host_us = streams_us + std::max(real(streamed_layers(run)) * run.host_us, streams_us);
  out.disk_us = of(Resting::disk) * run.disk_us;
  out.lost_us = time->lost_us / run.passes;
  if (timeline != nullptr) *timeline = passes.step().to_trace(*time, "layers that do not fit, simulated");
  return out;
}

}  // namespace overlace::study
