#include "src/ops/gemm_core/gather_kernel.cuh"

OVERLACE_GATHER_UNIT(bf16_k_128x160_c11_s4_k2)
