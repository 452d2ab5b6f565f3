// The portable provider of cpu_gemm: always there, and the oracle of the others.
#pragma once

#include "src/exec/gemm.h"

namespace overlace::exec {

/// Precondition: args passed the checks of cpu_gemm.
void reference_gemm(const GemmArgs& args);

}  // namespace overlace::exec
