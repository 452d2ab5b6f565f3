// The hash behind schedule digests. Not cryptographic: it finds mistakes, not attacks.
#pragma once

#include <string>
#include <string_view>

#include "overlace/schedule.h"

namespace overlace::spec {

/// FNV-1a, 128 bits, as 32 hex digits.
std::string hash128(std::string_view bytes);

/// Differs where the schedules differ in anything but the value of parameter `own`, as 32 hex digits. It is made from
/// the schedule's parts as they are, at a fifth of the cost of its JSON, and is no name of it: other versions of the
/// library may give other digits.
std::string fingerprint(const Schedule& schedule, std::string_view own = {});

}  // namespace overlace::spec
