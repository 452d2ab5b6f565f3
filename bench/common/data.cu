#include <cuda_runtime.h>

#include <cmath>
#include <vector>

#include "bench/common/data.h"
#include "src/base/ceil_div_pod.h"
#include "src/device/math/convert.cuh"
#include "src/device/math/swiglu.cuh"

namespace overlace::bench {
namespace {

/// Box-Muller on two halves of a hash.
__device__ float value_at(const Normal& n, int64_t row, int64_t col) {
  if (n.is_ramp) return ramp_at(n, row, col);
  const Uniforms at = uniforms_at(n, row, col);
  return sqrtf(-2.0f * logf(at.u)) * cospif(2.0f * at.v) * static_cast<float>(n.scale);
}

/// For sums in fp64.
template <class T>
__device__ double wide(T v) {
  return device::widen(v);
}

template <class T>
__global__ void fill(T* data, int64_t pitch, int64_t rows, int64_t cols, Normal n) {
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < rows * cols; i += step) {
    const int64_t row = i / cols, col = i - row * cols;
    data[row * pitch + col] = device::narrow<T>(value_at(n, row, col));
  }
}

constexpr int kSide = 32;  // of a tile
__global__ void swap_dimensions(const uint16_t* from, uint16_t* to, int64_t rows, int64_t cols) {
  __shared__ uint16_t tile[kSide][kSide + 1];
  const int64_t row = blockIdx.y * int64_t{kSide} + threadIdx.y, col = blockIdx.x * int64_t{kSide} + threadIdx.x;
  if (row < rows && col < cols) tile[threadIdx.y][threadIdx.x] = from[row * cols + col];
  __syncthreads();
  const int64_t row_to = blockIdx.x * int64_t{kSide} + threadIdx.y, col_to = blockIdx.y * int64_t{kSide} + threadIdx.x;
  if (row_to < cols && col_to < rows) to[row_to * rows + col_to] = tile[threadIdx.x][threadIdx.y];
}

struct Sums {
  double max_error, sum_error2, sum_want2;
  int finite;
};

constexpr int kMaxFactors = 9;  // a product of each of 8 ranks, and an addend
struct Factors {
  Factor f[kMaxFactors];
  int count;
};

__device__ void atomic_max(double* address, double value) {
  auto* word = reinterpret_cast<unsigned long long*>(address);  // non-negative doubles order like their bits
  atomicMax(word, static_cast<unsigned long long>(__double_as_longlong(value)));
}

/// All threads of a block: the sum of the products, recomputed from their operands.
template <class Operand>
__device__ double sum_at(const Factors& factors, int64_t row, int64_t col) {
  __shared__ double partial[256];
  double sum = 0;
  for (int s = 0; s < factors.count; ++s) {
    const Factor& f = factors.f[s];
    if (f.is_addend) {
      sum += wide(device::narrow<Operand>(value_at(f.left, row, col)));
      continue;
    }
    double dot = 0;
    for (int64_t k = threadIdx.x; k < f.k; k += blockDim.x) {
      dot += wide(device::narrow<Operand>(value_at(f.left, row, k))) *
             wide(device::narrow<Operand>(value_at(f.right, col, k)));
    }
    partial[threadIdx.x] = dot;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
      __syncthreads();
    }
    sum += partial[0];
    __syncthreads();
  }
  return sum;
}

/// One block per sampled element.
template <class Operand, class Out>
__global__ void check(const Out* out, int64_t pitch, int64_t rows, int64_t cols, Factors factors, int64_t first_row,
                      uint64_t seed, Sums* sums) {
  const uint64_t h = mix(seed + blockIdx.x * kGoldenRatio);
  const int64_t row = static_cast<int64_t>((h >> 32) % static_cast<uint64_t>(rows));
  const int64_t col = static_cast<int64_t>((h & 0xffffffffu) % static_cast<uint64_t>(cols));
  const bool is_gated = factors.f[0].is_gated;
  double want = is_gated ? 0 : sum_at<Operand>(factors, first_row + row, col);
  if (is_gated) {
    const double gate = sum_at<Operand>(factors, first_row + row, 2 * col);
    want = device::swiglu(gate, sum_at<Operand>(factors, first_row + row, 2 * col + 1));
  }
  if (threadIdx.x == 0) {
    const double got = wide(out[row * pitch + col]);
    if (!isfinite(got)) atomicExch(&sums->finite, 0);
    const double error = fabs(got - want);
    atomic_max(&sums->max_error, isfinite(error) ? error : 1e300);
    atomicAdd(&sums->sum_error2, error * error);
    atomicAdd(&sums->sum_want2, want * want);
  }
}

struct DifferenceSums {
  double max_abs, sum2;
  int same;
};
template <class T>
__global__ void difference(const T* a, int64_t pitch_a, const T* b, int64_t pitch_b, int64_t rows, int64_t cols,
                           DifferenceSums* sums) {
  double worst = 0, square = 0;
  bool same = true;
  const int64_t step = gridDim.x * static_cast<int64_t>(blockDim.x);
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < rows * cols; i += step) {
    const int64_t row = i / cols, col = i - row * cols;
    const double x = wide(a[row * pitch_a + col]), y = wide(b[row * pitch_b + col]);
    same = same && x == y;  // NaN differs from itself: unwritten output shows
    const double d = fabs(x - y);
    worst = isfinite(d) ? fmax(worst, d) : 1e300;
    square += x * x;
  }
  atomic_max(&sums->max_abs, worst);
  atomicAdd(&sums->sum2, square);
  if (!same) atomicExch(&sums->same, 0);
}

base::Status cuda_status(cudaError_t e, const char* what) {
  return e == cudaSuccess ? base::Status() : base::error(Errc::cuda, "{}: {}", what, cudaGetErrorString(e));
}

/// Device memory for one result, freed on every path.
template <class T>
struct DeviceCell {
  T* p = nullptr;
  ~DeviceCell() { (void)cudaFree(p); }
  base::Status put(const T& value, cudaStream_t s) {
    OVERLACE_TRY(cuda_status(cudaMalloc(&p, sizeof(T)), "cudaMalloc"));
    return cuda_status(cudaMemcpyAsync(p, &value, sizeof(T), cudaMemcpyHostToDevice, s), "cudaMemcpyAsync");
  }
  base::Status get(T* value, cudaStream_t s) {
    OVERLACE_TRY(cuda_status(cudaMemcpyAsync(value, p, sizeof(T), cudaMemcpyDeviceToHost, s), "cudaMemcpyAsync"));
    return cuda_status(cudaStreamSynchronize(s), "cudaStreamSynchronize");
  }
};

template <class F>
base::Status with_type(DType t, F f) {
  switch (t) {
    case DType::fp64:
      f(double{});
      return {};
    case DType::fp32:
      f(float{});
      return {};
    case DType::fp16:
      f(__half{});
      return {};
    case DType::bf16:
      f(__nv_bfloat16{});
      return {};
    default:
      return base::error(Errc::not_supported, "bench data: dtype {}", dtype_name(t));
  }
}

}  // namespace

base::Status fill_normal(const TensorView& m, const Normal& n, void* stream) {
  if (m.numel() == 0) return {};
  const int64_t rows = m.ndim >= 2 ? m.dim(0) : 1, cols = m.ndim >= 2 ? m.dim(1) : m.numel();
  const int64_t pitch = m.ndim >= 2 ? m.stride(0) : cols;
  OVERLACE_TRY(with_type(m.dtype, [&](auto zero) {
    using T = decltype(zero);
    fill<T><<<1056, 256, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<T*>(m.data), pitch, rows, cols, n);
  }));
  return cuda_status(cudaGetLastError(), "fill kernel");
}

base::Status transpose(const TensorView& m, void* to, void* stream) {
  OVERLACE_ASSERT(m.ndim == 2 && dtype_bytes(m.dtype) == 2);
  const auto tiles = [](int64_t n) { return static_cast<unsigned>(base::ceil_div(n, kSide)); };
  swap_dimensions<<<dim3(tiles(m.dim(1)), tiles(m.dim(0))), dim3(kSide, kSide), 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint16_t*>(m.data), static_cast<uint16_t*>(to), m.dim(0), m.dim(1));
  return cuda_status(cudaGetLastError(), "transpose kernel");
}

base::Result<Check> check_product(const TensorView& out, const Factor* factors, int count, int64_t first_row,
                                  DType operand, int64_t samples, uint64_t seed, void* cuda_stream) {
  OVERLACE_ASSERT(count >= 1 && count <= kMaxFactors);
  if (out.numel() == 0) return Check{};
  auto* stream = static_cast<cudaStream_t>(cuda_stream);
  Factors all{};
  all.count = count;
  for (int i = 0; i < count; ++i) all.f[i] = factors[i];
  DeviceCell<Sums> cell;
  Sums sums{0, 0, 0, 1};
  OVERLACE_TRY(cell.put(sums, stream));
  OVERLACE_TRY(with_type(operand, [&](auto operand_zero) {
    using Operand = decltype(operand_zero);
    (void)with_type(out.dtype, [&](auto out_zero) {
      using Out = decltype(out_zero);
      check<Operand, Out><<<static_cast<unsigned>(samples), 256, 0, stream>>>(
          static_cast<const Out*>(out.data), out.stride(0), out.dim(0), out.dim(1), all, first_row, seed, cell.p);
    });
  }));
  OVERLACE_TRY(cuda_status(cudaGetLastError(), "check kernel"));
  OVERLACE_TRY(cell.get(&sums, stream));
  const double n = static_cast<double>(samples), rms = std::sqrt(sums.sum_want2 / n);
  return Check{sums.max_error / rms, std::sqrt(sums.sum_error2 / n) / rms, samples, sums.finite != 0};
}

base::Result<Difference> compare(const TensorView& a, const TensorView& b, void* cuda_stream) {
  OVERLACE_ASSERT(a.dtype == b.dtype && a.ndim == 2 && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1));
  if (a.numel() == 0) return Difference{};
  auto* stream = static_cast<cudaStream_t>(cuda_stream);
  DeviceCell<DifferenceSums> cell;
  DifferenceSums sums{0, 0, 1};
  OVERLACE_TRY(cell.put(sums, stream));
  OVERLACE_TRY(with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    difference<T><<<1056, 256, 0, stream>>>(static_cast<const T*>(a.data), a.stride(0), static_cast<const T*>(b.data),
                                            b.stride(0), a.dim(0), a.dim(1), cell.p);
  }));
  OVERLACE_TRY(cuda_status(cudaGetLastError(), "difference kernel"));
  OVERLACE_TRY(cell.get(&sums, stream));
  return Difference{sums.max_abs, std::sqrt(sums.sum2 / static_cast<double>(a.numel())), sums.same != 0};
}

}  // namespace overlace::bench
