#include "src/ops/gemm_core/gather_kernel.cuh"

OVERLACE_GATHER_UNIT(bf16_n_128x128_c21_s6)
