// Whether a fused kernel does what the schedule says.
#pragma once

#include "overlace/schedule.h"
#include "src/base/status.h"
#include "src/spec/expand.h"

namespace overlace::spec {

/// Compares each part of the schedule's kernel on this rank with what the kernel does in its place: where its result
/// goes, what it waits for, whom it tells, which parts come before. That is made of the functions by which the device
/// acts (item_effects_pod.h, fused_pod.h) and of the schedule's sizes, not of its tasks. Returns bad_schedule with the
/// part, what the schedule says and what the kernel does; for a part too many or too few; and where inboxes have
/// another shape than the kernel's.
base::Status check_kernel(const Schedule& schedule, const Expansion& expansion);

}  // namespace overlace::spec
