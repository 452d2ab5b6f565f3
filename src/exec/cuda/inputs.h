// Values for buffers that a schedule reads and nobody writes.
#pragma once

#include "src/exec/program.h"

namespace overlace::exec {

/// Local buffers that are read and never written (the operands of schedules that only measure) get normal values: a
/// GEMM on zeros runs faster than on data.
base::Status fill_inputs(const Program& program);

}  // namespace overlace::exec
