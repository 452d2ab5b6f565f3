#include "src/ops/gemm_core/kernel.cuh"

OVERLACE_GEMM_UNIT(bf16_k_128x160_c11_s4_k2)
