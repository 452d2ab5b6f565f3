#include "src/ops/gemm_core/gather_one_shot_kernel.cuh"

OVERLACE_GATHER_ONE_SHOT_UNIT(fp16_k_64x16_c11_s21_k2_t)
