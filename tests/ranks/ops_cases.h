// Dense operators on exact data: one rank's operands, filled with hashed integers that differ by rank, place and call,
// and what must come out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "overlace/ops/a2a_gemm.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/ag_wgrad.h"
#include "overlace/ops/gemm_a2a.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/half.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {

inline uint64_t hash_of(uint64_t what, int64_t rank, int64_t i, int64_t j, int64_t seed) {
  uint64_t h = what * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(rank) * 0xC2B2AE3D27D4EB4FU +
               static_cast<uint64_t>(i) * 0x165667B19E3779F9U + static_cast<uint64_t>(j) * 0x27D4EB2F165667C5U +
               static_cast<uint64_t>(seed) * 0x85EBCA77C2B2AE63U;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9U;
  h ^= h >> 32;
  return h * 0x94D049BB133111EBU;
}

/// In [-4, 4], or [-1, 1] for 16-bit types, whose partial sums must stay exact too.
inline int64_t hashed(uint64_t what, int64_t rank, int64_t i, int64_t j, int64_t seed, DType dtype) {
  const uint64_t h = hash_of(what, rank, i, j, seed);
  const int64_t limit = dtype_bytes(dtype) == 2 ? 1 : 4;
  return static_cast<int64_t>((h >> 33) % static_cast<uint64_t>(2 * limit + 1)) - limit;
}

/// Memory of a matrix whose rows are `gap` elements apart; everything outside the view keeps its canary.
class Matrix {
 public:
  static constexpr double kCanary = 77;

  Matrix() = default;
  Matrix(int64_t rows, int64_t cols, DType dtype, int64_t gap)
      : storage_(static_cast<size_t>(rows * (cols + gap)) * dtype_bytes(dtype) + 64) {
    view = TensorView::contiguous(storage_.data(), dtype, {rows, cols + gap});
    view.sizes[1] = cols;
    for (int64_t i = 0; i < rows * (cols + gap); ++i) base::store_element(storage_.data(), dtype, i, kCanary);
  }
  double get(int64_t i, int64_t j) const { return base::load_element(view.data, view.dtype, i * view.stride(0) + j); }
  void set(int64_t i, int64_t j, double v) { base::store_element(view.data, view.dtype, i * view.stride(0) + j, v); }
  template <class F>
  void fill(F value) {
    for (int64_t i = 0; i < view.dim(0); ++i) {
      for (int64_t j = 0; j < view.dim(1); ++j) set(i, j, value(i, j));
    }
  }
  /// The gaps between rows are untouched.
  bool gaps_intact() const {
    const int64_t pitch = view.ndim == 2 ? view.stride(0) : 0;
    for (int64_t i = 0; i < view.dim(0); ++i) {
      for (int64_t j = view.dim(1); j < pitch; ++j) {
        if (base::load_element(view.data, view.dtype, i * pitch + j) != kCanary) return false;
      }
    }
    return true;
  }
  std::vector<char> bytes() const { return storage_; }
  TensorView view;

 private:
  std::vector<char> storage_;
};

struct Case {
  std::string op = "ag_gemm";
  std::string family = "library";
  int degree = 1;
  int64_t m = 8, n = 5,
          k = 6;  // n of ag_gemm and ag_wgrad, k of the others: at rank 0; rank r has r % 3 more where `uneven`
  bool uneven = false;
  DType in = DType::fp32, out = DType::fp32;
  spec::BLayout layout = spec::BLayout::nk;
  bool bias = false;
  bool gathered = false;  // ag_gemm, ag_wgrad: return a too
  bool swiglu = false;    // ag_gemm, with an even n
  int64_t gap = 0;        // between rows of every matrix
  std::vector<int64_t> offsets{};
  std::vector<int64_t> splits{};  // where rows are exchanged; without them m is a multiple of the ranks
  bool cols = false;              // columns are exchanged, in `blocks`, and splits has the rows of each rank
  std::vector<int64_t> blocks{};
  spec::Params options{};  // of make_schedule

  std::string text() const {
    std::string rows, chosen;
    for (int64_t o : offsets) rows += " " + std::to_string(o);
    for (const auto& [name, value] : options) {
      const int64_t* number = std::get_if<int64_t>(&value);
      chosen += " " + name + "=" + (number != nullptr ? std::to_string(*number) : "false");
    }
    return op + " " + family + " q " + std::to_string(degree) + " M " + std::to_string(m) + " N " + std::to_string(n) +
           " K " + std::to_string(k) + " " + dtype_name(in) + "->" + dtype_name(out) +
           (layout == spec::BLayout::nk ? " nk" : " kn") + (bias ? " bias" : "") + (swiglu ? " swiglu" : "") +
           (uneven ? " uneven" : "") + (gap != 0 ? " gap" : "") + (rows.empty() ? "" : " rows" + rows) +
           (splits.empty() ? "" : " splits") + (cols ? " cols of " + std::to_string(blocks.size()) : "") + chosen;
  }
};

/// One rank's part of a case: operands, schedule, run, verify.
class Operands {
 public:
  Operands(const Case& c, Channel& channel)
      : case_(c),
        channel_(channel),
        rank_(channel.team().rank()),
        ranks_(channel.team().size()),
        is_ag_(spec::gathers(c.op)),
        is_a2a_(spec::exchanges(c.op)),
        is_wgrad_(c.op == "ag_wgrad") {
    const std::vector<int64_t> off = spec::row_offsets(spec_of(rank_));
    first_ = off[static_cast<size_t>(rank_)];
    first_row_of_a_ = is_ag_ || is_a2a_ ? first_ : 0;
    const int64_t mine = off[static_cast<size_t>(rank_) + 1] - first_;
    find_origins(off);
    const int64_t results = std::ssize(origins_);
    if (c.cols) find_columns();
    const bool has_part = c.cols && is_ag_;  // of the columns of all rows
    if (has_part) first_row_of_a_ = 0;
    a_ = Matrix((is_ag_ || is_a2a_) && !has_part ? mine : c.m, has_part ? std::ssize(columns_) : k_of(rank_), c.in,
                c.gap);
    const bool nk = c.layout == spec::BLayout::nk;
    b_ = Matrix(nk ? n() : depth_of(rank_), nk ? depth_of(rank_) : n(), c.in, c.gap);
    out_ = Matrix(results, c.swiglu ? n() / 2 : c.cols && !is_ag_ ? std::ssize(columns_) : n(), c.out, c.gap);
    bias_ = Matrix(1, n(), c.out, 0);
    if (is_ag_ && c.gathered) gathered_ = Matrix(is_a2a_ ? results : c.m, c.k, c.in, c.gap);
    schedule_ = spec::make_schedule(spec_of(rank_), c.family, c.degree, c.options);
  }

  const Case& what() const { return case_; }
  const spec::Schedule& schedule() const { return schedule_; }
  spec::OpSpec problem() const { return spec_of(rank_); }
  const Matrix& out() const { return out_; }
  TensorView a() const { return a_.view; }
  TensorView b() const { return b_.view; }  // as stored
  void set_a(const TensorView& a) { a_.view = a; }

  void fill(int64_t seed) {
    seed_ = seed;
    const bool nk = case_.layout == spec::BLayout::nk;
    const int64_t row = first_row_of_a_;
    a_.fill([&](int64_t i, int64_t j) { return static_cast<double>(a_at(rank_, row + i, column_of_a(j))); });
    b_.fill([&](int64_t i, int64_t j) { return static_cast<double>(nk ? b_at(rank_, j, i) : b_at(rank_, i, j)); });
    bias_.fill([&](int64_t, int64_t j) { return static_cast<double>(bias_at(owner_of_bias(), j)); });
    out_.fill([](int64_t, int64_t) { return NAN; });
    if (gathered_.view.defined()) gathered_.fill([](int64_t, int64_t) { return NAN; });
  }

  void spoil_inputs() {
    for (Matrix* m : {&a_, &b_, &bias_}) m->fill([](int64_t, int64_t) { return NAN; });
  }

  /// normal(0, 1), a pure function of seed, rank and place.
  void fill_normal(int64_t seed) {
    fill(seed);
    const bool nk = case_.layout == spec::BLayout::nk;
    const int64_t row = first_row_of_a_;
    a_.fill([&](int64_t i, int64_t j) { return normal(1, owner_of_a(rank_), row + i, column_of_a(j)); });
    b_.fill([&](int64_t i, int64_t j) { return nk ? normal(2, rank_, j, i) : normal(2, rank_, i, j); });
    bias_.fill([&](int64_t, int64_t j) { return normal(3, owner_of_bias(), 0, j); });
  }

  /// After fill_normal: largest distance from the fp64 result of the rounded operands, the largest result, and the
  /// largest sum of absolute terms.
  struct Errors {
    double error = 0, magnitude = 0, terms = 0;
  };
  Errors errors() const {
    const int64_t rows = out_.view.dim(0), columns = n();
    std::vector<double> sums(static_cast<size_t>(rows * columns)), terms(sums.size());
    std::vector<double> b_row(static_cast<size_t>(columns));
    for (int s = 0; s < ranks_; ++s) {
      if (is_ag_ && s != rank_) continue;
      for (int64_t k = 0; k < depth_of(s); ++k) {
        for (int64_t j = 0; j < columns; ++j) b_row[static_cast<size_t>(j)] = rounded(normal(2, s, k, j), case_.in);
        for (int64_t i = 0; i < rows; ++i) {
          const Origin& from = origins_[static_cast<size_t>(i)];
          if (!from.has(s)) continue;
          const int64_t a_row = is_wgrad_ ? k : from.row, a_column = is_wgrad_ ? i : k;
          const double a = rounded(normal(1, owner_of_a(s), a_row, a_column), case_.in);
          const auto at = static_cast<size_t>(i * columns);
          add_products(a, b_row.data(), columns, sums.data() + at, terms.data() + at);
        }
      }
    }
    Errors largest;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t at = 0; at < out_.view.dim(1); ++at) {
        const int64_t j = column_of_out(at);
        const int bias_of = origins_[static_cast<size_t>(i)].bias;
        const double bias = case_.bias ? rounded(normal(3, bias_of, 0, j), case_.out) : 0;
        const double sum = sums[static_cast<size_t>(i * columns + j)] + bias;
        const double error = std::abs(out_.get(i, at) - sum);
        if (!(error <= largest.error) && !std::isnan(largest.error)) largest.error = error;  // NaN is the largest
        largest.magnitude = std::max(largest.magnitude, std::abs(sum));
        largest.terms = std::max(largest.terms, terms[static_cast<size_t>(i * columns + j)] + std::abs(bias));
      }
    }
    return largest;
  }
  std::pair<double, double> largest_error() const {
    const Errors all = errors();
    return {all.error, all.magnitude};
  }

  void run() {
    const TensorView b = case_.layout == spec::BLayout::nk ? b_.view.transposed() : b_.view;
    const TensorView bias = case_.bias ? TensorView::contiguous(bias_.view.data, case_.out, {n()}) : TensorView{};
    if (case_.op == "ag_gemm") {
      ops::run(channel_,
               ops::AgGemmArgs{.a_shard = a_.view,
                               .b = b,
                               .c = out_.view,
                               .bias = bias,
                               .a = gathered_.view,
                               .row_offsets = case_.offsets,
                               .activation = spec_of(rank_).activation},
               schedule_);
    } else if (is_wgrad_) {
      ops::run(channel_,
               ops::AgWgradArgs{
                   .a_shard = a_.view, .b = b, .c = out_.view, .a = gathered_.view, .row_offsets = case_.offsets},
               schedule_);
    } else if (case_.op == "gemm_rs") {
      ops::run(channel_,
               ops::GemmRsArgs{.a = a_.view, .b = b, .out = out_.view, .bias = bias, .row_offsets = case_.offsets},
               schedule_);
    } else if (case_.op == "a2a_gemm") {
      ops::run(channel_,
               ops::A2aGemmArgs{.a_shard = a_.view,
                                .b = b,
                                .c = out_.view,
                                .bias = bias,
                                .a = gathered_.view,
                                .splits = case_.splits,
                                .exchange = exchange(),
                                .blocks = case_.blocks},
               schedule_);
    } else if (is_a2a_) {
      ops::run(channel_,
               ops::GemmA2aArgs{.a = a_.view,
                                .b = b,
                                .out = out_.view,
                                .bias = bias,
                                .splits = case_.splits,
                                .exchange = exchange(),
                                .blocks = case_.blocks},
               schedule_);
    } else {
      ops::run(channel_, ops::GemmArArgs{.a = a_.view, .b = b, .out = out_.view, .bias = bias}, schedule_);
    }
  }

  /// First wrong element in words; empty if all are right.
  std::string mismatch() const {
    const std::vector<int64_t> sums = exact_sums();
    std::vector<char> rounded(8);
    for (int64_t i = 0; i < out_.view.dim(0); ++i) {
      const int64_t* sum = sums.data() + i * n();
      for (int64_t j = 0; j < out_.view.dim(1); ++j) {
        const double exact =
            case_.swiglu ? swiglu(sum[2 * j], sum[2 * j + 1]) : static_cast<double>(sum[column_of_out(j)]);
        base::store_element(rounded.data(), case_.out, 0, exact);
        const double expected = base::load_element(rounded.data(), case_.out, 0);
        if (out_.get(i, j) == expected) continue;
        // Sums are exact; what is made of them is rounded, after some roundings of fp32, or fp64.
        if (case_.swiglu && std::abs(out_.get(i, j) - exact) <= ulp_of(exact)) continue;
        return case_.text() + ": rank " + std::to_string(rank_) + " out[" + std::to_string(i) + "][" +
               std::to_string(j) + "] is " + std::to_string(out_.get(i, j)) + ", wanted " + std::to_string(expected);
      }
    }
    if (!out_.gaps_intact()) return case_.text() + ": rank " + std::to_string(rank_) + " wrote between rows";
    for (int64_t i = 0; gathered_.view.defined() && i < gathered_.view.dim(0); ++i) {
      const int64_t row = is_a2a_ ? origins_[static_cast<size_t>(i)].row : i;
      for (int64_t j = 0; j < case_.k; ++j) {
        if (gathered_.get(i, j) == static_cast<double>(a_at(0, row, j))) continue;
        return case_.text() + ": rank " + std::to_string(rank_) + " a[" + std::to_string(i) + "][" + std::to_string(j) +
               "] is " + std::to_string(gathered_.get(i, j));
      }
    }
    return "";
  }

 private:
  /// Twelve uniform numbers add up to something normal enough.
  double normal(uint64_t what, int64_t rank, int64_t i, int64_t j) const {
    double sum = -6;
    for (int64_t draw = 0; draw < 12; ++draw) {
      sum +=
          static_cast<double>(hash_of(what + 16 * static_cast<uint64_t>(draw + 1), rank, i, j, seed_) >> 11) * 0x1p-53;
    }
    return sum;
  }
  static void add_products(double a, const double* b, int64_t columns, double* sums, double* terms) {
    for (int64_t j = 0; j < columns; ++j) {
      sums[j] += a * b[j];
      terms[j] += std::abs(a * b[j]);
    }
  }
  static double rounded(double v, DType dtype) {
    std::array<char, 8> at{};
    base::store_element(at.data(), dtype, 0, v);
    return base::load_element(at.data(), dtype, 0);
  }
  static double swiglu(int64_t gate, int64_t up) {
    const auto x = static_cast<double>(gate);
    return x / (1 + std::exp(-x)) * static_cast<double>(up);
  }
  /// Distance of neighbours in the type of the result, and eight times as much where that is the type of the sums.
  double ulp_of(double x) const {
    switch (case_.out) {
      case DType::fp64:
        return 8 * std::ldexp(std::abs(x), -52);
      case DType::fp32:
        return 8 * std::ldexp(std::abs(x), -23) + 1e-37;
      case DType::fp16:
        return std::ldexp(std::abs(x), -10) + 0x1p-24;
      default:
        return std::ldexp(std::abs(x), -7) + 1e-37;
    }
  }

  /// Where a row of the result is from: ranks [begin, end) whose products are summed in it, the row of each, and whose
  /// bias is added.
  struct Origin {
    int begin = 0, end = 0;
    int64_t row = 0;
    int bias = 0;
    bool has(int rank) const { return begin <= rank && rank < end; }
  };
  /// Rows that are gathered or exchanged are counted over all ranks.
  void find_origins(const std::vector<int64_t>& off) {
    if (case_.cols) return find_origins_of_columns(off);
    if (is_a2a_) return find_origins_of_blocks(off);
    const bool is_own = case_.op == "gemm_rs";
    const int64_t first = is_own ? first_ : 0;
    const int64_t end = is_own ? off[static_cast<size_t>(rank_) + 1] : is_wgrad_ ? case_.k : case_.m;
    for (int64_t row = first; row < end; ++row)
      origins_.push_back(is_ag_ ? Origin{rank_, rank_ + 1, row, rank_} : Origin{0, ranks_, row, 0});
  }
  void find_origins_of_blocks(const std::vector<int64_t>& off) {
    const std::vector<int64_t> blocks = spec::splits(spec_of(rank_));
    for (int s = 0; s < ranks_; ++s) {
      const auto block = [&](int to) { return blocks[static_cast<size_t>(s * ranks_ + to)]; };
      int64_t row = off[static_cast<size_t>(s)];
      for (int to = 0; to < rank_; ++to) row += block(to);
      const int by = is_ag_ ? rank_ : s;
      for (int64_t i = 0; i < block(rank_); ++i) origins_.push_back({by, by + 1, row + i, by});
    }
  }
  /// My rows of all columns, or all rows of mine.
  void find_origins_of_columns(const std::vector<int64_t>& off) {
    for (int s = is_ag_ ? rank_ : 0; s < (is_ag_ ? rank_ + 1 : ranks_); ++s)
      for (int64_t row = off[static_cast<size_t>(s)]; row < off[static_cast<size_t>(s) + 1]; ++row)
        origins_.push_back({s, s + 1, row, s});
  }
  void find_columns() {
    int64_t first = 0;
    for (const int64_t block : case_.blocks.empty() ? std::vector<int64_t>{is_ag_ ? case_.k : case_.n} : case_.blocks) {
      const int64_t width = block / ranks_;
      for (int64_t j = 0; j < width; ++j) columns_.push_back(first + rank_ * width + j);
      first += block;
    }
  }
  /// Among all, where columns are exchanged.
  int64_t column_of_a(int64_t j) const { return case_.cols && is_ag_ ? columns_[static_cast<size_t>(j)] : j; }
  int64_t column_of_out(int64_t j) const { return case_.cols && !is_ag_ ? columns_[static_cast<size_t>(j)] : j; }
  spec::Exchange exchange() const { return case_.cols ? spec::Exchange::cols : spec::Exchange::rows; }
  int owner_of_bias() const { return is_ag_ || is_a2a_ ? rank_ : 0; }
  int owner_of_a(int rank) const { return is_ag_ ? 0 : rank; }
  int64_t extra(int rank) const { return case_.uneven ? rank % 3 * (case_.swiglu ? 2 : 1) : 0; }
  int64_t n() const { return case_.n + (is_ag_ ? extra(rank_) : 0); }
  int64_t k_of(int rank) const { return case_.k + (is_ag_ ? 0 : extra(rank)); }
  /// What the sum is over.
  int64_t depth_of(int rank) const { return is_wgrad_ ? case_.m : k_of(rank); }
  spec::OpSpec spec_of(int rank) const {
    return {.op = case_.op,
            .m = case_.m,
            .n = n(),
            .k = k_of(rank),
            .ranks = ranks_,
            .dtype = case_.in,
            .out_dtype = case_.out,
            .b_layout = case_.layout,
            .bias = case_.bias,
            .activation = case_.swiglu ? spec::Activation::swiglu : spec::Activation::none,
            .row_offsets = case_.offsets,
            .splits = case_.splits,
            .exchange = exchange(),
            .blocks = case_.blocks};
  }
  /// ag_gemm, ag_wgrad: row i of the whole, whoever owns it; else: of that rank's part.
  int64_t a_at(int rank, int64_t i, int64_t k) const { return hashed(1, owner_of_a(rank), i, k, seed_, case_.in); }
  int64_t b_at(int rank, int64_t k, int64_t j) const { return hashed(2, rank, k, j, seed_, case_.in); }
  int64_t bias_at(int rank, int64_t j) const { return hashed(3, rank, 0, j, seed_, case_.in); }
  /// Rows of the result, n() columns each. NOTE: it draws each operand once and adds row by row, for under a sanitizer
  /// this oracle takes longer than what it looks at.
  std::vector<int64_t> exact_sums() const {
    const int64_t columns = n(), rows = std::ssize(origins_);
    std::vector<int64_t> sums(static_cast<size_t>(rows * columns)), b_row(static_cast<size_t>(columns));
    if (case_.bias) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
          sums[static_cast<size_t>(i * columns + j)] = bias_at(origins_[static_cast<size_t>(i)].bias, j);
    }
    for (int s = 0; s < ranks_; ++s) {
      if (is_ag_ && s != rank_) continue;
      for (int64_t k = 0; k < depth_of(s); ++k) {
        for (int64_t j = 0; j < columns; ++j) b_row[static_cast<size_t>(j)] = b_at(s, k, j);
        for (int64_t i = 0; i < rows; ++i) {
          const Origin& from = origins_[static_cast<size_t>(i)];
          if (!from.has(s)) continue;
          const int64_t a = is_wgrad_ ? a_at(s, k, from.row) : a_at(s, from.row, k);
          int64_t* sum = sums.data() + i * columns;
          for (int64_t j = 0; j < columns; ++j) sum[j] += a * b_row[static_cast<size_t>(j)];
        }
      }
    }
    return sums;
  }

  Case case_;
  Channel& channel_;
  int rank_, ranks_;
  bool is_ag_, is_a2a_, is_wgrad_;
  int64_t first_ = 0, first_row_of_a_ = 0, seed_ = 0;
  std::vector<int64_t> columns_;  // where columns are exchanged, mine
  Matrix a_, b_, out_, bias_, gathered_;
  std::vector<Origin> origins_;
  spec::Schedule schedule_;
};

/// Runs the cases two by two, each three times, alternating and twice in a row, so that buffers are reused while
/// transfers and credits of earlier calls may be under way; verifies after each call and that nothing is left over
/// after each pair.
inline void run_cases(Runtime& runtime, Channel& channel, const std::vector<Case>& cases) {
  for (size_t i = 0; i < cases.size(); i += 2) {
    std::vector<Operands> pair;
    for (size_t j = i; j < std::min(i + 2, cases.size()); ++j) pair.emplace_back(cases[j], channel);
    int64_t calls = 0;
    for (const size_t turn : {0, 0, 1, 0, 1, 1}) {
      if (turn >= pair.size()) continue;
      Operands& operands = pair[turn];
      operands.fill(static_cast<int64_t>(i) * 3 + ++calls);
      operands.run();
      operands.spoil_inputs();  // they are ours again: nobody may still read them
      ASSERT_EQ(operands.mismatch(), "") << "call " << calls;
    }
    runtime.synchronize();
    channel.team().barrier();
    runtime.check_quiescent();
  }
}

/// One of the numbers of hosts of equal size that the ranks can be on, several if there is such a number.
inline int64_t hosts_of(int ranks, size_t turn) {
  std::vector<int64_t> all;
  for (int64_t hosts = ranks == 1 ? 1 : 2; hosts <= ranks; ++hosts)
    if (ranks % hosts == 0) all.push_back(hosts);
  return all[turn % all.size()];
}

/// The buffer of an operator's result.
inline std::string result_of(const std::string& op) {
  for (const spec::Arg& arg : spec::find_operator(op)->args)
    if (arg.role == spec::Role::output) return std::string(arg.name);
  return "";
}

/// `m` rows from rank to rank, some blocks of many and others of none.
inline std::vector<int64_t> drawn_splits(int ranks, int64_t m, size_t seed) {
  std::vector<int64_t> out(static_cast<size_t>(ranks * ranks));
  for (int64_t i = 0; i < m; ++i) {
    const uint64_t h = hash_of(9, i / 3, 0, 0, static_cast<int64_t>(seed));
    ++out[(h >> 20) % out.size()];
  }
  return out;
}

/// `m` rows of the ranks, of some many and of others none.
inline std::vector<int64_t> drawn_rows(int ranks, int64_t m, size_t seed) {
  std::vector<int64_t> out(static_cast<size_t>(ranks));
  for (int64_t i = 0; i < m; ++i) ++out[(hash_of(8, i / 5, 0, 0, static_cast<int64_t>(seed)) >> 20) % out.size()];
  return out;
}

/// The case with columns that are exchanged, in one block to three.
inline void exchange_columns(Case* c, int ranks, size_t turn) {
  c->cols = true;
  int64_t columns = 0;
  for (size_t j = 0; j <= turn % 3; ++j) {
    c->blocks.push_back(ranks * static_cast<int64_t>(1 + (turn + j) / 2 % 3));
    columns += c->blocks.back();
  }
  if (turn % 6 == 0) c->blocks.clear();
  (spec::gathers(c->op) ? c->k : c->n) = columns;
  c->splits = turn % 4 == 0 ? std::vector<int64_t>() : drawn_rows(ranks, c->m, turn);
}

/// Another number of rows, in shards or blocks of its own.
inline void set_rows(Case* c, int ranks, int64_t m) {
  c->m = m;
  c->offsets.clear();
  if (spec::exchanges(c->op))
    c->splits = c->cols ? drawn_rows(ranks, m, static_cast<size_t>(m)) : drawn_splits(ranks, m, static_cast<size_t>(m));
}

/// Other sizes; columns that are exchanged are as many for each rank, in one block.
inline void set_columns(Case* c, int ranks, int64_t n, int64_t k) {
  c->n = n;
  c->k = k;
  c->blocks.clear();
  if (c->cols) (spec::gathers(c->op) ? c->k : c->n) *= ranks;
}

/// All families and degrees of an operator; shapes, types, layouts, bias and raggedness take turns, so that each pair
/// of them meets in some case and team size.
inline std::vector<Case> cases_of(const std::string& op, int ranks) {
  const int64_t rows[] = {7, 33, 1, 2 * ranks, 0, 3 * ranks + 1, 2, 5 * ranks};
  const std::pair<DType, DType> types[] = {{DType::fp32, DType::fp32}, {DType::bf16, DType::bf16},
                                           {DType::fp64, DType::fp64}, {DType::fp16, DType::fp32},
                                           {DType::fp16, DType::fp16}, {DType::bf16, DType::fp32}};
  std::vector<Case> cases;
  size_t turn = static_cast<size_t>(ranks);
  const spec::OperatorDef& def = *spec::find_operator(op);
  for (const std::string& family : spec::families(op)) {
    if (family == "compute" || family == "comm" || family == "limit") continue;
    for (const int degree : {1, 2, 3, 5}) {
      Case c{.op = op, .family = family, .degree = degree};
      c.m = rows[turn % 8];
      std::tie(c.in, c.out) = types[turn % 6];
      c.n = 3 + static_cast<int64_t>(turn % 3) * 5;
      c.k = turn % 7 == 3 && !spec::gathers(op) ? 0 : 1 + static_cast<int64_t>(turn % 4) * 4;
      c.layout = turn % 2 == 0 ? spec::BLayout::nk : spec::BLayout::kn;
      c.bias = turn % 5 < 2 && op != "ag_wgrad";
      c.uneven = turn % 3 == 1;
      // Not of those whose kernel alone knows where the gathered rows are.
      c.gathered = turn % 4 != 1 && family != "k_slab" && family != "one_shot";
      if (family == "k_slab" && turn % 3 != 0) c.k = 60 * static_cast<int64_t>(turn % 4 + 1);     // several slabs
      if (family == "tma_slot" && turn % 3 != 0) c.n = 100 * static_cast<int64_t>(turn % 4 + 1);  // several groups
      if (family == "tma_slot" && turn % 2 == 0) c.options["align"] = int64_t{2};                 // several bands
      if (family == "tracked" && turn % 4 != 0) c.options["align"] = int64_t{2};                  // several chunks
      if (family == "one_shot" && turn % 2 == 0)  // tiles of more tokens
        c.m = 65 + static_cast<int64_t>(turn) * 37 % (kOneShotTokens - 64);
      c.gap = turn % 5 == 3 ? 3 : 0;
      const bool knows_hosts = family == "hierarchical" || (family == "serial" && degree > 2 && def.knows_hosts);
      if (knows_hosts) c.options["hosts"] = hosts_of(ranks, turn);
      if (spec::exchanges(op)) {
        if (family == "library") c.gap = 0;
        if (turn % 3 != 0)
          c.splits = drawn_splits(ranks, c.m, turn);
        else
          c.m -= c.m % ranks;
      } else if (turn % 4 == 2 && op != "gemm_ar") {  // ragged: all rows at a few ranks, others empty
        c.offsets.assign(static_cast<size_t>(ranks) + 1, 0);
        for (int p = 1; p <= ranks; ++p)
          c.offsets[static_cast<size_t>(p)] =
              p == ranks || p % 2 == 0 ? c.m * p / ranks : c.offsets[static_cast<size_t>(p) - 1];
      }
      cases.push_back(c);
      ++turn;
    }
    ++turn;  // so that degrees and turns do not stay in step
  }
  return cases;
}

/// Those of an operator that exchanges, with columns.
inline std::vector<Case> column_cases_of(const std::string& op, int ranks) {
  std::vector<Case> cases = cases_of(op, ranks);
  for (size_t i = 0; i < cases.size(); ++i) exchange_columns(&cases[i], ranks, i);
  return cases;
}

inline auto all_teams() {
  return ::testing::Combine(::testing::Range(1, 10),
                            ::testing::Values(Mode::threads, Mode::threads_adversary, Mode::processes));
}

}  // namespace overlace::test
