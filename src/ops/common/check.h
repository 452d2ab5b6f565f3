// Preconditions that the dense operators share. Messages name operator, argument, value got, value wanted and rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "overlace/channel.h"
#include "overlace/operator.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/runtime/operand_places.h"

namespace overlace::ops {

/// Who is asking; goes into every message.
struct Site {
  std::string_view op;
  int rank = 0;
  bool is_gpu = false;
  runtime::OperandPlaces* places = nullptr;  // where operands lie; null: anywhere
  bool looks_at_memory = true;               // else shapes, dtypes and options alone are checked
};
Site site_of(const Channel& channel, std::string_view op);

struct Named {
  std::string_view name;
  TensorView view;
};

/// InvalidArgument with operator and rank around the text.
template <class... Args>
base::Status refuse(const Site& site, std::string_view text, const Args&... args) {
  return base::error(Errc::invalid_argument, "{}: {}; rank {}", site.op, base::format(text, args...), site.rank);
}

/// Memory is there, aligned to its elements, and where the rank computes; an empty tensor passes.
base::Status check_memory(const Site& site, const Named& t);
/// fp64 (cpu only), fp32, bf16, fp16, and fp8 where the operator takes scales.
base::Status check_input_dtype(const Site& site, const Named& t, bool takes_scales);
/// dtype of `a`; beside fp8 any that it is multiplied by (spec::are_factors).
base::Status check_factor_dtype(const Site& site, const Named& b, const Named& a);
/// Factors of fp8 have rows of a multiple of 16 elements, b stored (N, K), on GPUs N a multiple of 16 too, else
/// not_supported; others pass.
base::Status check_fp8(const Site& site, const Named& a, const Named& b);
/// fp32, without gaps: for fp8, `like`, one element, or (rows, cols) where OpSpec::scales is rows; else undefined.
base::Status check_scale(const Site& site, const Named& scale, const Named& like, spec::Scales scales, int64_t rows,
                         int64_t cols, std::string_view why);
/// dtype of `like`, or fp32 where that is 16 bits wide; 16 or 32 bits where it is fp8.
base::Status check_output_dtype(const Site& site, const Named& t, const Named& like);
/// dtype of `like`.
base::Status check_same_dtype(const Site& site, const Named& t, const Named& like);
/// (n), contiguous, memory there and aligned. `why`: as of check_matrix.
base::Status check_vector(const Site& site, const Named& t, int64_t n, std::string_view why);
/// (rows, cols), columns contiguous, rows apart from each other, memory there and aligned. `why`: where the wanted
/// extents come from.
base::Status check_matrix(const Site& site, const Named& t, int64_t rows, int64_t cols, std::string_view why);
/// b (k, n) of a dtype that `like` is multiplied by, its first dimension, called `depth`, or N contiguous.
base::Status check_b(const Site& site, const Named& b, int64_t k, const Named& like, std::string_view depth);
/// b (k, n) with an even n.
base::Status check_pairs(const Site& site, const Named& b);
/// (n) of the dtype of one of two others, on GPUs of `out`, else not_supported; undefined passes.
base::Status check_bias(const Site& site, const TensorView& bias, int64_t n, const Named& out, const Named& in);
/// Whether two tensors have an element in common; an undefined one has none.
bool shares_memory(const TensorView& one, const TensorView& other);
/// `out` shares no element with any of `others`; undefined ones pass.
base::Status check_disjoint(const Site& site, const Named& out, const std::vector<Named>& others);
/// G + 1 ascending entries from 0 to m, or empty.
base::Status check_offsets(const Site& site, const std::vector<int64_t>& offsets, int ranks, int64_t m);

/// The schedule was made for this problem, whichever way b is stored; plan_mismatch with both values otherwise.
base::Status check_problem(const Site& site, const spec::OpSpec& op, const spec::Schedule& schedule);
/// The schedule was made for this problem, with the layout of b too.
base::Status check_made_for(const Site& site, const spec::OpSpec& op, const spec::Schedule& schedule);
/// The schedule's layout of b is one that b fits.
base::Status check_stored(const Site& site, const TensorView& b, const spec::Schedule& schedule);
/// not_supported with the task and the reason where this team cannot run the schedule: bodies that the operator does
/// not bring, fused kernels that are not compiled for it, collectives without an engine.
base::Status check_supported(const Channel& channel, const spec::Schedule& schedule);
/// Scales on a GPU, in each call: not_supported where those of rows do not begin at 16 bytes.
base::Status check_scale_place(const Site& site, const Named& scale, const spec::Schedule& schedule);
/// What a fused kernel loads or stores on a GPU: not_supported names an operand whose place no kernel can.
base::Status check_kernel_operand(const Site& site, const Named& operand, const spec::Schedule& schedule);
/// K contiguous (a transposed weight) or N contiguous.
spec::BLayout layout_of(const TensorView& b);
/// Whether the schedule stores b as (N, K): then that is the binding of buffer "B".
bool stores_nk(const spec::Schedule& schedule);

/// "gemm_rs M 8 N 4 G 2 fp32 -> fp32, rows 0 3 8": what must be equal on all ranks. The schedule of a call says as
/// much: what may be written in two ways is in one here.
std::string agreement(const spec::OperatorDef& def, const spec::OpSpec& op);

}  // namespace overlace::ops
