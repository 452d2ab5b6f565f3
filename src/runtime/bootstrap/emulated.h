// Hosts that are one machine: what their ranks have in their environment.
#pragma once

#include <string>

#include "src/runtime/bootstrap/launcher.h"

namespace overlace::runtime {

/// What ranks of emulated hosts have in OVERLACE_HOST_ID, in front of the host's number.
inline constexpr const char* kEmulatedHost = "emulated host ";

/// Variables of a rank on host `host`: its identity for overlace and for NCCL.
Variables emulated_host(int host);

/// In this process and in those that it starts: NCCL uses sockets between hosts, over the loopback interface where
/// there is no other. Variables that are set stay.
void keep_nccl_to_sockets();

}  // namespace overlace::runtime
