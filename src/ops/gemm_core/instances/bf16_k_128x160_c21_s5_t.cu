#include "src/ops/gemm_core/kernel.cuh"

OVERLACE_GEMM_UNIT(bf16_k_128x160_c21_s5_t)
