#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/train/co2/cuda/pass.h"

namespace overlace::train {
namespace {

constexpr int kThreads = 256, kPerThread = 4, kWarps = kThreads / 32;

/// Neighbours in one load.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
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
  float x, a, m, kept, wire, residual;
  bool keeps;  // there is memory for what is kept
};

__device__ double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

/// One element, with the roundings of the pass on CPUs: no multiplication is fused with an addition.
template <class Wire, PassMode kMode>
__device__ void step(const PassPod& pass, float bound, float groups, Element& e, Sums& sums) {
  const float v = e.wire;
  float kept = 0;
  if (kMode != PassMode::apply) {
    const float u = __fsub_rn(__fsub_rn(e.a, e.kept), e.x);
    const bool is_finite = isfinite(u);
    sums.w2 += square(u);
    sums.bad += is_finite ? 0 : 1;
    kept = e.keeps && is_finite ? __fmul_rn(pass.keep, u) : 0.0f;
    if constexpr (sizeof(Wire) == sizeof(float)) {
      e.wire = __fdiv_rn(u, groups);
    } else {
      const float whole = __fadd_rn(u, e.residual);
      Wire sent;
      narrow(__fdiv_rn(whole, groups), &sent);
      e.wire = widen(sent);
      const float left = __fsub_rn(whole, __fmul_rn(groups, e.wire));
      e.residual = isfinite(left) ? left : 0.0f;
    }
  }
  if (kMode == PassMode::delta) return;
  sums.v2 += square(v);
  e.kept = kept;
  float next = e.a;
  if (pass.is_applied != 0) {
    const float d = __fsub_rn(v, __fmul_rn(pass.pull, e.m));
    float moved = __fadd_rn(__fmul_rn(pass.beta, e.m), __fmul_rn(d, pass.inv_lambda));
    sums.clipped += moved > bound || moved < -bound ? 1 : 0;
    moved = moved > bound ? bound : moved;
    moved = moved < -bound ? -bound : moved;
    e.m = moved;
    e.a = next = __fsub_rn(e.a, __fadd_rn(__fmul_rn(pass.step_m, moved), __fmul_rn(pass.step_d, d)));
    if (kMode == PassMode::apply && pass.mix != 0)
      next = __fadd_rn(__fmul_rn(pass.mix, e.x), __fmul_rn(__fsub_rn(1.0f, pass.mix), next));
  }
  sums.m2 += square(e.m);
  e.x = __fsub_rn(next, kept);
}

/// Sum over the block in a fixed order; of thread 0.
__device__ double block_sum(double value, double* shared) {
  for (unsigned half = 16; half > 0; half /= 2) value += __shfl_down_sync(0xffffffffu, value, half);
  __syncthreads();  // the sum before was read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0)
    for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp];
  return sum;
}

__device__ SumsPod block_sums(const SumsPod& mine) {
  __shared__ double shared[kWarps];
  SumsPod total;
  total.m2 = block_sum(mine.m2, shared);
  total.w2 = block_sum(mine.w2, shared);
  total.v2 = block_sum(mine.v2, shared);
  total.bad = block_sum(mine.bad, shared);
  total.clipped = block_sum(mine.clipped, shared);
  return total;
}

template <class T>
__device__ bool is_aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (sizeof(T) * kPerThread) == 0;
}
template <int kCount, class T>
__device__ Pack<T, kCount> load(const T* from, int64_t i) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from + i);
}
template <class T, int kCount>
__device__ void store(T* to, int64_t i, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to + i) = pack;
}
__device__ float* at(float* array, int64_t place) { return array == nullptr ? nullptr : array + place; }

/// The arrays of one piece, from its first element on; momentum, kept and residual may be null.
template <class X, class Wire>
struct Arrays {
  X* x;
  Wire* wire;
  float *a, *m, *kept, *residual;

  __device__ bool is_packed() const {
    return is_aligned(x) && is_aligned(wire) && is_aligned(a) && is_aligned(m) && is_aligned(kept) &&
           is_aligned(residual);
  }
};

/// Four neighbours of each array, or one.
template <class X, class Wire, int kCount>
struct Packs {
  Pack<X, kCount> x;
  Pack<Wire, kCount> wire;
  Pack<float, kCount> a, m, kept, residual;
};

template <PassMode kMode, int kCount, class X, class Wire>
__device__ Packs<X, Wire, kCount> fetch(const Arrays<X, Wire>& of, int64_t i) {
  Packs<X, Wire, kCount> q{load<kCount>(of.x, i), load<kCount>(of.wire, i), load<kCount>(of.a, i), {}, {}, {}};
  if (kMode != PassMode::delta && of.m != nullptr) q.m = load<kCount>(of.m, i);
  if (of.kept != nullptr) q.kept = load<kCount>(of.kept, i);
  if (of.residual != nullptr) q.residual = load<kCount>(of.residual, i);
  return q;
}

template <PassMode kMode, int kCount, class X, class Wire>
__device__ void put(const Arrays<X, Wire>& of, int64_t i, const Packs<X, Wire, kCount>& q) {
  if (kMode != PassMode::apply) {
    store(of.wire, i, q.wire);
    if (of.residual != nullptr) store(of.residual, i, q.residual);
  }
  if (kMode == PassMode::delta) return;
  store(of.a, i, q.a);
  if (of.m != nullptr) store(of.m, i, q.m);
  if (of.kept != nullptr) store(of.kept, i, q.kept);
  store(of.x, i, q.x);
}

template <class X, class Wire, PassMode kMode>
__global__ void __launch_bounds__(kThreads, 2) pass_pieces(CudaArrays p, float groups, int64_t first) {
  const CudaPiece piece = p.pieces[first + blockIdx.x];
  const PassTensor tensor = p.tensors[piece.tensor];
  const PassPod pass = p.control->pass;
  const float bound = p.bounds[piece.tensor].bound;
  const int64_t flat = tensor.begin + piece.begin;
  const Arrays<X, Wire> of{static_cast<X*>(tensor.x) + piece.begin,
                           static_cast<Wire*>(p.memory.wire) + flat,
                           p.memory.anchor + flat,
                           at(p.memory.momentum, flat),
                           at(p.memory.kept, flat),
                           at(p.memory.residual, flat)};
  Sums sums;
  const auto pass_of = [&]<int kCount>(int64_t i, Packs<X, Wire, kCount>& q) {
    for (int k = 0; k < kCount; ++k) {
      Element e{widen(q.x.values[k]),    q.a.values[k],        q.m.values[k],     q.kept.values[k],
                widen(q.wire.values[k]), q.residual.values[k], of.kept != nullptr};
      step<Wire, kMode>(pass, bound, groups, e, sums);
      narrow(e.wire, &q.wire.values[k]);
      narrow(e.x, &q.x.values[k]);
      q.a.values[k] = e.a;
      q.m.values[k] = e.m;
      q.kept.values[k] = e.kept;
      q.residual.values[k] = e.residual;
    }
    put<kMode>(of, i, q);
  };
  // Two packs of each array are under way at a time.
  constexpr int64_t kStride = int64_t{kThreads} * kPerThread;
  const int64_t packed = of.is_packed() ? piece.count / kPerThread * kPerThread : 0;
  int64_t i = int64_t{threadIdx.x} * kPerThread;
  for (; i + kStride < packed; i += 2 * kStride) {
    auto here = fetch<kMode, kPerThread>(of, i), there = fetch<kMode, kPerThread>(of, i + kStride);
    pass_of(i, here);
    pass_of(i + kStride, there);
  }
  if (i < packed) {
    auto here = fetch<kMode, kPerThread>(of, i);
    pass_of(i, here);
  }
  for (int64_t k = packed + threadIdx.x; k < piece.count; k += kThreads) {
    auto one = fetch<kMode, 1>(of, k);
    pass_of(k, one);
  }
  const SumsPod total = block_sums({.m2 = sums.m2,
                                    .w2 = sums.w2,
                                    .v2 = sums.v2,
                                    .bad = static_cast<double>(sums.bad),
                                    .clipped = static_cast<double>(sums.clipped)});
  if (threadIdx.x == 0) p.parts[first + blockIdx.x] = total;
}

/// A block per tensor adds the parts of its pieces.
template <PassMode kMode>
__global__ void __launch_bounds__(kThreads) add_parts(CudaArrays p, int64_t first) {
  const int64_t t = first + blockIdx.x;
  const CudaRun run = p.of_tensor[t];
  SumsPod mine;
  for (int64_t i = threadIdx.x; i < run.count; i += kThreads) {
    const SumsPod part = p.parts[run.first + i];
    mine.m2 += part.m2;
    mine.w2 += part.w2;
    mine.v2 += part.v2;
    mine.bad += part.bad;
    mine.clipped += part.clipped;
  }
  const SumsPod total = block_sums(mine);
  if (threadIdx.x != 0) return;
  if (kMode != PassMode::apply) {
    p.sums[t].w2 = total.w2;
    p.sums[t].bad = total.bad;
  }
  if (kMode != PassMode::delta) {
    p.sums[t].m2 = total.m2;
    p.sums[t].v2 = total.v2;
    p.sums[t].clipped = total.clipped;
  }
}

/// Over all tensors; of thread 0.
__device__ SumsPod whole_sums(const CudaArrays& p) {
  SumsPod mine;
  for (int64_t t = threadIdx.x; t < p.num_tensors; t += kThreads) {
    mine.m2 += p.sums[t].m2;
    mine.w2 += p.sums[t].w2;
    mine.v2 += p.sums[t].v2;
    mine.bad += p.sums[t].bad;
    mine.clipped += p.sums[t].clipped;
  }
  return block_sums(mine);
}

/// One block: a thread per tensor for its bound, then thread 0 for what all share.
__global__ void __launch_bounds__(kThreads) begin_block(CudaArrays p, KnobsPod knobs, bool has_incoming) {
  for (int64_t t = threadIdx.x; t < p.num_tensors; t += kThreads) {
    const double rms = p.bounds[t].count > 0 ? sqrt(p.sums[t].v2 / p.bounds[t].count) : 0;
    next_bound(p.bounds[t], knobs, rms);
  }
  const SumsPod whole = whole_sums(p);
  if (threadIdx.x != 0) return;
  const HeaderPod* const sum = take_header(knobs, has_incoming ? p.sum : nullptr);
  ControlPod next = *p.control;
  next.verdict = sum == nullptr ? Verdict::none_yet : judge(*sum, *p.own, knobs.groups, knobs.is_weighted != 0);
  next.bad_in_row = next.verdict == Verdict::bad_values ? next.bad_in_row + 1 : 0;
  next.lambda = next_lambda(next, knobs, sqrt(whole.m2));
  next.pass = pass_of(next, knobs);
  *p.control = next;
}

__global__ void end_one(ControlPod* control, double alpha) {
  control->alpha_moved = control->pass.is_applied != 0 ? alpha : 0;
}

__global__ void __launch_bounds__(kThreads) header_block(CudaArrays p, HeaderPod header, const uint64_t* anchor_hash) {
  const SumsPod whole = whole_sums(p);
  if (threadIdx.x != 0) return;
  header.bad = whole.bad;
  header.norm2 = isfinite(whole.w2) ? whole.w2 : 0;
  if (anchor_hash != nullptr) {
    header.anchor_low = static_cast<double>(*anchor_hash & 0xffffffffu);
    header.anchor_high = static_cast<double>(*anchor_hash >> 32);
  }
  *p.own = *p.sum = header;
}

__global__ void __launch_bounds__(kThreads) facts_block(CudaArrays p, FactsPod* facts) {
  const SumsPod whole = whole_sums(p);
  if (threadIdx.x != 0) return;
  facts->control = *p.control;
  facts->sum = *p.sum;
  facts->own = *p.own;
  facts->m2 = whole.m2;
  facts->v2 = whole.v2;
  facts->clipped = whole.clipped;
}

template <class X>
__global__ void __launch_bounds__(kThreads) copy_pieces(CudaArrays p, int64_t first, bool is_to_anchor) {
  if (!is_to_anchor && p.control->verdict != Verdict::bad_values) return;
  const CudaPiece piece = p.pieces[first + blockIdx.x];
  const PassTensor tensor = p.tensors[piece.tensor];
  const int64_t flat = tensor.begin + piece.begin;
  X* const x = static_cast<X*>(tensor.x) + piece.begin;
  for (int64_t i = threadIdx.x; i < piece.count; i += kThreads) {
    if (is_to_anchor) {
      p.memory.anchor[flat + i] = widen(x[i]);
    } else {
      narrow(p.memory.anchor[flat + i], &x[i]);
      if (p.memory.kept != nullptr) p.memory.kept[flat + i] = 0;
    }
  }
}

/// Words are mixed with their numbers and added, so that the order of threads does not matter.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    hash_words(const Word* words, int64_t count, int64_t first, uint64_t* hash) {
  uint64_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    uint64_t mixed = static_cast<uint64_t>(first + i + 1) * 0x9e3779b97f4a7c15ull + words[i];
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    sum += mixed ^ mixed >> 31;
  }
  atomicAdd(reinterpret_cast<unsigned long long*>(hash), static_cast<unsigned long long>(sum));
}

base::Status status_of(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return base::error(Errc::cuda, "{}: {} ({})", what, cudaGetErrorName(code), cudaGetErrorString(code));
}

template <class... Kernel>
base::Status load_all(Kernel*... kernels) {
  base::Status status;
  cudaFuncAttributes attributes{};
  for (const void* const kernel : {reinterpret_cast<const void*>(kernels)...})
    if (status.ok()) status = status_of(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  return status;
}
template <PassMode kMode>
base::Status load_mode() {
  return load_all(&pass_pieces<float, float, kMode>, &pass_pieces<float, __nv_bfloat16, kMode>,
                  &pass_pieces<__nv_bfloat16, float, kMode>, &pass_pieces<__nv_bfloat16, __nv_bfloat16, kMode>,
                  &pass_pieces<__half, float, kMode>, &pass_pieces<__half, __nv_bfloat16, kMode>, &add_parts<kMode>);
}

cudaStream_t stream_of(void* cuda_stream) { return static_cast<cudaStream_t>(cuda_stream); }
unsigned blocks_of(int64_t count) { return static_cast<unsigned>(count); }

template <class X, class Wire>
void launch_pass(const CudaArrays& p, PassMode mode, float groups, const CudaRun& run, cudaStream_t stream) {
  const unsigned blocks = blocks_of(run.count);
  switch (mode) {
    case PassMode::fused:
      return pass_pieces<X, Wire, PassMode::fused><<<blocks, kThreads, 0, stream>>>(p, groups, run.first);
    case PassMode::delta:
      return pass_pieces<X, Wire, PassMode::delta><<<blocks, kThreads, 0, stream>>>(p, groups, run.first);
    case PassMode::apply:
      return pass_pieces<X, Wire, PassMode::apply><<<blocks, kThreads, 0, stream>>>(p, groups, run.first);
  }
}

/// Does `body` with a value of the dtype's type.
template <class Body>
base::Status with_dtype(DType dtype, const char* what, const Body& body) {
  switch (dtype) {
    case DType::fp32:
      body(float{});
      break;
    case DType::bf16:
      body(__nv_bfloat16{});
      break;
    case DType::fp16:
      body(__half{});
      break;
    default:
      return base::invalid_argument("{}: dtype is {}, wanted fp32, bf16 or fp16", what, dtype_name(dtype));
  }
  return status_of(cudaGetLastError(), what);
}

}  // namespace

base::Status load_kernels() {
  OVERLACE_TRY(load_mode<PassMode::fused>());
  OVERLACE_TRY(load_mode<PassMode::delta>());
  OVERLACE_TRY(load_mode<PassMode::apply>());
  return load_all(&begin_block, &end_one, &header_block, &facts_block, &copy_pieces<float>, &copy_pieces<__nv_bfloat16>,
                  &copy_pieces<__half>, &hash_words<uint32_t>, &hash_words<uint16_t>);
}

base::Status queue_pass(const CudaArrays& arrays, PassMode mode, float groups, const CudaRun& run, void* cuda_stream) {
  return with_dtype(run.dtype, "pass of CO2", [&]<class X>(X) {
    if (arrays.memory.wire_dtype == DType::fp32)
      launch_pass<X, float>(arrays, mode, groups, run, stream_of(cuda_stream));
    else
      launch_pass<X, __nv_bfloat16>(arrays, mode, groups, run, stream_of(cuda_stream));
  });
}

base::Status queue_sums(const CudaArrays& arrays, PassMode mode, int64_t first, int64_t count, void* cuda_stream) {
  cudaStream_t const stream = stream_of(cuda_stream);
  const unsigned blocks = blocks_of(count);
  if (mode == PassMode::fused) add_parts<PassMode::fused><<<blocks, kThreads, 0, stream>>>(arrays, first);
  if (mode == PassMode::delta) add_parts<PassMode::delta><<<blocks, kThreads, 0, stream>>>(arrays, first);
  if (mode == PassMode::apply) add_parts<PassMode::apply><<<blocks, kThreads, 0, stream>>>(arrays, first);
  return status_of(cudaGetLastError(), "sums of CO2");
}

base::Status queue_begin(const CudaArrays& arrays, const KnobsPod& knobs, bool has_incoming, void* cuda_stream) {
  begin_block<<<1, kThreads, 0, stream_of(cuda_stream)>>>(arrays, knobs, has_incoming);
  return status_of(cudaGetLastError(), "begin of a boundary of CO2");
}

base::Status queue_end(const CudaArrays& arrays, const KnobsPod& knobs, void* cuda_stream) {
  end_one<<<1, 1, 0, stream_of(cuda_stream)>>>(arrays.control, knobs.alpha);
  return status_of(cudaGetLastError(), "end of a boundary of CO2");
}

base::Status queue_header(const CudaArrays& arrays, const HeaderPod& base, const uint64_t* anchor_hash,
                          void* cuda_stream) {
  header_block<<<1, kThreads, 0, stream_of(cuda_stream)>>>(arrays, base, anchor_hash);
  return status_of(cudaGetLastError(), "header of CO2");
}

base::Status queue_facts(const CudaArrays& arrays, FactsPod* facts, void* cuda_stream) {
  facts_block<<<1, kThreads, 0, stream_of(cuda_stream)>>>(arrays, facts);
  return status_of(cudaGetLastError(), "facts of CO2");
}

base::Status queue_to_anchor(const CudaArrays& arrays, const CudaRun& run, void* cuda_stream) {
  return with_dtype(run.dtype, "anchor of CO2", [&]<class X>(X) {
    copy_pieces<X><<<blocks_of(run.count), kThreads, 0, stream_of(cuda_stream)>>>(arrays, run.first, true);
  });
}

base::Status queue_restore(const CudaArrays& arrays, const CudaRun& run, void* cuda_stream) {
  return with_dtype(run.dtype, "parameters of CO2", [&]<class X>(X) {
    copy_pieces<X><<<blocks_of(run.count), kThreads, 0, stream_of(cuda_stream)>>>(arrays, run.first, false);
  });
}

base::Status queue_hash(const void* data, int unit, int64_t count, int64_t first, uint64_t* hash, void* cuda_stream) {
  if (count == 0) return {};
  constexpr int64_t kMostBlocks = 1024;
  const unsigned blocks = blocks_of(std::min(kMostBlocks, base::ceil_div(count, int64_t{kThreads})));
  cudaStream_t const stream = stream_of(cuda_stream);
  if (unit == 4)
    hash_words<<<blocks, kThreads, 0, stream>>>(static_cast<const uint32_t*>(data), count, first, hash);
  else
    hash_words<<<blocks, kThreads, 0, stream>>>(static_cast<const uint16_t*>(data), count, first, hash);
  return status_of(cudaGetLastError(), "hash of CO2");
}

}  // namespace overlace::train
