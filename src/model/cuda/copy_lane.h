// The lane of copies of one GPU: its copy engine, on a stream of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "src/model/device.h"

namespace overlace::model {

/// `stream`: of the computation. `timeout_ms`: of synchronize().
base::Result<std::unique_ptr<CopyLane>> make_cuda_copy_lane(int device, cudaStream_t stream, int events,
                                                            int64_t timeout_ms);

}  // namespace overlace::model
