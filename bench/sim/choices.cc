#include "bench/sim/choices.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>

#include "overlace/operator.h"
#include "src/base/format.h"
#include "src/plan/pick.h"

namespace overlace::bench {
namespace {

constexpr double kTie = 0.02;  // of the best: within the noise of measuring
constexpr size_t kLeastCandidates = 3;

bool is_candidate(const Measured& m, const spec::Machine& machine) {
  if (m.tile_cols != 0) return false;
  const std::vector<plan::Candidate> known = plan::candidates(m.op, machine);
  return std::find(known.begin(), known.end(), plan::Candidate{m.family, m.degree}) != known.end();
}

/// Who chooses: `auto` out of all candidates, a tier out of those that were measured, or FiCCO's rule as far as it is
/// public.
enum class Chooser { automatic, paper_rule, recurrence, simulation };
constexpr Chooser kChoosers[] = {Chooser::automatic, Chooser::paper_rule, Chooser::recurrence, Chooser::simulation};
const char* name_of(Chooser chooser) {
  constexpr const char* kNames[] = {"auto", "FiCCO's rule", "recurrence", "simulation"};
  return kNames[static_cast<size_t>(chooser)];
}

constexpr size_t kAutomatic = 0;  // of kChoosers

/// Rows of all ranks for which what hides communication differs.
struct RowBand {
  const char* suffix;
  int64_t least, end;
};
constexpr RowBand kRowBands[] = {{", M to 255", 0, 256},
                                 {", M 256 to 1535", 256, 1536},
                                 {", M 1536 to 6143", 1536, 6144},
                                 {", M from 6144", 6144, INT64_MAX}};

using Case = std::vector<const Measured*>;

/// Index into `members`; none if what was chosen was not measured, or a model has nothing to say of the library.
std::optional<size_t> chosen(const Case& members, const spec::Machine& machine, Chooser chooser) {
  if (chooser == Chooser::automatic || chooser == Chooser::paper_rule) {
    const spec::OpSpec& op = members.front()->op;
    const bool is_paper = chooser == Chooser::paper_rule;
    const plan::Candidate wanted =
        is_paper ? plan::paper_rule(op, machine) : plan::Planner(machine).plan(op)->candidate;
    for (size_t i = 0; i < members.size(); ++i)
      if (wanted == plan::Candidate{members[i]->family, members[i]->degree}) return i;
    return std::nullopt;
  }
  const bool is_simulated = chooser == Chooser::simulation;
  std::vector<plan::Alternative> list;
  std::vector<size_t> from;
  for (size_t i = 0; i < members.size(); ++i) {
    const Measured& m = *members[i];
    const std::optional<double> us = is_simulated ? m.predicted_us : m.recurrence_us;
    if (!us || (is_simulated && !m.problem.empty())) continue;
    list.push_back({{m.family, m.degree}, *us, 0, 0});
    from.push_back(i);
  }
  const plan::Tier tier = is_simulated ? plan::Tier::simulation : plan::Tier::recurrence;
  const std::optional<plan::Pick> pick = plan::pick(members.front()->op, plan::errors_of(machine, tier), list);
  if (!pick) return std::nullopt;
  return from[pick->chosen];
}

std::string name_of(const Measured& m) { return plan::to_string(plan::Candidate{m.family, m.degree}); }

struct Choice {
  const Measured* of = nullptr;  // none: not measured
  double regret = 0;
  bool is_slower_than_library = false;
};

/// A case: what was best, and what each chooser took.
struct Row {
  const Measured* best;
  size_t candidates;
  std::vector<Choice> choices;  // by kChoosers
};

Row row_of(const Case& members, const spec::Machine& machine) {
  const auto is_faster = [](const Measured* a, const Measured* b) { return a->measured_us() < b->measured_us(); };
  Row out{*std::min_element(members.begin(), members.end(), is_faster), members.size(), {}};
  const auto library =
      std::find_if(members.begin(), members.end(), [](const Measured* m) { return m->family == spec::kLibrary; });
  for (const Chooser chooser : kChoosers) {
    Choice& one = out.choices.emplace_back();
    const std::optional<size_t> index = chosen(members, machine, chooser);
    if (!index) continue;
    one.of = members[*index];
    one.regret = one.of->measured_us() / out.best->measured_us() - 1;
    one.is_slower_than_library =
        library != members.end() && one.of->measured_us() > (*library)->measured_us() * (1 + kTie);
  }
  return out;
}

/// A line of the table; empty if nothing was chosen. `which`: of the rows.
std::string summary_of(const std::vector<Row>& rows, size_t chooser, const char* suffix,
                       const std::function<bool(const Measured&)>& which) {
  int cases = 0, right = 0, best = 0, slower = 0, unknown = 0;
  double regret = 0, wrong = 0, most = 0;
  for (const Row& row : rows) {
    if (!which(*row.best)) continue;
    const Choice& one = row.choices[chooser];
    if (one.of == nullptr) {
      ++unknown;
      continue;
    }
    ++cases;
    best += one.of == row.best ? 1 : 0;
    right += one.regret <= kTie ? 1 : 0;
    slower += one.is_slower_than_library ? 1 : 0;
    regret += one.regret;
    wrong += one.of == row.best ? 0 : one.regret;
    most = std::max(most, one.regret);
  }
  if (cases == 0) return "";
  return base::format("| {}{} | {} of {} | {} of {} | {:.2f} % | {:.1f} % | {:.1f} % | {} | {} |\n",
                      name_of(kChoosers[chooser]), suffix, right, cases, best, cases, 100 * regret / cases, 100 * most,
                      cases > best ? 100 * wrong / (cases - best) : 0, slower, unknown);
}

/// "k_slab q 4 | 81.5 | 2.1 % | -4.0 %": measured, half of what lies between the 10th and 90th percentile, error.
std::string cells_of(const Measured& m) {
  const std::string error =
      m.recurrence_us ? base::format("{:+.1f} %", 100 * (*m.recurrence_us / m.measured_us() - 1)) : "none";
  return base::format("{} | {:.1f} | {:.1f} % | {}", name_of(m), m.measured_us(), 100 * m.spread, error);
}

std::vector<Row> rows_of(const std::vector<Measured>& list, const spec::Machine& machine) {
  std::map<Problem, Case> cases;
  for (const Measured& m : list)
    if (is_candidate(m, machine)) cases[problem_of(m)].push_back(&m);
  std::vector<Row> rows;
  for (const auto& [key, members] : cases)
    if (members.size() >= kLeastCandidates) rows.push_back(row_of(members, machine));
  return rows;
}

}  // namespace

std::string choices(const std::vector<Measured>& list, const spec::Machine& machine) {
  const std::vector<Row> rows = rows_of(list, machine);
  std::string out =
      "| chooser | within 2 % of the best | the best | mean regret | largest | where not the best | slower than "
      "`library` | choice not measured |\n|---|---|---|---|---|---|---|---|\n";
  for (size_t chooser = 0; chooser < std::size(kChoosers); ++chooser) {
    out += summary_of(rows, chooser, "", [](const Measured&) { return true; });
    out += summary_of(rows, chooser, ", held out", [](const Measured& m) { return m.is_held_out; });
  }
  for (const RowBand& band : kRowBands)
    out += summary_of(rows, kAutomatic, band.suffix,
                      [&](const Measured& m) { return m.op.m >= band.least && m.op.m < band.end; });
  out += "\n| case | held out | measured | best | us |";
  for (const Chooser chooser : kChoosers) out += base::format(" {} | regret |", name_of(chooser));
  out += "\n|---|---|---|---|---|";
  for (size_t i = 0; i < std::size(kChoosers); ++i) out += "---|---|";
  for (const Row& row : rows) {
    out +=
        base::format("\n| {} | {} | {} | {} | {:.1f} |", row.best->op.to_string(), row.best->is_held_out ? "yes" : "",
                     row.candidates, name_of(*row.best), row.best->measured_us());
    for (const Choice& one : row.choices)
      out += one.of == nullptr ? " (not measured) | |"
                               : base::format(" {} | {:.1f} % |", name_of(*one.of), 100 * one.regret);
  }
  return out + "\n";
}

std::string misses(const std::vector<Measured>& list, const spec::Machine& machine) {
  constexpr size_t kColumn = 2;  // of kChoosers: the recurrence
  std::vector<Row> rows = rows_of(list, machine);
  std::erase_if(rows, [](const Row& row) { return row.choices[kColumn].of == nullptr; });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.choices[kColumn].regret > b.choices[kColumn].regret; });
  std::string out =
      "| case | held out | regret | best | us | spread | predicted | recurrence | us | spread | predicted |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    const Choice& one = row.choices[kColumn];
    out += base::format("| {} | {} | {:.1f} % | {} | {} |\n", row.best->op.to_string(),
                        row.best->is_held_out ? "yes" : "", 100 * one.regret, cells_of(*row.best), cells_of(*one.of));
  }
  return out;
}

}  // namespace overlace::bench
