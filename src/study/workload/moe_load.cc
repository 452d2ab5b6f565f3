#include "src/study/workload/moe_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "src/base/format.h"
#include "src/sim/engine/engine.h"
#include "src/study/workload/step.h"

namespace overlace::study {
namespace {

constexpr int64_t kMostCount = 1 << 24;
constexpr double kRowParts = 1024;  // of which an expected row is a multiple: ranks that are alike have equal ones

base::Status check_begin(const std::vector<int64_t>& begin, int group, int experts) {
  if (begin.empty()) return {};
  if (begin.size() != static_cast<size_t>(group) + 1)
    return base::invalid_argument("moe: expert_begin has {} entries, wanted {}, one more than ranks of a group",
                                  begin.size(), group + 1);
  for (size_t r = 0; r < begin.size(); ++r) {
    const int64_t least = r == 0 ? 0 : begin[r - 1];
    const bool is_end = r == 0 || r + 1 == begin.size();
    const int64_t wanted = r == 0 ? 0 : experts;
    if (is_end && begin[r] != wanted)
      return base::invalid_argument("moe: expert_begin[{}] is {}, wanted {}", r, begin[r], wanted);
    if (begin[r] < least || begin[r] > experts)
      return base::invalid_argument("moe: expert_begin[{}] is {}, wanted {} to {}", r, begin[r], least, experts);
  }
  return {};
}

base::Status check_counts(const MoeModel& model, const std::vector<int64_t>& counts, int group) {
  const auto experts = static_cast<size_t>(model.experts);
  if (counts.empty()) return {};
  if (counts.size() != static_cast<size_t>(group) * experts)
    return base::invalid_argument("moe: {} counts, wanted {} ranks x {} experts", counts.size(), group, experts);
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] < 0 || counts[i] > model.tokens)
      return base::invalid_argument("moe: rank {} has {} copies for expert {}, wanted 0 to {}, one of each token",
                                    i / experts, counts[i], i % experts, model.tokens);
  const int64_t sent = model.tokens * model.top_k;
  for (auto row = counts.begin(); row != counts.end(); row += model.experts)
    if (const int64_t sum = std::accumulate(row, row + model.experts, int64_t{0}); sum != sent)
      return base::invalid_argument("moe: the counts of rank {} are {} together, wanted {} ({} tokens x top {})",
                                    (row - counts.begin()) / model.experts, sum, sent, model.tokens, model.top_k);
  return {};
}

/// Rows of one rank for another that can be, whoever chose, by its copies for each expert.
class RowBounds {
 public:
  RowBounds(const MoeModel& model, std::span<const int64_t> counts)
      : tokens_(model.tokens), top_k_(model.top_k), sorted_(counts.begin(), counts.end()), sums_{0} {
    std::sort(sorted_.begin(), sorted_.end());
    for (const int64_t count : sorted_) sums_.push_back(sums_.back() + count);
  }
  /// `there`: copies for the experts of the other rank.
  int64_t least(std::span<const int64_t> there) const {
    const int64_t largest = there.empty() ? 0 : *std::max_element(there.begin(), there.end());
    return std::max(largest, tokens_ - most_elsewhere(there));
  }
  int64_t most(int64_t copies) const { return std::min(copies, tokens_); }

 private:
  /// As many tokens as can choose all their experts elsewhere: t of them take at most t copies of an expert. What t
  /// copies leave over is concave in t, so the possible ones are all up to the largest.
  int64_t most_elsewhere(std::span<const int64_t> there) const {
    const auto is_possible = [&](int64_t t) { return taken(t) - taken(t, there) >= top_k_ * t; };
    int64_t possible = 0, t = (sums_.back() - std::accumulate(there.begin(), there.end(), int64_t{0})) / top_k_;
    for (int64_t end = t + 1; possible + 1 < end; t = possible + (end - possible) / 2) {
      if (is_possible(t))
        possible = t;
      else
        end = t;
    }
    return possible;
  }
  int64_t taken(int64_t t) const {
    const auto small = std::upper_bound(sorted_.begin(), sorted_.end(), t) - sorted_.begin();
    return sums_[static_cast<size_t>(small)] + t * (static_cast<int64_t>(sorted_.size()) - small);
  }
  static int64_t taken(int64_t t, std::span<const int64_t> there) {
    int64_t sum = 0;
    for (const int64_t count : there) sum += std::min(count, t);
    return sum;
  }

  int64_t tokens_, top_k_;
  std::vector<int64_t> sorted_, sums_;  // sums_[i]: of the i smallest
};

/// Adds an element that is chosen with probability p: row[j] is that of j so far.
void add_choice(std::span<double> row, double p) {
  for (size_t j = row.size() - 1; j > 0; --j) row[j] = row[j] * (1 - p) + row[j - 1] * p;
  row[0] *= 1 - p;
}

/// For each part, the share of sets of `choose` experts that have none of it, where each expert is in or not with its
/// probability, independently of the others but for their number.
std::vector<double> shares_of(const std::vector<double>& p, const std::vector<size_t>& begin, size_t choose) {
  const size_t parts = begin.size() - 1, width = choose + 1;
  std::vector<double> before((parts + 1) * width, 0), behind(width, 0), out(parts);
  before[0] = behind[0] = 1;
  for (size_t i = 0; i < parts; ++i) {
    const std::span<double> next = std::span(before).subspan((i + 1) * width, width);
    std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(i * width), width, next.begin());
    for (size_t e = begin[i]; e < begin[i + 1]; ++e) add_choice(next, p[e]);
  }
  const double all = before[parts * width + choose];
  for (size_t i = parts; i-- > 0;) {
    double none = 0;
    for (size_t j = 0; j < width; ++j) none += before[i * width + j] * behind[choose - j];
    for (size_t e = begin[i]; e < begin[i + 1]; ++e) {
      none *= 1 - p[e];
      add_choice(behind, p[e]);
    }
    out[i] = none / all;
  }
  return out;
}

/// Probabilities of independent choices that, where `choose` are made, have the inclusions asked for. Odds of the
/// former are corrected by what odds of the latter are off. That overshoots by up to twice where there are few to
/// choose from, so every second step is half of one. Errc::internal where shares stay off, or are none.
base::Result<std::vector<double>> probabilities_of(const std::vector<double>& inclusion, size_t choose) {
  constexpr int kMostSteps = 200;
  constexpr double kNear = 1e-10, kUsable = 1e-7, kLeast = 1e-15;
  std::vector<double> p = inclusion;
  std::vector<size_t> single(p.size() + 1);
  std::iota(single.begin(), single.end(), size_t{0});
  for (int step = 0;; ++step) {
    const std::vector<double> without = shares_of(p, single, choose);
    double off = 0;
    for (size_t e = 0; e < p.size(); ++e)
      if (const double one = std::abs(1 - without[e] - inclusion[e]); !(one <= off) && !std::isnan(off)) off = one;
    if (off <= kNear || (step == kMostSteps && off <= kUsable)) return p;
    if (step == kMostSteps)
      return base::error(Errc::internal,
                         "moe: shares that choose an expert are {} off after {} steps, wanted at most {}", off, step,
                         kUsable);
    for (size_t e = 0; e < p.size(); ++e) {
      const double none = std::clamp(without[e], kLeast, 1 - kLeast);
      const double ratio = inclusion[e] / (1 - inclusion[e]) * none / (1 - none);
      const double odds = p[e] / (1 - p[e]) * (step % 2 == 0 ? ratio : std::sqrt(ratio));
      p[e] = odds / (1 + odds);
    }
  }
}

/// Tokens of a rank with these counts that have an expert on each of the ranks, expected.
base::Result<std::vector<double>> expected_rows(const MoeModel& model, std::span<const int64_t> counts,
                                                const std::vector<size_t>& begin) {
  const size_t ranks = begin.size() - 1;
  const auto tokens = static_cast<double>(model.tokens);
  std::vector<double> inclusion, rows(ranks);
  std::vector<size_t> open(ranks + 1, 0);
  std::vector<bool> is_sure(ranks, false);
  int choose = model.top_k;
  for (size_t r = 0; r < ranks; ++r) {
    for (size_t e = begin[r]; e < begin[r + 1]; ++e) {
      if (counts[e] >= model.tokens) {
        --choose;
        is_sure[r] = true;
      } else if (counts[e] > 0) {
        inclusion.push_back(static_cast<double>(counts[e]) / tokens);
      }
    }
    open[r + 1] = inclusion.size();
  }
  const base::Result<std::vector<double>> without = shares_without(inclusion, open, choose);
  if (!without.ok()) return without.status();
  const RowBounds bounds(model, counts);
  for (size_t r = 0; r < ranks; ++r) {
    const std::span<const int64_t> there = counts.subspan(begin[r], begin[r + 1] - begin[r]);
    const int64_t copies = std::accumulate(there.begin(), there.end(), int64_t{0});
    const double share = is_sure[r] ? 1 : 1 - (*without)[r];
    const double parts = static_cast<double>(std::llround(share * tokens * kRowParts));
    rows[r] = std::clamp(parts / kRowParts, static_cast<double>(bounds.least(there)),
                         static_cast<double>(bounds.most(copies)));
  }
  return rows;
}

base::Status take_given_rows(const MoeModel& model, const MoeRouting& routing, std::span<const int64_t> counts,
                             MoeLoad* load) {
  const auto n = static_cast<size_t>(load->ranks()), experts = static_cast<size_t>(model.experts);
  if (routing.rows.size() != n * n)
    return base::invalid_argument("moe: {} rows, wanted {} ranks x {} ranks", routing.rows.size(), n, n);
  for (size_t from = 0; from < n; ++from) {
    const std::span<const int64_t> own = counts.subspan(from * experts, experts);
    const RowBounds bounds(model, own);
    for (size_t to = 0; to < n; ++to) {
      const size_t at = from * n + to;
      const int64_t least = bounds.least(own.subspan(load->begin[to], load->local(to)));
      const int64_t most = bounds.most(load->copies[at]), given = routing.rows[at];
      if (given < least || given > most)
        return base::invalid_argument("moe: {} rows of rank {} for rank {} with {} copies, wanted {} to {}", given,
                                      from, to, load->copies[at], least, most);
      load->rows[at] = static_cast<double>(given);
    }
  }
  return {};
}

base::Status expect_rows(const MoeModel& model, const MoeRouting& routing, std::span<const int64_t> counts,
                         MoeLoad* load) {
  const auto n = static_cast<size_t>(load->ranks()), experts = static_cast<size_t>(model.experts);
  const size_t sources = routing.counts.empty() ? 1 : n;  // drawn from a popularity, all ranks have the same
  constexpr int64_t kMostSteps = 8 * kMostTasks;
  if (const int64_t steps = static_cast<int64_t>(sources) * model.experts * model.top_k; steps > kMostSteps)
    return base::invalid_argument(
        "moe: {} ranks x {} experts x top {} are {} steps to expect rows, wanted at most {}, or rows, or one per copy",
        sources, model.experts, model.top_k, steps, kMostSteps);
  for (size_t from = 0; from < n; ++from) {
    auto out = load->rows.begin() + static_cast<std::ptrdiff_t>(from * n);
    if (from >= sources) {
      std::copy_n(load->rows.begin(), n, out);
      continue;
    }
    const base::Result<std::vector<double>> rows =
        expected_rows(model, counts.subspan(from * experts, experts), load->begin);
    if (!rows.ok()) return rows.status();
    std::ranges::copy(*rows, out);
  }
  return {};
}

/// An array of numbers, from 0 on.
base::Status read_numbers(const base::Json& array, size_t size, const char* of_what, std::string_view source,
                          const std::string& place, std::vector<int64_t>* out) {
  if (!array.is_array() || array.as_array().size() != size)
    return base::error(Errc::corrupt, "{}: {}, wanted an array of {} numbers, one {}", source, place, size, of_what);
  for (const base::Json& number : array.as_array()) {
    if (!number.is_int() || number.as_int() < 0 || number.as_int() > kMostCount)
      return base::error(Errc::corrupt, "{}: {}: {}, wanted whole numbers of 0 to {}", source, place, number.dump(),
                         kMostCount);
    out->push_back(number.as_int());
  }
  return {};
}

base::Status read_matrix(const base::Json& json, const char* key, size_t rows, size_t columns, const char* of_what,
                         std::string_view source, std::vector<int64_t>* out) {
  const base::Json* matrix = json.find(key);
  if (matrix == nullptr || !matrix->is_array() || matrix->as_array().size() != rows)
    return base::error(Errc::corrupt, "{}: {}, wanted an array of {} rows, one per rank", source, key, rows);
  out->clear();
  for (size_t i = 0; i < rows; ++i)
    OVERLACE_TRY(read_numbers(matrix->as_array()[i], columns, of_what, source, base::format("{}[{}]", key, i), out));
  return {};
}

}  // namespace

base::Status check_moe_sizes(const MoeModel& model, const MoeRouting& routing, int group) {
  for (const int64_t size : {model.hidden, model.intermediate, model.tokens})
    if (size < 1 || size > kMostCount) return base::invalid_argument("moe: a size is {}, wanted 1 to 16777216", size);
  if (model.experts < 1 || model.experts > 65536 || model.top_k < 1 || model.top_k > model.experts)
    return base::invalid_argument("moe: top {} of {} experts, wanted 1 to all of at most 65536", model.top_k,
                                  model.experts);
  if (group < 1) return base::invalid_argument("moe: a group of {} ranks, wanted at least 1", group);
  if (model.shared_experts < 0 || model.shared_experts > 64)
    return base::invalid_argument("moe: {} shared experts, wanted 0 to 64", model.shared_experts);
  if (!(routing.zipf >= 0) || !(routing.zipf <= 8))
    return base::invalid_argument("moe: zipf is {}, wanted 0 to 8", routing.zipf);
  if (const int64_t counts = int64_t{group} * model.experts; counts > kMostTasks)
    return base::invalid_argument("moe: {} ranks of a group x {} experts are {} counts, wanted at most {}", group,
                                  model.experts, counts, kMostTasks);
  if (const int64_t pairs = int64_t{group} * group; pairs > kMostTasks)
    return base::invalid_argument("moe: {} ranks of a group are {} pairs of ranks, wanted at most {}", group, pairs,
                                  kMostTasks);
  return {};
}

double MoeLoad::sent(size_t rank) const {
  const size_t n = begin.size() - 1;
  const auto row = rows.begin() + static_cast<std::ptrdiff_t>(rank * n);
  return std::accumulate(row, row + static_cast<std::ptrdiff_t>(n), 0.0);
}

double MoeLoad::received(size_t rank) const {
  const size_t n = begin.size() - 1;
  double sum = 0;
  for (size_t from = 0; from < n; ++from) sum += rows[from * n + rank];
  return sum;
}

int64_t MoeLoad::load(size_t rank) const {
  int64_t sum = 0;
  for (size_t e = begin[rank]; e < begin[rank + 1]; ++e) sum += expert[e];
  return sum;
}

std::vector<int64_t> moe_counts(const MoeModel& model, int group, double zipf, uint64_t seed) {
  const auto experts = static_cast<size_t>(model.experts);
  std::vector<size_t> order(experts);  // of popularity
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const uint64_t x = sim::random_bits(seed, a, 0, 0), y = sim::random_bits(seed, b, 0, 0);
    return x != y ? x < y : a < b;
  });
  std::vector<double> share(experts);
  double sum = 0;
  for (size_t i = 0; i < experts; ++i) sum += share[order[i]] = std::pow(static_cast<double>(i + 1), -zipf);
  // Experts that all tokens choose leave the others what remains.
  std::vector<double> rest(experts + 1, 0);  // shares of this place and of those behind it
  for (size_t i = experts; i-- > 0;) rest[i] = rest[i + 1] + share[order[i]];
  int64_t left = model.tokens * model.top_k;
  std::vector<int64_t> row(experts);
  for (size_t i = 0; share[order[i]] / sum * static_cast<double>(left) > static_cast<double>(model.tokens); ++i) {
    row[order[i]] = model.tokens;
    left -= model.tokens;
    share[order[i]] = 0;
    sum = rest[i + 1];
  }
  double taken = 0;
  int64_t given = 0;
  size_t last = experts;
  while (share[last - 1] == 0) --last;
  for (size_t e = 0; e < last; ++e) {  // rounds the sums so far, so that all of them are given out
    if (share[e] == 0) continue;
    taken += share[e] / sum;
    const auto until = e + 1 == last ? left : std::llround(std::min(taken, 1.0) * static_cast<double>(left));
    row[e] = std::clamp<int64_t>(until - given, 0, model.tokens);
    given += row[e];
  }
  std::vector<int64_t> counts;
  for (int rank = 0; rank < group; ++rank) counts.insert(counts.end(), row.begin(), row.end());
  return counts;
}

base::Status read_moe_counts(const base::Json& json, int group, int experts, std::string_view source,
                             MoeRouting* routing) {
  const auto n = static_cast<size_t>(group);
  OVERLACE_TRY(read_matrix(json, "counts", n, static_cast<size_t>(experts), "per expert", source, &routing->counts));
  if (json.find("rows") != nullptr) OVERLACE_TRY(read_matrix(json, "rows", n, n, "per rank", source, &routing->rows));
  const base::Json* begin = json.find("expert_begin");
  if (begin == nullptr) return {};
  routing->begin.clear();
  return read_numbers(*begin, n + 1, "per rank and one more", source, "expert_begin", &routing->begin);
}

base::Result<std::vector<double>> shares_without(const std::vector<double>& inclusion, const std::vector<size_t>& begin,
                                                 int choose) {
  const auto chosen = static_cast<size_t>(std::max(choose, 0));
  const base::Result<std::vector<double>> p = probabilities_of(inclusion, chosen);
  if (!p.ok()) return p.status();
  return shares_of(*p, begin, chosen);
}

base::Result<MoeLoad> moe_load(const MoeModel& model, const MoeRouting& routing, int group) {
  OVERLACE_TRY(check_moe_sizes(model, routing, group));
  OVERLACE_TRY(check_begin(routing.begin, group, model.experts));
  OVERLACE_TRY(check_counts(model, routing.counts, group));
  const auto n = static_cast<size_t>(group), experts = static_cast<size_t>(model.experts);
  MoeLoad out;
  for (size_t r = 0; r <= n; ++r)
    out.begin.push_back(routing.begin.empty() ? r * experts / n : static_cast<size_t>(routing.begin[r]));
  const std::vector<int64_t> counts =
      routing.counts.empty() ? moe_counts(model, group, routing.zipf, routing.seed) : routing.counts;
  out.copies.assign(n * n, 0);
  out.rows.assign(n * n, 0);
  out.expert.assign(experts, 0);
  for (size_t from = 0; from < n; ++from)
    for (size_t to = 0; to < n; ++to)
      for (size_t e = out.begin[to]; e < out.begin[to + 1]; ++e) {
        out.copies[from * n + to] += counts[from * experts + e];
        out.expert[e] += counts[from * experts + e];
      }
  if (!routing.rows.empty()) OVERLACE_TRY(take_given_rows(model, routing, counts, &out));
  if (routing.is_row_per_copy)
    out.rows.assign(out.copies.begin(), out.copies.end());
  else if (routing.rows.empty())
    OVERLACE_TRY(expect_rows(model, routing, counts, &out));
  return out;
}

}  // namespace overlace::study
