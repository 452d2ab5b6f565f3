// Rows and copies of an expert-parallel layer against enumeration of all choices, closed forms and what must hold.
#include "src/study/workload/moe_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "src/sim/engine/engine.h"

namespace overlace::study {
namespace {

MoeModel routed(int experts, int top_k, int64_t tokens) {
  MoeModel model;
  model.experts = experts;
  model.top_k = top_k;
  model.tokens = tokens;
  return model;
}

double uniform(uint64_t seed, uint64_t i) {
  return (static_cast<double>(sim::random_bits(seed, i, 1, 2) >> 11) + 0.5) * 0x1p-53;
}

/// All sets of `choose` elements, each with the product of its elements' weights: what maximum entropy gives.
struct Sets {
  std::vector<double> inclusion, without;
  Sets(const std::vector<double>& weight, const std::vector<size_t>& begin, int choose)
      : inclusion(weight.size(), 0), without(begin.size() - 1, 0) {
    double all = 0;
    for (uint32_t set = 0; set < 1U << weight.size(); ++set) {
      if (__builtin_popcount(set) != choose) continue;
      double p = 1;
      for (size_t e = 0; e < weight.size(); ++e) p *= (set >> e & 1) != 0 ? weight[e] : 1;
      all += p;
      for (size_t e = 0; e < weight.size(); ++e) inclusion[e] += (set >> e & 1) != 0 ? p : 0;
      for (size_t i = 0; i + 1 < begin.size(); ++i) {
        const uint32_t part = ((1U << begin[i + 1]) - 1) & ~((1U << begin[i]) - 1);
        without[i] += (set & part) == 0 ? p : 0;
      }
    }
    for (double& share : inclusion) share /= all;
    for (double& share : without) share /= all;
  }
};

TEST(SharesWithout, AreThoseOfAllSets) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const size_t experts = 2 + static_cast<size_t>(uniform(seed, 0) * 11);
    const int choose = 1 + static_cast<int>(uniform(seed, 1) * static_cast<double>(experts - 1));
    std::vector<double> weight;
    const double spread = 8 * uniform(seed, 2);
    for (size_t e = 0; e < experts; ++e) weight.push_back(std::exp(spread * (uniform(seed, 100 + e) - 0.5)));
    std::vector<size_t> begin = {0};
    while (begin.back() < experts) {
      const auto next = begin.back() + static_cast<size_t>(uniform(seed, 200 + begin.size()) * 4);
      begin.push_back(std::min(next, experts));
    }
    const Sets sets(weight, begin, choose);
    const std::vector<double> got = shares_without(sets.inclusion, begin, choose).value();
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], sets.without[i], 1e-8) << "seed " << seed << ", part " << i;
  }
}

TEST(SharesWithout, RefusesWhatNoSetsHave) {
  const double none = std::nan("");
  for (const auto& inclusion : {std::vector<double>{none, none}, {0.5, none, 0.5}, {0.5, 0.5, 0.5}})
    EXPECT_EQ(shares_without(inclusion, {0, inclusion.size()}, 1).status().code(), Errc::internal) << inclusion[0];
}

/// From one token to 2^24 of them, and from experts that are alike to such that hardly anyone or nearly all choose.
TEST(SharesWithout, AreFoundForExtremeCounts) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const int experts = 3 + static_cast<int>(uniform(seed, 0) * 60), k = 1 + static_cast<int>(uniform(seed, 1) * 8);
    if (k >= experts) continue;
    const int64_t tokens = int64_t{1} << static_cast<int>(uniform(seed, 2) * 25);
    MoeRouting routing;
    int64_t left = tokens * k;
    for (int e = 0; e < experts; ++e) {
      const int64_t behind = tokens * (experts - 1 - e), least = std::max<int64_t>(left - behind, 0);
      const int64_t most = std::min(left, tokens);
      const double place = std::pow(uniform(seed, 10 + static_cast<uint64_t>(e)), 8 * uniform(seed, 3));
      routing.counts.push_back(least + std::llround(place * static_cast<double>(most - least)));
      left -= routing.counts.back();
    }
    const auto load = moe_load(routed(experts, k, tokens), routing, 1);
    EXPECT_TRUE(load.ok()) << "seed " << seed << ": " << load.status().message();
  }
}

/// Experts that are alike: sets that miss m of E experts are C(E - m, k) of C(E, k).
TEST(MoeLoad, AlikeExpertsAreTheClosedForm) {
  for (const int ranks : {1, 2, 4, 8, 16, 32})
    for (const int k : {1, 2, 8, 32}) {
      const MoeModel model = routed(32, k, 4096);
      const MoeLoad load = moe_load(model, {}, ranks).value();
      double without = 1;
      for (int i = 0; i < k; ++i) without *= std::max(0.0, 32.0 - 32.0 / ranks - i) / (32.0 - i);
      for (const double rows : load.rows) EXPECT_NEAR(rows, 4096 * (1 - without), 1.0 / 2048 + 1e-9);
      EXPECT_TRUE(std::all_of(load.rows.begin(), load.rows.end(), [&](double x) { return x == load.rows[0]; }));
      EXPECT_EQ(load.copies[0], 4096 * k / ranks);
    }
}

TEST(MoeCounts, AreGivenOutWhollyAndSkewed) {
  const MoeModel model = routed(16, 4, 1024);
  for (const double zipf : {0.0, 0.5, 1.2, 3.0}) {
    const std::vector<int64_t> counts = moe_counts(model, 2, zipf, 7);
    ASSERT_EQ(counts.size(), 32U);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.begin() + 16, int64_t{0}), 1024 * 4);
    EXPECT_TRUE(std::equal(counts.begin(), counts.begin() + 16, counts.begin() + 16));
    const auto most = *std::max_element(counts.begin(), counts.end());
    EXPECT_EQ(most == 256, zipf == 0);
    EXPECT_LE(most, 1024);  // a token chooses an expert once
  }
  // Another seed, another popular expert, as popular.
  const auto a = moe_counts(model, 1, 1.2, 1), b = moe_counts(model, 1, 1.2, 2);
  EXPECT_NE(a, b);
  EXPECT_NEAR(static_cast<double>(*std::max_element(a.begin(), a.end())),
              static_cast<double>(*std::max_element(b.begin(), b.end())), 1);
}

TEST(MoeCounts, ExpertsThatAllChooseLeaveTheOthersTheRest) {
  const std::vector<int64_t> hot = moe_counts(routed(8, 3, 1000), 1, 6, 1);
  std::vector<int64_t> sorted = hot;
  std::sort(sorted.rbegin(), sorted.rend());
  EXPECT_EQ(sorted[0], 1000);
  EXPECT_EQ(sorted[1], 1000);
  EXPECT_LT(sorted[2], 1000);
  EXPECT_EQ(std::accumulate(hot.begin(), hot.end(), int64_t{0}), 3000);
  for (const double zipf : {0.0, 0.3, 4.0})
    EXPECT_EQ(moe_counts(routed(5, 5, 77), 1, zipf, 2), std::vector<int64_t>(5, 77)) << zipf;
}

/// What holds of all loads, over places, popularities and sizes that do not divide.
TEST(MoeLoad, RowsLieBetweenTokensAndCopies) {
  for (const int experts : {1, 3, 7, 16, 61})
    for (const int k : {1, 2, 5, 7})
      for (const int ranks : {1, 2, 5, 8, 64})
        for (const double zipf : {0.0, 0.8, 3.0}) {
          if (k > experts) continue;
          const MoeModel model = routed(experts, k, 501);
          MoeRouting routing;
          routing.zipf = zipf;
          const MoeLoad load = moe_load(model, routing, ranks).value();
          EXPECT_EQ(load.begin.back(), static_cast<size_t>(experts));
          EXPECT_EQ(std::accumulate(load.copies.begin(), load.copies.end(), int64_t{0}), int64_t{ranks} * 501 * k);
          for (size_t i = 0; i < load.rows.size(); ++i) {
            const double copies = static_cast<double>(load.copies[i]);
            ASSERT_LE(load.rows[i], std::min(copies, 501.0));
            ASSERT_GE(load.rows[i], copies / k);
          }
          const double sent = load.sent(0), slack = ranks / 2048.0;
          ASSERT_GE(sent, 501 - slack) << experts << " experts, top " << k << ", " << ranks << " ranks, " << zipf;
          ASSERT_LE(sent, 501.0 * std::min(k, ranks));
          if (k == 1) {
            ASSERT_EQ(sent, 501);
          }
        }
}

TEST(MoeLoad, RowsAndBeginsOfAFileAreUsed) {
  const MoeModel model = routed(4, 2, 10);
  MoeRouting routing;
  const auto json = base::Json::parse(R"({"counts": [[10, 4, 6, 0], [1, 5, 7, 7]], "rows": [[10, 6], [5, 9]],
                                          "expert_begin": [0, 2, 4]})");
  ASSERT_TRUE(read_moe_counts(*json, 2, 4, "c", &routing).ok());
  const MoeLoad load = moe_load(model, routing, 2).value();
  EXPECT_EQ(load.copies, (std::vector<int64_t>{14, 6, 6, 14}));
  EXPECT_EQ(load.rows, (std::vector<double>{10, 6, 5, 9}));
  EXPECT_EQ(load.load(1), 20);
  EXPECT_EQ(load.received(0), 15);
  routing.is_row_per_copy = true;
  EXPECT_EQ(moe_load(model, routing, 2)->rows, (std::vector<double>{14, 6, 6, 14}));
  routing = {};
  ASSERT_TRUE(
      read_moe_counts(base::Json::parse(R"({"counts": [[10, 4, 6, 0], [0, 0, 10, 10]]})").value(), 2, 4, "c", &routing)
          .ok());
  EXPECT_EQ(moe_load(model, routing, 2)->rows, (std::vector<double>{10, 6, 0, 10}));
}

/// Rows by copies that some tokens have, each with a set of k experts: bits of rows of the rank with experts `there`.
void add_rows_of_all(int experts, int k, uint32_t there, int64_t left, uint32_t first, std::vector<int64_t>* counts,
                     int rows, std::map<std::vector<int64_t>, uint32_t>* found) {
  if (left == 0) {
    (*found)[*counts] |= 1U << rows;
    return;
  }
  for (uint32_t set = first; set < 1U << experts; ++set) {
    if (__builtin_popcount(set) != k) continue;
    for (int e = 0; e < experts; ++e) (*counts)[static_cast<size_t>(e)] += set >> e & 1;
    add_rows_of_all(experts, k, there, left - 1, set, counts, rows + ((set & there) != 0 ? 1 : 0), found);
    for (int e = 0; e < experts; ++e) (*counts)[static_cast<size_t>(e)] -= set >> e & 1;
  }
}

/// A number of rows is accepted where some choice of all tokens gives it.
TEST(MoeLoad, GivenRowsAreThoseThatCanBe) {
  for (const auto& [experts, k, tokens, split] :
       {std::array{3, 2, 6, 1}, {4, 2, 5, 2}, {4, 3, 5, 2}, {4, 3, 5, 1}, {5, 3, 4, 2}, {5, 2, 4, 3}, {5, 4, 4, 2}}) {
    std::vector<int64_t> none(static_cast<size_t>(experts), 0);
    std::map<std::vector<int64_t>, uint32_t> first, second;
    const uint32_t all = (1U << experts) - 1, there = (1U << split) - 1;
    add_rows_of_all(experts, k, there, tokens, 0, &none, 0, &first);
    add_rows_of_all(experts, k, all & ~there, tokens, 0, &none, 0, &second);
    for (const auto& [counts, possible] : first) {
      MoeRouting routing;
      routing.begin = {0, split, experts};
      for (int rank = 0; rank < 2; ++rank) routing.counts.insert(routing.counts.end(), counts.begin(), counts.end());
      const int64_t one = std::countr_zero(possible), other = std::countr_zero(second.at(counts));
      for (int64_t rows = 0; rows <= tokens; ++rows) {
        routing.rows = {one, other, rows, other};
        EXPECT_EQ(moe_load(routed(experts, k, tokens), routing, 2).ok(), (possible >> rows & 1) != 0) << rows;
        routing.rows = {one, other, one, rows};
        EXPECT_EQ(moe_load(routed(experts, k, tokens), routing, 2).ok(), (second.at(counts) >> rows & 1) != 0) << rows;
      }
    }
  }
}

/// Where tokens cannot do without a rank, all of them go there.
TEST(MoeLoad, RowsThatAreForced) {
  MoeRouting routing;
  routing.counts = {75, 75, 75, 75, 75, 75, 75, 75};
  routing.rows = {75, 75, 75, 75};
  EXPECT_EQ(moe_load(routed(4, 3, 100), routing, 2).status().message(),
            "moe: 75 rows of rank 0 for rank 0 with 150 copies, wanted 100 to 100");
  routing.rows = {100, 100, 100, 100};
  EXPECT_TRUE(moe_load(routed(4, 3, 100), routing, 2).ok());
  routing.counts = {20, 90, 90, 20, 90, 90};
  routing.begin = {0, 1, 3};
  routing.rows = {20, 95, 20, 95};
  EXPECT_EQ(moe_load(routed(3, 2, 100), routing, 2).status().message(),
            "moe: 95 rows of rank 0 for rank 1 with 180 copies, wanted 100 to 100");
  routing.rows.clear();
  EXPECT_EQ(moe_load(routed(3, 2, 100), routing, 2)->rows, (std::vector<double>{20, 100, 20, 100}));
}

TEST(MoeLoad, RefusesFilesOfAnotherForm) {
  for (const char* bad :
       {"{}", R"({"counts": [[1, 2]]})", R"({"counts": [[1], [2]]})", R"({"counts": [[1, 2], 3]})",
        R"({"counts": [[1, 2], [3, -4]]})", R"({"counts": [[1, 2], [3, 0.5]]})",
        R"({"counts": [[1, 2], [3, 4]], "rows": [[1, 2]]})", R"({"counts": [[1, 2], [3, 4]], "rows": 3})",
        R"({"counts": [[1, 2], [3, 4]], "expert_begin": [0, 2]})",
        R"({"counts": [[1, 2], [3, 4]], "expert_begin": [0, -1, 2]})"}) {
    MoeRouting routing;
    EXPECT_EQ(read_moe_counts(base::Json::parse(bad).value(), 2, 2, "c", &routing).code(), Errc::corrupt) << bad;
  }
  MoeRouting routing;
  const auto json = base::Json::parse(R"({"counts": [[1, 2], [3, 4]], "rows": [[1, 2], [3, "x"]]})");
  EXPECT_EQ(read_moe_counts(*json, 2, 2, "c", &routing).message(),
            "c: rows[1]: \"x\", wanted whole numbers of 0 to 16777216");
}

TEST(MoeLoad, RefusesWhatCannotBe) {
  const auto message = [](auto change) {
    MoeModel model = routed(4, 2, 10);
    MoeRouting routing;
    change(&model, &routing);
    return moe_load(model, routing, 2).status().message();
  };
  using M = MoeModel;
  using R = MoeRouting;
  const std::vector<int64_t> counts = {10, 4, 6, 0, 1, 5, 7, 7};
  EXPECT_EQ(message([](M*, R* r) {
              r->begin = {0, 4};
            }),
            "moe: expert_begin has 2 entries, wanted 3, one more than ranks of a group");
  EXPECT_EQ(message([](M*, R* r) { r->begin = {1, 2, 4}; }), "moe: expert_begin[0] is 1, wanted 0");
  EXPECT_EQ(message([](M*, R* r) { r->begin = {0, 5, 4}; }), "moe: expert_begin[1] is 5, wanted 0 to 4");
  EXPECT_EQ(message([](M*, R* r) { r->begin = {0, 2, 3}; }), "moe: expert_begin[2] is 3, wanted 4");
  EXPECT_EQ(message([](M* m, R*) { m->shared_experts = 65; }), "moe: 65 shared experts, wanted 0 to 64");
  EXPECT_EQ(message([&](M*, R* r) { r->counts = counts, r->counts[0] = 11; }),
            "moe: rank 0 has 11 copies for expert 0, wanted 0 to 10, one of each token");
  EXPECT_EQ(message([&](M*, R* r) { r->counts = counts, ++r->counts[5]; }),
            "moe: the counts of rank 1 are 21 together, wanted 20 (10 tokens x top 2)");
  EXPECT_EQ(message([&](M*, R* r) {
              r->counts = counts, r->rows = {10, 6, 5};
            }),
            "moe: 3 rows, wanted 2 ranks x 2 ranks");
  EXPECT_EQ(message([&](M*, R* r) {
              r->counts = counts, r->rows = {9, 6, 5, 9};
            }),
            "moe: 9 rows of rank 0 for rank 0 with 14 copies, wanted 10 to 10");
  EXPECT_EQ(message([&](M*, R* r) {
              r->counts = counts, r->rows = {10, 6, 5, 11};
            }),
            "moe: 11 rows of rank 1 for rank 1 with 14 copies, wanted 9 to 10");
  EXPECT_EQ(message([](M* m, R*) { m->experts = 8192, m->top_k = 8000, m->tokens = 8; }),
            "moe: 1 ranks x 8192 experts x top 8000 are 65536000 steps to expect rows, wanted at most 33554432, or "
            "rows, or one per copy");
  EXPECT_EQ(moe_load(routed(4, 2, 10), {}, 2049).status().message(),
            "moe: 2049 ranks of a group are 4198401 pairs of ranks, wanted at most 4194304");
}

}  // namespace
}  // namespace overlace::study
