// Choices of experts and by how much they miss, against all sets of groups.
#include "src/model/expert_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace overlace::model {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double mean_of_two(const std::vector<double>& keys, int64_t group, int64_t size) {
  std::vector<double> own(keys.begin() + group * size, keys.begin() + (group + 1) * size);
  std::sort(own.rbegin(), own.rend());
  return size == 1 ? own[0] : (own[0] + own[1]) / 2;
}

/// Each set of groups that could be kept, one after the other.
double gap_by_trying(const std::vector<double>& keys, const std::vector<int32_t>& chosen, const Experts& e) {
  const auto size = static_cast<int64_t>(keys.size()) / e.groups;
  const auto is_chosen = [&](int64_t x) { return std::count(chosen.begin(), chosen.end(), x) > 0; };
  double best = kInfinite;
  for (unsigned kept = 0; kept < 1u << e.groups; ++kept) {
    if (std::popcount(kept) != e.kept_groups) continue;
    double gap = 0, least = kInfinite;
    bool holds = true;
    for (const int32_t x : chosen) {
      holds = holds && (kept >> (x / size) & 1u) != 0;
      least = std::min(least, keys[static_cast<size_t>(x)]);
    }
    if (!holds) continue;
    for (int64_t g = 0; g < e.groups; ++g)
      for (int64_t other = 0; other < e.groups; ++other)
        if ((kept >> g & 1u) == 0 && (kept >> other & 1u) != 0)
          gap = std::max(gap, mean_of_two(keys, g, size) - mean_of_two(keys, other, size));
    for (int64_t x = 0; x < static_cast<int64_t>(keys.size()); ++x)
      if ((kept >> (x / size) & 1u) != 0 && !is_chosen(x)) gap = std::max(gap, keys[static_cast<size_t>(x)] - least);
    best = std::min(best, gap);
  }
  return best;
}

Experts experts_of(int64_t count, int64_t per_token, int64_t groups, int64_t kept) {
  Experts e;
  e.count = count;
  e.per_token = per_token;
  e.groups = groups;
  e.kept_groups = kept;
  return e;
}

TEST(ExpertChoice, GapIsThatOfTheBestSetOfGroups) {
  std::mt19937 random(7);
  int finite = 0, infinite = 0, none = 0;
  for (int round = 0; round < 4000; ++round) {
    const int64_t groups = 1 + random() % 5, size = 1 + random() % 4, kept = 1 + random() % groups;
    const Experts e = experts_of(groups * size, 1 + random() % (kept * size), groups, kept);
    std::vector<double> keys(static_cast<size_t>(e.count));
    // A few values only, so that some are equal.
    for (double& key : keys) key = static_cast<double>(random() % 16) / 8 - 0.5;
    std::vector<int32_t> chosen = best_experts(keys, e);
    ASSERT_EQ(gap_by_trying(keys, chosen, e), 0);
    ASSERT_EQ(choice_gap(keys, chosen, e), 0);
    std::vector<int32_t> all(keys.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    // One expert is another one, or all are.
    if (round % 2 == 0) chosen.pop_back();
    if (round % 2 == 1) chosen.clear();
    for (size_t i = 0; chosen.size() < static_cast<size_t>(e.per_token); ++i)
      if (std::count(chosen.begin(), chosen.end(), all[i]) == 0) chosen.push_back(all[i]);
    const double want = gap_by_trying(keys, chosen, e);
    ASSERT_EQ(choice_gap(keys, chosen, e), want) << "round " << round;
    (want == 0 ? none : std::isinf(want) ? infinite : finite) += 1;
  }
  EXPECT_GT(finite, 500);
  EXPECT_GT(infinite, 100);
  EXPECT_GT(none, 100);
}

TEST(ExpertChoice, RefusesWhatIsNoChoice) {
  const Experts e = experts_of(4, 2, 2, 1);
  const std::vector<double> keys = {4, 3, 2, 1};
  EXPECT_EQ(choice_gap(keys, std::vector<int32_t>{0, 1}, e), 0);
  EXPECT_EQ(choice_gap(keys, std::vector<int32_t>{2, 3}, e), 2) << "means of 3.5 and 1.5";
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{0, 0}, {-1, 0}, {0, 4}, {0, 2}, {0}})
    EXPECT_EQ(choice_gap(keys, bad, e), kInfinite) << bad.front();
}

}  // namespace
}  // namespace overlace::model
