// First exchange of an open: who we are, and whether we agree.
#pragma once

#include <vector>

#include "overlace/runtime.h"
#include "src/base/status.h"
#include "src/runtime/backend.h"
#include "src/runtime/control.h"

namespace overlace::runtime {

/// Identity of this host: boot, host name and network namespace, or OVERLACE_HOST_ID.
uint64_t host_id();
/// Identity of the machine, which may be several hosts: its boot; kUnknownMachine where the system does not say.
uint64_t machine_id();
inline constexpr uint64_t kUnknownMachine = 0;

/// Collective. All ranks' Hellos by rank; layout_mismatch names the first field that differs, the ranks and both
/// values.
base::Result<std::vector<Hello>> exchange_hello(Control& control, const RuntimeOptions& options, uint32_t abi);

}  // namespace overlace::runtime
