// Which compiled kernel a schedule with a fused kernel takes on GPUs, or why there is none.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "overlace/channel.h"
#include "overlace/machine.h"
#include "overlace/runtime.h"
#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/ops/fused/instances.h"

namespace overlace::ops::fused {

/// Fewest waves of clusters times columns of a tile; of equals the wider tile, which loads less of A. `row_offsets`:
/// ranks + 1. K does not matter: it is the same for every tile. Null where none has that type and layout.
const InstanceSpec* choose_gather(DType dtype, BMajor b_major, std::span<const int64_t> row_offsets, int64_t n,
                                  int sms);
/// The first with clusters of tiles of (tile_rows, tile_cols), as the schedule's groups say.
const InstanceSpec* find_scatter(DType dtype, BMajor b_major, int64_t tile_rows, int64_t tile_cols);
/// The narrowest tile of kernel one_shot or gather_one_shot that takes `m` tokens; two CTAs a tile, each with half of
/// K, where that is less to do for a CTA.
const InstanceSpec* choose_one_shot(Kernel kernel, DType dtype, BMajor b_major, int64_t m, int64_t n, int sms);

/// The instance of the schedule on `sms` SMs; not_supported says what is missing.
base::Result<const InstanceSpec*> choose_instance(const spec::Schedule& schedule, int sms);

/// Whether a task of the schedule is a kernel that computes and communicates in one, and so needs an instance.
bool needs_instance(const spec::Schedule& schedule);

/// What a GPU says to the shape, types and layout of the schedule: ok if it needs no instance or there is one, else
/// not_supported with what is missing. This is the one answer to which shapes a family takes; nothing runs.
base::Status check_instance(const spec::Schedule& schedule);

/// Whether GPUs of these capabilities have the schedule's kernel, if it has one: all must be of kFusedCapability.
/// not_supported names the family and the first rank of the team (`caps`, by rank) whose GPU is another.
base::Status check_capability(const spec::Schedule& schedule, std::span<const Caps> caps);
/// Whether a machine's GPUs have the schedule's kernel, for whoever has no team: the simulator.
base::Status check_capability(const spec::Schedule& schedule, const spec::Machine& machine);

/// What a kernel whose ranks wait for each other needs of rank `rank` towards all members of its team (`caps`, by rank
/// of the team): not_supported with the first fact that is missing. It adds to signals of peers from many CTAs.
base::Status check_peers(const spec::Schedule& schedule, std::span<const Caps> caps, int rank);

/// What copies that wait for a kernel's counters need of rank `rank`: streams that can wait, and hardware queues for
/// them and the caller's (`connections`: CUDA_DEVICE_MAX_CONNECTIONS, -1 where it is not set). Else the queue that a
/// wait holds up may be that of the kernel which would end it. not_supported with the numbers.
base::Status check_queues(const spec::Schedule& schedule, const Caps& caps, int connections, int rank);

/// CPU ranks run every schedule; GPUs need the capability, peers as above and an instance.
base::Status check_fused(const Channel& channel, const spec::Schedule& schedule);

}  // namespace overlace::ops::fused
