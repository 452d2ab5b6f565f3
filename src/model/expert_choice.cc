#include "src/model/expert_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

namespace overlace::model {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

struct Group {
  double mean = 0;        // of its two best keys
  double missed = 0;      // by how much its best expert that was not chosen is above the least of the chosen
  bool is_taken = false;  // some of its experts were chosen
};

double mean_of_best(std::span<const double> keys) {
  double best = -kInfinite, second = -kInfinite;
  for (const double key : keys) {
    second = std::max(second, std::min(best, key));
    best = std::max(best, key);
  }
  return keys.size() == 1 ? best : (best + second) / 2;
}

std::vector<Group> groups_of(std::span<const double> keys, const std::set<int32_t>& chosen, int64_t count) {
  const size_t size = keys.size() / at(count);
  double least = kInfinite;
  for (const int32_t e : chosen) least = std::min(least, keys[at(e)]);
  std::vector<Group> out(at(count));
  for (size_t e = 0; e < keys.size(); ++e) {
    Group& group = out[e / size];
    if (chosen.contains(static_cast<int32_t>(e)))
      group.is_taken = true;
    else
      group.missed = std::max(group.missed, keys[e] - least);
  }
  for (size_t g = 0; g < out.size(); ++g) out[g].mean = mean_of_best(keys.subspan(g * size, size));
  return out;
}

/// Whether `kept` of these groups, in descending order, the last one among them, miss by `d` at most.
bool misses_at_most(double d, std::span<const Group> groups, size_t kept) {
  size_t must_stay = 0, must_go = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const bool stays = groups[i].is_taken || i + 1 == groups.size() || groups[i].mean - groups.back().mean > d;
    const bool goes = groups[i].missed > d;
    if (stays && goes) return false;
    must_stay += stays ? 1 : 0;
    must_go += goes ? 1 : 0;
  }
  return must_stay <= kept && kept <= groups.size() - must_go;
}

}  // namespace

std::vector<int32_t> best_experts(std::span<const double> keys, const Experts& experts) {
  const size_t size = keys.size() / at(experts.groups);
  std::vector<size_t> groups(at(experts.groups));
  std::iota(groups.begin(), groups.end(), 0);
  const auto mean = [&](size_t g) { return mean_of_best(keys.subspan(g * size, size)); };
  std::stable_sort(groups.begin(), groups.end(), [&](size_t a, size_t b) { return mean(a) > mean(b); });
  groups.resize(at(experts.kept_groups));
  std::sort(groups.begin(), groups.end());
  std::vector<int32_t> ids;
  for (const size_t g : groups)
    for (size_t e = g * size; e < (g + 1) * size; ++e) ids.push_back(static_cast<int32_t>(e));
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return keys[at(a)] > keys[at(b)]; });
  ids.resize(at(experts.per_token));
  return ids;
}

double choice_gap(std::span<const double> keys, std::span<const int32_t> chosen, const Experts& experts) {
  const std::set<int32_t> different(chosen.begin(), chosen.end());
  if (different.size() != at(experts.per_token) || *different.begin() < 0 || at(*different.rbegin()) >= keys.size())
    return kInfinite;
  std::vector<Group> groups = groups_of(keys, different, experts.groups);
  std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.mean > b.mean; });
  double least = kInfinite;
  // The kept group with the least mean is the last of `some`.
  for (size_t last = at(experts.kept_groups); last <= groups.size(); ++last) {
    const std::span<const Group> some(groups.data(), last);
    if (std::any_of(groups.begin() + static_cast<std::ptrdiff_t>(last), groups.end(),
                    [](const Group& g) { return g.is_taken; }))
      continue;
    std::vector<double> levels = {0};
    for (const Group& group : some) levels.insert(levels.end(), {group.missed, group.mean - some.back().mean});
    for (const double d : levels)
      if (d < least && misses_at_most(d, some, at(experts.kept_groups))) least = d;
  }
  return least;
}

}  // namespace overlace::model
