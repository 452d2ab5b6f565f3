#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/train/co2/cuda/pass.h"
#include "src/train/co2/cuda/pass_pieces.cuh"

namespace overlace::train {
namespace {

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
