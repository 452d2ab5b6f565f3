#include "src/ops/common/bind.h"

#include <algorithm>
#include <string>
#include <utility>

#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::ops {
namespace {

using spec::Arg;
using spec::OperatorDef;
using spec::OpSpec;
using spec::Role;

/// Rows of an argument that are those of its rank.
constexpr std::string_view kMyRows = "off[r+1]-off[r]";

/// It depends on how rows are split.
bool is_split(const spec::ArgShape& shape) {
  const auto has = [&](std::string_view table) {
    return shape.rows.find(table) != std::string_view::npos || shape.columns.find(table) != std::string_view::npos;
  };
  return has("off[") || has("got[");
}

/// The size that an extent names by itself; null for any other.
using Size = int64_t OpSpec::*;
Size size_of(std::string_view extent) {
  return extent == "M" ? &OpSpec::m : extent == "N" ? &OpSpec::n : extent == "K" ? &OpSpec::k : nullptr;
}

/// Offsets of the results where rows are exchanged.
std::vector<int64_t> results_of(const OpSpec& op) {
  const std::vector<int64_t> rows = spec::splits(op);
  std::vector<int64_t> out = {0};
  for (int to = 0; to < op.ranks; ++to) {
    int64_t sum = out.back();
    for (int from = 0; from < op.ranks; ++from) sum += rows[static_cast<size_t>(from * op.ranks + to)];
    out.push_back(sum);
  }
  return out;
}

/// What an extent is on this rank.
int64_t value_of(std::string_view extent, const OpSpec& op, const std::vector<int64_t>& off, int rank) {
  if (extent == kMyRows) return off[static_cast<size_t>(rank) + 1] - off[static_cast<size_t>(rank)];
  if (const Size size = size_of(extent); size != nullptr) return op.*size;
  spec::Env env{{"M", op.m}, {"N", op.n}, {"K", op.k}, {"G", op.ranks}, {"r", rank}};
  for (const auto& [name, value] : op.fields)
    if (const auto* number = std::get_if<int64_t>(&value)) env[name] = *number;
  spec::Tables tables = {{"off", off}};
  if (spec::exchanges(op.op) && op.exchange == spec::Exchange::rows) tables["got"] = results_of(op);
  return spec::Expr(std::string(extent)).eval(env, tables);
}

/// One call on one rank while it is checked.
class Check {
 public:
  Check(const Site& site, const OperatorDef& def, const CallArgs& args, const OpSpec& op)
      : site_(site), def_(def), args_(args), op_(op) {
    for (size_t i = def.args.size(); i-- > 0;) {
      if (def.args[i].role == Role::input || def.args[i].role == Role::data) input_ = named(i);
      if (def.args[i].role == Role::output) output_ = named(i);
      if (def.args[i].has_layout) factor_ = named(i);
    }
  }

  base::Status all() {
    OVERLACE_TRY(options());
    for (size_t i = 0; i < def_.args.size(); ++i) OVERLACE_TRY(alone(i));
    if (spec::takes_scales(def_)) OVERLACE_TRY(check_fp8(site_, input_, factor_));
    if (def_.check_data != nullptr) {
      const std::string why = def_.check_data(op_, site_.rank, args_.tensors, site_.looks_at_memory && !site_.is_gpu);
      if (!why.empty()) return refuse(site_, "{}", why);
    }
    for (size_t i = 0; i < def_.args.size(); ++i)
      if (def_.args[i].role == Role::data && args_.tensors[i].defined()) OVERLACE_TRY(check_memory(site_, named(i)));
    OVERLACE_TRY(check_offsets(site_, args_.row_offsets, op_.ranks, op_.m));
    if (!args_.splits.empty())
      if (const std::string why = spec::splits_problem(def_, op_); !why.empty()) return refuse(site_, "{}", why);
    off_ = spec::row_offsets(op_);
    for (size_t i = 0; i < def_.args.size(); ++i)
      if (is_split(shape(def_.args[i])) && def_.args[i].role != Role::gathered && def_.args[i].role != Role::data &&
          def_.args[i].role != Role::scale)
        OVERLACE_TRY(matrix(i));
    for (size_t i = 0; i < def_.args.size(); ++i)
      if (def_.args[i].role == Role::scale) OVERLACE_TRY(scale(i));
    for (size_t i = 0; i < def_.args.size(); ++i)
      if (def_.args[i].role == Role::bias)
        OVERLACE_TRY(check_bias(site_, args_.tensors[i], value(shape(def_.args[i]).rows), output_, input_));
    return results();
  }

 private:
  spec::ArgShape shape(const Arg& arg) const { return spec::shape_of(arg, op_.exchange); }
  Named named(size_t i) const { return {def_.args[i].call, args_.tensors[i]}; }
  int64_t value(std::string_view extent) const { return value_of(extent, op_, off_, site_.rank); }

  base::Status options() const {
    const auto splits = [&](const Arg& arg) { return is_split(shape(arg)); };
    if (!args_.row_offsets.empty() && std::none_of(def_.args.begin(), def_.args.end(), splits))
      return refuse(site_, "row_offsets are given, wanted none: {} splits no rows", def_.name);
    if (args_.activation != spec::Activation::none && !def_.takes_activation)
      return refuse(site_, "activation is {}, wanted none: {} has none", spec::name_of(args_.activation), def_.name);
    if (const std::string what = spec::field_problem(def_, args_.fields); !what.empty())
      return refuse(site_, "{}", what);
    if (const std::string what = spec::blocks_problem(def_, op_); !what.empty()) return refuse(site_, "{}", what);
    return {};
  }

  /// What an argument must be whatever the row offsets are; bias and gathered come later.
  base::Status alone(size_t i) const {
    const Arg& arg = def_.args[i];
    const spec::ArgShape wanted = shape(arg);
    const Named t = named(i);
    if (arg.role == Role::output) {
      OVERLACE_TRY(check_output_dtype(site_, t, input_));
      if (t.name != output_.name) OVERLACE_TRY(check_same_dtype(site_, t, output_));
      if (is_swiglu()) OVERLACE_TRY(check_pairs(site_, factor_));
      return is_split(wanted) ? base::Status() : matrix(i);
    }
    if (arg.role != Role::input) return {};
    if (t.name == input_.name) OVERLACE_TRY(check_input_dtype(site_, t, spec::takes_scales(def_)));
    if (arg.has_layout) {
      OVERLACE_TRY(check_b(site_, t, value(wanted.rows), input_, wanted.rows));
      if (t.view.dim(1) == value(wanted.columns)) return {};
      return refuse(site_, "{} must have {} = {} columns, got {}", t.name, wanted.columns, value(wanted.columns),
                    t.view.shape());
    }
    OVERLACE_TRY(check_same_dtype(site_, t, input_));
    return is_split(wanted) ? check_matrix(site_, t, t.view.dim(0), t.view.ndim == 2 ? t.view.dim(1) : 0, "as given")
                            : matrix(i);
  }

  base::Status scale(size_t i) const {
    const Arg& arg = def_.args[i];
    return check_scale(site_, named(i), input_, op_.scales, value(arg.rows), value(arg.columns), arg.why);
  }

  base::Status matrix(size_t i) const {
    const Arg& arg = def_.args[i];
    const spec::ArgShape wanted = shape(arg);
    const bool is_halved = arg.role == Role::output && is_swiglu();
    const std::string swiglu = is_halved ? base::format("to take swiglu of {}'s {}", factor_.name, arg.columns) : "";
    const bool is_mine = is_split(wanted) && arg.role == Role::input;
    std::string_view why = is_halved ? swiglu : arg.why;
    if (is_mine && op_.exchange == spec::Exchange::cols && args_.splits.empty()) why = "as all rows are dealt evenly";
    if (is_mine && !args_.row_offsets.empty()) why = "as row_offsets say";
    if (wanted.columns.empty()) return check_vector(site_, named(i), value(wanted.rows), why);
    return check_matrix(site_, named(i), value(wanted.rows), value(wanted.columns) / (is_halved ? 2 : 1), why);
  }

  /// Results share memory with nothing.
  base::Status results() const {
    std::vector<Named> others;
    for (size_t i = 0; i < def_.args.size(); ++i)
      if (def_.args[i].role != Role::output && def_.args[i].role != Role::gathered) others.push_back(named(i));
    for (size_t i = 0; i < def_.args.size(); ++i) {
      const Arg& arg = def_.args[i];
      const bool is_gathered = arg.role == Role::gathered && args_.tensors[i].defined();
      if (is_gathered) {
        OVERLACE_TRY(matrix(i));
        OVERLACE_TRY(check_same_dtype(site_, named(i), input_));
      }
      if (!is_gathered && arg.role != Role::output) continue;
      OVERLACE_TRY(check_disjoint(site_, named(i), others));
      others.push_back(named(i));
    }
    return {};
  }

  bool is_swiglu() const { return args_.activation == spec::Activation::swiglu; }

  const Site& site_;
  const OperatorDef& def_;
  const CallArgs& args_;
  const OpSpec& op_;
  Named input_, output_, factor_;  // the first of each; factor: that is stored either way
  std::vector<int64_t> off_;
};

/// Where rows are exchanged no argument has those of all ranks: splits or offsets say how many there are, or each rank
/// has as many as this one.
int64_t rows_in_all(const OpSpec& op, const TensorView& mine) {
  int64_t sum = 0;
  for (const int64_t rows : op.splits)
    if (__builtin_add_overflow(sum, rows, &sum)) return 0;  // which splits_problem() refuses
  if (!op.splits.empty()) return sum;
  if (!op.row_offsets.empty()) return op.row_offsets.back();
  return mine.ndim == 2 ? mine.dim(0) * op.ranks : 0;
}

}  // namespace

OpSpec pose(const OperatorDef& def, const CallArgs& args, int ranks) {
  OpSpec op{
      .op = std::string(def.name), .ranks = ranks, .b_layout = spec::BLayout::nk, .row_offsets = args.row_offsets};
  op.splits = args.splits;
  op.exchange = args.exchange;
  op.blocks = args.blocks;
  op.activation = args.activation;
  op.fields = args.fields;
  bool is_known[3] = {}, has_input = false, has_output = false, has_layout = false;
  TensorView mine;  // the rows that are exchanged; data has none, so that its shape poses nothing
  for (size_t i = 0; i < def.args.size(); ++i) {
    const Arg& arg = def.args[i];
    const TensorView t = i < args.tensors.size() ? args.tensors[i] : TensorView();  // of too few the call says so
    if (arg.role == Role::bias) op.bias = op.bias || t.defined();
    if (arg.role == Role::gathered) op.gathered = op.gathered || t.defined();
    if (arg.role == Role::scale && t.defined() && op.scales == spec::Scales::none)
      op.scales = t.ndim == 1 ? spec::Scales::tensor : spec::Scales::rows;
    const bool is_given = arg.role == Role::input || arg.role == Role::data;
    if (is_given && !std::exchange(has_input, true)) op.dtype = t.dtype;
    if (arg.role == Role::output && !std::exchange(has_output, true)) op.out_dtype = t.dtype;
    if (arg.role != Role::input && arg.role != Role::output) continue;
    if (i == 0) mine = t;
    if (arg.has_layout && !std::exchange(has_layout, true)) {
      op.b_layout = layout_of(t);
      if (is_fp8(op.dtype) && t.dtype != op.dtype) op.b_dtype = t.dtype;
    }
    const spec::ArgShape shape = spec::shape_of(arg, op.exchange);
    for (const int side : {0, 1}) {
      const Size size = size_of(side == 0 ? shape.rows : shape.columns);
      if (size == nullptr || t.ndim < side + 1) continue;
      const size_t which = size == &OpSpec::m ? 0 : size == &OpSpec::n ? 1 : 2;
      if (!std::exchange(is_known[which], true)) op.*size = t.dim(side);
    }
  }
  if (def.pose != nullptr) def.pose(&op);
  if (def.flow.exchanges && op.exchange == spec::Exchange::rows) op.m = rows_in_all(op, mine);
  return op;
}

base::Status check_args(const Site& site, const OperatorDef& def, const CallArgs& args, const OpSpec& op) {
  return Check(site, def, args, op).all();
}

}  // namespace overlace::ops
