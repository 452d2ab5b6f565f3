// Gathered rows as a result: behind a fused kernel, out of the buffer that its call used.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/handle_pod.h"
#include "src/base/status.h"

namespace overlace::ops::fused {

/// Rows of row_units times 16 bytes, which touch in the inbox. The device knows which buffer: the count of calls is
/// there, and graphs replay.
struct RowsOfCall {
  InboxPod inbox;
  const char* from;  // in the first buffer
  uint4* to;
  int64_t rows, row_units, to_pitch;  // units from a row to the next
};
base::Status launch_copy_rows(const RowsOfCall& rows, int ctas, cudaStream_t stream);

}  // namespace overlace::ops::fused
