#include "src/ops/gemm_core/gather_kernel.cuh"

OVERLACE_GATHER_UNIT(fp16_n_128x256_c21_s4)
