#include "bench/dense/workload.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/team.h"

namespace overlace::bench {
namespace {

constexpr int64_t kRotatedBytes = int64_t{2} * 60 * 1000 * 1000;  // twice the L2 of an H200
constexpr int64_t kSamples = 2048;

}  // namespace

base::Result<std::vector<Case>> load_cases(const std::string& path, const std::string& set, const std::string& filter) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return base::error(Errc::io, "{}: cannot be read", path);
  base::Result<base::Json> json = base::Json::parse(text.str(), path);
  if (!json.ok()) return json.status();
  const base::Json* list = json->find(set);
  if (list == nullptr) return base::invalid_argument("case set: got \"{}\", which {} does not have", set, path);
  std::vector<Case> cases;
  for (const base::Json& row : list->as_array()) {
    for (const base::Json& m : row.find("m")->as_array()) {
      Case c;
      c.name = row.find("name")->as_string();
      c.op = row.find("op")->as_string();
      c.n = row.find("n")->as_int();
      c.k = row.find("k")->as_int();
      c.m = m.as_int();
      if (filter.empty() || (c.op + " " + c.name).find(filter) != std::string::npos) cases.push_back(c);
    }
  }
  return cases;
}

base::Result<Workload> Workload::create(const Case& c, Channel& channel, Gpu& gpu, uint64_t seed) {
  Workload w(c, channel, gpu, seed);
  const spec::OpSpec op = w.op();
  const std::vector<int64_t> off = spec::row_offsets(op);
  const size_t rank = static_cast<size_t>(channel.team().rank());
  const int64_t mine = off[rank + 1] - off[rank];
  const int64_t rows_a = c.op == "ag_gemm" ? mine : c.m;
  const int64_t rows_out = c.op == "gemm_rs" ? mine : c.m;
  const int64_t element = static_cast<int64_t>(dtype_bytes(c.dtype));
  const int64_t bytes = (rows_a * c.k + c.n * c.k + rows_out * c.n) * element;
  const int64_t sets = std::clamp<int64_t>((kRotatedBytes + bytes - 1) / std::max<int64_t>(bytes, 1) + 1, 2, 24);
  w.bytes_rotated_ = bytes * sets;
  for (int64_t i = 0; i <= sets; ++i) {  // the last output is the reference
    const auto make = [&](int64_t rows, int64_t cols, TensorView* out) -> base::Status {
      base::Result<void*> p = gpu.alloc(static_cast<size_t>(rows * cols * element));
      if (!p.ok()) return p.status();
      *out = TensorView::contiguous(*p, c.dtype, {rows, cols});
      return {};
    };
    TensorView a, b, out;
    OVERLACE_TRY(make(rows_out, c.n, &out));
    if (i == sets) {
      w.reference_ = out;
      break;
    }
    OVERLACE_TRY(make(rows_a, c.k, &a));
    OVERLACE_TRY(make(c.n, c.k, &b));
    w.a_.push_back(a);
    w.b_.push_back(b);
    w.out_.push_back(out);
  }
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
  return op;
}

int64_t Workload::first_row() const { return spec::row_offsets(op())[static_cast<size_t>(channel_->team().rank())]; }

Normal Workload::left(int rank, int64_t row) const {
  // ag_gemm: one matrix of all ranks' rows; gemm_rs, gemm_ar: one matrix per rank (its part of K).
  return Normal{seed_, case_.op == "ag_gemm" ? 1u : 1u + static_cast<uint64_t>(rank), 1.0, row, 0};
}

Normal Workload::right(int rank) const {
  const double total_k = static_cast<double>(case_.k) * (case_.op == "ag_gemm" ? 1 : channel_->team().size());
  return Normal{seed_, 1000u + static_cast<uint64_t>(rank), 1.0 / std::sqrt(total_k), 0, 0};
}

base::Status Workload::fill() {
  const int rank = channel_->team().rank();
  void* stream = gpu_->stream().cuda_stream;
  for (size_t i = 0; i < a_.size(); ++i) {  // every set holds the same values: one oracle serves all
    OVERLACE_TRY(fill_normal(a_[i], left(rank, case_.op == "ag_gemm" ? first_row() : 0), stream));
    OVERLACE_TRY(fill_normal(b_[i], right(rank), stream));
  }
  return gpu_->synchronize();
}

base::Status Workload::enqueue(const spec::Schedule& schedule, int iteration) {
  const size_t i = static_cast<size_t>(iteration) % out_.size();
  try {
    if (case_.op == "ag_gemm") {
      ops::run(*channel_,
               ops::AgGemmArgs{
                   .a_shard = a_[i], .b = b_[i].transposed(), .c = out_[i], .bias = {}, .a = {}, .row_offsets = {}},
               schedule);
    } else if (case_.op == "gemm_rs") {
      ops::run(*channel_,
               ops::GemmRsArgs{.a = a_[i], .b = b_[i].transposed(), .out = out_[i], .bias = {}, .row_offsets = {}},
               schedule);
    } else {
      ops::run(*channel_, ops::GemmArArgs{.a = a_[i], .b = b_[i].transposed(), .out = out_[i], .bias = {}}, schedule);
    }
  } catch (...) {
    return base::status_of_current_exception();
  }
  return {};
}

base::Result<Check> Workload::verify(const spec::Schedule& schedule) {
  const TensorView& out = out_[0];
  OVERLACE_TRY(gpu_->memset(out.data, 0xff, static_cast<size_t>(out.numel()) * dtype_bytes(out.dtype)));
  OVERLACE_TRY(enqueue(schedule, 0));
  OVERLACE_TRY(gpu_->synchronize());
  std::vector<Factor> factors;
  const int size = channel_->team().size();
  if (case_.op == "ag_gemm") {
    factors.push_back({left(0, 0), right(channel_->team().rank()), case_.k});
  } else {
    for (int r = 0; r < size; ++r) factors.push_back({left(r, 0), right(r), case_.k});
  }
  return check_product(out, factors.data(), static_cast<int>(factors.size()), case_.op == "gemm_rs" ? first_row() : 0,
                       case_.dtype, kSamples, seed_ + 17, gpu_->stream().cuda_stream);
}

base::Status Workload::keep_reference() {
  std::swap(reference_, out_[0]);
  return {};
}

base::Result<Difference> Workload::difference() { return compare(reference_, out_[0], gpu_->stream().cuda_stream); }

}  // namespace overlace::bench
