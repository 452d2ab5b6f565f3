#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/base/half.h"
#include "src/base/status.h"
#include "src/train/co2/pass.h"

namespace overlace::train {
namespace {

// Elements that one thread takes at once, and that are converted at once. Sums are taken per piece in four lanes and
// then over pieces in order, so that they have the same bits however many threads there are.
constexpr int64_t kPiece = 16384, kBlock = 512, kLanes = 4;

using Float4 [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = float;
using Int4 [[gnu::vector_size(16)]] = int32_t;
using Double4 [[gnu::vector_size(32)]] = double;

struct Lanes {
  Double4 m2{}, w2{}, v2{};
  Int4 bad{}, clipped{};
};

struct Block {
  const float* x_in;
  float* x_out;
  float* a;
  float* m;
  float* kept;
  const float* v;  // reduced; not read by PassMode::delta
  float* w;        // gets this round's increment over `divisor`; not written by PassMode::apply
  float divisor;
};

/// Lanes [i, i + 4) of a block.
template <PassMode kMode>
inline void step_lanes(const PassPod& pass, float bound, const Block& block, int64_t i, Lanes& lanes) {
  const auto load = [i](const float* from) { return *reinterpret_cast<const Float4*>(from + i); };
  const auto store = [i](float* to, const Float4& value) { *reinterpret_cast<Float4*>(to + i) = value; };
  const auto add_square = [](Double4& sum, const Float4& value) {
    const Double4 wide = __builtin_convertvector(value, Double4);
    sum += wide * wide;
  };
  const Float4 a = load(block.a);
  Float4 next = a, kept{};
  if constexpr (kMode != PassMode::apply) {
    const Float4 start = block.kept == nullptr ? a : a - load(block.kept);
    const Float4 w = start - load(block.x_in);
    add_square(lanes.w2, w);
    Int4 bits;
    std::memcpy(&bits, &w, sizeof bits);
    const Int4 is_bad = (bits & 0x7f800000) == 0x7f800000;
    lanes.bad -= is_bad;
    if (kMode == PassMode::fused && block.kept != nullptr) kept = is_bad ? Float4{} : pass.keep * w;
    if constexpr (kMode == PassMode::delta) store(block.w, w / block.divisor);
    if constexpr (kMode == PassMode::fused) {
      const Float4 v = load(block.v);  // before w, which may lie at the same place
      store(block.w, w / block.divisor);
      add_square(lanes.v2, v);
      next = v;
    }
  }
  if constexpr (kMode == PassMode::delta) return;
  if constexpr (kMode == PassMode::apply) {
    next = load(block.v);
    add_square(lanes.v2, next);
  }
  if (block.kept != nullptr) store(block.kept, kept);
  const Float4 m = block.m == nullptr ? Float4{} : load(block.m);
  if (pass.is_applied == 0) {
    add_square(lanes.m2, m);
    store(block.x_out, a - kept);
    return;
  }
  const Float4 d = next - pass.pull * m;
  Float4 moved = pass.beta * m + d * pass.inv_lambda;
  const Float4 high = Float4{} + bound, low = -high;
  lanes.clipped -= (moved > high) | (moved < low);
  moved = moved > high ? high : moved;
  moved = moved < low ? low : moved;
  add_square(lanes.m2, moved);
  next = a - (pass.step_m * moved + pass.step_d * d);
  if (block.m != nullptr) store(block.m, moved);
  store(block.a, next);
  if (kMode == PassMode::apply && pass.mix != 0)
    next = pass.mix * load(block.x_in) + (1 - pass.mix) * next;
  else
    next -= kept;
  store(block.x_out, next);
}

template <PassMode kMode>
void step_block(const PassPod& pass, float bound, const Block& block, int64_t count, Lanes& lanes) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) step_lanes<kMode>(pass, bound, block, i, lanes);
  if (i == count) return;
  // The tail with zeros behind it, which add nothing to any sum.
  float x[kLanes] = {}, a[kLanes] = {}, m[kLanes] = {}, kept[kLanes] = {}, v[kLanes] = {}, w[kLanes] = {};
  float out[kLanes] = {};
  const size_t bytes = static_cast<size_t>(count - i) * sizeof(float);
  const auto copy = [bytes](float* to, const float* from) { std::memcpy(to, from, bytes); };
  copy(x, block.x_in + i);
  copy(a, block.a + i);
  if (block.m != nullptr) copy(m, block.m + i);
  if (block.kept != nullptr) copy(kept, block.kept + i);
  if (kMode != PassMode::delta) copy(v, block.v + i);
  const Block tail{x, out,          a, block.m == nullptr ? nullptr : m, block.kept == nullptr ? nullptr : kept, v,
                   w, block.divisor};
  step_lanes<kMode>(pass, bound, tail, 0, lanes);
  if (kMode != PassMode::apply) copy(block.w + i, w);
  if (kMode == PassMode::delta) return;
  copy(block.a + i, a);
  if (block.m != nullptr) copy(block.m + i, m);
  if (block.kept != nullptr) copy(block.kept + i, kept);
  copy(block.x_out + i, out);
}

/// bf16(u / groups) for u = w + residual; the residual keeps what that leaves out.
void pack_bf16(const float* w, float* residual, uint16_t* wire, int64_t count, float groups) {
  for (int64_t i = 0; i < count; ++i) {
    const float whole = w[i] + residual[i];
    wire[i] = base::float_to_bf16(whole / groups);
    const float left = whole - groups * base::bf16_to_float(wire[i]);
    residual[i] = std::isfinite(left) ? left : 0;
  }
}

char* at(void* memory, DType dtype, int64_t element) {
  return static_cast<char*>(memory) + element * static_cast<int64_t>(dtype_bytes(dtype));
}

struct Piece {
  size_t tensor;
  int64_t begin, count;  // in the tensor
};

template <PassMode kMode>
void step_piece(const PassPod& pass, float groups, const PassTensor& tensor, const Piece& piece, float bound,
                const PassMemory& memory, Lanes& lanes) {
  float x[kBlock], v[kBlock], w[kBlock];
  for (int64_t done = 0; done < piece.count; done += kBlock) {
    const int64_t n = std::min(kBlock, piece.count - done), in_tensor = piece.begin + done;
    const int64_t flat = tensor.begin + in_tensor;
    char* const parameter = at(tensor.x, tensor.dtype, in_tensor);
    char* const wire = at(memory.wire, memory.wire_dtype, flat);
    float* own = reinterpret_cast<float*>(parameter);
    if (tensor.dtype != DType::fp32) {
      own = x;
      if (kMode != PassMode::apply || pass.mix != 0) base::convert_to_float(parameter, tensor.dtype, x, n);
    }
    const float* mean = reinterpret_cast<const float*>(wire);
    if (kMode != PassMode::delta && memory.wire_dtype != DType::fp32) {
      base::convert_to_float(wire, memory.wire_dtype, v, n);
      mean = v;
    }
    const bool is_packed = memory.wire_dtype != DType::fp32;
    float* const momentum = memory.momentum == nullptr ? nullptr : memory.momentum + flat;
    float* const kept = memory.kept == nullptr ? nullptr : memory.kept + flat;
    step_block<kMode>(pass, bound,
                      {own, own, memory.anchor + flat, momentum, kept, mean,
                       is_packed ? w : reinterpret_cast<float*>(wire), is_packed ? 1 : groups},
                      n, lanes);
    if (kMode != PassMode::apply && is_packed)
      pack_bf16(w, memory.residual + flat, reinterpret_cast<uint16_t*>(wire), n, groups);
    if (kMode == PassMode::delta) continue;
    if (tensor.dtype != DType::fp32) base::convert_from_float(x, parameter, tensor.dtype, n);
    if (tensor.copy != nullptr)
      base::convert_from_float(own, at(tensor.copy, tensor.copy_dtype, in_tensor), tensor.copy_dtype, n);
  }
}

SumsPod total_of(const Lanes& lanes) {
  SumsPod sums;
  for (int i = 0; i < kLanes; ++i) {
    sums.m2 += lanes.m2[i];
    sums.w2 += lanes.w2[i];
    sums.v2 += lanes.v2[i];
    sums.bad += lanes.bad[i];
    sums.clipped += lanes.clipped[i];
  }
  return sums;
}

template <PassMode kMode>
void run_mode(Threads& threads, const PassPod& pass, float groups, std::span<const PassTensor> tensors,
              std::span<const TensorPod> bounds, const PassMemory& memory, std::span<SumsPod> sums) {
  std::vector<Piece> pieces;
  for (size_t t = 0; t < tensors.size(); ++t)
    for (int64_t begin = 0; begin < tensors[t].count; begin += kPiece)
      pieces.push_back({t, begin, std::min(kPiece, tensors[t].count - begin)});
  std::vector<SumsPod> parts(pieces.size());
  threads.run(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    Lanes lanes;
    step_piece<kMode>(pass, groups, tensors[piece.tensor], piece, bounds[piece.tensor].bound, memory, lanes);
    parts[static_cast<size_t>(i)] = total_of(lanes);
  });
  for (SumsPod& sum : sums) {
    if (kMode != PassMode::apply) sum.w2 = sum.bad = 0;
    if (kMode != PassMode::delta) sum.m2 = sum.v2 = sum.clipped = 0;
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    SumsPod& sum = sums[pieces[i].tensor];
    sum.m2 += parts[i].m2;
    sum.w2 += parts[i].w2;
    sum.v2 += parts[i].v2;
    sum.bad += parts[i].bad;
    sum.clipped += parts[i].clipped;
  }
}

}  // namespace

void run_pass(Threads& threads, PassMode mode, const PassPod& pass, float groups, std::span<const PassTensor> tensors,
              std::span<const TensorPod> bounds, const PassMemory& memory, std::span<SumsPod> sums) {
  OVERLACE_ASSERT(tensors.size() == bounds.size() && tensors.size() == sums.size() && groups > 0);
  OVERLACE_ASSERT(memory.wire_dtype == DType::fp32 || memory.residual != nullptr);
  switch (mode) {
    case PassMode::fused:
      return run_mode<PassMode::fused>(threads, pass, groups, tensors, bounds, memory, sums);
    case PassMode::delta:
      return run_mode<PassMode::delta>(threads, pass, groups, tensors, bounds, memory, sums);
    case PassMode::apply:
      return run_mode<PassMode::apply>(threads, pass, groups, tensors, bounds, memory, sums);
  }
}

void restore_parameters(std::span<const PassTensor> tensors, const PassMemory& memory) {
  for (const PassTensor& tensor : tensors) {
    if (memory.kept != nullptr) std::fill_n(memory.kept + tensor.begin, tensor.count, 0.0f);
    base::convert_from_float(memory.anchor + tensor.begin, tensor.x, tensor.dtype, tensor.count);
    if (tensor.copy != nullptr)
      base::convert_from_float(memory.anchor + tensor.begin, tensor.copy, tensor.copy_dtype, tensor.count);
  }
}

void reset_anchor(std::span<const PassTensor> tensors, const PassMemory& memory) {
  for (const PassTensor& tensor : tensors) {
    base::convert_to_float(tensor.x, tensor.dtype, memory.anchor + tensor.begin, tensor.count);
    for (float* const values : {memory.momentum, memory.kept})
      if (values != nullptr) std::fill_n(values + tensor.begin, tensor.count, 0.0f);
  }
}

}  // namespace overlace::train
