// Data parallel training with local steps, as CO2 (arXiv 2401.16265) and its peers do: groups of GPUs hold a replica
// each and exchange increments of the parameters every `period` steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/machine.h"
#include "src/study/network/collectives.h"
#include "src/study/workload/step.h"

namespace overlace::study {

/// When groups exchange what, and who waits:
/// ddp: gradients, every step, at once. local_sgd, slow_mo, diloco: increments, at the end of a round, at once.
/// co2, eager: increments, awaited at the end of the next round. streaming: one of `fragments` of them in turn, awaited
/// `delay` steps later.
enum class OuterRule { ddp, local_sgd, slow_mo, diloco, co2, eager, streaming };
inline constexpr std::string_view kOuterRules[] = {"ddp", "local_sgd", "slow_mo",  "diloco",
                                                   "co2", "eager",     "streaming"};

struct Co2Run {
  OuterRule rule = OuterRule::co2;
  int per_group = 0;        // ranks of a replica; 0: those of a host
  double parameters = 1e9;  // of the model
  double wire_bytes = 4;    // of a parameter
  double step_us = 100e3;   // of an inner step, all of it
  int period = 12;          // steps of a round
  int rounds = 8;
  int fragments = 4, delay = 1;
  double pass_us = -1;        // of the outer update of a rank's parameters; < 0: 32 bytes each through memory
  double all_reduce_us = -1;  // of all of a rank's increments; < 0: as messages on the network
  double sigma = 0;           // of the steps of a round: a log-normal factor of each step
  uint64_t seed = 1;
};

struct Co2Time {
  double us = 0, bound_us = 0;
  double round_us = 0;    // of the later half of the rounds
  double compute_us = 0;  // of a round: its steps and the pass
  double all_reduce_us = 0, pass_us = 0;
  int groups = 1;
  std::string algorithm;
  double exposed_us() const { return round_us > compute_us ? round_us - compute_us : 0; }
  /// Steps of a group per second over what they were without exchange.
  double efficiency = 1;
};

/// Errc::invalid_argument for values out of range, groups that do not divide the ranks, or more than kMostTasks steps.
base::Result<Co2Time> co2_training(const Co2Run& run, const spec::Machine& machine, const Network& network,
                                   base::Trace* timeline = nullptr);

}  // namespace overlace::study
