// The numbers of a boundary on the host: from what was summed to the scalars of the pass.
#pragma once

#include <cstdint>
#include <span>

#include "src/base/status.h"
#include "src/train/co2/control_pod.h"

namespace overlace::train {

/// Before the pass of a boundary. `sum`: the reduced header of the increment that the pass takes in, null where there
/// is none; `own`: what this rank sent in it. `sums`: by tensor, of the pass before. Moves all of `control` on.
void begin_boundary(ControlPod& control, std::span<TensorPod> tensors, std::span<const SumsPod> sums,
                    const HeaderPod* sum, const HeaderPod& own, const KnobsPod& knobs);

/// After it: by how much the anchor moved.
void end_boundary(ControlPod& control, const KnobsPod& knobs);

/// The header of the increment that the pass has just written.
HeaderPod header_of(std::span<const SumsPod> sums, int64_t round, int64_t steps, uint64_t config_hash,
                    uint64_t anchor_hash);

/// What to throw for this verdict: Desync with own and expected values, NonFinite at kMostBadRounds in a row.
base::Status status_of(const ControlPod& control, const HeaderPod& sum, const HeaderPod& own, const KnobsPod& knobs);

}  // namespace overlace::train
