#include "src/ops/moe/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/ceil_div_pod.h"

namespace overlace::ops::moe {
namespace {

/// A token with experts of one rank.
struct Need {
  int32_t token = 0, first = 0, last = 0;  // the least and the greatest of those experts
  int32_t row = 0;
};

base::Status check(const Choices& choices, const Placement& placement, double capacity_factor) {
  OVERLACE_TRY(placement.check());
  if (choices.top_k < 1 || choices.top_k > kMostChoices)
    return base::invalid_argument("top_k is {}, wanted 1 to {}", choices.top_k, kMostChoices);
  if (choices.experts.size() % at(choices.top_k) != 0 || choices.experts.size() != choices.weights.size())
    return base::invalid_argument("{} experts and {} weights, wanted as many of both, {} of each token",
                                  choices.experts.size(), choices.weights.size(), choices.top_k);
  if (choices.experts.size() > at(std::numeric_limits<int32_t>::max()))
    return base::invalid_argument("{} choices, wanted at most {}", choices.experts.size(),
                                  std::numeric_limits<int32_t>::max());
  if (!(capacity_factor >= 0) || !std::isfinite(capacity_factor))
    return base::invalid_argument("capacity_factor is {}, wanted 0 (dropless) or more", capacity_factor);
  for (size_t i = 0; i < choices.experts.size(); ++i)
    if (choices.experts[i] < -1 || choices.experts[i] >= placement.num_experts())
      return base::invalid_argument("idx of token {}, choice {} is {}, wanted -1 (none) or 0 to {}",
                                    i / at(choices.top_k), i % at(choices.top_k), choices.experts[i],
                                    placement.num_experts() - 1);
  return {};
}

std::vector<int32_t> owners(const Placement& placement) {
  std::vector<int32_t> out(at(placement.num_experts()));
  for (int r = 0; r < placement.ranks(); ++r)
    for (int64_t e = placement.first(r); e < placement.first(r + 1); ++e) out[at(e)] = r;
  return out;
}

/// Numbers the tokens that go to one rank, as rows that go and as sums that return.
void number_rows(std::vector<Need>& needs, int rank, size_t ranks, std::vector<int32_t>& row_of, Routes& out) {
  Shipment& to = out.to[at(rank)];
  std::stable_sort(needs.begin(), needs.end(), [](const Need& a, const Need& b) { return a.first < b.first; });
  for (size_t i = 0; i < needs.size(); ++i) {
    needs[i].row = static_cast<int32_t>(i);
    row_of[at(needs[i].token) * ranks + at(rank)] = needs[i].row;
    to.tokens.push_back(needs[i].token);
  }
  std::sort(needs.begin(), needs.end(),
            [](const Need& a, const Need& b) { return a.last != b.last ? a.last < b.last : a.token < b.token; });
  for (size_t q = 0; q < needs.size(); ++q) out.sum_of[at(needs[q].token) * ranks + at(rank)] = static_cast<int32_t>(q);
}

}  // namespace

Placement Placement::even(int64_t num_experts, int ranks) {
  Placement out;
  for (int64_t r = 0; r <= ranks; ++r) out.begin.push_back(r * num_experts / ranks);
  return out;
}

base::Status Placement::check() const {
  if (begin.size() < 2 || begin.front() != 0 || !std::is_sorted(begin.begin(), begin.end()) || begin.back() < 1 ||
      begin.back() > std::numeric_limits<int32_t>::max())
    return base::invalid_argument(
        "expert_begin has {} entries from {} to {}, wanted one more than ranks, "
        "ascending from 0 to the number of experts",
        begin.size(), begin.empty() ? 0 : begin.front(), begin.empty() ? 0 : begin.back());
  return {};
}

int64_t capacity_of(double factor, int64_t tokens, int top_k, int64_t num_experts) {
  if (factor == 0) return tokens * top_k;
  const auto copies = static_cast<double>(tokens * top_k);
  return static_cast<int64_t>(std::min(std::ceil(factor * copies / static_cast<double>(num_experts)), copies));
}

base::Result<Routes> make_routes(const Choices& choices, const Placement& placement, double capacity_factor) {
  OVERLACE_TRY(check(choices, placement, capacity_factor));
  const int64_t tokens = choices.tokens(), experts = placement.num_experts(), k = choices.top_k;
  const auto ranks = at(placement.ranks());
  const int64_t most = capacity_of(capacity_factor, tokens, choices.top_k, experts);
  const std::vector<int32_t> owner = owners(placement);
  Routes out;
  out.counts.resize(at(experts)), out.to.resize(ranks);
  out.sum_of.assign(at(tokens) * ranks, -1);

  // Histogram: `nth` is which copy of its expert a choice is, -1 where it makes none.
  std::vector<int64_t> nth(choices.experts.size(), -1);
  std::vector<std::vector<Need>> needs(ranks);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = t * k; i < (t + 1) * k; ++i) {
      const int32_t e = choices.experts[at(i)];
      if (e < 0) continue;
      if (out.counts[at(e)] >= most) {
        ++out.dropped;
        continue;
      }
      nth[at(i)] = out.counts[at(e)]++;
      std::vector<Need>& of_rank = needs[at(owner[at(e)])];
      if (of_rank.empty() || of_rank.back().token != t) of_rank.push_back({static_cast<int32_t>(t), e, e});
      of_rank.back().first = std::min(of_rank.back().first, e);
      of_rank.back().last = std::max(of_rank.back().last, e);
    }

  std::vector<int64_t> begin(at(experts));  // of an expert's copies among those of its rank
  std::vector<int32_t> row_of(at(tokens) * ranks, -1);
  for (int d = 0; d < placement.ranks(); ++d) {
    int64_t copies = 0;
    for (int64_t e = placement.first(d); e < placement.first(d + 1); ++e) {
      begin[at(e)] = copies;
      copies += out.counts[at(e)];
    }
    out.to[at(d)].copies.resize(at(copies));
    out.to[at(d)].choices.resize(at(copies));
    number_rows(needs[at(d)], d, ranks, row_of, out);
  }
  for (int64_t i = 0; i < tokens * k; ++i) {
    if (nth[at(i)] < 0) continue;
    const int32_t e = choices.experts[at(i)], d = owner[at(e)];
    const size_t copy = at(begin[at(e)] + nth[at(i)]);
    out.to[at(d)].copies[copy] = {row_of[at(i / k) * ranks + at(d)], choices.weights[at(i)]};
    out.to[at(d)].choices[copy] = static_cast<int32_t>(i);
  }
  for (size_t d = 0; d < ranks; ++d) {  // needs are in the order of the sums now
    Shipment& to = out.to[d];
    to.sum_begin.push_back(0);
    for (const Need& need : needs[d]) {
      for (int64_t i = need.token * k; i < (need.token + 1) * k; ++i) {
        const int32_t e = choices.experts[at(i)];
        if (nth[at(i)] >= 0 && at(owner[at(e)]) == d)
          to.sum_copies.push_back(static_cast<int32_t>(begin[at(e)] + nth[at(i)]));
      }
      to.sum_begin.push_back(static_cast<int32_t>(to.sum_copies.size()));
    }
  }
  return out;
}

PoolLayout make_pool_layout(std::span<const int64_t> counts, const Placement& placement, int rank, int64_t alignment) {
  const int ranks = placement.ranks();
  const int64_t local = placement.local(rank);
  PoolLayout out;
  out.base.push_back(0);
  out.first.resize(at(ranks * local));
  for (int64_t e = 0; e < local; ++e) {
    int64_t row = out.base.back();
    for (int i = 0; i < ranks; ++i) {
      const int source = (rank + i) % ranks;
      out.first[at(source * local + e)] = row;
      row += counts[at(source * placement.num_experts() + placement.first(rank) + e)];
    }
    out.load.push_back(row - out.base.back());
    out.base.push_back(base::round_up(row, alignment));
  }
  return out;
}

std::vector<int64_t> pool_rows(std::span<const int64_t> counts, const Placement& placement, int rank,
                               const PoolLayout& pool, int source) {
  const int64_t local = placement.local(rank);
  std::vector<int64_t> out;
  for (int64_t e = 0; e < local; ++e) {
    const int64_t count = counts[at(source * placement.num_experts() + placement.first(rank) + e)];
    for (int64_t i = 0; i < count; ++i) out.push_back(pool.first[at(source * local + e)] + i);
  }
  return out;
}

}  // namespace overlace::ops::moe
