// The pass of CO2 over fp32 by the unit that copies in bulk, which the library does not have, to be timed beside its
// own.
#pragma once

#include "src/train/co2/cuda/pass.h"

namespace overlace::test {

/// As train::queue_pass with PassMode::fused, with what is kept and without momentum.
base::Status queue_pass_in_bulk(const train::CudaArrays& arrays, float groups, const train::CudaRun& run,
                                void* cuda_stream);

}  // namespace overlace::test
