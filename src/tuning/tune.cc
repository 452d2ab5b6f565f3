#include "overlace/tune.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/format.h"
#include "src/base/timing.h"
#include "src/runtime/state.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/operators.h"
#include "src/tuning/prober.h"

namespace overlace {
namespace {

using spec::OpSpec;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    out.push_back(text.substr(at, end - at));
  return out;
}

/// What this rank alone sees of the arguments.
base::Status check(const Context& context, Channel& channel, const std::vector<OpSpec>& problems,
                   const TuneOptions& options) {
  const int ranks = channel.team().size();
  if (!(options.seconds >= 0)) return base::invalid_argument("tune: seconds is {}, wanted 0 or more", options.seconds);
  if (!(options.problem_ms >= 0))
    return base::invalid_argument("tune: problem_ms is {}, wanted 0 or more", options.problem_ms);
  OVERLACE_TRY(channel.team().runtime().state().check_no_capture("tune"));
  for (const OpSpec& op : problems) {
    if (op.ranks != ranks)
      return base::invalid_argument("tune: {} is a problem of {} ranks, wanted {} as the team", op.to_string(),
                                    op.ranks, ranks);
    try {
      (void)spec::make_schedule(op, std::string(spec::kLibrary));  // refuses what no schedule fits
    } catch (...) {
      return base::status_of_current_exception();
    }
  }
  const spec::Machine& machine = context.machine();
  if (!machine.has_costs())
    return base::error(Errc::not_supported,
                       "tune: {} ({}), which has no costs to choose candidates by; wanted --machine NAME or FILE.json "
                       "(overlace calibrate), or OVERLACE_MACHINE",
                       machine.name, context.machine_origin());
  return {};
}

/// Collective: all ranks go on, with the same `form` of the call, or all throw: their own error, else a peer's.
void meet(Team& team, const std::string& form, const base::Status& mine) {
  constexpr size_t kMostText = 4000;
  const std::string text = static_cast<char>(mine.code()) + (mine.ok() ? form : mine.message().substr(0, kMostText));
  const std::vector<Bytes> all = team.exchange(std::as_bytes(std::span(text)));
  mine.or_throw();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string theirs(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    const auto code = static_cast<Errc>(theirs.empty() ? 0 : theirs.front());
    if (code != Errc::ok) throw_error(code, base::format("rank {}: {}", rank, theirs.substr(1)));
  }
  team.agree(form, "tune: the call");
}

std::string form_of(std::string_view list, const TuneOptions& options) {
  return base::format("{}, {} ms for each problem", list, options.problem_ms);
}

/// Collective: throws PlanMismatch on all ranks where the lists differ.
void agree_on(Team& team, const std::vector<OpSpec>& problems) {
  std::vector<std::string> mine;
  std::string keys;
  for (const OpSpec& op : problems) {
    mine.push_back(spec::key_of(op));
    keys += mine.back() + "\n";
  }
  const std::vector<std::string> first = lines_of(runtime::text_of_first(team, keys));
  const size_t at =
      static_cast<size_t>(std::mismatch(first.begin(), first.end(), mine.begin(), mine.end()).second - mine.begin());
  std::string text = base::format("{} problems", mine.size());
  if (at < mine.size()) text += base::format(", of which number {} is {}", at + 1, problems[at].to_string());
  team.agree(text, "tune: the list");
}

/// Collective: what the first rank's clock says.
bool is_over(tuning::ChannelProber& prober, double begin, double seconds) {
  const std::string mine = seconds > 0 && base::steady_s() - begin > seconds ? "over" : "goes on";
  return prober.from_first(mine).value() == "over";
}

double us_of(const plan::Plan& plan, const plan::Candidate& candidate) {
  for (const plan::Alternative& one : plan.others)
    if (one.candidate == candidate) return one.us;
  return 0;
}

/// Why a plan that was to be measured was not.
std::string failure_of(const plan::Plan& plan) {
  constexpr std::string_view kMark = "not measured: ";
  const size_t at = plan.reason.find(kMark);
  return at == std::string::npos ? plan.reason : plan.reason.substr(at + kMark.size());
}

/// All ranks have the same problems, which have been checked.
TuneResult measure(const Context& context, Channel& channel, const std::vector<OpSpec>& problems,
                   const TuneOptions& options) {
  Team& team = channel.team();
  team.runtime().state().synchronize();
  const double begin = base::steady_s();
  const std::string path = options.cache.empty() ? base::env().plan_cache : options.cache;
  tuning::ChannelProber prober(channel, options.problem_ms);
  const sim::Simulation simulation;
  plan::Planner planner(context.machine(), {.simulation = &simulation, .prober = &prober, .cache = path});
  plan::Planner untuned(context.machine());
  TuneResult out;
  std::vector<std::shared_ptr<const plan::Plan>> plans;
  for (const OpSpec& op : problems) {
    if (!out.left.empty() || is_over(prober, begin, options.seconds)) {
      out.left.push_back(op);
      continue;
    }
    if (options.on_problem) options.on_problem(op, out.tuned.size(), problems.size());
    const int before = prober.measured();
    const std::shared_ptr<const plan::Plan> plan = planner.plan(op, {.limit = plan::Tier::probe});
    Tuned one;
    one.op = op;
    one.usual = untuned.plan(op)->candidate;
    if (plan->tier == plan::Tier::probe) {
      one.was_kept = prober.measured() == before;
      one.tuned = plan->candidate;
      one.usual_us = us_of(*plan, one.usual);
      one.tuned_us = us_of(*plan, one.tuned);
      one.library_us = us_of(*plan, {std::string(spec::kLibrary), 1});
      plans.push_back(plan);
    } else {
      one.tuned = one.usual;
      one.failure = failure_of(*plan);
    }
    out.tuned.push_back(std::move(one));
  }
  team.runtime().state().enter();  // a rank that left is no problem that could not be measured
  context.keep(plans, path.empty() ? "this context" : path);
  return out;
}

}  // namespace

TuneResult tune(const Context& context, Channel& channel, const std::vector<OpSpec>& problems,
                const TuneOptions& options) {
  meet(channel.team(), form_of("with a list", options), check(context, channel, problems, options));
  agree_on(channel.team(), problems);
  return measure(context, channel, problems, options);
}

TuneResult tune(const Context& context, Channel& channel, const TuneOptions& options) {
  Team& team = channel.team();
  meet(team, form_of("without a list", options), check(context, channel, {}, options));
  std::map<std::string, OpSpec> mine;
  std::string keys;
  for (const OpSpec& op : context.met()) {
    if (op.ranks != team.size()) continue;
    const std::string key = spec::key_of(op);
    mine.emplace(key, op);
    keys += key + "\n";
  }
  const std::vector<std::string> wanted = lines_of(runtime::text_of_first(team, keys));
  std::string have;  // a letter for each
  for (const std::string& key : wanted) have += mine.contains(key) ? 'y' : 'n';
  for (const Bytes& theirs : team.exchange(std::as_bytes(std::span(have))))
    for (size_t i = 0; i < have.size() && i < theirs.size(); ++i)
      if (theirs[i] != std::byte{'y'}) have[i] = 'n';
  std::vector<OpSpec> problems;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (have[i] == 'y') problems.push_back(mine.at(wanted[i]));
  return measure(context, channel, problems, options);
}

}  // namespace overlace
