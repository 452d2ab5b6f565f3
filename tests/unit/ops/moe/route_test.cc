// Lists and places of copies, against definitions that look at every pair of choices, on random routings.
#include "src/ops/moe/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

namespace overlace::ops::moe {
namespace {

struct Case {
  int ranks = 2, experts = 4, top_k = 2;
  int64_t tokens = 8;
  double capacity_factor = 0;
  std::vector<int64_t> begin{};
};

Placement placement_of(const Case& c) {
  return c.begin.empty() ? Placement::even(c.experts, c.ranks) : Placement{c.begin};
}

/// Some entries are -1, experts repeat within a token, and small ids are chosen more often.
Choices draw_choices(const Case& c, unsigned seed) {
  std::mt19937 draw(seed);
  Choices out{.top_k = c.top_k};
  const auto experts = static_cast<unsigned>(c.experts);
  for (int64_t i = 0; i < c.tokens * c.top_k; ++i) {
    out.experts.push_back(draw() % 9 == 0 ? -1 : static_cast<int32_t>(std::min(draw() % experts, draw() % experts)));
    out.weights.push_back(static_cast<float>(i + 1) / 64);
  }
  return out;
}

struct Kept {
  int expert, token, choice;
  float weight;
  auto order() const { return std::tuple(expert, token, choice); }
};

/// The copies that one rank makes, by (expert, token, choice): a choice is kept where fewer than the limit are before
/// it.
std::vector<Kept> kept_copies(const Case& c, const Choices& choices) {
  const int64_t limit = capacity_of(c.capacity_factor, c.tokens, c.top_k, c.experts);
  std::vector<Kept> out;
  for (size_t i = 0; i < choices.experts.size(); ++i) {
    const int e = choices.experts[i];
    const auto before =
        std::count(choices.experts.begin(), choices.experts.begin() + static_cast<std::ptrdiff_t>(i), e);
    const int at = static_cast<int>(i);
    if (e >= 0 && before < limit) out.push_back({e, at / c.top_k, at % c.top_k, choices.weights[i]});
  }
  std::sort(out.begin(), out.end(), [](const Kept& a, const Kept& b) { return a.order() < b.order(); });
  return out;
}

/// Tokens with copies on a rank, by (chosen expert of that rank, token); the least or the greatest of them.
std::vector<int> tokens_by_expert(const std::vector<Kept>& mine, bool is_last) {
  std::set<int> tokens;
  for (const Kept& copy : mine) tokens.insert(copy.token);
  std::vector<std::pair<int, int>> keyed;
  for (const int t : tokens) {
    std::set<int> chosen;
    for (const Kept& copy : mine)
      if (copy.token == t) chosen.insert(copy.expert);
    keyed.emplace_back(is_last ? *chosen.rbegin() : *chosen.begin(), t);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int> out;
  for (const auto& [expert, token] : keyed) out.push_back(token);
  return out;
}

void expect_shipment(const Routes& routes, const std::vector<Kept>& mine, int ranks, int d) {
  const Shipment& to = routes.to[static_cast<size_t>(d)];
  const std::vector<int> rows = tokens_by_expert(mine, false), sums = tokens_by_expert(mine, true);
  EXPECT_EQ(std::vector<int>(to.tokens.begin(), to.tokens.end()), rows);
  ASSERT_EQ(to.copies.size(), mine.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_EQ(to.tokens.at(static_cast<size_t>(to.copies[i].row)), mine[i].token) << "copy " << i;
    EXPECT_EQ(to.copies[i].weight, mine[i].weight) << "copy " << i;
  }
  ASSERT_EQ(to.sum_begin.size(), sums.size() + 1);
  for (size_t q = 0; q < sums.size(); ++q) {
    std::vector<std::pair<int, int>> by_choice;  // choice, number of the copy
    for (size_t i = 0; i < mine.size(); ++i)
      if (mine[i].token == sums[q]) by_choice.emplace_back(mine[i].choice, static_cast<int>(i));
    std::sort(by_choice.begin(), by_choice.end());
    const auto begin = static_cast<size_t>(to.sum_begin[q]);
    ASSERT_EQ(static_cast<size_t>(to.sum_begin[q + 1]) - begin, by_choice.size());
    for (size_t i = 0; i < by_choice.size(); ++i) EXPECT_EQ(to.sum_copies.at(begin + i), by_choice[i].second);
    EXPECT_EQ(routes.sum_of.at(static_cast<size_t>(sums[q] * ranks + d)), static_cast<int>(q));
  }
}

void expect_routes(const Case& c, unsigned seed) {
  SCOPED_TRACE(testing::Message() << "R " << c.ranks << " E " << c.experts << " k " << c.top_k << " T " << c.tokens
                                  << " capacity " << c.capacity_factor << " seed " << seed);
  const Placement placement = placement_of(c);
  const Choices choices = draw_choices(c, seed);
  const Routes routes = make_routes(choices, placement, c.capacity_factor).value();
  const std::vector<Kept> kept = kept_copies(c, choices);
  const auto valid = std::count_if(choices.experts.begin(), choices.experts.end(), [](int32_t e) { return e >= 0; });
  EXPECT_EQ(routes.dropped, valid - static_cast<int64_t>(kept.size()));
  for (int e = 0; e < c.experts; ++e)
    EXPECT_EQ(routes.counts.at(static_cast<size_t>(e)),
              std::count_if(kept.begin(), kept.end(), [&](const Kept& copy) { return copy.expert == e; }));
  size_t rows = 0;
  for (int d = 0; d < c.ranks; ++d) {
    std::vector<Kept> mine;
    for (const Kept& copy : kept)
      if (copy.expert >= placement.first(d) && copy.expert < placement.first(d + 1)) mine.push_back(copy);
    expect_shipment(routes, mine, c.ranks, d);
    rows += routes.to[static_cast<size_t>(d)].tokens.size();
  }
  ASSERT_EQ(routes.sum_of.size(), static_cast<size_t>(c.tokens * c.ranks));
  EXPECT_EQ(
      static_cast<size_t>(std::count_if(routes.sum_of.begin(), routes.sum_of.end(), [](int q) { return q >= 0; })),
      rows)
      << "every other pair of a token and a rank has no sum";
}

const std::vector<Case> kCases = {
    {.ranks = 1, .experts = 1, .top_k = 1, .tokens = 5},
    {.ranks = 2, .experts = 4, .top_k = 2, .tokens = 40},
    {.ranks = 3, .experts = 8, .top_k = 3, .tokens = 31},
    {.ranks = 4, .experts = 33, .top_k = 8, .tokens = 50},
    {.ranks = 5, .experts = 2, .top_k = 2, .tokens = 9},
    {.ranks = 3, .experts = 7, .top_k = 4, .tokens = 20, .capacity_factor = 0.5},
    {.ranks = 4, .experts = 8, .top_k = 2, .tokens = 33, .capacity_factor = 1.0},
    {.ranks = 2, .experts = 5, .top_k = 32, .tokens = 3, .capacity_factor = 1.25},
    {.ranks = 4, .experts = 6, .top_k = 2, .tokens = 17, .begin = {0, 0, 5, 5, 6}},
    {.ranks = 2, .experts = 60, .top_k = 4, .tokens = 0},
    {.ranks = 2, .experts = 384, .top_k = 10, .tokens = 1},
};

TEST(MoeRoute, ListsWhatTheChoicesSay) {
  for (const Case& c : kCases)
    for (unsigned seed = 1; seed <= 6; ++seed) expect_routes(c, seed);
}

/// Every row of a pool is one copy or padding; copies lie by expert, then by source from this rank on, then as listed.
TEST(MoeRoute, GivesEachCopyARowOfThePool) {
  for (const Case& c : kCases)
    for (const int64_t alignment : {1, 8, 128}) {
      const Placement placement = placement_of(c);
      std::vector<Routes> routes;
      std::vector<int64_t> counts;
      for (int s = 0; s < c.ranks; ++s) {
        Case of_rank = c;
        of_rank.tokens = s % 3 == 2 ? 0 : c.tokens + s;
        routes.push_back(
            make_routes(draw_choices(of_rank, static_cast<unsigned>(s)), placement, c.capacity_factor).value());
        counts.insert(counts.end(), routes.back().counts.begin(), routes.back().counts.end());
      }
      for (int d = 0; d < c.ranks; ++d) {
        const PoolLayout pool = make_pool_layout(counts, placement, d, alignment);
        std::vector<int64_t> taken;  // in the order that the definition says
        for (int64_t e = placement.first(d); e < placement.first(d + 1); ++e) {
          int64_t row = pool.base.at(static_cast<size_t>(e - placement.first(d)));
          EXPECT_EQ(row % alignment, 0);
          for (int i = 0; i < c.ranks; ++i) {
            const int s = (d + i) % c.ranks;
            int64_t skipped = 0;
            for (int64_t before = placement.first(d); before < e; ++before)
              skipped += counts[static_cast<size_t>(s * c.experts + before)];
            const std::vector<int64_t> rows = pool_rows(counts, placement, d, pool, s);
            ASSERT_EQ(rows.size(), routes[static_cast<size_t>(s)].to[static_cast<size_t>(d)].copies.size());
            for (int64_t n = 0; n < counts[static_cast<size_t>(s * c.experts + e)]; ++n) {
              EXPECT_EQ(rows.at(static_cast<size_t>(skipped + n)), row);
              taken.push_back(row++);
            }
          }
          EXPECT_EQ(pool.load.at(static_cast<size_t>(e - placement.first(d))),
                    row - pool.base.at(static_cast<size_t>(e - placement.first(d))));
          const int64_t end = pool.base.at(static_cast<size_t>(e - placement.first(d) + 1));
          EXPECT_GE(end, row);
          EXPECT_LT(end, row + alignment);
        }
        EXPECT_TRUE(std::is_sorted(taken.begin(), taken.end()));
        EXPECT_EQ(std::adjacent_find(taken.begin(), taken.end()), taken.end());
      }
    }
}

TEST(MoeRoute, SendsATokenOnceToARank) {
  const Routes routes = make_routes({.top_k = 3, .experts = {2, 0, 2}, .weights = {1, 2, 3}}, {{0, 1, 3}}, 0).value();
  EXPECT_EQ(routes.to[1].tokens, std::vector<int32_t>{0});
  EXPECT_EQ(routes.to[1].copies, (std::vector<Copy>{{0, 1}, {0, 3}}));
  EXPECT_EQ(routes.counts, (std::vector<int64_t>{1, 0, 2}));
}

TEST(MoeRoute, DropsLaterCopiesBeyondTheCapacity) {
  EXPECT_EQ(capacity_of(1.0, 4, 1, 2), 2);
  EXPECT_EQ(capacity_of(0.5, 5, 1, 2), 2);
  EXPECT_EQ(capacity_of(0, 5, 3, 2), 15);
  EXPECT_EQ(capacity_of(1e300, 5, 3, 2), 15);
  const Routes routes =
      make_routes({.top_k = 1, .experts = {1, 1, 0, 1}, .weights = {1, 2, 3, 4}}, {{0, 2}}, 1.0).value();
  EXPECT_EQ(routes.dropped, 1);
  EXPECT_EQ(routes.to[0].copies, (std::vector<Copy>{{0, 3}, {1, 1}, {2, 2}}));
  EXPECT_EQ(routes.sum_of, (std::vector<int32_t>{1, 2, 0, -1}));
}

TEST(MoeRoute, PlacesExpertsWhateverTheirNumber) {
  EXPECT_EQ(Placement::even(8, 3).begin, (std::vector<int64_t>{0, 2, 5, 8}));
  EXPECT_EQ(Placement::even(2, 5).begin, (std::vector<int64_t>{0, 0, 0, 1, 1, 2}));
}

TEST(MoeRoute, RefusesWhatDoesNotExist) {
  const auto why = [](const Choices& choices, const Placement& placement, double factor) {
    return make_routes(choices, placement, factor).status().message();
  };
  EXPECT_EQ(why({.top_k = 2, .experts = {0, -1, 1, 4}, .weights = {0, 0, 0, 0}}, {{0, 4}}, 0),
            "idx of token 1, choice 1 is 4, wanted -1 (none) or 0 to 3");
  EXPECT_EQ(why({.top_k = 1, .experts = {-2}, .weights = {0}}, {{0, 4}}, 0),
            "idx of token 0, choice 0 is -2, wanted -1 (none) or 0 to 3");
  EXPECT_EQ(why({.top_k = 2, .experts = {0}, .weights = {0}}, {{0, 4}}, 0),
            "1 experts and 1 weights, wanted as many of both, 2 of each token");
  EXPECT_EQ(why({.top_k = 33}, {{0, 4}}, 0), "top_k is 33, wanted 1 to 32");
  EXPECT_EQ(why({}, {{0, 4}}, -1), "capacity_factor is -1, wanted 0 (dropless) or more");
  EXPECT_EQ(why({}, {{0, 4, 3}}, 0),
            "expert_begin has 3 entries from 0 to 3, wanted one more than ranks, ascending from 0 to the number "
            "of experts");
}

}  // namespace
}  // namespace overlace::ops::moe
