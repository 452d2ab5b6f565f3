#include "src/ops/gemm_core/kernel.cuh"

OVERLACE_GEMM_UNIT(bf16_k_128x128_c21_s6_t)
