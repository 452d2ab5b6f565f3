#include "src/ops/gemm_core/one_shot_kernel.cuh"

OVERLACE_ONE_SHOT_UNIT(fp16_k_64x64_c11_s13_t)
