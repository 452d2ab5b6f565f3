// Rows by their numbers, by a kernel: from the memory of a GPU, pinned memory of the host and memory of peers at once.
#pragma once

#include <cstdint>
#include <span>

#include "src/base/status.h"

namespace overlace::gnn {

/// Rows one behind the other in memory that the device reads.
struct DeviceRows {
  const void* data = nullptr;
  int64_t num_rows = 0;
};

inline constexpr uint64_t kNoBadId = ~uint64_t{0};

struct DeviceGather {
  std::span<const DeviceRows> sources;  // 1 to 16; rows are numbered one source behind the other
  int64_t row_bytes = 0;
  const void* ids = nullptr;  // in memory that the device reads
  int64_t num_ids = 0;
  int id_bytes = 8;  // 4 or 8
  void* out = nullptr;
  /// A word of the device that holds kNoBadId. It becomes the place of the first id out of range, and while it is
  /// anything but kNoBadId nothing is gathered. One word is of calls on one stream. Null: rows of ids out of range are
  /// left as they are, all others come.
  uint64_t* first_bad = nullptr;
  int device = 0;
  int ctas = 0;  // at most so many; 0: as many as the device runs at a time
};

/// Queues on `cuda_stream`, a stream of g.device: row i of `out` becomes row ids[i]. May be captured. Tables and ids
/// must stay until the stream is past it. invalid_argument: sizes that do not belong together, memory that the device
/// does not read, an `out` that lies in a source. not_supported: a peer that cannot be reached, a build without CUDA.
base::Status queue_gather_rows(const DeviceGather& g, void* cuda_stream);

/// Loads the kernels for the current device. Where they are loaded at the first launch it may wait for other streams.
base::Status load_gather_kernels();

/// The part of queue_gather_rows behind the checks that want no device (src/gnn/gather/cuda).
base::Status launch_gather_rows(const DeviceGather& g, void* cuda_stream);

}  // namespace overlace::gnn
