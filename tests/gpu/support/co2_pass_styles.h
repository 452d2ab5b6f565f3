// The pass of CO2 over fp32 in ways that the library does not have, to be timed beside its own.
#pragma once

#include <span>

#include "src/train/co2/cuda/pass.h"

namespace overlace::test {

/// As train::queue_pass with PassMode::fused, parameters and wire in fp32.
struct PassStyleRow {
  const char* name;
  base::Status (*queue)(const train::CudaArrays& arrays, float groups, const train::CudaRun& run, void* cuda_stream);
};
std::span<const PassStyleRow> pass_styles();

}  // namespace overlace::test
