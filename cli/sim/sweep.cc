#include "cli/sim/sweep.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/sim/plot.h"
#include "cli/sim/sim.h"
#include "cli/word_list.h"
#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/spec/expand.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Json;

constexpr size_t kMostSimulations = 20000;

[[noreturn]] void refuse_sweep(const std::string& why) { throw_error(Errc::invalid_argument, why); }

struct Point {
  std::string machine;
  int64_t ranks = 0, m = 0, n = 0, k = 0;
};
/// The numbers of a point that a plot can have on its axis.
struct Axis {
  const char* name;
  int64_t Point::*value;
};
constexpr Axis kAxes[] = {{"m", &Point::m}, {"n", &Point::n}, {"k", &Point::k}, {"ranks", &Point::ranks}};

struct SweepRow {
  Point point;
  std::string family, problem;
  int64_t degree = 1;
  double us = 0, bound_us = 0, host_us = 0, library_us = 0;
};

/// The digest of the schedule of degree 1; empty where the family has none.
std::string plain_digest(const spec::OpSpec& op, const std::string& family) {
  try {
    return spec::digest(spec::make_schedule(op, family, 1));
  } catch (const Error&) {
    return {};
  }
}

/// The fastest degree of a family, or why there is none; 1 for a family without degrees.
SweepRow fastest_row(const Point& point, const spec::OpSpec& op, const spec::Machine& machine,
                     const std::string& family, const std::vector<int64_t>& degrees, int calls) {
  SweepRow best{.point = point, .family = family, .problem = "no degree"};
  sim::SimOptions options;
  options.calls = calls;
  const std::string plain = plain_digest(op, family);
  std::set<std::string> seen;
  for (const int64_t degree : degrees) {
    try {
      const spec::Schedule schedule = spec::make_schedule(op, family, static_cast<int>(degree));
      const std::string digest = spec::digest(schedule);
      if (!seen.insert(digest).second) continue;
      check_runs_on(machine, schedule).or_throw();
      const sim::SimResult r = sim::simulate(schedule, machine, options);
      if (!best.problem.empty() || r.us() < best.us)
        best = {point, family, "", digest == plain ? 1 : degree, r.us(), r.bound_us, r.host_us};
    } catch (const InvalidArgument& e) {
      if (!best.problem.empty()) best.problem = e.what();
    } catch (const Unsupported& e) {
      if (!best.problem.empty()) best.problem = e.what();
    }
  }
  return best;
}

std::vector<std::string> families_of(const SweepWords& words) {
  const std::vector<std::string> known = spec::families(words.op);
  if (known.empty()) refuse_sweep(base::format("operator is {}, wanted {}", words.op, spec::operator_names()));
  std::vector<std::string> out;
  if (words.families == "all") {
    for (const spec::FamilyDef& family : spec::find_operator(words.op)->families)
      if (family.purpose == spec::Purpose::plan || family.purpose == spec::Purpose::limit)
        out.emplace_back(family.name);
    return out;
  }
  for (const std::string& family : words_of(words.families)) {
    if (std::find(known.begin(), known.end(), family) == known.end()) {
      std::string list;
      for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
      refuse_sweep(base::format("--families has {}, wanted all or of {}", family, list));
    }
    if (std::find(out.begin(), out.end(), family) == out.end()) out.push_back(family);
  }
  return out;
}

std::vector<SweepRow> sweep(const SweepWords& words) {
  const std::vector<std::string> families = families_of(words);
  const std::vector<int64_t> ms = numbers_of("--m", words.m), ns = numbers_of("--n", words.n),
                             ks = numbers_of("--k", words.k),
                             degrees = numbers_of("--degrees", words.degrees, kMostDegree);
  const std::vector<std::string> machines =
      words.machines.empty() ? std::vector<std::string>{""} : words_of(words.machines);
  std::vector<SweepRow> rows;
  size_t count = 0;
  for (const std::string& name : machines) {
    std::vector<int64_t> teams = {machine_of(name, 0).ranks};
    if (!words.ranks.empty()) teams = numbers_of("--ranks", words.ranks);
    count += teams.size() * ms.size() * ns.size() * ks.size() * families.size() * degrees.size();
    if (count > kMostSimulations)
      refuse_sweep(base::format("sim sweep: {} simulations, wanted at most {}", count, kMostSimulations));
    for (const int64_t ranks : teams) {
      if (ranks > kMostSimulatedRanks)
        refuse_sweep(base::format("--ranks has {}, wanted at most {}", ranks, kMostSimulatedRanks));
      const spec::Machine machine = machine_of(name, static_cast<int>(ranks));
      for (const int64_t n : ns)
        for (const int64_t k : ks)
          for (const int64_t m : ms) {
            const Point point{machine.name, ranks, m, n, k};
            spec::OpSpec op =
                op_of(words.op, m, n, k, static_cast<int>(ranks), words.dtype, machine, kMostSimulatedRanks);
            set_fields(&op, words.fields);
            const double library_us = fastest_row(point, op, machine, std::string(spec::kLibrary), {1}, words.calls).us;
            for (const std::string& family : families) {
              rows.push_back(fastest_row(point, op, machine, family, degrees, words.calls));
              rows.back().library_us = library_us;
            }
          }
    }
  }
  return rows;
}

std::string sweep_table(const std::vector<SweepRow>& rows) {
  std::string text = base::format("{:<10}{:>6}{:>8}{:>8}{:>8}  {:<24}{:>3}{:>11}{:>11}{:>12}\n", "machine", "ranks",
                                  "M", "N", "K", "family", "q", "us", "bound us", "vs library");
  for (const SweepRow& row : rows) {
    text += base::format("{:<10}{:>6}{:>8}{:>8}{:>8}  {:<24}", row.point.machine, row.point.ranks, row.point.m,
                         row.point.n, row.point.k, row.family);
    text += row.problem.empty() ? base::format("{:>3}{:>11.1f}{:>11.1f}{:>11.2f}x\n", row.degree, row.us, row.bound_us,
                                               row.library_us / row.us)
                                : base::format("  {}\n", row.problem);
  }
  return text;
}

Json sweep_json(const std::vector<SweepRow>& rows) {
  Json list = Json::array();
  for (const SweepRow& row : rows) {
    Json one = Json::object();
    one.set("machine", row.point.machine).set("ranks", row.point.ranks);
    one.set("m", row.point.m).set("n", row.point.n).set("k", row.point.k).set("family", row.family);
    if (row.problem.empty()) {
      one.set("degree", row.degree).set("us", row.us).set("bound_us", row.bound_us).set("host_us", row.host_us);
      if (row.library_us > 0) one.set("gain", row.library_us / row.us);
    } else {
      one.set("problem", row.problem);
    }
    list.push_back(std::move(one));
  }
  return list;
}

/// Over the first number that varies; a panel for each combination of all others.
std::string sweep_svg(const SweepWords& words, const std::vector<SweepRow>& rows) {
  const Axis* axis = &kAxes[0];
  for (const Axis& candidate : kAxes) {
    std::set<int64_t> values;
    for (const SweepRow& row : rows) values.insert(row.point.*candidate.value);
    if (values.size() < 2) continue;
    axis = &candidate;
    break;
  }
  std::vector<PlotPanel> panels;
  std::map<std::string, size_t> known;
  for (const SweepRow& row : rows) {
    std::string title = row.point.machine;
    for (const Axis& other : kAxes)
      if (other.value != axis->value) title += base::format(", {} {}", other.name, row.point.*other.value);
    const auto [it, is_new] = known.try_emplace(title, panels.size());
    if (is_new) panels.push_back({title, {{"bound", {}, {}, true}}});
    if (!row.problem.empty() || !(row.us > 0)) continue;
    std::vector<PlotLine>& lines = panels[it->second].lines;
    auto line = std::find_if(lines.begin(), lines.end(), [&](const PlotLine& l) { return l.name == row.family; });
    if (line == lines.end()) line = lines.insert(lines.end(), {row.family, {}, {}});
    const auto x = static_cast<double>(row.point.*axis->value);
    line->x.push_back(x);
    line->y.push_back(row.us);
    PlotLine& bound = lines.front();  // of no family: the least of theirs
    if (!(row.bound_us > 0)) continue;
    const auto at = std::find(bound.x.begin(), bound.x.end(), x) - bound.x.begin();
    if (static_cast<size_t>(at) == bound.x.size()) {
      bound.x.push_back(x);
      bound.y.push_back(row.bound_us);
    }
    double& least = bound.y[static_cast<size_t>(at)];
    least = std::min(least, row.bound_us);
  }
  return plot_svg(base::format("{}, simulated: fastest degree of each family", words.op), axis->name, "us", panels);
}

}  // namespace

int sim_sweep(const SweepWords& words) {
  if (words.calls < 1 || words.calls > 10000)
    refuse_sweep(base::format("sim: --calls is {}, wanted 1 to 10000", words.calls));
  const bool is_html = words.plot.ends_with(".html");
  if (!words.plot.empty() && !is_html && !words.plot.ends_with(".svg"))
    refuse_sweep(base::format("--plot is {}, wanted a name that ends in .svg or .html", words.plot));
  const std::vector<SweepRow> rows = sweep(words);
  const std::string table = sweep_table(rows);
  if (!words.plot.empty()) {
    const std::string svg = sweep_svg(words, rows);
    base::write_file(words.plot, is_html ? plot_html(words.op + ", simulated", svg, table) : svg).or_throw();
  }
  write_result(with_schema("sim_sweep", sweep_json(rows)), table, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
