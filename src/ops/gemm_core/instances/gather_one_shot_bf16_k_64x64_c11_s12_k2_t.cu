#include "src/ops/gemm_core/gather_one_shot_kernel.cuh"

OVERLACE_GATHER_ONE_SHOT_UNIT(bf16_k_64x64_c11_s12_k2_t)
