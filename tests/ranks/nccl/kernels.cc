// What plays the kernels of CO2 on GPUs, by their twins on the CPU in stream order, and words that streams wait for.
#include <algorithm>
#include <set>
#include <vector>

#include "src/base/half.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"
#include "src/train/co2/control.h"
#include "src/train/co2/cuda/pass.h"
#include "tests/ranks/nccl/stand_ins.h"

namespace overlace::runtime::cuda_peer {

StreamCaps query_stream_caps(int) { return {.write_value = true, .wait_value = true, .wait_flush = true}; }

base::Status stream_wait(const uint64_t* word, uint64_t value, bool, const StreamCaps&, cudaStream_t stream) {
  test::nccl::cuda::enqueue(stream,
                            [=] { return static_cast<int64_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0; });
  return {};
}

}  // namespace overlace::runtime::cuda_peer

namespace overlace::train {
namespace {

template <class Body>
base::Status queue(void* stream, Body body) {
  test::nccl::cuda::enqueue(static_cast<cudaStream_t>(stream), [body]() mutable {
    body();
    return true;
  });
  return {};
}

std::set<int32_t> tensors_of(const CudaArrays& a, const CudaRun& run) {
  std::set<int32_t> tensors;
  for (int64_t i = run.first; i < run.first + run.count; ++i) tensors.insert(a.pieces[i].tensor);
  return tensors;
}
std::span<SumsPod> sums_of(const CudaArrays& a) { return {a.sums, static_cast<size_t>(a.num_tensors)}; }

}  // namespace

base::Status load_kernels() { return {}; }

base::Status queue_pass(const CudaArrays& a, PassMode mode, float groups, const CudaRun& run, void* stream) {
  return queue(stream, [=] {
    Threads threads(1);
    for (const int32_t t : tensors_of(a, run)) {
      SumsPod& sum = a.parts[a.of_tensor[t].first];
      sum = {};
      run_pass(threads, mode, a.control->pass, groups, {a.tensors + t, 1}, {a.bounds + t, 1}, a.memory, {&sum, 1});
    }
  });
}

base::Status queue_sums(const CudaArrays& a, PassMode mode, int64_t first, int64_t count, void* stream) {
  return queue(stream, [=] {
    for (int64_t t = first; t < first + count; ++t) {
      const SumsPod part = a.of_tensor[t].count > 0 ? a.parts[a.of_tensor[t].first] : SumsPod{};
      SumsPod& sum = a.sums[t];
      if (mode != PassMode::apply) sum.w2 = part.w2, sum.bad = part.bad;
      if (mode != PassMode::delta) sum.m2 = part.m2, sum.v2 = part.v2, sum.clipped = part.clipped;
    }
  });
}

base::Status queue_begin(const CudaArrays& a, const KnobsPod& given, bool has_incoming, void* stream) {
  return queue(stream, [=] {
    KnobsPod knobs = given;
    const HeaderPod* const sum = take_header(knobs, has_incoming ? a.sum : nullptr);
    begin_boundary(*a.control, {a.bounds, static_cast<size_t>(a.num_tensors)}, sums_of(a), sum, *a.own, knobs);
  });
}

base::Status queue_end(const CudaArrays& a, const KnobsPod& knobs, void* stream) {
  return queue(stream, [=] { end_boundary(*a.control, knobs); });
}

base::Status queue_header(const CudaArrays& a, const HeaderPod& base, const uint64_t* anchor_hash, void* stream) {
  return queue(stream, [=] {
    const HeaderPod sums = header_of(sums_of(a), 0, 0, 0, anchor_hash == nullptr ? 0 : *anchor_hash);
    HeaderPod header = base;
    header.bad = sums.bad;
    header.norm2 = sums.norm2;
    header.anchor_low = sums.anchor_low;
    header.anchor_high = sums.anchor_high;
    *a.own = *a.sum = header;
  });
}

base::Status queue_facts(const CudaArrays& a, FactsPod* facts, void* stream) {
  return queue(stream, [=] {
    *facts = {.control = *a.control, .sum = *a.sum, .own = *a.own};
    for (const SumsPod& sum : sums_of(a)) {
      facts->m2 += sum.m2;
      facts->v2 += sum.v2;
      facts->clipped += sum.clipped;
    }
  });
}

base::Status queue_to_anchor(const CudaArrays& a, const CudaRun& run, void* stream) {
  return queue(stream, [=] {
    for (const int32_t t : tensors_of(a, run))
      base::convert_to_float(a.tensors[t].x, a.tensors[t].dtype, a.memory.anchor + a.tensors[t].begin,
                             a.tensors[t].count);
  });
}

base::Status queue_restore(const CudaArrays& a, const CudaRun& run, void* stream) {
  return queue(stream, [=] {
    if (a.control->verdict != Verdict::bad_values) return;
    for (const int32_t t : tensors_of(a, run)) restore_parameters({a.tensors + t, 1}, a.memory);
  });
}

base::Status queue_hash(const void* data, int unit, int64_t count, int64_t first, uint64_t* hash, void* stream) {
  return queue(stream, [=] {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t word = unit == 4 ? static_cast<const uint32_t*>(data)[i] : static_cast<const uint16_t*>(data)[i];
      *hash += (static_cast<uint64_t>(first + i + 1) * 0x9e3779b97f4a7c15ull + word) * 0xbf58476d1ce4e5b9ull;
    }
  });
}

}  // namespace overlace::train
