#include "cli/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "cli/plan/probe.h"
#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/word_list.h"
#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/env.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/base/status.h"
#include "src/plan/recurrence.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Json;
using plan::Alternative;
using plan::Candidate;

constexpr size_t kShown = 12;  // alternatives of a table
constexpr int kTimelineColumns = 72;
constexpr int kMaxRanks = 64;

plan::Tier tier_of(const std::string& name) {
  using plan::Tier;
  for (const Tier tier : {Tier::rule, Tier::recurrence, Tier::simulation, Tier::probe}) {
    if (name == to_string(tier)) return tier;
  }
  throw_error(Errc::invalid_argument, "--tier is " + name + ", wanted rule, recurrence, simulation or probe");
}

const Alternative* find(const plan::Plan& plan, std::string_view family) {
  const auto found = std::find_if(plan.others.begin(), plan.others.end(),
                                  [&](const Alternative& a) { return a.candidate.family == family; });
  return found == plan.others.end() ? nullptr : &*found;
}

Json as_json(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine) {
  Json out = Json::object();
  out.set("problem", op.to_string()).set("machine", machine.name);
  out.set("machine_digest", spec::digest(machine)).set("tier", to_string(plan.tier)).set("key", plan.key);
  out.set("family", plan.candidate.family).set("degree", plan.candidate.degree).set("reason", plan.reason);
  Json estimate = Json::object();
  estimate.set("us", plan.estimate.us).set("lo_us", plan.estimate.lo_us).set("hi_us", plan.estimate.hi_us);
  Json parts = Json::object();
  for (const auto& [name, us] : plan.estimate.parts) parts.set(name, us);
  estimate.set("recurrence_us", std::move(parts));
  out.set("estimate", std::move(estimate));
  Json others = Json::array();
  for (const Alternative& a : plan.others) {
    Json one = Json::object();
    one.set("family", a.candidate.family).set("degree", a.candidate.degree);
    one.set("us", a.us).set("lo_us", a.lo_us).set("hi_us", a.hi_us);
    others.push_back(std::move(one));
  }
  out.set("others", std::move(others));
  out.set("schedule", Json::parse(plan.schedule.to_json(), "schedule").value());
  return out;
}

int check_schedule(const std::string& file, const spec::Machine& machine) {
  const base::Result<std::string> text = base::read_file(file);
  text.status().or_throw();
  const spec::Schedule schedule = spec::Schedule::from_json(*text);
  const spec::CheckReport report = check_report(schedule, machine);
  print(report.to_string() + base::format("{}: {}\n", file, report.ok() ? "ok" : "refused")).or_throw();
  return report.ok() ? 0 : exit_code(Errc::bad_schedule);
}

}  // namespace

std::string plan_text(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine) {
  std::string out = base::format("{} | {} | {}\n", op.to_string(), machine_line(machine), to_string(plan.tier));
  const Alternative* library = find(plan, spec::kLibrary);
  if (!plan.others.empty()) out += base::format("  {:<24}{:>10}  {:<20}{}\n", "schedule", "us", "band", "vs library");
  bool has_chosen = false;
  size_t shown = 0;
  for (const Alternative& a : plan.others) {
    const bool is_chosen = a.candidate == plan.candidate, is_library = a.candidate.family == spec::kLibrary;
    if (++shown > kShown && !is_chosen && !is_library) continue;
    has_chosen = has_chosen || is_chosen;
    out +=
        base::format("{} {:<24}{:>10.1f}  {:<20}{:.2f}x\n", is_chosen ? '>' : ' ', to_string(a.candidate), a.us,
                     base::format("{:.1f}..{:.1f}", a.lo_us, a.hi_us), library != nullptr ? library->us / a.us : 0.0);
  }
  if (plan.others.size() > kShown) out += base::format("  ({} more)\n", plan.others.size() - kShown);
  return out + (has_chosen ? "" : base::format("> {}\n", to_string(plan.candidate))) + plan.reason + "\n";
}

std::string waterfall_text(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine) {
  if (!machine.has_costs() || spec::form_of(op.op, spec::kLibrary) == spec::ClosedForm::none) return "";
  std::vector<Candidate> columns = {plan.candidate};
  for (const Alternative& a : plan.others) {
    if (columns.size() == 2) break;
    if (a.candidate.family != plan.candidate.family) columns.push_back(a.candidate);
  }
  if (std::none_of(columns.begin(), columns.end(), [](const Candidate& c) { return c.family == spec::kLibrary; }))
    columns.push_back({std::string(spec::kLibrary), 1});
  const plan::Recurrence recurrence(op, machine);
  std::vector<spec::Waterfall> parts;
  std::vector<std::string> names;
  for (const Candidate& c : columns) {
    parts.push_back(recurrence.waterfall(c));
    for (const auto& [name, us] : parts.back())
      if (std::find(names.begin(), names.end(), name) == names.end() && name != "host") names.push_back(name);
  }
  names.push_back("host");
  std::string out = base::format("\n  {:<30}", "us, by the recurrence");
  for (const Candidate& c : columns) out += base::format("{:>24}", to_string(c));
  const auto us_of = [](const spec::Waterfall& list, const std::string& name) {
    for (const auto& [key, us] : list)
      if (key == name) return us;
    return 0.0;
  };
  std::string largest;
  double most = 0;
  for (const std::string& name : names) {
    out += base::format("\n  {:<30}", name);
    for (const spec::Waterfall& list : parts) {
      const double us = us_of(list, name);
      out += base::format("{:>24.1f}", std::abs(us) < 0.05 ? 0.0 : us);
    }
    const double gap = parts.size() > 1 ? us_of(parts[1], name) - us_of(parts[0], name) : 0;
    if (gap > most) {
      most = gap;
      largest = name;
    }
  }
  out += base::format("\n  {:<30}", "sum");
  for (const spec::Waterfall& list : parts) {
    double sum = 0;
    for (const auto& [name, us] : list) sum += us;
    out += base::format("{:>24.1f}", sum);
  }
  out += "\n";
  if (!largest.empty()) out += base::format("{} loses most, {:.1f} us, by: {}\n", to_string(columns[1]), most, largest);
  return out;
}

std::string timeline_text(const spec::Schedule& schedule, const spec::Machine& machine, int width) {
  sim::SimOptions options;
  options.has_spans = options.has_parts = true;
  const sim::SimResult result = sim::simulate(schedule, machine, options);
  const double whole = static_cast<double>(result.time_ps);
  std::map<std::string, std::string> lanes;
  size_t name_width = 0;
  for (const sim::SimSpan& span : result.spans) {
    if (span.rank != 0) continue;
    std::string& lane = lanes[span.lane];
    lane.resize(static_cast<size_t>(width), '.');
    name_width = std::max(name_width, span.lane.size());
    const auto column = [&](uint64_t ps) {
      return std::min(static_cast<size_t>(static_cast<double>(ps) / whole * width), static_cast<size_t>(width) - 1);
    };
    const char mark = span.category == "copy" ? '=' : span.category == "wait" ? '~' : '#';
    for (size_t at = column(span.begin_ps); at <= column(span.end_ps > 0 ? span.end_ps - 1 : 0); ++at) {
      if (mark != '~' || lane[at] == '.') lane[at] = mark;
    }
  }
  std::string out = base::format("\nrank 0, {:.1f} us, simulated (# computes, = copies, ~ waits)\n", whole * 1e-6);
  for (const auto& [name, marks] : lanes)
    out += "  " + name + std::string(name_width - name.size() + 2, ' ') + marks + "\n";
  return out;
}

std::string paper_text(const spec::OpSpec& op, const plan::Plan& plan, const spec::Machine& machine,
                       const spec::CostModel& model) {
  if (op.ranks == 1) return "FiCCO's rule: nothing to choose on one rank\n";
  const Candidate theirs = plan::paper_rule(op, machine);
  const spec::Schedule schedule = spec::make_schedule(op, theirs.family, theirs.degree);
  const auto found = model.estimate(schedule, op, machine);
  std::string out = base::format("FiCCO's rule: {}", to_string(theirs));
  if (!found.ok()) return out + "\n";
  out += base::format(" {:.1f} us, simulated", found->us);
  const auto ours = model.estimate(plan.schedule, op, machine);
  return ours.ok() ? out + base::format("; ours {:.1f} us\n", ours->us) : out + "\n";
}

int plan(const PlanWords& words) {
  const spec::Machine machine = machine_of(words.machine, words.ranks);
  if (!words.check.empty()) return check_schedule(words.check, machine);
  spec::OpSpec op = op_of(words.op, words.m, words.n, words.k, words.ranks, words.dtype, machine, kMaxRanks);
  set_fields(&op, words.fields);
  op.activation = activation_of(words.activation);
  op.exchange = exchange_of(words.exchange);
  if (!words.blocks.empty()) op.blocks = numbers_of("--blocks", words.blocks, int64_t{1} << 30);
  const sim::Simulation simulation;
  plan::Planner planner(machine, {.simulation = &simulation, .cache = base::env().plan_cache});
  const plan::PlanOptions options = {.limit = tier_of(words.tier)};
  const auto found = options.limit == plan::Tier::probe && op.ranks > 1
                         ? plan_by_probe(op, machine, options, base::env().plan_cache)
                         : planner.plan(op, options);
  std::string text = plan_text(op, *found, machine);
  if (const auto kept = planner.kept(op); kept != nullptr && kept->candidate != found->candidate)
    text += base::format("`auto` takes {}: {}\n", to_string(kept->candidate), kept->reason);
  if (words.paper_rule) text += paper_text(op, *found, machine, simulation);
  if (words.explain) {
    text += waterfall_text(op, *found, machine);
    if (machine.has_costs()) text += timeline_text(found->schedule, machine, kTimelineColumns);
  }
  write_result(with_schema("plan", as_json(op, *found, machine)), text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
