#include "cli/sim/sim.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/trace/trace.h"
#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/base/statistics.h"
#include "src/ops/fused/choose.h"
#include "src/sim/schedule/simulation.h"
#include "src/sim/trace/trace.h"
#include "src/spec/expand.h"
#include "src/spec/operators.h"

namespace overlace::cli {

void refuse(const std::string& why) { throw_error(Errc::invalid_argument, "sim: " + why); }

namespace {

using base::Json;

/// 0: it does not say.
int ranks_of(const spec::Schedule& schedule) {
  const auto found = schedule.params.find("G");
  const auto* ranks = found == schedule.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return ranks == nullptr ? 0 : static_cast<int>(std::clamp<int64_t>(*ranks, 0, kMostSimulatedRanks));
}

struct Scheduled {
  spec::Machine machine;
  spec::Schedule schedule;
};

Scheduled schedule_of(const SimWords& words) {
  if (words.schedule.empty()) {
    spec::Machine machine = machine_of(words.machine, words.ranks);
    spec::OpSpec op =
        op_of(words.op, words.m, words.n, words.k, words.ranks, words.dtype, machine, kMostSimulatedRanks);
    set_fields(&op, words.fields);
    return {std::move(machine), spec::make_schedule(op, words.family, words.degree)};
  }
  base::Result<std::string> text = base::read_file(words.schedule);
  text.status().or_throw();
  spec::Schedule schedule = spec::Schedule::from_json(*text);
  spec::Machine machine = machine_of(words.machine, ranks_of(schedule));
  const spec::CheckReport report = check_report(schedule, machine);
  if (!report.ok()) throw_error(Errc::bad_schedule, words.schedule + ": " + report.to_string());
  return {std::move(machine), std::move(schedule)};
}

struct Times {
  sim::SimResult first;  // without noise
  std::vector<double> seeds_us;
};

Times simulate_all(const spec::Schedule& schedule, const spec::Machine& machine, const SimWords& words) {
  sim::SimOptions options;
  options.calls = words.calls;
  options.has_spans = !words.trace.empty();
  options.has_parts = words.parts;
  Times out{sim::simulate(schedule, machine, options), {}};
  options.has_spans = false;
  for (int seed = 1; seed <= words.seeds; ++seed) {
    options.seed = static_cast<uint64_t>(seed);
    out.seeds_us.push_back(sim::simulate(schedule, machine, options).us());
  }
  return out;
}

Json bytes_json(const sim::SimResult& result) {
  Json list = Json::array();
  for (const sim::RankBytes& b : result.bytes) {
    Json one = Json::object();
    one.set("egress_bytes", b.egress).set("ingress_bytes", b.ingress).set("memory_bytes", b.memory);
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

int sim_run(const SimWords& words) {
  if (words.calls < 1 || words.calls > 10000) refuse(base::format("--calls is {}, wanted 1 to 10000", words.calls));
  if (words.seeds < 0 || words.seeds > 10000) refuse(base::format("--seeds is {}, wanted 0 to 10000", words.seeds));
  if (!words.trace.empty()) check_timeline_name(words.trace).or_throw();
  const auto [machine, schedule] = schedule_of(words);
  const Times times = simulate_all(schedule, machine, words);
  const sim::SimResult& r = times.first;
  if (!words.trace.empty()) {
    const std::string title = base::format("{} {} on {}, simulated", schedule.op, schedule.family, machine.name);
    write_timeline(sim::to_trace(r, title), words.trace).or_throw();
  }
  Json json = Json::object();
  json.set("op", schedule.op).set("family", schedule.family).set("machine", machine.name);
  json.set("machine_digest", spec::digest(machine)).set("share_of_priors", share_of_priors(machine));
  json.set("us", r.us()).set("bound_us", r.bound_us).set("host_us", r.host_us).set("contention_us", r.contention_us);
  json.set("events", r.events).set("bytes", bytes_json(r));
  std::string text = base::format("{} {}: {:.1f} us", schedule.op, schedule.family, r.us());
  if (!times.seeds_us.empty()) {
    const double p50 = base::median(times.seeds_us), p95 = base::percentile(times.seeds_us, 95);
    json.set("p50_us", p50).set("p95_us", p95);
    text += base::format(", with noise p50 {:.1f} us, p95 {:.1f} us ({} seeds)", p50, p95, words.seeds);
  }
  text += base::format("\nclosed-form lower bound {:.1f} us, lost to contention {:.1f} us, host {:.1f} us a call\n{}\n",
                       r.bound_us, r.contention_us / words.calls, r.host_us, machine_line(machine));
  if (const base::Status runs = check_runs_on(machine, schedule); !runs.ok()) {
    text += base::format("no GPU runs this: {}\n", runs.message());
    json.set("problem", runs.message());
  }
  write_result(with_schema("sim_run", std::move(json)), text, words.json).or_throw();
  return 0;
}

namespace {

/// It measures a part: nothing to choose.
bool is_reference(const spec::OpSpec& op, const std::string& family) {
  return spec::find_family(*spec::find_operator(op.op), family)->purpose != spec::Purpose::plan;
}

struct FamilyRow {
  std::string family;
  int degree = 1;
  double us = 0, bound_us = 0, host_us = 0;
  std::string problem = {};
};

std::vector<FamilyRow> compare(const spec::OpSpec& op, const spec::Machine& machine, int calls) {
  std::vector<FamilyRow> rows;
  sim::SimOptions options;
  options.calls = calls;
  for (const std::string& family : spec::families(op.op)) {
    std::string last;
    for (const int degree : {1, 2, 4, 8}) {
      FamilyRow row{family, degree};
      try {
        const spec::Schedule schedule = spec::make_schedule(op, family, degree);
        const std::string digest = spec::digest(schedule);
        if (digest == last) break;  // a family without degrees
        last = digest;
        check_runs_on(machine, schedule).or_throw();
        const sim::SimResult r = sim::simulate(schedule, machine, options);
        row.us = r.us();
        row.bound_us = r.bound_us;
        row.host_us = r.host_us;
      } catch (const InvalidArgument& e) {
        row.problem = e.what();
      } catch (const Unsupported& e) {
        row.problem = e.what();
      }
      rows.push_back(row);
      if (!row.problem.empty()) break;
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const FamilyRow& a, const FamilyRow& b) {
    const auto key = [&](const FamilyRow& r) {
      return std::tuple(is_reference(op, r.family), !r.problem.empty(), r.us);
    };
    return key(a) < key(b);
  });
  return rows;
}

}  // namespace

base::Status check_runs_on(const spec::Machine& machine, const spec::Schedule& schedule) {
  if (!machine.is_gpu) return {};
  OVERLACE_TRY(ops::fused::check_capability(schedule, machine));
  return ops::fused::check_instance(schedule);
}

int sim_compare(const SimWords& words) {
  if (words.calls < 1 || words.calls > 10000) refuse(base::format("--calls is {}, wanted 1 to 10000", words.calls));
  const spec::Machine machine = machine_of(words.machine, words.ranks);
  spec::OpSpec op = op_of(words.op, words.m, words.n, words.k, words.ranks, words.dtype, machine, kMostSimulatedRanks);
  set_fields(&op, words.fields);
  if (spec::families(op.op).empty()) refuse(base::format("operator is {}, wanted {}", op.op, spec::operator_names()));
  const std::vector<FamilyRow> rows = compare(op, machine, words.calls);
  double library_us = 0, slowest_us = 0;
  for (const FamilyRow& row : rows) {
    if (row.family == spec::kLibrary) library_us = row.us;
    slowest_us = std::max(slowest_us, row.us);
  }
  std::string text = base::format("{} | {}\n  {:<22}{:>3}{:>10}{:>10}{:>12}\n", op.to_string(), machine_line(machine),
                                  "family", "q", "us", "bound us", "vs library");
  Json list = Json::array();
  for (const FamilyRow& row : rows) {
    Json one = Json::object();
    one.set("family", row.family).set("degree", row.degree);
    if (!row.problem.empty()) {
      text += base::format("  {:<22}{:>3}  {}\n", row.family, row.degree, row.problem);
      one.set("problem", row.problem);
    } else {
      const auto bar = static_cast<size_t>(30 * row.us / slowest_us + 0.5);
      text +=
          base::format("  {:<22}{:>3}{:>10.1f}{:>10.1f}{:>11.2f}x {}\n", row.family, row.degree, row.us, row.bound_us,
                       library_us / row.us, std::string(bar, is_reference(op, row.family) ? '.' : '#'));
      one.set("us", row.us).set("bound_us", row.bound_us).set("host_us", row.host_us);
    }
    list.push_back(std::move(one));
  }
  text += "dotted: parts alone, or both without dependence (limit); nothing that gives a result\n";
  Json json = Json::object();
  json.set("problem", op.to_string()).set("machine", machine.name).set("machine_digest", spec::digest(machine));
  json.set("share_of_priors", share_of_priors(machine)).set("families", std::move(list));
  write_result(with_schema("sim_compare", std::move(json)), text, words.json).or_throw();
  return 0;
}

int trace_diff(const DiffWords& words) {
  if (words.match != "id" && words.match != "kind")
    throw_error(Errc::invalid_argument, base::format("--match is {}, wanted id or kind", words.match));
  const sim::Match match = words.match == "id" ? sim::Match::id : sim::Match::kind;
  base::Result<base::Trace> first = load_trace(words.first), second = load_trace(words.second);
  first.status().or_throw();
  second.status().or_throw();
  for (base::Trace* trace : {&*first, &*second})
    if (words.rank >= 0) std::erase_if(trace->spans, [&](const base::Span& s) { return s.rank != words.rank; });
  const sim::TraceDiff diff = sim::diff_traces(*first, *second, match).value();
  write_result(with_schema("trace_diff", sim::to_json(diff)), sim::to_text(diff), words.json).or_throw();
  return words.max_median >= 0 && 100 * diff.median > words.max_median ? 1 : 0;
}

}  // namespace overlace::cli
