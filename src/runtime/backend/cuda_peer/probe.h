// What this process's CUDA devices are and can do towards each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/control.h"

namespace overlace::runtime::cuda_peer {

/// What a rank tells the others about its device. Trivially copyable: exchanged as bytes.
struct DeviceFacts {
  char uuid[16] = {};
  int32_t ordinal = -1;            // in the process of that rank
  int32_t compute_capability = 0;  // 90: 9.0
  int32_t pci_domain = 0, pci_bus = 0, pci_device = 0;
  int64_t pid = 0;
  uint32_t vmm = 0;         // virtual memory management with descriptors as handles
  uint32_t rdma = 0;        // its allocations may be registered with network adapters
  uint32_t stream_ops = 0;  // 64-bit stream memory operations
  uint32_t allow_shared = 0;
};

/// The device of a rank: the one asked for, else its local rank modulo the devices this process sees. not_supported if
/// the build has no code for it.
base::Result<int> choose_device(int wanted, int local_rank);
base::Result<DeviceFacts> query_device(int ordinal);

/// Multiprocessors of a device; 0 if it cannot be asked.
int count_sms(int ordinal);

/// Two processes on one device: refused unless all of them allow it. Names both ranks.
base::Status check_sharing(std::span<const DeviceFacts> facts);

/// How many ranks share a device, and whether two of them are processes: their kernels take turns then, so that none
/// may wait on the device for another.
struct Sharing {
  bool any = false, between_processes = false;
};
Sharing find_sharing(std::span<const DeviceFacts> facts);

/// Peer access and native atomics from `ordinal` to each of `facts`; a peer's device that this process does not see
/// counts as unreachable.
struct PeerAccess {
  bool access = false, atomics = false;
};
std::vector<PeerAccess> query_access(int ordinal, std::span<const DeviceFacts> facts);

}  // namespace overlace::runtime::cuda_peer
