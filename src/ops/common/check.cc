#include "src/ops/common/check.h"

#include <algorithm>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/ops/fused/choose.h"
#include "src/runtime/state.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::ops {
namespace {

int64_t bytes(DType t) { return static_cast<int64_t>(dtype_bytes(t)); }

/// Address range of the elements, in bytes.
struct Extent {
  uintptr_t begin = 0, end = 0;
  uintptr_t pitch = 0, row_bytes = 0;  // of the outer dimension; 0: one row
};

Extent extent_of(const TensorView& t) {
  Extent e;
  e.begin = reinterpret_cast<uintptr_t>(t.data);
  int64_t last = 0, inner = 0, outer = 0;
  for (int i = 0; i < t.ndim; ++i) {
    last += (t.dim(i) - 1) * t.stride(i);
    if (t.dim(i) > 1 && t.stride(i) > outer) outer = t.stride(i), inner = (t.dim(i) - 1) * t.stride(i);
  }
  e.end = e.begin + static_cast<uintptr_t>((last + 1) * bytes(t.dtype));
  e.pitch = static_cast<uintptr_t>(outer * bytes(t.dtype));
  e.row_bytes = static_cast<uintptr_t>((last - inner + 1) * bytes(t.dtype));
  return e;
}

std::string strides_of(const TensorView& t) {
  std::string text = "(";
  for (int i = 0; i < t.ndim; ++i) text += base::format(i == 0 ? "{}" : ", {}", t.stride(i));
  return text + ")";
}

base::Status check_param(const Site& site, const spec::Schedule& schedule, std::string_view name, spec::Param want) {
  const auto found = schedule.params.find(name);
  if (found != schedule.params.end() && found->second == want) return {};
  return base::error(Errc::plan_mismatch, "{}: schedule {} was made for {} {}, the call has {}; rank {}", site.op,
                     schedule.family, name, found == schedule.params.end() ? "none" : spec::text_of(found->second),
                     spec::text_of(want), site.rank);
}

std::string join(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t v : values) text += (text.empty() ? "" : " ") + std::to_string(v);
  return text;
}

base::Status check_blocks(const Site& site, const spec::OpSpec& op, const spec::Schedule& schedule) {
  const std::vector<int64_t> want = spec::block_offsets(op);
  const auto block = schedule.tables.find("block");
  if (block != schedule.tables.end() && block->second == want) return {};
  return base::error(Errc::plan_mismatch, "{}: schedule {} was made for blocks from {}, the call has {}; rank {}",
                     site.op, schedule.family, block == schedule.tables.end() ? "none" : join(block->second),
                     join(want), site.rank);
}

base::Status check_layout(const Site& site, spec::BLayout layout, const spec::Schedule& schedule) {
  return check_param(site, schedule, "b_layout", std::string(layout == spec::BLayout::nk ? "nk" : "kn"));
}

}  // namespace

Site site_of(const Channel& channel, std::string_view op) {
  Team& team = channel.team();
  Runtime& runtime = team.runtime();
  return {op, team.rank(), runtime.backend() == Backend::cuda_peer, &runtime.state().places};
}

base::Status check_memory(const Site& site, const Named& t) {
  if (t.view.numel() == 0 || !site.looks_at_memory) return {};
  if (t.view.data == nullptr) return refuse(site, "{} {} has no memory (null)", t.name, t.view.shape());
  const uintptr_t address = reinterpret_cast<uintptr_t>(t.view.data);
  if (address % dtype_bytes(t.view.dtype) != 0) {
    return refuse(site, "{} must be aligned to its {} bytes of {}, got an address {} past that", t.name,
                  dtype_bytes(t.view.dtype), dtype_name(t.view.dtype), address % dtype_bytes(t.view.dtype));
  }
  if (site.places != nullptr) return site.places->check(site.op, t.name, t.view.data, site.rank);
  return {};
}

base::Status check_input_dtype(const Site& site, const Named& t, bool takes_scales) {
  switch (t.view.dtype) {
    case DType::e4m3:
    case DType::e5m2:
      if (takes_scales) return {};
      break;
    case DType::fp32:
    case DType::fp16:
    case DType::bf16:
      return {};
    case DType::fp64:
      if (!site.is_gpu) return {};
      return base::error(Errc::not_supported, "{}: {} is fp64, which only the cpu backend multiplies; rank {}", site.op,
                         t.name, site.rank);
    default:
      break;
  }
  return refuse(site, "{} must be fp32, bf16, fp16{} or fp64, got {}", t.name, takes_scales ? ", e4m3, e5m2" : "",
                dtype_name(t.view.dtype));
}

base::Status check_factor_dtype(const Site& site, const Named& b, const Named& a) {
  if (spec::are_factors(a.view.dtype, b.view.dtype)) return {};
  if (!is_fp8(a.view.dtype)) return check_same_dtype(site, b, a);
  return refuse(site, "{} must be {}, as {} is {}, got {}", b.name,
                a.view.dtype == DType::e4m3 ? "e4m3 or e5m2" : "e4m3", a.name, dtype_name(a.view.dtype),
                dtype_name(b.view.dtype));
}

base::Status check_fp8(const Site& site, const Named& a, const Named& b) {
  if (!is_fp8(a.view.dtype)) return {};
  const int64_t k = a.view.dim(1), n = b.view.dim(1);
  if (k % spec::kFp8Columns != 0)
    return refuse(site, "{} {} of {} has K = {}, wanted a multiple of {}", a.name, a.view.shape(),
                  dtype_name(a.view.dtype), k, spec::kFp8Columns);
  if (k > 1 && b.view.stride(0) != 1)
    return refuse(site, "{} {} of {} must be contiguous in K (strides 1, >= {}), got strides {}", b.name,
                  b.view.shape(), dtype_name(b.view.dtype), k, strides_of(b.view));
  if (!site.is_gpu) return {};
  const auto row = [](const TensorView& t, int outer) { return t.dim(outer) > 1 ? t.stride(outer) : 0; };
  const int64_t pitches[] = {n, row(a.view, 0), row(b.view, 1)};
  const std::string_view names[] = {"N", "rows of a", "columns of b"};
  for (size_t i = 0; i < std::size(pitches); ++i)
    if (pitches[i] % spec::kFp8Columns != 0)
      return base::error(
          Errc::not_supported, "{}: {} {} {} with operands of {}, wanted a multiple of {} on GPUs; rank {}", site.op,
          names[i], i == 0 ? "is" : "are apart by", pitches[i], dtype_name(a.view.dtype), spec::kFp8Columns, site.rank);
  return {};
}

base::Status check_scale(const Site& site, const Named& t, const Named& like, spec::Scales scales, int64_t rows,
                         int64_t cols, std::string_view why) {
  const bool has_scales = is_fp8(like.view.dtype);
  if (!has_scales && !t.view.defined()) return {};
  if (!has_scales || !t.view.defined())
    return refuse(site, "{} is {}, wanted {}: {} is {}", t.name, t.view.defined() ? t.view.shape() : "not given",
                  has_scales ? "one" : "none", like.name, dtype_name(like.view.dtype));
  if (t.view.dtype != DType::fp32) return refuse(site, "{} must be fp32, got {}", t.name, dtype_name(t.view.dtype));
  if (scales == spec::Scales::tensor) return check_vector(site, t, 1, "as a_scale and b_scale are alike");
  OVERLACE_TRY(check_matrix(site, t, rows, cols, why));
  if (cols == 1 && rows > 1 && t.view.stride(0) != 1)
    return refuse(site, "{} {} must be contiguous, got strides {}", t.name, t.view.shape(), strides_of(t.view));
  return {};
}

base::Status check_output_dtype(const Site& site, const Named& t, const Named& like) {
  if (is_fp8(like.view.dtype)) {
    if (t.view.dtype == DType::bf16 || t.view.dtype == DType::fp16 || t.view.dtype == DType::fp32) return {};
    return refuse(site, "{} must be bf16, fp16 or fp32, as {} is {}, got {}", t.name, like.name,
                  dtype_name(like.view.dtype), dtype_name(t.view.dtype));
  }
  const bool fits = t.view.dtype == like.view.dtype || (t.view.dtype == DType::fp32 && like.view.dtype != DType::fp64);
  if (fits) return {};
  return refuse(site, "{} must have the dtype of {} ({}){}, got {}", t.name, like.name, dtype_name(like.view.dtype),
                like.view.dtype == DType::fp64 ? "" : " or fp32", dtype_name(t.view.dtype));
}

base::Status check_same_dtype(const Site& site, const Named& t, const Named& like) {
  if (t.view.dtype == like.view.dtype) return {};
  return refuse(site, "{} must have the dtype of {} ({}), got {}", t.name, like.name, dtype_name(like.view.dtype),
                dtype_name(t.view.dtype));
}

base::Status check_vector(const Site& site, const Named& t, int64_t n, std::string_view why) {
  if (t.view.ndim != 1 || t.view.dim(0) != n)
    return refuse(site, "{} must be ({}) {}, got {}", t.name, n, why, t.view.shape());
  if (n > 1 && t.view.stride(0) != 1)
    return refuse(site, "{} must be contiguous, got stride {}", t.name, t.view.stride(0));
  return check_memory(site, t);
}

base::Status check_matrix(const Site& site, const Named& t, int64_t rows, int64_t cols, std::string_view why) {
  if (t.view.ndim != 2)
    return refuse(site, "{} must have 2 dimensions, got {} {}", t.name, t.view.ndim, t.view.shape());
  if (t.view.dim(0) != rows || t.view.dim(1) != cols) {
    return refuse(site, "{} must be ({}, {}) {}, got {}", t.name, rows, cols, why, t.view.shape());
  }
  if (rows < 0 || cols < 0) return refuse(site, "{} {} has a negative extent", t.name, t.view.shape());
  const bool columns_touch = cols <= 1 || t.view.stride(1) == 1;
  const bool rows_apart = rows <= 1 || t.view.stride(0) >= cols;
  if (!columns_touch || !rows_apart) {
    return refuse(site, "{} {} must have contiguous rows that do not overlap (strides >= {}, 1), got strides {}",
                  t.name, t.view.shape(), cols, strides_of(t.view));
  }
  return check_memory(site, t);
}

base::Status check_b(const Site& site, const Named& b, int64_t k, const Named& like, std::string_view depth) {
  if (b.view.ndim != 2)
    return refuse(site, "{} must have 2 dimensions, got {} {}", b.name, b.view.ndim, b.view.shape());
  if (b.view.dim(0) != k) {
    return refuse(site, "{} must have K = {} rows as {} {} has columns, got {}", b.name, k, like.name,
                  like.view.shape(), b.view.shape());
  }
  OVERLACE_TRY(check_factor_dtype(site, b, like));
  const int64_t n = b.view.dim(1);
  if (n < 0) return refuse(site, "{} {} has a negative extent", b.name, b.view.shape());
  const bool nk = (k <= 1 || b.view.stride(0) == 1) && (n <= 1 || b.view.stride(1) >= k);
  const bool kn = (n <= 1 || b.view.stride(1) == 1) && (k <= 1 || b.view.stride(0) >= n);
  if (!nk && !kn) {
    return refuse(site, "{} {} must be contiguous in {} (strides 1, >= {}) or in N (strides >= {}, 1), got strides {}",
                  b.name, b.view.shape(), depth, k, n, strides_of(b.view));
  }
  return check_memory(site, b);
}

base::Status check_pairs(const Site& site, const Named& b) {
  if (b.view.dim(1) % 2 == 0) return {};
  return refuse(site, "{} must have pairs of columns for swiglu, got {}", b.name, b.view.shape());
}

base::Status check_bias(const Site& site, const TensorView& bias, int64_t n, const Named& out, const Named& in) {
  if (!bias.defined()) return {};
  if (bias.ndim != 1 || bias.dim(0) != n) return refuse(site, "bias must be ({}), got {}", n, bias.shape());
  if (is_fp8(in.view.dtype) && bias.dtype != out.view.dtype)
    return refuse(site, "bias must have the dtype of {} ({}), got {}", out.name, dtype_name(out.view.dtype),
                  dtype_name(bias.dtype));
  if (bias.dtype != out.view.dtype && bias.dtype != in.view.dtype) {
    return refuse(site, "bias must have the dtype of {} ({}) or of {} ({}), got {}", out.name,
                  dtype_name(out.view.dtype), in.name, dtype_name(in.view.dtype), dtype_name(bias.dtype));
  }
  if (site.is_gpu && bias.dtype != out.view.dtype) {
    return base::error(Errc::not_supported,
                       "{}: bias is {}, wanted {}, as {}: on GPUs it has the dtype of the result; rank {}", site.op,
                       dtype_name(bias.dtype), dtype_name(out.view.dtype), out.name, site.rank);
  }
  if (n > 1 && bias.stride(0) != 1) return refuse(site, "bias must be contiguous, got stride {}", bias.stride(0));
  return check_memory(site, {"bias", bias});
}

bool shares_memory(const TensorView& one, const TensorView& other) {
  if (one.numel() == 0 || other.numel() == 0) return false;
  const Extent x = extent_of(one), y = extent_of(other);
  if (x.end <= y.begin || y.end <= x.begin) return false;
  if (x.pitch == 0 || x.pitch != y.pitch) return true;
  // Column slices of one matrix: compare their places in the row.
  const auto pitch = static_cast<intptr_t>(x.pitch);
  const intptr_t signed_distance = static_cast<intptr_t>(y.begin - x.begin) % pitch;
  const uintptr_t distance = static_cast<uintptr_t>(signed_distance < 0 ? signed_distance + pitch : signed_distance);
  return distance < x.row_bytes || distance + y.row_bytes > x.pitch;
}

base::Status check_disjoint(const Site& site, const Named& out, const std::vector<Named>& others) {
  for (const Named& other : others) {
    if (!site.looks_at_memory || !shares_memory(out.view, other.view)) continue;
    return refuse(site, "{} {} must not share memory with {} {}", out.name, out.view.shape(), other.name,
                  other.view.shape());
  }
  return {};
}

base::Status check_offsets(const Site& site, const std::vector<int64_t>& offsets, int ranks, int64_t m) {
  if (offsets.empty()) return {};
  const size_t want = static_cast<size_t>(ranks) + 1;
  const bool fits = offsets.size() == want && offsets.front() == 0 && offsets.back() == m &&
                    std::is_sorted(offsets.begin(), offsets.end());
  if (fits) return {};
  return refuse(site, "row_offsets must be {} ascending entries from 0 to M = {}, got {} entries: {}", want, m,
                offsets.size(), join(offsets));
}

base::Status check_problem(const Site& site, const spec::OpSpec& op, const spec::Schedule& schedule) {
  if (schedule.op != op.op) {
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for operator {}; rank {}", site.op,
                       schedule.family, schedule.op, site.rank);
  }
  OVERLACE_TRY(check_param(site, schedule, "M", op.m));
  OVERLACE_TRY(check_param(site, schedule, "N", op.n));
  OVERLACE_TRY(check_param(site, schedule, "K", op.k));
  OVERLACE_TRY(check_param(site, schedule, "G", int64_t{op.ranks}));
  OVERLACE_TRY(check_param(site, schedule, "dtype", std::string(dtype_name(op.dtype))));
  if (const std::string_view b = dtype_name(spec::dtype_of_b(op)); b != spec::dtype_of_b(schedule.params))
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for b of {}, the call has {}; rank {}", site.op,
                       schedule.family, spec::dtype_of_b(schedule.params), b, site.rank);
  OVERLACE_TRY(check_param(site, schedule, "out_dtype", std::string(dtype_name(op.out_dtype))));
  OVERLACE_TRY(check_param(site, schedule, "bias", op.bias));
  for (const auto& [name, value] : op.fields) OVERLACE_TRY(check_param(site, schedule, name, value));
  if (spec::activation_of(schedule.params) != op.activation) {
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for activation {}, the call has {}; rank {}",
                       site.op, schedule.family, spec::name_of(spec::activation_of(schedule.params)),
                       spec::name_of(op.activation), site.rank);
  }
  if (spec::scales_of(schedule.params) != op.scales) {
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for scales {}, the call has {}; rank {}", site.op,
                       schedule.family, spec::name_of(spec::scales_of(schedule.params)), spec::name_of(op.scales),
                       site.rank);
  }
  if (op.gathered && op.ranks > 1 && !schedule.params.contains("gathered")) {
    return base::error(Errc::not_supported, "{}: schedule {} gathers nothing that could be returned in a; rank {}",
                       site.op, schedule.family, site.rank);
  }
  const std::vector<int64_t> want = spec::row_offsets(op);
  const auto off = schedule.tables.find("off");
  if (off == schedule.tables.end() || off->second != want) {
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for row offsets {}, the call has {}; rank {}",
                       site.op, schedule.family, off == schedule.tables.end() ? "none" : join(off->second), join(want),
                       site.rank);
  }
  const spec::Exchange made_for = spec::exchange_of(schedule.params);
  if (made_for != op.exchange)
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for exchange {}, the call has {}; rank {}",
                       site.op, schedule.family, spec::name_of(made_for), spec::name_of(op.exchange), site.rank);
  if (op.exchange == spec::Exchange::cols) return check_blocks(site, op, schedule);
  if (!spec::exchanges(op.op)) return {};
  const std::vector<int64_t> rows = spec::splits(op);
  const auto splits = schedule.tables.find("splits");
  if (splits == schedule.tables.end() || splits->second != rows)
    return base::error(Errc::plan_mismatch, "{}: schedule {} was made for splits {}, the call has {}; rank {}", site.op,
                       schedule.family, splits == schedule.tables.end() ? "none" : join(splits->second), join(rows),
                       site.rank);
  return {};
}

base::Status check_made_for(const Site& site, const spec::OpSpec& op, const spec::Schedule& schedule) {
  OVERLACE_TRY(check_problem(site, op, schedule));
  return check_layout(site, op.b_layout, schedule);
}

base::Status check_stored(const Site& site, const TensorView& b, const spec::Schedule& schedule) {
  const bool nk = b.dim(0) <= 1 || b.stride(0) == 1, kn = b.dim(1) <= 1 || b.stride(1) == 1;
  return nk && kn ? base::Status() : check_layout(site, nk ? spec::BLayout::nk : spec::BLayout::kn, schedule);
}

namespace {

/// NOTE: cuBLASLt takes scales of rows from addresses of 16 bytes on (13.0: it returns "not supported" else), and
/// blocks of rows have theirs where the rows are. A product of all rows begins with the first.
base::Status check_scale_rows(const Team& team, const spec::Schedule& schedule) {
  const auto off = schedule.tables.find("off");
  if (spec::scales_of(schedule.params) != spec::Scales::rows || off == schedule.tables.end()) return {};
  const spec::ClosedForm form = spec::form_of(schedule.op, schedule.family);
  if (form == spec::ClosedForm::library || form == spec::ClosedForm::serial) return {};
  for (size_t rank = 1; rank + 1 < off->second.size(); ++rank)
    if (const int64_t row = off->second[rank]; row % spec::kScaleRows != 0 && row != off->second[rank + 1])
      return base::error(Errc::not_supported,
                         "{}: schedule {}: rank {} begins at row {} with scales of rows, wanted a multiple of {} on "
                         "GPUs, or schedule library or serial; rank {}",
                         schedule.op, schedule.family, rank, row, spec::kScaleRows, team.rank());
  return {};
}

}  // namespace

base::Status check_supported(const Channel& channel, const spec::Schedule& schedule) {
  Team& team = channel.team();
  if (team.runtime().backend() == Backend::cuda_peer) OVERLACE_TRY(check_scale_rows(team, schedule));
  for (const spec::Task& task : schedule.tasks) {
    const bool is_part = spec::is_part(task);
    if ((task.kind == spec::Kind::tiles && !is_part) || task.kind == spec::Kind::host) {
      return base::error(Errc::not_supported, "{}: schedule {}, task {}: the operator has no {} body; rank {}",
                         schedule.op, schedule.family, task.id, task.kind == spec::Kind::tiles ? "tiles" : "host",
                         team.rank());
    }
    if (task.kind == spec::Kind::tiles && spec::scales_of(schedule.params) != spec::Scales::none) {
      return base::error(Errc::not_supported,
                         "{}: schedule {}, task {}: a fused kernel has no scales, wanted tasks of kind gemm; rank {}",
                         schedule.op, schedule.family, task.id, team.rank());
    }
    if (task.kind == spec::Kind::collective && team.size() > 1 && team.net() == nullptr) {
      return base::error(Errc::not_supported,
                         "{}: schedule {}, task {}: team \"{}\" has no collectives engine; serial needs none; rank {}",
                         schedule.op, schedule.family, task.id, team.name(), team.rank());
    }
  }
  return fused::needs_instance(schedule) ? fused::check_fused(channel, schedule) : base::Status();
}

base::Status check_scale_place(const Site& site, const Named& scale, const spec::Schedule& schedule) {
  const auto past = reinterpret_cast<uintptr_t>(scale.view.data) % 16;
  if (spec::scales_of(schedule.params) != spec::Scales::rows || past == 0 || scale.view.numel() == 0) return {};
  return base::error(Errc::not_supported,
                     "{}: schedule {}: {} is at an address {} past a multiple of 16, wanted a multiple of 16 on GPUs; "
                     "rank {}",
                     site.op, schedule.family, scale.name, past, site.rank);
}

base::Status check_kernel_operand(const Site& site, const Named& t, const spec::Schedule& schedule) {
  if (t.view.numel() == 0) return {};
  const int outer = t.view.stride(0) == 1 && t.view.dim(1) > 1 ? 1 : 0;
  const auto address = reinterpret_cast<uintptr_t>(t.view.data) % 16;
  if (address == 0 && (t.view.dim(outer) <= 1 || t.view.stride(outer) % 8 == 0)) return {};
  return base::error(Errc::not_supported,
                     "{}: schedule {}: no kernel for {} at an address {} past a multiple of 16, rows {} elements "
                     "apart; wanted: a multiple of 16, of 8 elements; rank {}",
                     site.op, schedule.family, t.name, address, t.view.stride(outer), site.rank);
}

spec::BLayout layout_of(const TensorView& b) { return b.stride(0) == 1 ? spec::BLayout::nk : spec::BLayout::kn; }

bool stores_nk(const spec::Schedule& schedule) {
  const auto layout = schedule.params.find("b_layout");
  return layout != schedule.params.end() && layout->second == spec::Param(std::string("nk"));
}

std::string agreement(const spec::OperatorDef& def, const spec::OpSpec& op) {
  std::string out = op.op;
  for (const auto& [name, value] : {std::pair{"M", op.m}, std::pair{"N", op.n}, std::pair{"K", op.k}})
    if (name != def.local_param) out += base::format(" {} {}", name, value);
  out += base::format(" G {} {} -> {}, rows {}", op.ranks, spec::factors_of(op), dtype_name(op.out_dtype),
                      join(spec::row_offsets(op)));
  const bool has_rows = op.exchange == spec::Exchange::rows;
  if (has_rows && spec::exchanges(op.op)) out += base::format(", splits {}", join(spec::splits(op)));
  if (!has_rows) out += base::format(", {}", spec::name_of(op.exchange));
  if (op.blocks.size() > 1) out += base::format(", blocks {}", join(op.blocks));
  if (op.scales != spec::Scales::none) out += base::format(", scales {}", spec::name_of(op.scales));
  for (const auto& [name, value] : op.fields) out += base::format(", {} {}", name, spec::text_of(value));
  return out;
}

}  // namespace overlace::ops
