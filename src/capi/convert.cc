#include "src/capi/convert.h"

#include <algorithm>
#include <array>
#include <limits>

#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::capi {
namespace {

constexpr int kMaxRanks = 1024, kMaxBlocks = 1024;
/// Elements of a tensor and addresses within it; far beyond what there is.
constexpr int64_t kMaxElements = int64_t{1} << 46;

bool is_dtype(int dtype) { return dtype >= OVL_FP64 && dtype <= OVL_U8; }

static_assert(OVL_FP64 == static_cast<int>(DType::fp64) && OVL_BF16 == static_cast<int>(DType::bf16) &&
              OVL_I64 == static_cast<int>(DType::i64) && OVL_U8 == static_cast<int>(DType::u8));

}  // namespace

base::Result<DType> dtype_of(const Argument& argument, int dtype) {
  if (is_dtype(dtype)) return static_cast<DType>(dtype);
  return base::invalid_argument("{}: {} is {}, wanted 0 (fp64) to {} (u8)", argument.call, argument.name, dtype,
                                static_cast<int>(OVL_U8));
}

base::Result<TensorView> view_of(const Argument& argument, const ovl_tensor& tensor) {
  TensorView view;
  if (tensor.ndim == 0) return view;
  const auto refuse = [&](std::string_view field, int64_t got, std::string_view wanted) {
    return base::invalid_argument("{}: {}.{} is {}, wanted {}", argument.call, argument.name, field, got, wanted);
  };
  if (tensor.ndim < 0 || tensor.ndim > 4) return refuse("ndim", tensor.ndim, "0 to 4");
  if (!is_dtype(tensor.dtype)) return refuse("dtype", tensor.dtype, "0 (fp64) to 9 (u8)");
  view.data = tensor.data;
  view.dtype = static_cast<DType>(tensor.dtype);
  view.ndim = tensor.ndim;
  int64_t elements = 1;
  for (size_t i = 0; i < static_cast<size_t>(tensor.ndim); ++i) {
    const int64_t size = tensor.sizes[i], stride = tensor.strides[i];
    int64_t reached = 0;
    if (size < 0) return refuse(base::format("sizes[{}]", i), size, "0 or more");
    if (stride < 0) return refuse(base::format("strides[{}]", i), stride, "0 or more");
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kMaxElements)
      return refuse(base::format("sizes[{}]", i), size, "at most 2^46 elements in all");
    if (__builtin_mul_overflow(size, stride, &reached) || reached > kMaxElements)
      return refuse(base::format("strides[{}]", i), stride, "the last element within 2^46 of the first");
    view.sizes[i] = size;
    view.strides[i] = stride;
  }
  return view;
}

std::vector<int64_t> offsets_of(const int64_t* row_offsets, int ranks) {
  return row_offsets == nullptr ? std::vector<int64_t>() : std::vector<int64_t>(row_offsets, row_offsets + ranks + 1);
}

namespace {

std::string names_of(const spec::OperatorDef& op) {
  std::string out;
  for (const spec::Arg& arg : op.args) out += base::format("{}, ", arg.call);
  for (const spec::FieldDef& field : op.fields) out += base::format("{}, ", field.name);
  return out +
         (op.flow.exchanges ? "row_offsets, splits, exchange, blocks or activation" : "row_offsets or activation");
}

constexpr std::string_view kKinds[] = {"a tensor", "an integer", "a number", "a text", "a list"};

base::Status check_kind(const spec::OperatorDef& op, const ovl_arg& arg, int wanted) {
  if (arg.kind == wanted) return {};
  const bool is_known = arg.kind >= 0 && arg.kind <= OVL_ARG_LIST;
  return base::invalid_argument("{}: {} is {}, wanted {}", op.name, arg.name,
                                is_known ? kKinds[arg.kind] : base::format("of kind {}", arg.kind), kKinds[wanted]);
}

base::Result<spec::Param> field_of(const spec::OperatorDef& op, const ovl_arg& arg, spec::FieldType type) {
  switch (type) {
    case spec::FieldType::integer:
      OVERLACE_TRY(check_kind(op, arg, OVL_ARG_INTEGER));
      return spec::Param(arg.integer);
    case spec::FieldType::real:
      OVERLACE_TRY(check_kind(op, arg, OVL_ARG_REAL));
      return spec::Param(arg.real);
    case spec::FieldType::flag:
      OVERLACE_TRY(check_kind(op, arg, OVL_ARG_INTEGER));
      if (arg.integer != 0 && arg.integer != 1)
        return base::invalid_argument("{}: {} is {}, wanted 0 or 1", op.name, arg.name, arg.integer);
      return spec::Param(arg.integer == 1);
    default:
      OVERLACE_TRY(check_kind(op, arg, OVL_ARG_TEXT));
      OVERLACE_TRY(check_not_null({op.name, arg.name}, arg.text));
      return spec::Param(std::string(arg.text));
  }
}

/// One of a few names, as its place among them.
template <size_t N>
base::Result<size_t> name_among(const spec::OperatorDef& op, const ovl_arg& arg,
                                const std::array<std::string_view, N>& names) {
  OVERLACE_TRY(check_kind(op, arg, OVL_ARG_TEXT));
  OVERLACE_TRY(check_not_null({op.name, arg.name}, arg.text));
  const auto found = std::find(names.begin(), names.end(), std::string_view(arg.text));
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  static_assert(N == 2);
  return base::invalid_argument("{}: {} is '{}', wanted '{}' or '{}'", op.name, arg.name, arg.text, names[0], names[1]);
}

/// Row offsets, splits, blocks, exchange and activation, which many operators share.
base::Status read_shared(const spec::OperatorDef& op, const ovl_arg& arg, ops::CallArgs* out) {
  struct List {
    std::string_view name, wanted;
    int most;
    std::vector<int64_t>& to;
  };
  const List lists[] = {{"row_offsets", "one per rank and one more", kMaxRanks + 1, out->row_offsets},
                        {"splits", "one from each rank to each", kMaxRanks * kMaxRanks, out->splits},
                        {"blocks", "at most 1024", kMaxBlocks, out->blocks}};
  const std::string_view name = arg.name;
  for (const List& list : lists) {
    if (name != list.name) continue;
    OVERLACE_TRY(check_kind(op, arg, OVL_ARG_LIST));
    if (arg.count < 0 || arg.count > list.most)
      return base::invalid_argument("{}: {} have {} entries, wanted {}", op.name, name, arg.count, list.wanted);
    if (arg.list != nullptr) list.to.assign(arg.list, arg.list + arg.count);
    return {};
  }
  if (name != "activation" && name != "exchange")
    return base::invalid_argument("{}: no argument is called '{}', wanted {}", op.name, name, names_of(op));
  const bool is_exchange = name == "exchange";
  const base::Result<size_t> value = name_among(op, arg, is_exchange ? spec::kExchangeNames : spec::kActivationNames);
  if (!value.ok()) return value.status();
  if (is_exchange) {
    out->exchange = static_cast<spec::Exchange>(*value);
  } else {
    out->activation = static_cast<spec::Activation>(*value);
  }
  return {};
}

/// What only operators that exchange have.
base::Status read_exchange(std::string_view call, const ovl_op& op, spec::OpSpec* out) {
  const spec::OperatorDef& def = *spec::find_operator(out->op);
  if (op.exchange != OVL_ROWS && op.exchange != OVL_COLS)
    return base::invalid_argument("{}: op.exchange is {}, wanted 0 (rows) or 1 (cols)", call, op.exchange);
  if (op.num_blocks < 0 || op.num_blocks > kMaxBlocks)
    return base::invalid_argument("{}: op.num_blocks is {}, wanted 0 to {}", call, op.num_blocks, kMaxBlocks);
  out->exchange = static_cast<spec::Exchange>(op.exchange);
  if (op.blocks != nullptr) out->blocks.assign(op.blocks, op.blocks + op.num_blocks);
  if (const std::string why = spec::blocks_problem(def, *out); !why.empty())
    return base::invalid_argument("{}: op.{}", call, why);
  if (op.splits == nullptr) return {};
  out->splits.assign(op.splits, op.splits + int64_t{op.ranks} * (op.exchange == OVL_COLS ? 1 : op.ranks));
  if (const std::string why = spec::splits_problem(def, *out); !why.empty())
    return base::invalid_argument("{}: op.{}", call, why);
  return {};
}

}  // namespace

base::Result<ops::CallArgs> args_of(const spec::OperatorDef& op, const ovl_arg* args, int count) {
  if (count < 0) return base::invalid_argument("{}: count is {}, wanted 0 or more", op.name, count);
  if (count > 0) OVERLACE_TRY(check_not_null({op.name, "args"}, args));
  ops::CallArgs out;
  out.tensors.resize(op.args.size());
  for (int i = 0; i < count; ++i) {
    const ovl_arg& arg = args[i];
    if (arg.name == nullptr)
      return base::invalid_argument("{}: args[{}].name is null, wanted an argument's name", op.name, i);
    for (int j = 0; j < i; ++j)
      if (std::string_view(arg.name) == args[j].name)
        return base::invalid_argument("{}: {} is given twice", op.name, arg.name);
    const std::string_view name = arg.name;
    const auto tensor = std::find_if(op.args.begin(), op.args.end(), [&](const auto& a) { return a.call == name; });
    const auto field = std::find_if(op.fields.begin(), op.fields.end(), [&](const auto& f) { return f.name == name; });
    if (tensor != op.args.end()) {
      OVERLACE_TRY(check_kind(op, arg, OVL_ARG_TENSOR));
      base::Result<TensorView> view = view_of({op.name, name}, arg.tensor);
      if (!view.ok()) return view.status();
      out.tensors[static_cast<size_t>(tensor - op.args.begin())] = *view;
    } else if (field != op.fields.end()) {
      base::Result<spec::Param> value = field_of(op, arg, field->type);
      if (!value.ok()) return value.status();
      out.fields[std::string(name)] = std::move(*value);
    } else {
      OVERLACE_TRY(read_shared(op, arg, &out));
    }
  }
  return out;
}

base::Result<spec::OpSpec> op_of(const Argument& argument, const ovl_op* op) {
  OVERLACE_TRY(check_struct(argument, op));
  const std::string_view call = argument.call;
  OVERLACE_TRY(check_not_null({call, "op.name"}, op->name));
  const std::string_view name = op->name;
  if (!spec::is_operator(name))
    return base::invalid_argument("{}: op.name is \"{}\", wanted {}", call, name, spec::operator_names());
  const auto refuse = [&](std::string_view field, int64_t got, std::string_view wanted) {
    return base::invalid_argument("{}: op.{} is {}, wanted {}", call, field, got, wanted);
  };
  if (op->m < 0 || op->m > kMaxElements) return refuse("m", op->m, "0 to 2^46");
  if (op->n < 0 || op->n > kMaxElements) return refuse("n", op->n, "0 to 2^46");
  if (op->k < 0 || op->k > kMaxElements) return refuse("k", op->k, "0 to 2^46");
  if (op->ranks < 1 || op->ranks > kMaxRanks) return refuse("ranks", op->ranks, "1 to 1024");
  if (!is_dtype(op->dtype)) return refuse("dtype", op->dtype, "0 (fp64) to 9 (u8)");
  if (!is_dtype(op->out_dtype)) return refuse("out_dtype", op->out_dtype, "0 (fp64) to 9 (u8)");
  if (!is_dtype(op->b_dtype)) return refuse("b_dtype", op->b_dtype, "0 (that of dtype) to 9 (u8)");
  if (op->b_layout != OVL_NK && op->b_layout != OVL_KN) return refuse("b_layout", op->b_layout, "0 (NK) or 1 (KN)");
  if (op->has_bias != 0 && op->has_bias != 1) return refuse("has_bias", op->has_bias, "0 or 1");
  if (op->has_a != 0 && (op->has_a != 1 || !spec::gathers(name)))
    return refuse("has_a", op->has_a, spec::gathers(name) ? "0 or 1" : "0");
  OVERLACE_TRY(check_activation({call, "op.activation"}, op->activation));
  if (op->scales < OVL_NO_SCALES || op->scales > OVL_ROW_SCALES)
    return refuse("scales", op->scales, "0 (none), 1 (tensor) or 2 (rows)");
  spec::OpSpec out{.op = std::string(name),
                   .m = op->m,
                   .n = op->n,
                   .k = op->k,
                   .ranks = op->ranks,
                   .dtype = static_cast<DType>(op->dtype),
                   .out_dtype = static_cast<DType>(op->out_dtype),
                   .b_layout = static_cast<spec::BLayout>(op->b_layout),
                   .bias = op->has_bias == 1,
                   .gathered = op->has_a == 1,
                   .activation = static_cast<spec::Activation>(op->activation),
                   .row_offsets = offsets_of(op->row_offsets, op->ranks)};
  out.scales = static_cast<spec::Scales>(op->scales);
  if (op->b_dtype != 0) out.b_dtype = static_cast<DType>(op->b_dtype);
  if (const std::string why = spec::scales_problem(*spec::find_operator(name), out); !why.empty())
    return base::invalid_argument("{}: op: {}", call, why);
  OVERLACE_TRY(read_exchange(call, *op, &out));
  if (const std::vector<int64_t>& off = out.row_offsets;
      !off.empty() && (off.front() != 0 || off.back() != op->m || !std::is_sorted(off.begin(), off.end())))
    return base::invalid_argument("{}: op.row_offsets go from {} to {}, wanted {} ascending entries from 0 to m = {}",
                                  call, off.front(), off.back(), off.size(), op->m);
  return out;
}

}  // namespace overlace::capi

int ovl_matrix(void* data, int dtype, int64_t rows, int64_t columns, ovl_tensor* tensor) {
  using namespace overlace;        // NOLINT(google-build-using-namespace)
  using namespace overlace::capi;  // NOLINT(google-build-using-namespace)
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_matrix", "tensor"}, tensor));
    const ovl_tensor made{data, dtype, 2, {rows, columns, 0, 0}, {columns, 1, 0, 0}};
    OVERLACE_TRY(view_of({"ovl_matrix", "tensor"}, made).status());
    *tensor = made;
    return {};
  });
}

int ovl_transpose(ovl_tensor* tensor) {
  using namespace overlace;        // NOLINT(google-build-using-namespace)
  using namespace overlace::capi;  // NOLINT(google-build-using-namespace)
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_transpose", "tensor"}, tensor));
    if (tensor->ndim != 2) return base::invalid_argument("ovl_transpose: tensor.ndim is {}, wanted 2", tensor->ndim);
    std::swap(tensor->sizes[0], tensor->sizes[1]);
    std::swap(tensor->strides[0], tensor->strides[1]);
    return {};
  });
}
