#include "src/train/co2/control.h"

#include <cmath>

namespace overlace::train {

void begin_boundary(ControlPod& control, std::span<TensorPod> tensors, std::span<const SumsPod> sums,
                    const HeaderPod* sum, const HeaderPod& own, const KnobsPod& knobs) {
  OVERLACE_ASSERT(tensors.size() == sums.size());
  control.verdict = sum == nullptr ? Verdict::none_yet : judge(*sum, own, knobs.groups, knobs.is_weighted != 0);
  control.bad_in_row = control.verdict == Verdict::bad_values ? control.bad_in_row + 1 : 0;
  double m2 = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    m2 += sums[i].m2;
    const double rms = tensors[i].count > 0 ? std::sqrt(sums[i].v2 / tensors[i].count) : 0;
    next_bound(tensors[i], knobs, rms);
  }
  control.lambda = next_lambda(control, knobs, std::sqrt(m2));
  control.pass = pass_of(control, knobs);
}

void end_boundary(ControlPod& control, const KnobsPod& knobs) {
  control.alpha_moved = control.pass.is_applied != 0 ? knobs.alpha : 0;
}

HeaderPod header_of(std::span<const SumsPod> sums, int64_t round, int64_t steps, uint64_t config_hash,
                    uint64_t anchor_hash) {
  HeaderPod header;
  header.round = static_cast<double>(round);
  header.steps = static_cast<double>(steps);
  header.config_low = static_cast<double>(config_hash & 0xffffffffu);
  header.config_high = static_cast<double>(config_hash >> 32);
  header.anchor_low = static_cast<double>(anchor_hash & 0xffffffffu);
  header.anchor_high = static_cast<double>(anchor_hash >> 32);
  for (const SumsPod& tensor : sums) {
    header.bad += tensor.bad;
    header.norm2 += tensor.w2;
  }
  // NOTE: the sum of norms may pass a number's range although each element does not; a header stays a number.
  if (!std::isfinite(header.norm2)) header.norm2 = 0;
  return header;
}

base::Status status_of(const ControlPod& control, const HeaderPod& sum, const HeaderPod& own, const KnobsPod& knobs) {
  const int64_t groups = knobs.groups;
  if (control.verdict == Verdict::desync) {
    const double g = static_cast<double>(groups);
    const struct {
      const char* what;
      double sum, own;
    } rows[] = {{"groups", sum.count, own.count},
                {"version", sum.version, own.version},
                {"configuration (low half of its hash)", sum.config_low, own.config_low},
                {"configuration (high half of its hash)", sum.config_high, own.config_high},
                {"round", sum.round, own.round},
                {"steps of the round", knobs.is_weighted != 0 ? g * own.steps : sum.steps, own.steps},
                {"anchor (low half of its hash)", sum.anchor_low, own.anchor_low},
                {"anchor (high half of its hash)", sum.anchor_high, own.anchor_high}};
    for (const auto& row : rows)
      if (row.sum != g * row.own)
        return base::error(
            Errc::desync,
            "groups are out of step at round {}: {} is {} here, which sums to {} over {} groups, and the "
            "sum is {}; the round was dropped on all ranks",
            own.round, row.what, row.own, g * row.own, groups, row.sum);
  }
  if (control.verdict == Verdict::bad_values && control.bad_in_row >= kMostBadRounds)
    return base::error(Errc::non_finite,
                       "{} rounds in a row had increments that are not finite, {} elements in the last; the anchor is "
                       "that of the last good round",
                       control.bad_in_row, sum.bad);
  return base::Status::success();
}

}  // namespace overlace::train
