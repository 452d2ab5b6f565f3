// The fused pass: one read-modify-write of parameters x, anchor a, momentum m, kept increment and wire buffer w per
// element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "overlace/dtype_pod.h"
#include "src/train/co2/control_pod.h"
#include "src/train/co2/threads.h"

namespace overlace::train {

/// fused: takes in what was reduced and writes this round's increment; delta: only the latter; apply: only the former.
enum class PassMode { fused, delta, apply };

/// A parameter as far as this rank holds it. Elements [begin, begin + count) of a, m and w are its own.
struct PassTensor {
  void* x = nullptr;
  DType dtype = DType::fp32;  // fp32, bf16, fp16
  int64_t begin = 0, count = 0;
  void* copy = nullptr;  // gets what x gets, rounded; null: none
  DType copy_dtype = DType::bf16;
};

/// Memory of all parameters of the rank.
struct PassMemory {
  float* anchor = nullptr;
  float* momentum = nullptr;       // null: beta and kappa are 0, so that none is remembered
  float* kept = nullptr;           // by how much x began the round below a; null: not at all
  void* wire = nullptr;            // on its way or reduced: the mean, or this rank's share of it
  DType wire_dtype = DType::fp32;  // fp32, bf16
  float* residual = nullptr;       // what rounding to bf16 left out; null with fp32
};

/// `groups`: one over the weight of this group in the mean.
/// v = w; u = a - kept - x; w = u / groups; d = v - pull * m; m = clip(beta * m + d / Lambda);
/// a -= step_m * m + step_d * d; kept = keep * u; x = a - kept. Where `pass.is_applied` is 0 a and m stay. What is not
/// finite is not kept; apply keeps nothing, and x = mix * x + (1 - mix) * a there. `bounds` and `sums` lie beside
/// `tensors`; of `sums` what the mode computes is replaced. The same bits with any number of threads and on any
/// processor.
void run_pass(Threads& threads, PassMode mode, const PassPod& pass, float groups, std::span<const PassTensor> tensors,
              std::span<const TensorPod> bounds, const PassMemory& memory, std::span<SumsPod> sums);

/// x = a, nothing kept.
void restore_parameters(std::span<const PassTensor> tensors, const PassMemory& memory);

/// a = x, m = 0, nothing kept.
void reset_anchor(std::span<const PassTensor> tensors, const PassMemory& memory);

}  // namespace overlace::train
