// A mixture-of-experts layer whose operands every rank can tell, and a dense oracle of it in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "overlace/ops/moe.h"
#include "src/base/format.h"
#include "src/base/half.h"

namespace overlace::test {

struct MoeCase {
  int64_t experts = 4, top_k = 2, hidden = 16, inter = 24;
  DType dtype = DType::fp32, out_dtype = DType::fp32;
  std::string activation = "silu";
  bool is_gated = true, has_bias = false,
       is_exact = false;  // is_exact: small integers, so that what is rounded is known to the bit
  double capacity_factor = 0;
  int64_t most_tokens = 9;  // of a rank; some have fewer, or none
  std::vector<int64_t> (*begin)(int64_t experts, int ranks) = nullptr;
};

inline uint64_t mixed(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return (((a * 131 + b) * 137 + c) * 139 + d) * 0x9e3779b97f4a7c15U >> 33;
}

/// A context that holds such layers, with room for `more` tokens than any of its ranks has.
inline ops::MoeSpec moe_spec(const MoeCase& c, int ranks, int64_t more = 0) {
  return {.max_tokens = std::max<int64_t>(c.most_tokens + more, 1),
          .hidden = c.hidden,
          .inter = c.inter,
          .num_experts = c.experts,
          .top_k = static_cast<int>(c.top_k),
          .dtype = c.dtype,
          .expert_begin = c.begin == nullptr ? std::vector<int64_t>{} : c.begin(c.experts, ranks)};
}

/// What the oracle computes in: fp64; fp32 with the roundings of an unfused layer on one rank, of w h and of the row
/// that an expert gives; and those of the layer on all ranks, where the sum of the copies on another rank is rounded
/// too.
enum class MoePrecision { fp64, one_rank, layer };

/// The layer as one rank sees it; every rank can tell all weights.
class MoeLayer {
 public:
  MoeLayer(const MoeCase& c, int ranks, int rank, uint64_t seed = 1) : c_(c), ranks_(ranks), rank_(rank), seed_(seed) {
    begin_ = c.begin != nullptr ? c.begin(c.experts, ranks) : std::vector<int64_t>{};
    places_ = begin_;
    for (int r = 0; begin_.empty() && r <= ranks; ++r) places_.push_back(r * c.experts / ranks);
    first_ = places_[static_cast<size_t>(rank)], local_ = places_[static_cast<size_t>(rank) + 1] - first_;
    tokens_ = c.most_tokens == 0 ? 0 : (rank * 5 + 7) % (c.most_tokens + 1);
    wide_ = c.is_gated ? 2 * c.inter : c.inter;
    x_ = fill(tokens_ * c.hidden, [&](int64_t i) { return value(10 + rank, i / c.hidden, i % c.hidden, 4); });
    w1_ = fill(local_ * wide_ * c.hidden,
               [&](int64_t i) { return w1(first_ + i / (wide_ * c.hidden), i / c.hidden % wide_, i % c.hidden); });
    w2_ = fill(local_ * c.hidden * c.inter,
               [&](int64_t i) { return w2(first_ + i / (c.hidden * c.inter), i / c.inter % c.hidden, i % c.inter); });
    b1_ = fill(local_ * c.inter, [&](int64_t i) { return b1(first_ + i / c.inter, i % c.inter); });
    b2_ = fill(local_ * c.hidden, [&](int64_t i) { return b2(first_ + i / c.hidden, i % c.hidden); });
    for (int64_t i = 0; i < tokens_ * c.top_k; ++i) {
      const uint64_t drawn = mixed(seed, 77 + static_cast<uint64_t>(rank), static_cast<uint64_t>(i), 3);
      const int64_t chosen = std::min(drawn, drawn / 64) % static_cast<uint64_t>(c.experts);  // some twice
      idx_.push_back(drawn % 7 == 0 || i < c.top_k ? -1 : static_cast<int32_t>(chosen));      // token 0 has none
      weights_.push_back(c.is_exact ? std::ldexp(1.0F, static_cast<int>(drawn % 4) - 2)
                                    : static_cast<float>(drawn % 97 + 1) / 97);
    }
    out_.assign(static_cast<size_t>(tokens_ * c.hidden) * dtype_bytes(c.out_dtype), '\x7f');
  }

  ops::MoeArgs args() {
    ops::MoeArgs out{.x = TensorView::contiguous(x_.data(), c_.dtype, {tokens_, c_.hidden}),
                     .idx = TensorView::contiguous(idx_.data(), DType::i32, {tokens_, c_.top_k}),
                     .weights = TensorView::contiguous(weights_.data(), DType::fp32, {tokens_, c_.top_k}),
                     .w1 = TensorView::contiguous(w1_.data(), c_.dtype, {local_, wide_, c_.hidden}),
                     .w2 = TensorView::contiguous(w2_.data(), c_.dtype, {local_, c_.hidden, c_.inter}),
                     .out = TensorView::contiguous(out_.data(), c_.out_dtype, {tokens_, c_.hidden}),
                     .num_experts = c_.experts,
                     .activation = c_.activation,
                     .gated = c_.is_gated,
                     .capacity_factor = c_.capacity_factor,
                     .expert_begin = begin_};
    if (c_.has_bias) {
      out.b1 = TensorView::contiguous(b1_.data(), c_.dtype, {local_, c_.inter});
      out.b2 = TensorView::contiguous(b2_.data(), c_.dtype, {local_, c_.hidden});
    }
    return out;
  }

  /// Dense, from the definition.
  std::vector<double> wanted(MoePrecision precision) const {
    const bool is_rounded = precision != MoePrecision::fp64;
    const auto add = [&](double& sum, double term) {
      sum = is_rounded ? static_cast<double>(static_cast<float>(sum) + static_cast<float>(term)) : sum + term;
    };
    const auto hidden = static_cast<size_t>(c_.hidden);
    std::vector<double> out(static_cast<size_t>(tokens_) * hidden);
    for (int64_t t = 0; t < tokens_; ++t)
      for (int owner = 0; owner < ranks_; ++owner) {
        std::vector<double> partial(hidden);
        std::vector<double>* const to = precision == MoePrecision::layer ? &partial : nullptr;
        for (int64_t j = 0; j < c_.top_k; ++j) {
          if (!is_kept(t, j)) continue;
          const bool is_owned = chosen(t, j) >= places_[static_cast<size_t>(owner)] &&
                                chosen(t, j) < places_[static_cast<size_t>(owner) + 1];
          if (to != nullptr ? !is_owned : owner != 0) continue;
          const std::vector<double> y = expert(t, j, is_rounded);
          for (size_t h = 0; h < hidden; ++h)
            add(to != nullptr ? partial[h] : out[static_cast<size_t>(t) * hidden + h], y[h]);
        }
        for (size_t h = 0; h < hidden && to != nullptr; ++h)
          add(out[static_cast<size_t>(t) * hidden + h], owner == rank_ ? partial[h] : rounded(partial[h], c_.dtype));
      }
    if (is_rounded)
      for (double& sum : out) sum = rounded(sum, c_.out_dtype);
    return out;
  }
  int64_t dropped() const {
    int64_t out = 0;
    for (int64_t t = 0; t < tokens_; ++t)
      for (int64_t j = 0; j < c_.top_k; ++j) out += chosen(t, j) >= 0 && !is_kept(t, j) ? 1 : 0;
    return out;
  }

  /// What an element may be off by: twice the largest error of the baseline on any rank, on one rank or on all, and a
  /// step of the output.
  double allowed() const {
    if (c_.is_exact) return 0;
    double error = 0, largest = 0;
    for (int r = 0; r < ranks_; ++r) {
      const MoeLayer other(c_, ranks_, r, seed_);
      const std::vector<double> want = other.wanted(MoePrecision::fp64);
      for (const MoePrecision precision : {MoePrecision::one_rank, MoePrecision::layer}) {
        const std::vector<double> baseline = other.wanted(precision);
        for (size_t i = 0; i < want.size(); ++i) {
          error = std::max(error, std::abs(baseline[i] - want[i]));
          largest = std::max(largest, std::abs(want[i]));
        }
      }
    }
    const int digits = c_.out_dtype == DType::fp32 ? 23 : c_.out_dtype == DType::bf16 ? 7 : 10;
    return 2 * error + std::ldexp(largest, -digits);
  }

  std::string mismatch() const {
    const std::vector<double> want = wanted(c_.is_exact ? MoePrecision::layer : MoePrecision::fp64);
    const double most = allowed();
    for (size_t i = 0; i < want.size(); ++i) {
      const double got = base::load_element(out_.data(), c_.out_dtype, static_cast<int64_t>(i));
      if (!(std::abs(got - want[i]) <= most))
        return base::format("out[{}, {}] of rank {} is {}, wanted {} within {}", i / static_cast<size_t>(c_.hidden),
                            i % static_cast<size_t>(c_.hidden), rank_, got, want[i], most);
    }
    return "";
  }

  /// Takes the choices of the router instead of drawn ones.
  void route() {
    std::vector<char> gate =
        fill(c_.experts * c_.hidden, [&](int64_t i) { return value(900, i / c_.hidden, i % c_.hidden, 4); });
    const ops::MoeArgs call = args();
    ops::choose_experts({.x = call.x,
                         .w_gate = TensorView::contiguous(gate.data(), c_.dtype, {c_.experts, c_.hidden}),
                         .idx = call.idx,
                         .weights = call.weights,
                         .renormalize = true});
  }

  std::vector<char>& x() { return x_; }
  std::vector<int32_t>& idx() { return idx_; }
  std::vector<char>& out() { return out_; }
  const std::vector<char>& out() const { return out_; }
  int64_t tokens() const { return tokens_; }
  int64_t local() const { return local_; }

 private:
  int32_t chosen(int64_t t, int64_t j) const { return idx_[static_cast<size_t>(t * c_.top_k + j)]; }
  bool is_kept(int64_t t, int64_t j) const {
    const int32_t e = chosen(t, j);
    const double limit =
        std::ceil(c_.capacity_factor * static_cast<double>(tokens_ * c_.top_k) / static_cast<double>(c_.experts));
    const auto before = std::count(idx_.begin(), idx_.begin() + static_cast<std::ptrdiff_t>(t * c_.top_k + j), e);
    return e >= 0 && (c_.capacity_factor == 0 || static_cast<double>(before) < limit);
  }

  std::vector<double> expert(int64_t t, int64_t j, bool is_rounded) const {
    const int64_t e = chosen(t, j);
    const auto w = static_cast<double>(weights_[static_cast<size_t>(t * c_.top_k + j)]);
    const auto token = [&](int64_t h) { return value(10 + rank_, t, h, 4); };
    const auto product = [&](int64_t n, const std::function<double(int64_t)>& a,
                             const std::function<double(int64_t)>& b) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double term = a(i) * b(i);
        sum = is_rounded ? static_cast<double>(static_cast<float>(sum) + static_cast<float>(term)) : sum + term;
      }
      return sum;
    };
    std::vector<double> h, y;
    for (int64_t i = 0; i < c_.inter; ++i) {
      double v = product(c_.hidden, token, [&](int64_t n) { return w1(e, i, n); });
      if (c_.has_bias) v += b1(e, i);
      v = activated(v);
      if (c_.is_gated) v *= product(c_.hidden, token, [&](int64_t n) { return w1(e, c_.inter + i, n); });
      h.push_back(is_rounded ? rounded(w * v, c_.dtype) : w * v);
    }
    for (int64_t n = 0; n < c_.hidden; ++n) {
      double v = product(
          c_.inter, [&](int64_t i) { return h[static_cast<size_t>(i)]; }, [&](int64_t i) { return w2(e, n, i); });
      if (c_.has_bias) v += w * b2(e, n);
      y.push_back(is_rounded ? rounded(v, c_.dtype) : v);
    }
    return y;
  }

  double activated(double v) const {
    if (c_.activation == "silu") return v / (1 + std::exp(-v));
    if (c_.activation == "relu") return std::max(v, 0.0);
    if (c_.activation == "gelu_erf") return v / 2 * (1 + std::erf(v / std::sqrt(2.0)));
    return v / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  }

  static double rounded(double v, DType dtype) {
    uint64_t bits = 0;
    base::store_element(&bits, dtype, 0, v);
    return base::load_element(&bits, dtype, 0);
  }
  /// An integer in [-2, 2], or a number of few digits below `size` / 8.
  double value(int64_t a, int64_t b, int64_t c, int64_t size) const {
    const uint64_t drawn =
        mixed(seed_ * 1009 + static_cast<uint64_t>(a), static_cast<uint64_t>(b), static_cast<uint64_t>(c), 5);
    if (c_.is_exact) return static_cast<double>(drawn % 5) - 2;
    return rounded((static_cast<double>(drawn % 127) - 63) / 504 * static_cast<double>(size), c_.dtype);
  }
  double w1(int64_t e, int64_t i, int64_t h) const { return value(1000 + e, i, h, 4); }
  double w2(int64_t e, int64_t h, int64_t i) const { return value(3000 + e, h, i, 4); }
  double b1(int64_t e, int64_t i) const { return value(5000 + e, i, 0, 2); }
  double b2(int64_t e, int64_t h) const { return value(7000 + e, h, 0, 2); }
  std::vector<char> fill(int64_t count, const std::function<double(int64_t)>& of) const {
    std::vector<char> out(static_cast<size_t>(count) * dtype_bytes(c_.dtype));
    for (int64_t i = 0; i < count; ++i) base::store_element(out.data(), c_.dtype, i, of(i));
    return out;
  }

  const MoeCase c_;
  const int ranks_, rank_;
  const uint64_t seed_;
  std::vector<int64_t> begin_, places_;
  int64_t first_ = 0, local_ = 0, tokens_ = 0, wide_ = 0;
  std::vector<char> x_, w1_, w2_, b1_, b2_, out_;
  std::vector<int32_t> idx_;
  std::vector<float> weights_;
};

}  // namespace overlace::test
