#include "src/ops/gemm_core/scatter_kernel.cuh"

OVERLACE_SCATTER_UNIT(bf16_k_128x192_c21_s4)
