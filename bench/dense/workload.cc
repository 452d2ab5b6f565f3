#include "bench/dense/workload.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "overlace/team.h"
#include "src/base/ceil_div_pod.h"
#include "src/base/file.h"
#include "src/base/half.h"
#include "src/ops/common/reference.h"
#include "src/spec/operators.h"

namespace overlace::bench {
namespace {

constexpr int64_t kRotatedBytes = int64_t{2} * 60 * 1000 * 1000;  // twice the L2 of an H200
constexpr int64_t kSamplesGpu = 2048, kSamplesCpu = 256;          // of the check against fp64
constexpr int64_t kEntropySample = 4096;
constexpr int64_t kNormRows = 4;  // that are checked against fp64
constexpr double kEps = 1e-5;

size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }

/// The worse numbers of two checks of one call.
Check worse(const Check& a, const Check& b) {
  return {std::max(a.max_error, b.max_error), std::max(a.rms_error, b.rms_error), a.sampled + b.sampled,
          a.finite && b.finite};
}

}  // namespace

base::Result<std::vector<Case>> load_cases(const Selection& selection) {
  const base::Result<std::string> text = base::read_file(selection.path);
  if (!text.ok()) return text.status();
  base::Result<base::Json> json = base::Json::parse(*text, selection.path);
  if (!json.ok()) return json.status();
  const base::Json* list = json->find(selection.set);
  if (list == nullptr)
    return base::invalid_argument("--set is {}, which {} does not have", selection.set, selection.path);
  std::vector<Case> cases;
  for (const base::Json& row : list->as_array()) {
    for (const base::Json& m : row.find("m")->as_array()) {
      Case c;
      c.name = row.find("name")->as_string();
      c.op = row.find("op")->as_string();
      c.n = row.find("n")->as_int();
      c.k = row.find("k")->as_int();
      c.m = m.as_int();
      if (const base::Json* dtype = row.find("dtype"); dtype != nullptr)
        if (!base::parse_dtype(dtype->as_string().c_str(), &c.dtype))
          return base::invalid_argument("{}: dtype of {} is {}", selection.path, c.name, dtype->as_string());
      if (const base::Json* activation = row.find("activation"); activation != nullptr) {
        if (activation->as_string() != "swiglu")
          return base::invalid_argument("{}: activation of {} is {}, wanted swiglu", selection.path, c.name,
                                        activation->as_string());
        c.activation = spec::Activation::swiglu;
      }
      const bool is_asked =
          selection.ops.empty() || std::find(selection.ops.begin(), selection.ops.end(), c.op) != selection.ops.end();
      if (is_asked && (c.op + " " + c.name).find(selection.filter) != std::string::npos) cases.push_back(c);
    }
  }
  return cases;
}

base::Result<Workload> Workload::create(const Case& c, Channel& channel, Device& device, const Normal& data) {
  Workload w(c, channel, device, data);
  const spec::OpSpec op = w.op();
  const std::vector<int64_t> off = spec::row_offsets(op);
  const size_t rank = static_cast<size_t>(channel.team().rank());
  const int64_t mine = off[rank + 1] - off[rank];
  const bool is_wgrad = spec::flow_of(c.op).sums_rows;
  const int64_t rows_a = spec::gathers(c.op) || spec::exchanges(c.op) ? mine : c.m;
  const int64_t rows_b = is_wgrad ? c.m : c.n, cols_b = is_wgrad ? c.n : c.k;
  int64_t rows_out = spec::stays_with_owner(c.op) ? mine : is_wgrad ? c.k : c.m;
  if (spec::exchanges(c.op)) {
    w.splits_ = spec::splits(op);
    rows_out = 0;
    for (size_t i = rank; i < w.splits_.size(); i += off.size() - 1) rows_out += w.splits_[i];
  }
  const int64_t element = static_cast<int64_t>(dtype_bytes(c.dtype));
  const bool norms = spec::flow_of(c.op).norms;
  const int64_t bytes = (rows_a * c.k + rows_b * cols_b + (norms ? 3 : 1) * rows_out * c.columns()) * element;
  const int64_t sets = std::clamp<int64_t>(base::ceil_div(kRotatedBytes, std::max<int64_t>(bytes, 1)) + 1, 2, 24);
  w.bytes_rotated_ = bytes * sets;
  for (int64_t i = 0; i <= sets; ++i) {  // the last output is the reference
    const auto make = [&](int64_t rows, int64_t cols, TensorView* out) -> base::Status {
      base::Result<void*> p = device.alloc(static_cast<size_t>(rows * cols * element));
      if (!p.ok()) return p.status();
      *out = TensorView::contiguous(*p, c.dtype, {rows, cols});
      return {};
    };
    TensorView a, b, out;
    Norm norm;
    OVERLACE_TRY(make(rows_out, c.columns(), &out));
    if (norms) OVERLACE_TRY(make(rows_out, c.columns(), &norm.out));
    if (i == sets) {
      w.reference_ = out;
      w.norm_reference_ = norm.out;
      break;
    }
    if (norms) {
      OVERLACE_TRY(make(rows_out, c.columns(), &norm.residual));
      OVERLACE_TRY(make(1, c.columns(), &norm.weight));
      w.norms_.push_back(norm);
    }
    OVERLACE_TRY(make(rows_a, c.k, &a));
    OVERLACE_TRY(make(rows_b, cols_b, &b));
    w.a_.push_back(a);
    w.b_.push_back(b);
    w.out_.push_back(out);
  }
  for (size_t set = 0; set < w.out_.size(); ++set) w.args_.push_back(w.args_of(set));
  OVERLACE_TRY(w.fill());
  return w;
}

spec::OpSpec Workload::op() const {
  spec::OpSpec op;
  op.op = case_.op;
  op.m = case_.m;
  op.n = case_.n;
  op.k = case_.k;
  op.ranks = channel_->team().size();
  op.dtype = op.out_dtype = case_.dtype;
  op.b_layout = spec::flow_of(case_.op).sums_rows ? spec::BLayout::kn : spec::BLayout::nk;
  op.activation = case_.activation;
  if (spec::flow_of(case_.op).norms) op.fields["eps"] = kEps;
  return op;
}

double Workload::flops() const {
  return 2.0 * static_cast<double>(spec::rows_of_product(op())) * static_cast<double>(case_.n) *
         static_cast<double>(case_.k);
}

int64_t Workload::first_row() const { return spec::row_offsets(op())[static_cast<size_t>(channel_->team().rank())]; }

Normal Workload::left(int rank, int64_t row) const {
  // ag_gemm, ag_wgrad, gemm_a2a, a2a_gemm: one matrix of all ranks' rows; gemm_rs, gemm_ar: one matrix per rank (its
  // part of K).
  const bool is_one = spec::gathers(case_.op) || spec::exchanges(case_.op);
  return Normal{data_.seed, is_one ? 1u : 1u + static_cast<uint64_t>(rank), 1.0, row, 0, data_.is_ramp};
}

Normal Workload::right(int rank) const {
  const double parts = spec::gathers(case_.op) || spec::exchanges(case_.op) ? 1 : channel_->team().size();
  const double total = static_cast<double>(spec::flow_of(case_.op).sums_rows ? case_.m : case_.k) * parts;
  return Normal{data_.seed, 1000u + static_cast<uint64_t>(rank), 1.0 / std::sqrt(total), 0, 0, data_.is_ramp};
}

base::Status Workload::fill() {
  const int rank = channel_->team().rank();
  for (size_t i = 0; i < a_.size(); ++i) {  // every set holds the same values: one oracle serves all
    OVERLACE_TRY(
        device_->fill(a_[i], left(rank, spec::gathers(case_.op) || spec::exchanges(case_.op) ? first_row() : 0)));
    OVERLACE_TRY(device_->fill(b_[i], right(rank)));
  }
  for (const Norm& norm : norms_) {
    OVERLACE_TRY(device_->fill(norm.residual, residual()));
    OVERLACE_TRY(device_->fill(norm.weight, Normal{data_.seed, 2001, 1.0, 0, 0, data_.is_ramp}));
  }
  return device_->synchronize();
}

ops::CallArgs Workload::args_of(size_t set) const {
  const spec::OperatorDef& def = *spec::find_operator(case_.op);
  ops::CallArgs args{.fields = op().fields, .splits = splits_, .activation = case_.activation};
  std::vector<TensorView> inputs = {a_[set], b_[set]}, outputs = {out_[set]};  // in the order of the table
  if (!norms_.empty()) {
    const TensorView weight = TensorView::contiguous(norms_[set].weight.data, case_.dtype, {case_.columns()});
    inputs.insert(inputs.end(), {norms_[set].residual, weight});
    outputs.push_back(norms_[set].out);
  }
  size_t in = 0, out = 0;
  for (const spec::Arg& arg : def.args) {
    TensorView& t = args.tensors.emplace_back();
    if (arg.role == spec::Role::output) t = outputs[out++];
    if (arg.role != spec::Role::input) continue;
    t = arg.has_layout && !def.flow.sums_rows ? inputs[in].transposed() : inputs[in];
    ++in;
  }
  return args;
}

base::Status Workload::enqueue(const spec::Schedule& schedule, int iteration) {
  try {
    const size_t set = static_cast<size_t>(iteration) % args_.size();
    ops::call(*channel_, *spec::find_operator(case_.op), args_[set], schedule);
  } catch (...) {
    return base::status_of_current_exception();
  }
  return {};
}

base::Result<Check> Workload::verify(const std::function<base::Status()>& call) {
  const TensorView& out = output(0);
  OVERLACE_TRY(device_->memset(out.data, 0xff, bytes_of(out)));
  if (!norms_.empty()) OVERLACE_TRY(device_->memset(norms_[0].out.data, 0xff, bytes_of(norms_[0].out)));
  OVERLACE_TRY(call());
  OVERLACE_TRY(device_->synchronize());
  std::vector<Factor> factors;
  const int size = channel_->team().size();
  const spec::Dataflow flow = spec::flow_of(case_.op);
  if (flow.exchanges) return check_blocks(out);
  if (flow.gathers) {
    factors.push_back({left(0, 0), right(channel_->team().rank()), flow.sums_rows ? case_.m : case_.k});
    factors[0].is_gated = case_.activation == spec::Activation::swiglu;
    factors[0].left.is_transposed = factors[0].right.is_transposed = flow.sums_rows;
  } else {
    for (int r = 0; r < size; ++r) factors.push_back({left(r, 0), right(r), case_.k});
  }
  if (!norms_.empty()) factors.push_back({residual(), {}, 0, false, true});
  base::Result<Check> sums =
      device_->check(out, factors, spec::stays_with_owner(case_.op) ? first_row() : 0, case_.dtype,
                     device_->is_gpu() ? kSamplesGpu : kSamplesCpu, data_.seed + 17);
  if (!sums.ok() || norms_.empty()) return sums;
  const base::Result<Check> norm = check_norm();
  if (!norm.ok()) return norm;
  return worse(*sums, *norm);
}

base::Result<Check> Workload::check_norm() {
  const int64_t n = case_.columns();
  auto weight = device_->first_values(norms_[0].weight, n);
  if (!weight.ok()) return weight.status();
  Check check{.sampled = kNormRows * n};
  double error2 = 0, want2 = 0;
  for (int64_t i = 0; i < kNormRows; ++i) {
    const uint64_t drawn = mix(data_.seed + 31 + static_cast<uint64_t>(i) * kGoldenRatio);
    const auto row = static_cast<int64_t>(drawn % static_cast<uint64_t>(case_.m));
    const auto sums = device_->first_values(out_[0].rows(row, 1), n);
    if (!sums.ok()) return sums.status();
    const auto got = device_->first_values(norms_[0].out.rows(row, 1), n);
    if (!got.ok()) return got.status();
    const std::vector<double> want = ops::rms_norm_reference(
        {sums->begin(), sums->end()}, TensorView::contiguous(weight->data(), DType::fp32, {n}), kEps);
    for (size_t j = 0; j < want.size(); ++j) {
      const double error = std::abs((*got)[j] - want[j]);
      check.finite = check.finite && std::isfinite(error);
      check.max_error = std::max(check.max_error, std::isfinite(error) ? error : 1e300);
      error2 += error * error;
      want2 += want[j] * want[j];
    }
  }
  check.rms_error = std::sqrt(error2 / want2);
  check.max_error /= std::sqrt(want2 / static_cast<double>(check.sampled));
  return check;
}

base::Result<Check> Workload::check_blocks(const TensorView& out) {
  const int rank = channel_->team().rank(), size = channel_->team().size();
  const std::vector<int64_t> off = spec::row_offsets(op());
  Check all;
  int64_t place = 0;
  for (int source = 0; source < size; ++source) {
    const auto row = splits_.begin() + static_cast<std::ptrdiff_t>(source) * size;
    const int64_t rows = row[rank];
    if (rows == 0) continue;
    const int64_t first = std::accumulate(row, row + rank, off[static_cast<size_t>(source)]);
    const base::Result<Check> one =
        device_->check(out.rows(place, rows), {{left(0, 0), right(spec::gathers(case_.op) ? rank : source), case_.k}},
                       first, case_.dtype, (device_->is_gpu() ? kSamplesGpu : kSamplesCpu) / size, data_.seed + 17);
    if (!one.ok()) return one;
    all = worse(all, *one);
    place += rows;
  }
  return all;
}

double Workload::bytes_sent() const {
  const double g = channel_->team().size(), element = static_cast<double>(dtype_bytes(case_.dtype));
  const double width = static_cast<double>(spec::gathers(case_.op) ? case_.k : case_.n);
  return spec::flow_of(case_.op).passes * (g - 1) * static_cast<double>(spec::rows_of_product(op())) / g * width *
         element;
}

base::Status Workload::keep_reference() {
  const TensorView& out = output(0);
  if (!norms_.empty()) OVERLACE_TRY(device_->copy(norm_reference_.data, norms_[0].out.data, bytes_of(norms_[0].out)));
  return device_->copy(reference_.data, out.data, bytes_of(out));
}

base::Result<Difference> Workload::difference() {
  base::Result<Difference> sums = device_->compare(reference_, output(0));
  if (!sums.ok() || norms_.empty()) return sums;
  const base::Result<Difference> norm = device_->compare(norm_reference_, norms_[0].out);
  if (!norm.ok()) return norm;
  sums->max_abs = std::max(sums->max_abs, norm->max_abs);
  sums->rms = std::min(sums->rms, norm->rms);
  sums->same_bits = sums->same_bits && norm->same_bits;
  return sums;
}

base::Status Workload::damage(int iteration) {
  const TensorView& out =
      norms_.empty() ? output(iteration) : norms_[static_cast<size_t>(iteration) % norms_.size()].out;
  if (out.numel() == 0) return {};
  const size_t bytes = dtype_bytes(out.dtype);
  // As a number of any floating type 0x42... is finite and far from a sum of normal products.
  return device_->memset(static_cast<char*>(out.data) + static_cast<size_t>(out.numel() - 1) * bytes, 0x42, bytes);
}

base::Result<std::string> Workload::refusal() {
  std::vector<TensorView> operands = {a_[0], b_[0]};
  if (!norms_.empty()) operands.push_back(norms_[0].residual);
  for (const TensorView& operand : operands) {
    const auto values = device_->first_values(operand, kEntropySample);
    if (!values.ok()) return values.status();
    if (std::string why = low_entropy(*values); !why.empty()) return why;
  }
  return std::string();
}

}  // namespace overlace::bench
