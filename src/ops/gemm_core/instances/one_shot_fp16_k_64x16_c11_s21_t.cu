#include "src/ops/gemm_core/one_shot_kernel.cuh"

OVERLACE_ONE_SHOT_UNIT(fp16_k_64x16_c11_s21_t)
