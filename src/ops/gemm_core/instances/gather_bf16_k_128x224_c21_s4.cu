#include "src/ops/gemm_core/gather_kernel.cuh"

OVERLACE_GATHER_UNIT(bf16_k_128x224_c21_s4)
