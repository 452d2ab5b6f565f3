// A rank that runs schedules on memory of its own and times them among its team, on any backend.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/calibrate/fit.h"
#include "overlace/bootstrap.h"
#include "overlace/runtime.h"
#include "src/base/status.h"
#include "src/exec/run.h"
#include "src/tuning/measure.h"

namespace overlace::cli {

/// Runs on every rank alike; all calls are collective.
class Rig final : public tuning::Crew {
 public:
  /// Opens the runtime; `argument_bytes` for each of the operands that a schedule names.
  Rig(Bootstrap& bootstrap, const RuntimeOptions& options, size_t argument_bytes);
  ~Rig() override;
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Team& team() { return runtime_->world(); }
  bool is_gpu() const { return runtime_->backend() == Backend::cuda_peer; }
  Runtime& runtime() { return *runtime_; }
  /// Queues it so often; cpu: done on return. Arguments are bound to normal data.
  base::Status run(const spec::Schedule& schedule, int iterations);
  /// SMs store `bytes` of the first operand's memory: to the next rank, into its result's, or (memory) into the rank's
  /// own. CPU ranks: one core does, `ctas` is 1. not_supported: tma on CPU ranks.
  base::Status push(Probe probe, int ctas, int64_t bytes, int iterations);
  /// Calls for about `seconds`, with breaks so that they take `share` of the time.
  struct Duty {
    double us = 0;                 // of a call in the second half, of the slowest rank
    double sm_mhz = 0, watts = 0;  // of this rank behind it; 0: nobody says
  };
  base::Result<Duty> duty(const spec::Schedule& schedule, double share, double seconds);
  /// What each rank says of its links, as links_of() wants it: all get the same.
  base::Result<std::vector<std::string>> link_texts();
  /// Time that this thread takes to queue one call, of the slowest rank; the queue is empty before.
  base::Result<double> queue_us(const spec::Schedule& schedule);
  /// Between the first and the last rank that leaves a barrier.
  base::Result<double> skew_us();
  /// Drops bindings of schedules that no longer live.
  void forget() { bindings_.clear(); }
  void close();

  base::Status synchronize() override;
  base::Status barrier() override;
  base::Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) override {
    return tuning::max_over_ranks(team(), mine);
  }

 private:
  base::Result<const exec::Bindings*> bindings(const spec::Schedule& schedule);
  void fill(const SymBuffer& buffer);

  std::unique_ptr<Runtime> runtime_;
  Channel* channel_ = nullptr;
  size_t argument_bytes_;
  std::vector<SymBuffer> memory_;                             // first operand, second operand, result
  std::map<const spec::Schedule*, exec::Bindings> bindings_;  // by address: schedules live until forget()
};

}  // namespace overlace::cli
