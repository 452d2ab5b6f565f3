// Which problems have a kernel that computes and communicates in one.
#pragma once

#include <span>
#include <string>

#include "overlace/machine.h"
#include "overlace/schedule.h"

namespace overlace::spec {

/// The compute capability, as 10 * major + minor, of the GPUs that have these kernels: Hopper. Others take all
/// schedules without one.
inline constexpr int kFusedCapability = 90;

inline bool has_fused_kernels(const Machine& machine) {
  return machine.is_gpu && machine.compute_capability == kFusedCapability;
}

/// "compute capability 8.0"
std::string capability_text(int compute_capability);

/// What GPUs with these capabilities are to a planner: as the first that has no such kernels, for a kernel needs all of
/// them. Zeros, which nobody found out, and an empty list count as GPUs that do.
int capability_of_team(std::span<const int> capabilities);

/// What decides whether there is a kernel besides types and layouts.
struct FusedShape {
  int64_t m = 0, n = 0, k = 0, ranks = 0;
  Activation activation = Activation::none;
  bool is_small_m = false;  // of the kernels of `one_shot`
};
/// What is wrong with a shape: "N 12, K 64; wanted: multiples of 8"; empty if kernels take it.
std::string fused_problem(const FusedShape& shape);

/// What the kernels of k_slab and tma_slot were measured with on GPUs; tma_slot of gemm_ar on two, without a bias. They
/// are compiled for more: fp16, B stored (K, N) (src/ops/fused/choose.h has the word). Operands must lie as for
/// has_few_tokens.
bool is_fusable(const OpSpec& op);

/// Few tokens of an operator that has a kernel for them: `auto` takes it on GPUs of one host where the recurrence
/// expects it to be ahead of the library, by what was measured on two.
/// Its operands must lie at multiples of 16 bytes, rows multiples of 8 elements apart: else the call is refused.
bool has_few_tokens(const OpSpec& op);
/// With how many tokens the kernel was measured (Machine::FewRows::measured_rows; AllGather and more than two ranks
/// with 64 at most): planners know nothing of more.
double measured_tokens(const OpSpec& op, const Machine& machine);
bool has_measured_tokens(const OpSpec& op, const Machine& machine);

}  // namespace overlace::spec
