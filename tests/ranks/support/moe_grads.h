// Gradients of a mixture-of-experts layer whose operands every rank can tell, and a dense oracle of them in fp64.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "overlace/ops/moe.h"
#include "src/base/format.h"
#include "src/base/half.h"

namespace overlace::test::moe_grads {

using Values = std::vector<double>;

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Case {
  int64_t experts = 4, top_k = 2, hidden = 8, inter = 6;
  DType dtype = DType::fp32, dx_dtype = DType::fp32;
  std::string activation = "silu";
  bool is_gated = true, has_b1 = false, has_b2 = false;
  double capacity_factor = 0;
  bool has_tokens = true, is_on_the_last = false;  // is_on_the_last: all experts, so that other ranks have none
  int64_t times = 1;                               // as many tokens
};

inline double rounded(double v, DType dtype) {
  uint64_t bits = 0;
  base::store_element(&bits, dtype, 0, v);
  return base::load_element(&bits, dtype, 0);
}

/// The tokens of a rank.
struct Tokens {
  int64_t count = 0;
  Values x{}, dy{}, weights{};
  std::vector<int32_t> idx{};
};

/// The layer on all ranks.
struct Layer {
  Layer(const Case& of, int num_ranks) : c(of), wide((of.is_gated ? 2 : 1) * of.inter) {
    for (int r = 0; r <= num_ranks; ++r)
      begin.push_back(!c.is_on_the_last ? r * c.experts / num_ranks : r == num_ranks ? c.experts : 0);
    w1 = draw(c.experts * wide * c.hidden, 1), w2 = draw(c.experts * c.hidden * c.inter, 2);
    b1 = draw(c.has_b1 ? c.experts * c.inter : 0, 3), b2 = draw(c.has_b2 ? c.experts * c.hidden : 0, 4);
    for (int r = 0; r < num_ranks; ++r) {
      Tokens t{.count = c.has_tokens ? (r * 5 + 7) % 9 * c.times : 0};  // 7, 3, 8, 4, 0
      if (num_ranks == 2 && r == 1) t.count = 0;
      t.x = draw(t.count * c.hidden, 10 + r), t.dy = draw(t.count * c.hidden, 20 + r);
      for (int64_t i = 0; i < t.count * c.top_k; ++i) {
        const uint64_t drawn = mixed(30 + r, i);
        t.idx.push_back(drawn % 7 == 0 || i / c.top_k == 1 ? -1 : static_cast<int32_t>(drawn / 64 % at(c.experts)));
        t.weights.push_back(rounded(static_cast<double>(drawn % 97 + 1) / 97, DType::fp32));
        if (i % c.top_k == 1 && i / c.top_k % 3 == 2) t.idx.back() = t.idx[at(i - 1)];  // twice
      }
      ranks.push_back(std::move(t));
    }
  }

  static uint64_t mixed(int64_t list, int64_t i) {
    return (static_cast<uint64_t>(list) * 1000003 + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15U >> 33;
  }
  /// With relu integers, so that the sign of what goes into it is known in any precision.
  Values draw(int64_t count, int64_t list) const {
    Values out;
    for (int64_t i = 0; i < count; ++i) {
      const auto drawn = static_cast<double>(mixed(list, i) % 127);
      out.push_back(c.activation == "relu" ? std::fmod(drawn, 5) - 2 : rounded((drawn - 63) / 100, c.dtype));
    }
    return out;
  }
  bool is_kept(const Tokens& of, int64_t i) const {
    const double limit =
        std::ceil(c.capacity_factor * static_cast<double>(of.count * c.top_k) / static_cast<double>(c.experts));
    const auto before = std::count(of.idx.begin(), of.idx.begin() + i, of.idx[at(i)]);
    return of.idx[at(i)] >= 0 && (c.capacity_factor == 0 || static_cast<double>(before) < limit);
  }

  Case c;
  int64_t wide = 0;
  std::vector<int64_t> begin;
  std::vector<Tokens> ranks;
  Values w1, w2, b1, b2;  // of all experts
};

/// Gradients of all ranks, one after the other.
struct Grads {
  std::vector<Values> dx{}, dweights{};
  Values dw1{}, dw2{}, db1{}, db2{};
};

/// Gradients and loss from the definition: in double, or in float with the roundings of an unfused layer on one rank.
template <class T>
class Oracle {
 public:
  explicit Oracle(const Layer& layer) : l_(layer), c_(layer.c) {}

  Grads grads() {
    Grads out{.dw1 = Values(l_.w1.size()),
              .dw2 = Values(l_.w2.size()),
              .db1 = Values(l_.b1.size()),
              .db2 = Values(l_.b2.size())};
    for (const Tokens& tokens : l_.ranks) {
      out.dx.emplace_back(tokens.x.size());
      out.dweights.emplace_back(tokens.idx.size());
      for (int64_t i = 0; i < static_cast<int64_t>(tokens.idx.size()); ++i)
        if (l_.is_kept(tokens, i)) add_copy(tokens, i, out);
      for (double& v : out.dx.back()) v = stored(v, c_.dx_dtype);
    }
    for (Values* const sums : {&out.dw1, &out.dw2, &out.db1, &out.db2})
      for (double& v : *sums) v = stored(v, c_.dtype);
    return out;
  }

  /// <dy, out>
  double loss() {
    T sum = 0;
    for (const Tokens& tokens : l_.ranks)
      for (int64_t i = 0; i < static_cast<int64_t>(tokens.idx.size()); ++i)
        if (l_.is_kept(tokens, i)) sum += static_cast<T>(tokens.weights[at(i)]) * dot_of(tokens, i);
    return static_cast<double>(sum);
  }

 private:
  static double stored(double v, DType dtype) { return std::is_same_v<T, double> ? v : rounded(v, dtype); }
  T round(T v) const { return static_cast<T>(stored(static_cast<double>(v), c_.dtype)); }
  static void add(double& sum, T term) { sum = static_cast<double>(static_cast<T>(sum) + term); }
  static T value(const Values& of, int64_t i) { return static_cast<T>(of[at(i)]); }

  T active(T v) const {
    if (c_.activation == "silu") return v / (1 + std::exp(-v));
    if (c_.activation == "relu") return std::max(v, T{0});
    if (c_.activation == "gelu_erf") return v / 2 * (1 + std::erf(v / std::sqrt(T{2})));
    return v / 2 * (1 + std::tanh(inner(v)));
  }
  T slope(T v) const {
    if (c_.activation == "relu") return v > 0 ? T{1} : T{0};
    if (c_.activation == "silu") return (1 + v / (1 + std::exp(v))) / (1 + std::exp(-v));
    if (c_.activation == "gelu_erf")
      return (1 + std::erf(v / std::sqrt(T{2}))) / 2 + v * std::exp(-v * v / 2) / std::sqrt(2 * kPi);
    const T c = std::cosh(inner(v));
    return (1 + std::tanh(inner(v))) / 2 + v / 2 * std::sqrt(2 / kPi) * (1 + T(0.134145) * v * v) / (c * c);
  }
  static T inner(T v) { return std::sqrt(2 / kPi) * (v + T(0.044715) * v * v * v); }

  /// Fills gate_, up_ and q_ = dy w2 of a copy and gives <dy, expert(x)>, as <q, h> + <dy, b2>.
  T dot_of(const Tokens& tokens, int64_t i) {
    const int64_t t = i / c_.top_k, e = tokens.idx[at(i)], H = c_.hidden, I = c_.inter;
    gate_.assign(at(I), 0), up_.assign(at(I), c_.is_gated ? 0 : 1), q_.assign(at(I), 0);
    T dot = 0;
    for (int64_t j = 0; j < I; ++j) {
      for (int64_t h = 0; h < H; ++h) {
        const T x = value(tokens.x, t * H + h);
        gate_[at(j)] += x * value(l_.w1, (e * l_.wide + j) * H + h);
        if (c_.is_gated) up_[at(j)] += x * value(l_.w1, (e * l_.wide + I + j) * H + h);
        q_[at(j)] += value(tokens.dy, t * H + h) * value(l_.w2, (e * H + h) * I + j);
      }
      if (c_.has_b1) gate_[at(j)] += value(l_.b1, e * I + j);
      dot += q_[at(j)] * active(gate_[at(j)]) * up_[at(j)];
    }
    for (int64_t h = 0; h < H && c_.has_b2; ++h) dot += value(tokens.dy, t * H + h) * value(l_.b2, e * H + h);
    return dot;
  }

  void add_copy(const Tokens& tokens, int64_t i, Grads& out) {
    const int64_t t = i / c_.top_k, e = tokens.idx[at(i)], H = c_.hidden, I = c_.inter;
    const T w = value(tokens.weights, i);
    out.dweights.back()[at(i)] = static_cast<double>(dot_of(tokens, i));
    std::vector<T> d(at(l_.wide));
    for (int64_t j = 0; j < I; ++j) {
      d[at(j)] = round(w * q_[at(j)] * up_[at(j)] * slope(gate_[at(j)]));
      if (c_.is_gated) d[at(I + j)] = round(w * q_[at(j)] * active(gate_[at(j)]));
      if (c_.has_b1) add(out.db1[at(e * I + j)], d[at(j)]);
    }
    for (int64_t h = 0; h < H; ++h) {
      const T x = value(tokens.x, t * H + h), dy = value(tokens.dy, t * H + h);
      T dx = 0;
      for (int64_t j = 0; j < l_.wide; ++j) {
        dx += d[at(j)] * value(l_.w1, (e * l_.wide + j) * H + h);
        add(out.dw1[at((e * l_.wide + j) * H + h)], d[at(j)] * x);
      }
      for (int64_t j = 0; j < I; ++j)
        add(out.dw2[at((e * H + h) * I + j)], dy * round(w * active(gate_[at(j)]) * up_[at(j)]));
      if (c_.has_b2) add(out.db2[at(e * H + h)], w * dy);
      add(out.dx.back()[at(t * H + h)], round(dx));
    }
  }

  static constexpr T kPi = T(3.14159265358979323846);
  const Layer& l_;
  const Case& c_;
  std::vector<T> gate_, up_, q_;
};

/// What one rank gives and gets.
class Call {
 public:
  Call(const Layer& layer, int rank) : l_(layer), rank_(rank) {
    const Case& c = l_.c;
    const Tokens& tokens = l_.ranks[at(rank)];
    const int64_t first = l_.begin[at(rank)], local = l_.begin[at(rank + 1)] - first, T = tokens.count;
    const auto part = [&](const Values& all) {
      const auto of_one = static_cast<std::ptrdiff_t>(all.size()) / c.experts;
      return Values(all.begin() + first * of_one, all.begin() + (first + local) * of_one);
    };
    args.layer = {.x = given(tokens.x, c.dtype, {T, c.hidden}),
                  .idx = given(Values(tokens.idx.begin(), tokens.idx.end()), DType::i32, {T, c.top_k}),
                  .weights = given(tokens.weights, DType::fp32, {T, c.top_k}),
                  .w1 = given(part(l_.w1), c.dtype, {local, l_.wide, c.hidden}),
                  .w2 = given(part(l_.w2), c.dtype, {local, c.hidden, c.inter}),
                  .num_experts = c.experts,
                  .activation = c.activation,
                  .gated = c.is_gated,
                  .capacity_factor = c.capacity_factor,
                  .expert_begin = l_.begin};
    args.dy = given(tokens.dy, c.dtype, {T, c.hidden});
    args.dx = wanted(c.dx_dtype, {T, c.hidden});
    args.dweights = wanted(DType::fp32, {T, c.top_k});
    args.dw1 = wanted(c.dtype, {local, l_.wide, c.hidden});
    args.dw2 = wanted(c.dtype, {local, c.hidden, c.inter});
    if (c.has_b1) args.layer.b1 = given(part(l_.b1), c.dtype, {local, c.inter});
    if (c.has_b1) args.db1 = wanted(c.dtype, {local, c.inter});
    if (c.has_b2) args.layer.b2 = given(part(l_.b2), c.dtype, {local, c.hidden});
    if (c.has_b2) args.db2 = wanted(c.dtype, {local, c.hidden});
  }

  /// The first element that is further from `want` than twice the largest error of `baseline` and a step of its dtype.
  std::string mismatch(const Grads& want, const Grads& baseline) const {
    Values dx, dx_baseline, dweights, dweights_baseline;
    int64_t tokens = 0;
    for (int r = 0; r < static_cast<int>(l_.ranks.size()); ++r) {
      tokens += r < rank_ ? l_.ranks[at(r)].count : 0;
      dx.insert(dx.end(), want.dx[at(r)].begin(), want.dx[at(r)].end());
      dx_baseline.insert(dx_baseline.end(), baseline.dx[at(r)].begin(), baseline.dx[at(r)].end());
      dweights.insert(dweights.end(), want.dweights[at(r)].begin(), want.dweights[at(r)].end());
      dweights_baseline.insert(dweights_baseline.end(), baseline.dweights[at(r)].begin(),
                               baseline.dweights[at(r)].end());
    }
    const int64_t e = l_.begin[at(rank_)];
    return compare("dx", args.dx, dx, dx_baseline, tokens * l_.c.hidden) +
           compare("dweights", args.dweights, dweights, dweights_baseline, tokens * l_.c.top_k) +
           compare("dw1", args.dw1, want.dw1, baseline.dw1, e * l_.wide * l_.c.hidden) +
           compare("dw2", args.dw2, want.dw2, baseline.dw2, e * l_.c.hidden * l_.c.inter) +
           compare("db1", args.db1, want.db1, baseline.db1, e * l_.c.inter) +
           compare("db2", args.db2, want.db2, baseline.db2, e * l_.c.hidden);
  }

  /// dx, dweights, dw1, dw2, db1, db2 as far as the layer has them.
  const std::vector<std::vector<char>>& outputs() const { return out_; }
  bool is_untouched() const {
    for (const std::vector<char>& bytes : out_)
      if (std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != kUnwritten; })) return false;
    return true;
  }

  ops::MoeGradArgs args;
  int fp32_digits = 23;  // of a step of fp32: fewer where products are not those of IEEE

 private:
  static constexpr char kUnwritten = '\x7f';

  TensorView given(const Values& values, DType dtype, const std::vector<int64_t>& sizes) {
    std::vector<char> bytes(values.size() * dtype_bytes(dtype));
    for (size_t i = 0; i < values.size(); ++i)
      if (dtype == DType::i32)
        reinterpret_cast<int32_t*>(bytes.data())[i] = static_cast<int32_t>(values[i]);
      else
        base::store_element(bytes.data(), dtype, static_cast<int64_t>(i), values[i]);
    in_.push_back(std::move(bytes));
    return view_of(in_.back(), dtype, sizes);
  }
  TensorView wanted(DType dtype, const std::vector<int64_t>& sizes) {
    int64_t count = 1;
    for (const int64_t size : sizes) count *= size;
    out_.emplace_back(at(count) * dtype_bytes(dtype), kUnwritten);
    return view_of(out_.back(), dtype, sizes);
  }
  static TensorView view_of(std::vector<char>& bytes, DType dtype, const std::vector<int64_t>& sizes) {
    if (sizes.size() == 2) return TensorView::contiguous(bytes.data(), dtype, {sizes[0], sizes[1]});
    return TensorView::contiguous(bytes.data(), dtype, {sizes[0], sizes[1], sizes[2]});
  }

  std::string compare(const char* name, const TensorView& got, const Values& want, const Values& baseline,
                      int64_t first) const {
    double error = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error = std::max(error, std::abs(baseline[i] - want[i]));
      largest = std::max(largest, std::abs(want[i]));
    }
    const int digits = got.dtype == DType::fp32 ? fp32_digits : got.dtype == DType::bf16 ? 7 : 10;
    const double most = 2 * error + std::ldexp(largest, -digits);
    for (int64_t i = 0; got.defined() && i < got.numel(); ++i) {
      const double value = base::load_element(got.data, got.dtype, i), of = want[at(first + i)];
      if (!(std::abs(value - of) <= most))
        return base::format("{}[{}] of rank {} is {}, wanted {} within {}; ", name, i, rank_, value, of, most);
    }
    return "";
  }

  const Layer& l_;
  const int rank_;
  std::vector<std::vector<char>> in_, out_;  // moving a list of them leaves the bytes where they are
};

}  // namespace overlace::test::moe_grads
