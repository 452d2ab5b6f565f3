#include "src/ops/gemm_core/scatter_kernel.cuh"

OVERLACE_SCATTER_UNIT(fp16_k_128x128_c21_s6)
