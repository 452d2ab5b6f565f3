#include <algorithm>
#include <cstring>

#include "src/ops/gemm_core/launch.cuh"

namespace overlace::ops::gemm_core {
namespace {

base::Status cuda_status(cudaError_t e, const char* call) {
  if (e == cudaSuccess) return {};
  return base::error(Errc::cuda, "gemm_core: {}: {}", call, cudaGetErrorString(e));
}

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

/// A row-major matrix of 16-bit elements as boxes of (box_rows, box_cols).
struct Matrix {
  const char* name;
  const void* data;
  int64_t rows, cols, pitch;
  int box_rows, box_cols;
};
base::Status encode(const Matrix& x, DType dtype, CUtensorMap* map) {
  const auto function = encode_function();
  if (!function.ok()) return function.status();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.cols), static_cast<cuuint64_t>(x.rows)};
  const cuuint64_t pitches[] = {static_cast<cuuint64_t>(x.pitch) * 2};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(x.box_cols), static_cast<cuuint32_t>(x.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult e =
      (*function)(map, dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
                  const_cast<void*>(x.data), sizes, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  x.box_cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return {};
  return base::error(Errc::cuda, "gemm_core: cuTensorMapEncodeTiled returned {} for {} ({}, {}), pitch {}",
                     static_cast<int>(e), x.name, x.rows, x.cols, x.pitch);
}

base::Status validate(const Instance& instance, const GemmArgs& g) {
  const bool b_is_nk = instance.spec.b_major == BMajor::k;
  if (g.m < 1 || g.n < 1 || g.k < 1) {
    return base::invalid_argument("gemm_core: m {}, n {}, k {}; wanted: all >= 1", g.m, g.n, g.k);
  }
  const struct {
    const char* name;
    const void* data;
    int64_t pitch, cols;
  } operands[] = {{"a", g.a, g.lda, g.k}, {"b", g.b, g.ldb, b_is_nk ? g.k : g.n}, {"c", g.c, g.ldc, g.n}};
  for (const auto& x : operands) {
    if (x.data == nullptr || reinterpret_cast<uintptr_t>(x.data) % 16 != 0) {
      return base::invalid_argument("gemm_core: {} is at {}; wanted: a multiple of 16", x.name,
                                    reinterpret_cast<uintptr_t>(x.data));
    }
    if (x.pitch % 8 != 0 || x.pitch < x.cols) {
      return base::invalid_argument("gemm_core: ld of {} is {}; wanted: a multiple of 8, >= {}", x.name, x.pitch,
                                    x.cols);
    }
  }
  if (g.swizzle < 1) return base::invalid_argument("gemm_core: swizzle is {}; wanted: >= 1", g.swizzle);
  if (g.error == nullptr) return base::invalid_argument("gemm_core: error is null; wanted: a word of device memory");
  return {};
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

/// Clusters of this instance that run at once on the current device.
base::Result<int> count_clusters(const Instance& instance) {
  OVERLACE_TRY(cuda_status(cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(dynamic_shared_bytes(instance.spec))),
                           "cudaFuncSetAttribute"));
  cudaLaunchAttribute attributes[2]{};
  const cudaLaunchConfig_t config = launch_config(instance.spec, 1, attributes);
  int clusters = 0;
  OVERLACE_TRY(cuda_status(cudaOccupancyMaxActiveClusters(&clusters, instance.kernel, &config),
                           "cudaOccupancyMaxActiveClusters"));
  if (clusters < 1) return base::error(Errc::co_residency, "gemm_core: no CTA of {} fits", instance.name);
  return clusters;
}

int64_t tiles(int64_t elements, int tile) { return (elements + tile - 1) / tile; }

}  // namespace

std::span<const Instance> instances() {
  static const Instance rows[] = {
#define INSTANCE(name, ...) {#name, kSpec_##name, kernel_##name()},
#include "src/ops/gemm_core/instances.def"
#undef INSTANCE
  };
  return rows;
}

const Instance* find_instance(const char* name) {
  for (const Instance& i : instances()) {
    if (std::strcmp(i.name, name) == 0) return &i;
  }
  return nullptr;
}

base::Result<Prepared> prepare(const Instance& instance, const GemmArgs& g) {
  OVERLACE_TRY(validate(instance, g));
  const ConfigSpec& s = instance.spec;
  Prepared out;
  out.instance = &instance;
  OVERLACE_TRY(encode({"a", g.a, g.m, g.k, g.lda, s.tile_m / s.cluster_n, kTileK}, s.dtype, &out.params.a));
  const Matrix b = s.b_major == BMajor::k ? Matrix{"b", g.b, g.n, g.k, g.ldb, s.tile_n / s.cluster_m, kTileK}
                                          : Matrix{"b", g.b, g.k, g.n, g.ldb, kTileK / s.cluster_m, 64};
  OVERLACE_TRY(encode(b, s.dtype, &out.params.b));
  OVERLACE_TRY(encode({"c", g.c, g.m, g.n, g.ldc, 64, s.store_cols()}, s.dtype, &out.params.c));
  const int64_t offsets[] = {0, g.m};
  out.params.order = make_tile_order(TileOrderKind::linear, 0, 1, offsets, s.tile_m * s.cluster_m,
                                     static_cast<int32_t>(tiles(g.n, s.tile_n * s.cluster_n)));
  out.params.order.sweep = g.sweep;
  out.params.order.swizzle = g.swizzle;
  out.params.num_tiles = count_tiles(out.params.order);
  out.params.k_blocks = static_cast<int32_t>(tiles(g.k, kTileK));
  out.params.error = g.error;
  out.params.timeout_ns = g.timeout_ns;
  const auto clusters = count_clusters(instance);
  if (!clusters.ok()) return clusters.status();
  out.clusters = std::min(*clusters, out.params.num_tiles);
  return out;
}

base::Status launch(const Prepared& prepared, bool starts_early, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config = launch_config(prepared.instance->spec, prepared.clusters, attributes);
  config.stream = stream;
  if (starts_early) {
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 2;
  }
  void* arguments[] = {const_cast<GemmParams*>(&prepared.params)};
  return cuda_status(cudaLaunchKernelExC(&config, prepared.instance->kernel, arguments), "launch");
}

}  // namespace overlace::ops::gemm_core
