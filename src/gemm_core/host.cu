#include <map>
#include <mutex>
#include <utility>

#include "src/gemm_core/host.cuh"

namespace overlace::gemm_core {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver's function, without linking the driver.
base::Result<Encode> encode_function() {
  static void* const function = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found{};
    constexpr unsigned kSince = 12000;
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, kSince, cudaEnableDefault, &found);
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? f : nullptr;
  }();
  if (function == nullptr) return base::error(Errc::not_supported, "gemm_core: the driver has no tensor maps");
  return reinterpret_cast<Encode>(function);
}

cudaLaunchConfig_t launch_config(const ConfigSpec& spec, int clusters, cudaLaunchAttribute* attributes) {
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(spec.cluster());
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * spec.cluster()));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = dynamic_shared_bytes(spec);
  config.attrs = attributes;
  config.numAttrs = 1;
  return config;
}

std::mutex counted_mutex;
std::map<std::pair<const void*, int>, int> counted;  // clusters that run at once, by kernel and device

CUtensorMapDataType type_of(DType dtype) {
  return dtype == DType::fp32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
         : dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

}  // namespace

base::Status cuda_status(cudaError_t e, const char* call) {
  if (e == cudaSuccess) return {};
  return base::error(Errc::cuda, "gemm_core: {}: {}", call, cudaGetErrorString(e));
}

base::Status encode(const Matrix& x, DType dtype, CUtensorMap* map) {
  const auto function = encode_function();
  if (!function.ok()) return function.status();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.cols), static_cast<cuuint64_t>(x.rows)};
  const size_t element = dtype_bytes(dtype);
  const cuuint64_t pitches[] = {static_cast<cuuint64_t>(x.pitch) * element};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(x.box_cols), static_cast<cuuint32_t>(x.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const size_t row = static_cast<size_t>(x.box_cols) * element;
  const CUtensorMapSwizzle swizzle = row == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : row == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                 : CU_TENSOR_MAP_SWIZZLE_32B;
  const CUresult e = (*function)(map, type_of(dtype), 2, const_cast<void*>(x.data), sizes, pitches, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return {};
  return base::error(Errc::cuda, "gemm_core: cuTensorMapEncodeTiled returned {} for {} ({}, {}), pitch {}",
                     static_cast<int>(e), x.name, x.rows, x.cols, x.pitch);
}

base::Status encode_stack(const Stack& x, DType dtype, CUtensorMap* map) {
  const auto function = encode_function();
  if (!function.ok()) return function.status();
  const auto halves = static_cast<cuuint64_t>(x.halves);
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.cols), halves, static_cast<cuuint64_t>(x.rows),
                              static_cast<cuuint64_t>(x.matrices)};
  const cuuint64_t pitches[] = {static_cast<cuuint64_t>(x.rows * x.pitch) * 2, static_cast<cuuint64_t>(x.pitch) * 2,
                                static_cast<cuuint64_t>(x.matrix_pitch) * 2};
  const cuuint32_t box[] = {kStackColumns, static_cast<cuuint32_t>(x.halves),
                            static_cast<cuuint32_t>(x.box_rows / x.halves), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  const CUresult e = (*function)(map, type_of(dtype), 4, const_cast<void*>(x.data), sizes, pitches, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return {};
  return base::error(Errc::cuda, "gemm_core: cuTensorMapEncodeTiled returned {} for {} ({}, {}, {}, {}), pitch {}",
                     static_cast<int>(e), x.name, x.matrices, x.rows, x.halves, x.cols, x.pitch);
}

base::Status validate_operand(const Operand& x) {
  if (x.data == nullptr || reinterpret_cast<uintptr_t>(x.data) % 16 != 0) {
    return base::invalid_argument("gemm_core: {} is at {}; wanted: a multiple of 16", x.name,
                                  reinterpret_cast<uintptr_t>(x.data));
  }
  if (x.pitch % 8 != 0 || x.pitch < x.cols) {
    return base::invalid_argument("gemm_core: ld of {} is {}; wanted: a multiple of 8, >= {}", x.name, x.pitch, x.cols);
  }
  return {};
}

base::Status validate_stack(const char* name, int64_t matrix_pitch, int64_t rows, int64_t columns, int64_t pitch) {
  const int64_t least = pitch * (rows - 1) + columns;
  if (matrix_pitch % 8 == 0 && matrix_pitch >= least) return {};
  return base::invalid_argument("gemm_core: matrices of {} are {} elements apart; wanted: a multiple of 8, >= {}", name,
                                matrix_pitch, least);
}

base::Result<int> count_clusters(const void* kernel, const ConfigSpec& spec, const char* name) {
  int device = 0;
  OVERLACE_TRY(cuda_status(cudaGetDevice(&device), "cudaGetDevice"));
  const std::lock_guard lock(counted_mutex);
  int& count = counted[{kernel, device}];
  if (count > 0) return count;
  OVERLACE_TRY(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(dynamic_shared_bytes(spec))),
                           "cudaFuncSetAttribute"));
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config = launch_config(spec, 1, attributes);
  int clusters = 0;
  OVERLACE_TRY(
      cuda_status(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cudaOccupancyMaxActiveClusters"));
  if (clusters < 1) return base::error(Errc::co_residency, "gemm_core: no CTA of {} fits", name);
  return count = clusters;
}

bool has_counted_clusters(const void* kernel) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  const std::lock_guard lock(counted_mutex);
  const auto found = counted.find({kernel, device});
  return found != counted.end() && found->second > 0;
}

base::Status launch_grid(const Grid& grid, const void* params, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config = launch_config(grid.spec, grid.clusters, attributes);
  config.stream = stream;
  if (grid.uses_pdl) {
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 2;
  }
  void* arguments[] = {const_cast<void*>(params)};
  return cuda_status(cudaLaunchKernelExC(&config, grid.kernel, arguments), "launch");
}

}  // namespace overlace::gemm_core
