// What is decided at a boundary from numbers: is the round good, how stale is it, how far may the momentum go. The same
// functions run on the host and in a kernel of one thread per tensor.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define OVERLACE_TRAIN_BOTH __host__ __device__
#else
#define OVERLACE_TRAIN_BOTH
#endif

namespace overlace::train {

inline constexpr int kHeaderWords = 10;
inline constexpr double kHeaderVersion = 1;
inline constexpr int kMostBadRounds = 3;

/// Travels behind the buckets of a round. What the groups must have alike is summed: the sum must be that of one times
/// their number, else they are out of step.
struct HeaderPod {
  double count = 1;
  double round = 0;
  double config_low = 0, config_high = 0;  // halves of the hash of options and tensors
  double bad = 0;                          // elements of the round's increment that are not finite
  double norm2 = 0;                        // of the increment
  double steps = 0;                        // inner steps of the round; of unequal groups: samples
  double version = kHeaderVersion;
  double anchor_low = 0, anchor_high = 0;  // halves of the hash of anchor and momentum; 0 where not compared
};
static_assert(sizeof(HeaderPod) == kHeaderWords * sizeof(double));

enum class Verdict : int32_t { good, none_yet, bad_values, desync };

/// What the host knows of a boundary, the same on all ranks.
struct KnobsPod {
  int64_t groups = 1;
  int64_t boundary = 0;  // number of this boundary
  double alpha = 1, beta = 0, kappa = 0, keep = 0, mix = 0, phi = 0, gap_value = 1;
  double lr_ratio = 1;        // mean inner learning rate of this round over that of the round before
  int32_t gap = 0, clip = 0;  // StalenessGap, MomentumClip
  int32_t is_flush = 0;       // the last increment goes in whole
  int32_t is_nesterov = 0;    // diloco, eager, streaming
  int32_t is_weighted = 0;    // groups are unequal
  double all_samples = 0;     // that unequal groups see in whole rounds
  double incoming = 1;        // factor of what comes in: samples of whole rounds over those of this one
};

/// Sums of one tensor over the elements that this rank holds, or its group once the group has added them up.
struct SumsPod {
  double m2 = 0, w2 = 0, v2 = 0;  // squares of momentum, own increment, mean increment
  double bad = 0;                 // elements of the own increment that are not finite
  double clipped = 0;             // elements of the momentum at the bound
};

/// What is kept of one tensor from boundary to boundary.
struct TensorPod {
  double count = 0;     // elements, of all shards
  double mean_rms = 0;  // running mean of rms(mean increment); 0: none yet
  float bound = 0;      // of the momentum in the next pass; infinity: none
  int32_t unused = 0;   // in place of padding: every byte of a checkpoint is set
};
static_assert(sizeof(TensorPod) == 2 * sizeof(double) + sizeof(float) + sizeof(int32_t));

/// Scalars of a pass, equal on all ranks.
struct PassPod {
  float pull = 0;        // d = v - pull * m
  float inv_lambda = 1;  // m = clip(beta * m + d * inv_lambda)
  float beta = 0;
  float step_m = 1, step_d = 0;  // a -= step_m * m + step_d * d
  float keep = 0;                // x = a - keep * own increment
  float mix = 0;                 // where an increment comes in alone: x = mix * x + (1 - mix) * a
  int32_t is_applied = 0;        // 0: a and m stay as they are
};

/// From boundary to boundary; part of a checkpoint.
struct ControlPod {
  double farthest = 0;     // C: how far the anchor moved at most, forgetting 1 % a round
  double moved = 0;        // S: how far it moved at the boundary before
  double alpha_moved = 0;  // outer learning rate by which it moved there; 0: it stayed
  double lambda = 1;
  int64_t bad_in_row = 0;
  Verdict verdict = Verdict::none_yet;
  PassPod pass{};
  int32_t unused = 0;  // in place of padding
};
static_assert(sizeof(ControlPod) ==
              4 * sizeof(double) + sizeof(int64_t) + sizeof(Verdict) + sizeof(PassPod) + sizeof(int32_t));

/// What a boundary came to, in numbers that the host wants to know.
struct FactsPod {
  ControlPod control{};
  HeaderPod sum{}, own{};              // of the increment that was taken in
  double m2 = 0, v2 = 0, clipped = 0;  // over all tensors
};

/// The header to be judged: null where nothing came in, or no unequal group took a step. Sets knobs.incoming.
OVERLACE_TRAIN_BOTH inline const HeaderPod* take_header(KnobsPod& knobs, const HeaderPod* sum) {
  if (sum == nullptr || knobs.is_weighted == 0) return sum;
  if (sum->steps == 0) return nullptr;
  knobs.incoming = knobs.all_samples / sum->steps;
  return sum;
}

/// Whether the sum of all headers is that of groups in step. `own` is what this rank sent.
OVERLACE_TRAIN_BOTH inline Verdict judge(const HeaderPod& sum, const HeaderPod& own, int64_t groups,
                                         bool is_weighted = false) {
  const double g = static_cast<double>(groups);
  const bool is_in_step = sum.count == g && sum.round == g * own.round && sum.config_low == g * own.config_low &&
                          sum.config_high == g * own.config_high && (is_weighted || sum.steps == g * own.steps) &&
                          sum.version == g * own.version && sum.anchor_low == g * own.anchor_low &&
                          sum.anchor_high == g * own.anchor_high;
  if (!is_in_step) return Verdict::desync;
  return sum.bad == 0 ? Verdict::good : Verdict::bad_values;
}

/// The staleness gap; moves S and C on by a round.
OVERLACE_TRAIN_BOTH inline double next_lambda(ControlPod& control, const KnobsPod& knobs, double momentum_norm) {
  control.moved = control.alpha_moved * momentum_norm;
  const double kept = 0.99 * control.farthest * knobs.lr_ratio;
  const bool is_restart = knobs.lr_ratio > 2;
  control.farthest = is_restart || kept < control.moved ? control.moved : kept;
  if (knobs.is_flush != 0 || knobs.gap == 0) return 1;
  if (knobs.gap == 1) return knobs.gap_value;
  if (knobs.boundary < 2 || control.farthest <= 0) return 1;
  return 1 + control.moved / control.farthest;
}

/// The bound of a tensor's momentum in the pass to come, from what came in before it.
OVERLACE_TRAIN_BOTH inline void next_bound(TensorPod& tensor, const KnobsPod& knobs, double incoming_rms) {
  const bool is_number = incoming_rms > 0 && incoming_rms <= 1.7e308;
  if (is_number) tensor.mean_rms = tensor.mean_rms == 0 ? incoming_rms : 0.9 * tensor.mean_rms + 0.1 * incoming_rms;
  tensor.bound = __builtin_huge_valf();
  if (knobs.is_flush != 0 || knobs.clip == 0) return;
  if (knobs.clip == 1) tensor.bound = static_cast<float>(knobs.phi);
  if (knobs.clip == 2 && tensor.mean_rms > 0) tensor.bound = static_cast<float>(knobs.phi * tensor.mean_rms);
}

/// Scalars of the pass, once the round was judged and Lambda is known.
OVERLACE_TRAIN_BOTH inline PassPod pass_of(const ControlPod& control, const KnobsPod& knobs) {
  PassPod pass;
  const double beta = knobs.is_flush != 0 ? 0 : knobs.beta;
  // With the mean `incoming` times what came in, d is as many times v - pull / incoming * m.
  pass.pull = static_cast<float>(knobs.kappa * control.alpha_moved / knobs.incoming);
  pass.inv_lambda = static_cast<float>(knobs.incoming / control.lambda);
  pass.beta = static_cast<float>(beta);
  pass.step_m = static_cast<float>(knobs.is_nesterov != 0 ? knobs.alpha * beta : knobs.alpha);
  pass.step_d = static_cast<float>(knobs.is_nesterov != 0 ? knobs.alpha * knobs.incoming : 0);
  pass.keep = static_cast<float>(knobs.is_flush != 0 ? 0 : knobs.alpha * knobs.keep);
  pass.mix = static_cast<float>(knobs.is_flush != 0 ? 0 : knobs.mix);
  pass.is_applied = control.verdict == Verdict::good ? 1 : 0;
  return pass;
}

}  // namespace overlace::train
