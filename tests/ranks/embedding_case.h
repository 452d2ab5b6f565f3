// embedding_a2a on exact data: one rank's tables and bags, which differ by rank, place and call, and what must come
// out.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/embedding_a2a.h"
#include "overlace/team.h"
#include "src/base/format.h"
#include "src/base/half.h"
#include "src/spec/families/placement.h"
#include "src/spec/operators.h"

namespace overlace::test {

inline constexpr int64_t kBagColumns = 19;  // of the result, with placement_on()

/// A placement: table 1 is cut by columns, table 2 serves two features; from four ranks on, some have no table.
inline std::string placement_on(int ranks) {
  const int last = ranks - 1, middle = ranks / 2;
  return base::format(R"({{"tables":[{{"rows":7,"dim":5}},{{"rows":4,"dim":8}},{{"rows":9,"dim":3,"padding":2}}],)"
                      R"("entries":2,"features":[{{"table":1,"rank":{},"first":3,"width":5,"column":3}},)"
                      R"({{"table":1,"rank":0,"width":3,"column":0}},{{"table":2,"rank":{},"column":13}},)"
                      R"({{"table":0,"rank":{},"column":8}},{{"table":2,"rank":{},"column":16}}]}})",
                      last, middle, last, middle);
}

/// How bags are pooled, and of which types.
struct BagVariant {
  std::string mode = "sum", bounds = "error";
  DType dtype = DType::fp32, out_dtype = DType::fp32, index = DType::i64;
  bool has_factors = false;
  std::vector<int64_t> row_offsets{};
};

/// Differs by table, row and column, exact in 16 bits.
inline double table_element(int64_t table, int64_t row, int64_t column) {
  return static_cast<double>((table * 29 + row * 11 + column * 5) % 47) - 20;
}
inline int64_t drawn_below(int64_t a, int64_t b, int64_t c, int64_t d, int64_t below) {
  const uint64_t mixed = static_cast<uint64_t>(((a * 131 + b) * 137 + c) * 139 + d) * 0x9e3779b97f4a7c15U;
  return static_cast<int64_t>((mixed >> 33) % static_cast<uint64_t>(below));
}

/// The bag of a feature and a sample in a call; with other bounds than `error` some indices lie outside.
inline std::vector<int64_t> bag_of(const BagVariant& v, int64_t call, int64_t feature, int64_t sample, int64_t rows) {
  std::vector<int64_t> out(static_cast<size_t>(drawn_below(call, feature, sample, 7, 5)));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = drawn_below(call, feature, sample, static_cast<int64_t>(i), rows);
    if (v.bounds != "error" && v.bounds != "none") out[i] += drawn_below(feature, sample, call, 3, 3) * rows - rows;
  }
  return out;
}

inline int64_t bounded(const BagVariant& v, int64_t index, int64_t rows) {
  if (index >= 0 && index < rows) return index;
  return v.bounds == "clamp" ? (index < 0 ? 0 : rows - 1) : v.bounds == "zero_row" ? 0 : -1;
}

/// One rank's operands of a schedule's problem, and calls.
class BagCall {
 public:
  BagCall(Channel& channel, spec::Schedule schedule, BagVariant v)
      : channel_(channel),
        schedule_(std::move(schedule)),
        v_(std::move(v)),
        ranks_(channel.team().size()),
        rank_(channel.team().rank()),
        batch_(std::get<int64_t>(schedule_.params.at("M"))),
        columns_(std::get<int64_t>(schedule_.params.at("N"))),
        text_(std::get<std::string>(schedule_.params.at("placement"))),
        placement_(spec::read_placement(text_, ranks_, columns_).value()),
        off_(schedule_.tables.at("off")) {
    make_weights();
  }

  /// What went wrong; empty if nothing did.
  std::string run(int64_t call) {
    make_bags(call);
    try {
      ops::run(channel_, args(), schedule_);
    } catch (const Error& error) {
      return error.what();
    }
    std::fill(indices_.begin(), indices_.end(), int64_t{99});  // they are ours again: nobody may still read them
    return mismatch(call);
  }

  /// Arguments of a call with bags that make_bags() has made.
  ops::EmbeddingA2aArgs args() {
    const auto length = static_cast<int64_t>(indices_.size()), rows = off_[at(rank_ + 1)] - off_[at(rank_)];
    out_.assign(static_cast<size_t>(rows * columns_) * dtype_bytes(v_.out_dtype), '\x7f');
    const bool is_short = v_.index == DType::i32;
    short_.assign(indices_.begin(), indices_.end());
    void* const indices = is_short ? static_cast<void*>(short_.data()) : indices_.data();
    ops::EmbeddingA2aArgs out{
        .weights = TensorView::contiguous(weights_.data(), v_.dtype, {num_weights_}),
        .indices = TensorView::contiguous(indices, v_.index, {length}),
        .offsets = TensorView::contiguous(offsets_.data(), DType::i64, {static_cast<int64_t>(offsets_.size())}),
        .out = TensorView::contiguous(out_.data(), v_.out_dtype, {rows, columns_}),
        .batch = batch_,
        .placement = text_,
        .mode = v_.mode,
        .bounds = v_.bounds,
        .row_offsets = v_.row_offsets};
    if (v_.has_factors) out.per_sample_weights = TensorView::contiguous(factors_.data(), v_.dtype, {length});
    return out;
  }

  void make_bags(int64_t call) {
    indices_.clear(), offsets_ = {0};
    const auto [begin, end] = placement_.features_of(rank_);
    for (size_t f = begin; f < end; ++f)
      for (int64_t sample = 0; sample < batch_; ++sample) {
        const std::vector<int64_t> bag = bag_of(v_, call, static_cast<int64_t>(f), sample, table(f).rows);
        indices_.insert(indices_.end(), bag.begin(), bag.end());
        offsets_.push_back(static_cast<int64_t>(indices_.size()));
      }
    factors_.resize(indices_.size() * dtype_bytes(v_.dtype));
    for (size_t i = 0; i < indices_.size(); ++i)  // known from the position in the bag, as the reference asks for it
      base::store_element(factors_.data(), v_.dtype, static_cast<int64_t>(i), factor_of(i));
  }
  /// The result of the last call.
  const std::vector<char>& bytes() const { return out_; }
  std::vector<int64_t>& indices() { return indices_; }
  std::vector<int64_t>& offsets() { return offsets_; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  const spec::EmbeddingTable& table(size_t f) const { return placement_.tables[at(placement_.features[f].table)]; }
  double factor_of(size_t entry) const {
    const size_t bag =
        static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), entry) - offsets_.begin()) - 1;
    return static_cast<double>(1 + (entry - at(offsets_[bag])) % 3);
  }

  void make_weights() {
    const std::vector<int64_t> slices = placement_.slices(rank_, &num_weights_);
    weights_.resize(at(num_weights_) * dtype_bytes(v_.dtype));
    const auto [begin, end] = placement_.features_of(rank_);
    for (size_t f = begin; f < end; ++f) {
      const spec::EmbeddingFeature& feature = placement_.features[f];
      for (int64_t row = 0; row < table(f).rows; ++row)
        for (int64_t j = 0; j < feature.width; ++j)
          base::store_element(weights_.data(), v_.dtype, slices[f - begin] + row * feature.width + j,
                              table_element(feature.table, row, feature.first + j));
    }
  }

  double wanted(int64_t call, size_t f, int64_t sample, int64_t column) const {
    double sum = 0;
    int64_t count = 0, entry = 0;
    for (const int64_t index : bag_of(v_, call, static_cast<int64_t>(f), sample, table(f).rows)) {
      const double factor = v_.has_factors ? static_cast<double>(1 + entry % 3) : 1;
      ++entry;
      const int64_t row = bounded(v_, index, table(f).rows);
      if (row < 0 || (index == table(f).padding && index >= 0)) continue;
      const double value = table_element(placement_.features[f].table, row, column);
      sum = v_.mode != "max" ? sum + factor * value : count == 0 ? value : std::max(sum, value);
      ++count;
    }
    return v_.mode == "mean" && count > 0 ? sum / static_cast<double>(count) : sum;
  }

  std::string mismatch(int64_t call) const {
    for (int64_t row = 0; row < off_[at(rank_ + 1)] - off_[at(rank_)]; ++row)
      for (size_t f = 0; f < placement_.features.size(); ++f)
        for (int64_t j = 0; j < placement_.features[f].width; ++j) {
          const int64_t column = placement_.features[f].column + j;
          uint64_t rounded = 0;
          base::store_element(&rounded, v_.out_dtype, 0,
                              wanted(call, f, off_[at(rank_)] + row, placement_.features[f].first + j));
          const double want = base::load_element(&rounded, v_.out_dtype, 0);
          const double got = base::load_element(out_.data(), v_.out_dtype, row * columns_ + column);
          if (got != want)
            return base::format("call {}: out[{}, {}] of rank {} is {}, wanted {}", call, row, column, rank_, got,
                                want);
        }
    return "";
  }

  Channel& channel_;
  const spec::Schedule schedule_;
  const BagVariant v_;
  const int ranks_, rank_;
  const int64_t batch_, columns_;
  const std::string text_;
  const spec::Placement placement_;
  const std::vector<int64_t> off_;
  std::vector<int64_t> indices_, offsets_ = {0};
  std::vector<int32_t> short_;
  int64_t num_weights_ = 0;
  std::vector<char> weights_, factors_, out_;
};

/// The problem of all ranks; without `placement`, of placement_on().
inline spec::OpSpec bag_problem(int ranks, int64_t batch, const BagVariant& v = {}, const std::string& placement = "",
                                int64_t columns = kBagColumns) {
  spec::OpSpec op{.op = "embedding_a2a", .m = batch, .n = columns, .ranks = ranks, .row_offsets = v.row_offsets};
  op.dtype = v.dtype, op.out_dtype = v.out_dtype;
  op.fields = {{"batch", batch},
               {"bounds", v.bounds},
               {"mode", v.mode},
               {"placement", placement.empty() ? placement_on(ranks) : placement}};
  return op;
}

}  // namespace overlace::test
