#include "bench/sim/choices.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>

#include "src/base/format.h"
#include "src/plan/pick.h"
#include "src/plan/recurrence.h"

namespace overlace::bench {
namespace {

constexpr double kTie = 0.02;  // of the best: within the noise of measuring

bool is_candidate(const Measured& m, const spec::Machine& machine) {
  const std::vector<plan::Candidate> known = plan::candidates(m.op, machine);
  return std::find(known.begin(), known.end(), plan::Candidate{m.family, m.degree}) != known.end();
}

struct Tally {
  int cases = 0, right = 0, slower_than_library = 0;
  double regret = 0, wrong_regret = 0, most = 0;
  double when_wrong() const { return cases > right ? wrong_regret / (cases - right) : 0; }
};

using Case = std::vector<const Measured*>;

constexpr plan::Tier kTiers[] = {plan::Tier::rule, plan::Tier::recurrence, plan::Tier::simulation};
constexpr size_t kNumTiers = std::size(kTiers);

/// Index into `members`; none if the rule's choice was not measured, or a model has nothing to say of the library.
std::optional<size_t> chosen(const Case& members, const spec::Machine& machine, plan::Tier tier) {
  if (tier == plan::Tier::rule) {
    const auto plan = plan::Planner(machine).plan(members.front()->op, {.limit = tier});
    for (size_t i = 0; i < members.size(); ++i)
      if (plan->candidate == plan::Candidate{members[i]->family, members[i]->degree}) return i;
    return std::nullopt;
  }
  const bool is_simulated = tier == plan::Tier::simulation;
  std::vector<plan::Alternative> list;
  std::vector<size_t> from;
  for (size_t i = 0; i < members.size(); ++i) {
    const Measured& m = *members[i];
    const plan::Candidate candidate = {m.family, m.degree};
    std::optional<double> us = is_simulated ? m.predicted_us : plan::Recurrence(m.op, machine).us(candidate);
    if (!us || (is_simulated && !m.problem.empty())) continue;
    list.push_back({candidate, *us, 0, 0});
    from.push_back(i);
  }
  const std::optional<plan::Pick> pick = plan::pick(members.front()->op, plan::errors_of(machine, tier), list);
  if (!pick) return std::nullopt;
  return from[pick->chosen];
}

}  // namespace

std::string choices(const std::vector<Measured>& list, const spec::Machine& machine) {
  std::map<std::tuple<std::string, int, int64_t, int64_t, int64_t>, Case> cases;
  for (const Measured& m : list)
    if (is_candidate(m, machine)) cases[{m.op.op, m.op.ranks, m.op.m, m.op.n, m.op.k}].push_back(&m);
  std::string out =
      base::format("{:<46}{:<8}{:<28}{:>10}  {:<28}{:>8}  {:<28}{:>8}  {:<28}{:>8}\n", "case", "held out",
                   "best measured", "us", "by rule", "regret", "by recurrence", "regret", "by simulation", "regret");
  Tally tallies[kNumTiers][2];  // all cases, those held out
  for (const auto& [key, members] : cases) {
    if (members.size() < 3) continue;
    const Measured& best = **std::min_element(members.begin(), members.end(), [](const Measured* a, const Measured* b) {
      return a->measured_us() < b->measured_us();
    });
    const auto library =
        std::find_if(members.begin(), members.end(), [](const Measured* m) { return m->family == "library"; });
    const auto name = [](const Measured& m) { return plan::to_string(plan::Candidate{m.family, m.degree}); };
    std::string line = base::format("{:<46}{:<8}{:<28}{:>10.1f}", best.op.to_string(), best.is_held_out ? "yes" : "",
                                    name(best), best.measured_us());
    for (size_t model = 0; model < kNumTiers; ++model) {
      const std::optional<size_t> index = chosen(members, machine, kTiers[model]);
      if (!index) {
        line += base::format("  {:<28}{:>8}", "(not measured)", "");
        continue;
      }
      const Measured& mine = *members[*index];
      const double regret = mine.measured_us() / best.measured_us() - 1;
      line += base::format("  {:<28}{:>7.1f}%", name(mine), 100 * regret);
      for (const int part : {0, 1}) {
        if (part == 1 && !best.is_held_out) continue;
        Tally& tally = tallies[model][part];
        ++tally.cases;
        tally.right += regret <= kTie ? 1 : 0;
        tally.regret += regret;
        if (regret > kTie) tally.wrong_regret += regret;
        tally.most = std::max(tally.most, regret);
        if (library != members.end() && mine.measured_us() > (*library)->measured_us() * (1 + kTie))
          ++tally.slower_than_library;
      }
    }
    out += line + "\n";
  }
  for (size_t model = 0; model < kNumTiers; ++model) {
    for (const int part : {0, 1}) {
      const Tally& t = tallies[model][part];
      if (t.cases == 0) continue;
      out += base::format(
          "{}{}: {} of {} within 2 % of the best measured, mean regret {:.2f} %, largest {:.1f} %, {:.1f} % where "
          "wrong, "
          "{} slower than library\n",
          plan::to_string(kTiers[model]), part == 0 ? "" : ", held out", t.right, t.cases, 100 * t.regret / t.cases,
          100 * t.most, 100 * t.when_wrong(), t.slower_than_library);
    }
  }
  return out;
}

}  // namespace overlace::bench
