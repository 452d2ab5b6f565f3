#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "src/train/co2/cuda/pass.h"

namespace overlace::train {
namespace {

constexpr int kThreads = 256, kPerThread = 4;

/// Four neighbours in one load.
template <class T>
struct alignas(sizeof(T) * kPerThread) Pack {
  T values[kPerThread];
};

__device__ float widen(float value) { return value; }
__device__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float widen(__half value) { return __half2float(value); }
__device__ void narrow(float value, float* to) { *to = value; }
__device__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16_rn(value); }
__device__ void narrow(float value, __half* to) { *to = __float2half_rn(value); }

struct Sums {
  double m2 = 0, w2 = 0, v2 = 0;
  int bad = 0, clipped = 0;
};

struct Element {
  float x, a, m, wire, residual;
};

__device__ double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

/// One element, with the roundings of the pass on CPUs: no multiplication is fused with an addition.
template <class Wire, PassMode kMode>
__device__ void step(const PassPod& pass, float bound, float groups, Element& e, Sums& sums) {
  const float v = e.wire;
  if (kMode != PassMode::apply) {
    const float w = __fsub_rn(e.a, e.x);
    sums.w2 += square(w);
    sums.bad += isfinite(w) ? 0 : 1;
    if constexpr (sizeof(Wire) == sizeof(float)) {
      e.wire = __fdiv_rn(w, groups);
    } else {
      const float whole = __fadd_rn(w, e.residual);
      Wire sent;
      narrow(__fdiv_rn(whole, groups), &sent);
      e.wire = widen(sent);
      const float left = __fsub_rn(whole, __fmul_rn(groups, e.wire));
      e.residual = isfinite(left) ? left : 0.0f;
    }
  }
  if (kMode == PassMode::delta) return;
  sums.v2 += square(v);
  if (pass.is_applied != 0) {
    const float d = __fsub_rn(v, __fmul_rn(pass.pull, e.m));
    float moved = __fadd_rn(__fmul_rn(pass.beta, e.m), __fmul_rn(d, pass.inv_lambda));
    sums.clipped += moved > bound || moved < -bound ? 1 : 0;
    moved = moved > bound ? bound : moved;
    moved = moved < -bound ? -bound : moved;
    e.m = moved;
    e.a = __fsub_rn(e.a, __fadd_rn(__fmul_rn(pass.step_m, moved), __fmul_rn(pass.step_d, d)));
  }
  sums.m2 += square(e.m);
  e.x = e.a;
}

/// Sum over the block in a fixed order; of thread 0.
__device__ double block_sum(double value, double* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const double sum = shared[0];
  __syncthreads();
  return sum;
}

template <class T>
__device__ bool is_aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(Pack<T>) == 0;
}

template <class X, class Wire, PassMode kMode>
__global__ void __launch_bounds__(kThreads, 2) pass_pieces(CudaPass p) {
  __shared__ double shared[kThreads];
  const CudaPiece piece = p.pieces[blockIdx.x];
  const PassTensor tensor = p.tensors[piece.tensor];
  const PassPod pass = p.control->pass;
  const float bound = p.bounds[piece.tensor].bound, groups = static_cast<float>(p.groups);
  const int64_t flat = tensor.begin + piece.begin;
  X* const x = static_cast<X*>(tensor.x) + piece.begin;
  Wire* const wire = static_cast<Wire*>(p.memory.wire) + flat;
  float* const a = p.memory.anchor + flat;
  float* const m = p.memory.momentum + flat;
  float* const residual = p.memory.residual == nullptr ? nullptr : p.memory.residual + flat;
  __nv_bfloat16* const copy = tensor.copy == nullptr ? nullptr : static_cast<__nv_bfloat16*>(tensor.copy) + piece.begin;
  const bool is_packed = is_aligned(x) && is_aligned(wire) && is_aligned(a) && is_aligned(m) &&
                         (residual == nullptr || is_aligned(residual)) && (copy == nullptr || is_aligned(copy));
  Sums sums;
  const auto one = [&](int64_t i) {
    Element e{widen(x[i]), a[i], m[i], widen(wire[i]), residual == nullptr ? 0.0f : residual[i]};
    step<Wire, kMode>(pass, bound, groups, e, sums);
    if (kMode != PassMode::apply) {
      narrow(e.wire, &wire[i]);
      if (residual != nullptr) residual[i] = e.residual;
    }
    if (kMode == PassMode::delta) return;
    a[i] = e.a;
    m[i] = e.m;
    narrow(e.a, &x[i]);
    if (copy != nullptr) narrow(e.a, &copy[i]);
  };
  const auto four = [&](int64_t i) {
    auto xs = *reinterpret_cast<const Pack<X>*>(x + i);
    auto ws = *reinterpret_cast<const Pack<Wire>*>(wire + i);
    auto as = *reinterpret_cast<const Pack<float>*>(a + i), ms = *reinterpret_cast<const Pack<float>*>(m + i);
    Pack<float> rs{};
    Pack<__nv_bfloat16> cs;
    if (residual != nullptr) rs = *reinterpret_cast<const Pack<float>*>(residual + i);
    for (int k = 0; k < kPerThread; ++k) {
      Element e{widen(xs.values[k]), as.values[k], ms.values[k], widen(ws.values[k]), rs.values[k]};
      step<Wire, kMode>(pass, bound, groups, e, sums);
      narrow(e.wire, &ws.values[k]);
      narrow(e.a, &xs.values[k]);
      narrow(e.a, &cs.values[k]);
      as.values[k] = e.a;
      ms.values[k] = e.m;
      rs.values[k] = e.residual;
    }
    if (kMode != PassMode::apply) {
      *reinterpret_cast<Pack<Wire>*>(wire + i) = ws;
      if (residual != nullptr) *reinterpret_cast<Pack<float>*>(residual + i) = rs;
    }
    if (kMode == PassMode::delta) return;
    *reinterpret_cast<Pack<float>*>(a + i) = as;
    *reinterpret_cast<Pack<float>*>(m + i) = ms;
    *reinterpret_cast<Pack<X>*>(x + i) = xs;
    if (copy != nullptr) *reinterpret_cast<Pack<__nv_bfloat16>*>(copy + i) = cs;
  };
  const int64_t packed = is_packed ? piece.count / kPerThread * kPerThread : 0;
  for (int64_t i = int64_t{threadIdx.x} * kPerThread; i < packed; i += kThreads * kPerThread) four(i);
  for (int64_t i = packed + threadIdx.x; i < piece.count; i += kThreads) one(i);
  SumsPod total;
  total.m2 = block_sum(sums.m2, shared);
  total.w2 = block_sum(sums.w2, shared);
  total.v2 = block_sum(sums.v2, shared);
  total.bad = block_sum(sums.bad, shared);
  total.clipped = block_sum(sums.clipped, shared);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = total;
}

/// One thread per tensor adds the parts of its pieces in their order.
template <PassMode kMode>
__global__ void add_parts(CudaPass p) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (t >= p.num_tensors) return;
  SumsPod sum = p.sums[t];
  if (kMode != PassMode::apply) sum.w2 = sum.bad = 0;
  if (kMode != PassMode::delta) sum.m2 = sum.v2 = sum.clipped = 0;
  for (int64_t i = 0; i < p.num_pieces; ++i) {
    if (p.pieces[i].tensor != t) continue;
    sum.m2 += p.parts[i].m2;
    sum.w2 += p.parts[i].w2;
    sum.v2 += p.parts[i].v2;
    sum.bad += p.parts[i].bad;
    sum.clipped += p.parts[i].clipped;
  }
  p.sums[t] = sum;
}

/// One block: a thread per tensor for its bound, then thread 0 for what all share.
__global__ void begin_block(ControlPod* control, TensorPod* tensors, const SumsPod* sums, int64_t num_tensors,
                            const HeaderPod* sum, const HeaderPod* own, KnobsPod knobs) {
  for (int64_t t = threadIdx.x; t < num_tensors; t += blockDim.x) {
    const double rms = tensors[t].count > 0 ? sqrt(sums[t].v2 / tensors[t].count) : 0;
    next_bound(tensors[t], knobs, rms);
  }
  if (threadIdx.x != 0) return;
  double m2 = 0;
  for (int64_t t = 0; t < num_tensors; ++t) m2 += sums[t].m2;
  ControlPod next = *control;
  next.verdict = sum == nullptr ? Verdict::none_yet : judge(*sum, *own, knobs.groups);
  next.bad_in_row = next.verdict == Verdict::bad_values ? next.bad_in_row + 1 : 0;
  next.lambda = next_lambda(next, knobs, sqrt(m2));
  next.pass = pass_of(next, knobs);
  *control = next;
}

__global__ void end_one(ControlPod* control, double alpha) {
  control->alpha_moved = control->pass.is_applied != 0 ? alpha : 0;
}

base::Status status_of(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return base::error(Errc::cuda, "{}: {} ({})", what, cudaGetErrorName(code), cudaGetErrorString(code));
}

template <class X, class Wire, PassMode kMode>
cudaError_t launch(const CudaPass& pass, cudaStream_t stream) {
  if (pass.num_pieces > 0)
    pass_pieces<X, Wire, kMode><<<static_cast<unsigned>(pass.num_pieces), kThreads, 0, stream>>>(pass);
  if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
  if (pass.num_tensors > 0)
    add_parts<kMode>
        <<<static_cast<unsigned>((pass.num_tensors + kThreads - 1) / kThreads), kThreads, 0, stream>>>(pass);
  return cudaGetLastError();
}

template <class X, class Wire>
cudaError_t launch_mode(const CudaPass& pass, cudaStream_t stream) {
  switch (pass.mode) {
    case PassMode::fused:
      return launch<X, Wire, PassMode::fused>(pass, stream);
    case PassMode::delta:
      return launch<X, Wire, PassMode::delta>(pass, stream);
    case PassMode::apply:
      return launch<X, Wire, PassMode::apply>(pass, stream);
  }
  return cudaErrorInvalidValue;
}

template <class X>
cudaError_t launch_wire(const CudaPass& pass, cudaStream_t stream) {
  return pass.memory.wire_dtype == DType::fp32 ? launch_mode<X, float>(pass, stream)
                                               : launch_mode<X, __nv_bfloat16>(pass, stream);
}

}  // namespace

std::vector<CudaPiece> cuda_pieces(std::span<const PassTensor> tensors) {
  std::vector<CudaPiece> pieces;
  for (size_t t = 0; t < tensors.size(); ++t)
    for (int64_t begin = 0; begin < tensors[t].count; begin += kCudaPiece)
      pieces.push_back({static_cast<int32_t>(t), begin, std::min(kCudaPiece, tensors[t].count - begin)});
  return pieces;
}

base::Status queue_pass(const CudaPass& pass, void* cuda_stream) {
  auto* const stream = static_cast<cudaStream_t>(cuda_stream);
  if (pass.memory.kept != nullptr || pass.memory.momentum == nullptr)
    return base::invalid_argument(
        "pass of CO2: kept increments {}, momentum {}; wanted on a GPU: none kept, and a momentum",
        pass.memory.kept != nullptr, pass.memory.momentum != nullptr);
  switch (pass.dtype) {
    case DType::fp32:
      return status_of(launch_wire<float>(pass, stream), "pass of CO2");
    case DType::bf16:
      return status_of(launch_wire<__nv_bfloat16>(pass, stream), "pass of CO2");
    case DType::fp16:
      return status_of(launch_wire<__half>(pass, stream), "pass of CO2");
    default:
      return base::invalid_argument("pass of CO2: dtype is {}, wanted fp32, bf16 or fp16", dtype_name(pass.dtype));
  }
}

base::Status queue_begin(ControlPod* control, TensorPod* tensors, const SumsPod* sums, int64_t num_tensors,
                         const HeaderPod* sum, const HeaderPod* own, const KnobsPod& knobs, void* cuda_stream) {
  begin_block<<<1, kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(control, tensors, sums, num_tensors, sum, own,
                                                                          knobs);
  return status_of(cudaGetLastError(), "begin of a boundary of CO2");
}

base::Status queue_end(ControlPod* control, const KnobsPod& knobs, void* cuda_stream) {
  end_one<<<1, 1, 0, static_cast<cudaStream_t>(cuda_stream)>>>(control, knobs.alpha);
  return status_of(cudaGetLastError(), "end of a boundary of CO2");
}

}  // namespace overlace::train
