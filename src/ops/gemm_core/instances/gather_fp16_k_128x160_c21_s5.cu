#include "src/ops/gemm_core/gather_kernel.cuh"

OVERLACE_GATHER_UNIT(fp16_k_128x160_c21_s5)
