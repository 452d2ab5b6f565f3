// Options of data-parallel training with hidden outer communication: of a run of CO2 or of one of the rules beside it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// The rule by which groups exchange what they learned in a round. `local_sgd`, `slow_mo` and `diloco` exchange
/// increments at the end of a round and wait at once. `co2` and `eager` wait for them at the end of the next round.
/// `streaming` exchanges one of `fragments` parts in turn and waits for it `delay` steps later.
enum class OuterRule { local_sgd, slow_mo, diloco, co2, eager, streaming };
inline constexpr std::string_view kOuterRuleNames[] = {"local_sgd", "slow_mo", "diloco", "co2", "eager", "streaming"};

/// The divisor of an increment that arrives late. `constant` divides by gap_value; `adaptive` by 1 to 2, depending on
/// how far the anchor moved.
enum class StalenessGap { none, constant, adaptive };
inline constexpr std::string_view kStalenessGapNames[] = {"none", "constant", "adaptive"};

/// The bound on the elements of the outer momentum. `absolute` is phi; `relative` is phi times a running mean of the
/// root mean square of the tensor's increments.
enum class MomentumClip { none, absolute, relative };
inline constexpr std::string_view kMomentumClipNames[] = {"none", "absolute", "relative"};

/// What may differ from round to round; fields as those of the same names in Co2Options.
struct Co2Knobs {
  int64_t tau = 0;
  double outer_lr = -1, outer_momentum = -1;
};

/// Options of a run. Steps are inner steps of the optimizer, and a group is the ranks that average gradients at every
/// step.
struct Co2Options {
  static constexpr double kOfRule = -1;  // the rule's own value is taken

  OuterRule rule = OuterRule::co2;
  int64_t tau = 12;                 // inner steps of a round
  double outer_lr = kOfRule;        // alpha; 1, diloco and streaming 0.7
  double outer_momentum = kOfRule;  // beta; co2 0 (kappa above 0: 0.8), slow_mo 0.2, diloco, streaming 0.9, others 0
  double kappa = 0;                 // pseudo-gradient of co2: 1 from the present anchor, 0 from that of the increment
  double keep = kOfRule;            // share of a group's own increment that it keeps until the mean is there; co2 0.8
                                    // (kappa above 0: 0), eager 1 / groups; other rules 0
  int64_t fragments = 0;            // streaming: parts, each sent once a round; 0: as many as divide tau, at most 4
  int64_t delay = 1;                // streaming: steps, at most tau / fragments; 0: it waits at once
  double mix = 0.5;                 // streaming: share of its own parameters in a fragment that arrives
  StalenessGap gap = StalenessGap::none;
  double gap_value = 1;                        // divisor of StalenessGap::constant
  MomentumClip clip = MomentumClip::relative;  // for co2 only
  double phi = kOfRule;                        // 3; 1 with kappa and keep 0
  int64_t warmup_sync_steps = 0;               // steps with a mean of gradients before round 0
  int64_t cooldown_sync_steps = 0;             // such steps at the end; needs total_steps
  int64_t total_steps = 0;                     // 0: not known
  int64_t check_every = 0;                     // rounds between comparisons of the anchors of all groups; 0: never
  double samples = 0;  // that this group sees in an inner step; 0: groups are equal. Otherwise tau and samples may
                       // differ between groups, and a round's mean is weighted by the samples that each has seen in it.
                       // Rules co2, local_sgd, slow_mo, diloco, without averaged gradients and adaptive gap
  /// Knobs of the first rounds, one row each; later ones have tau, outer_lr and outer_momentum. Fragments of streaming
  /// are a round once all of them were sent. Streaming and unequal groups have one tau.
  std::vector<Co2Knobs> schedule = {};
  /// slow_mo: the momentum is of increments over the mean inner learning rate of their rounds, and moves the anchor by
  /// as many times that of the present one.
  bool momentum_over_lr = false;

  /// Returns options with which training is stable: the defaults.
  static Co2Options stable(int64_t tau);
  /// Returns the paper's choice for a number of GPUs, as far as it is public.
  static Co2Options paper(int64_t tau, int gpus);
};

#pragma GCC visibility pop

}  // namespace overlace
