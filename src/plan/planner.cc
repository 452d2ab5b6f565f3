#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "overlace/error.h"
#include "overlace/plan.h"
#include "src/base/ceil_div_pod.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/plan/cache.h"
#include "src/plan/decide.h"
#include "src/plan/rates.h"
#include "src/plan/recurrence.h"
#include "src/spec/cost_model.h"
#include "src/spec/fusable.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::plan {
namespace {

using spec::Machine;
using spec::OpSpec;

constexpr size_t kSimulated = 8;                // of the candidates, the best of the recurrence
constexpr size_t kProbed = 3;                   // of these, the best, besides the library
constexpr size_t kKept = 4096;                  // plans
constexpr std::string_view kKeptKey = "kept ";  // how keys of what kept() has found begin
constexpr double kLeastShortGain = 0.1;

/// Buckets of rows end exactly up to 256, then eight times per octave: how far the end of the bucket of m rows is from
/// that of the one below.
int64_t bucket_step(int64_t m) {
  if (m <= 256) return 1;
  int64_t octave = 256;
  while (octave <= (m - 1) / 2) octave *= 2;
  return octave / 8;
}

int64_t bucket_of(int64_t m) { return base::round_up(m, bucket_step(m)); }

std::string key_of(OpSpec op, const PlanOptions& options, int64_t m) {
  op.m = m;
  std::string out = spec::key_of(op);
  if (options.paper_rule) out += " paper";
  if (options.limit != Tier::recurrence) out += " " + to_string(options.limit);
  if (options.heap_bytes != 0) out += base::format(" heap {}", options.heap_bytes);
  return out;
}

bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::fp16; }

/// What a reason says of products whose rate is no measured one.
std::string unmeasured_rate(const OpSpec& op, const Machine& machine) {
  const spec::Figure& speedup = machine.gemm.fp8_speedup;
  if (!is_fp8(op.dtype) || !machine.is_gpu || speedup.source == spec::Source::measured) return "";
  return base::format("{} at {} times the rate of 16 bits, which was not measured", spec::factors_of(op),
                      speedup.value);
}

/// Whether the machine's costs say something of the problem. Unless more than the recurrence is asked for, of GPUs only
/// where products are of 16 bits: others were not measured.
bool is_modelled(const OpSpec& op, const Machine& machine, Tier limit) {
  const bool is_measured = !machine.is_gpu || is_16_bit(op.dtype) || is_fp8(op.dtype) || limit > Tier::recurrence;
  return machine.has_costs() && machine.hosts == 1 && is_measured;
}

}  // namespace

std::string to_string(const Candidate& candidate) {
  return spec::has_degree(candidate.family) ? base::format("{} q {}", candidate.family, candidate.degree)
                                            : candidate.family;
}

std::string to_string(Tier tier) {
  switch (tier) {
    case Tier::rule:
      return "rule";
    case Tier::recurrence:
      return "recurrence";
    case Tier::simulation:
      return "simulation";
    case Tier::probe:
      break;
  }
  return "probe";
}

namespace {

/// What does not gain by hiding alone: the library, and what is launched once and waits for nobody's copy.
bool is_short(const OpSpec& op, const Candidate& candidate) {
  using enum spec::ClosedForm;
  const spec::ClosedForm form = spec::form_of(op.op, candidate.family);
  return form == library || form == slab_kernel || form == tile_kernel;
}

/// Whether the few rows have a kernel of their own here. GPUs without it take them as others.
bool has_small_m_kernel(const OpSpec& op, const Machine& machine) {
  return spec::has_fused_kernels(machine) && spec::has_measured_tokens(op, machine);
}

/// What was measured where that kernel is: it, and the library.
bool is_for_small_m(const spec::FamilyDef& family) {
  return family.form == spec::ClosedForm::small_m_kernel || family.form == spec::ClosedForm::library;
}

}  // namespace

/// Scales of rows that do not begin at 16 bytes on each rank: on GPUs products of all rows alone can read them.
static bool has_odd_scales(const OpSpec& op) {
  if (op.scales != spec::Scales::rows || op.ranks < 2) return false;
  const std::vector<int64_t> off = spec::row_offsets(op);
  for (size_t rank = 1; rank + 1 < off.size(); ++rank)
    if (off[rank] % spec::kScaleRows != 0 && off[rank] != off[rank + 1]) return true;
  return false;
}

static bool multiplies_all_rows(const OpSpec& op, std::string_view family) {
  const spec::ClosedForm form = spec::form_of(op.op, family);
  return form == spec::ClosedForm::library || form == spec::ClosedForm::serial;
}

std::vector<Candidate> candidates(const OpSpec& op, const Machine& machine) {
  std::vector<Candidate> out;
  const spec::OperatorDef* def = spec::find_operator(op.op);
  if (def == nullptr) return out;
  const bool is_small = has_small_m_kernel(op, machine), is_whole = machine.is_gpu && has_odd_scales(op);
  for (const spec::FamilyDef& family : def->families) {
    if (family.degrees == nullptr || (is_small && !is_for_small_m(family))) continue;
    if (is_whole && !multiplies_all_rows(op, family.name)) continue;
    for (const int degree : family.degrees(op, machine)) out.push_back({std::string(family.name), degree});
  }
  return out;
}

namespace {

/// The families that the GPUs' capability keeps out of the candidates, and why; empty if it keeps out none.
std::string without_kernels(const OpSpec& op, const Machine& machine) {
  if (!machine.is_gpu || spec::has_fused_kernels(machine)) return {};
  Machine other = machine;
  other.compute_capability = spec::kFusedCapability;
  const std::vector<Candidate> here = candidates(op, machine);
  std::vector<std::string> names;
  for (const Candidate& one : candidates(op, other))
    if (std::find(here.begin(), here.end(), one) == here.end() && (names.empty() || names.back() != one.family))
      names.push_back(one.family);
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  if (out.empty()) return {};
  return base::format("no {}, for {} alone; here: {}", out, spec::capability_text(spec::kFusedCapability),
                      spec::capability_text(machine.compute_capability));
}

/// Why the kernel of few rows is no candidate for these, though it takes them; empty if it is one, or is not there.
std::string not_measured(const OpSpec& op, const Machine& machine) {
  if (!spec::has_fused_kernels(machine) || !spec::has_few_tokens(op) || has_small_m_kernel(op, machine)) return {};
  return base::format("one_shot takes M {} but was measured up to {:g}", op.m, spec::measured_tokens(op, machine));
}

}  // namespace

Candidate paper_rule(const OpSpec& op, const Machine& machine) {
  using enum spec::ClosedForm;
  const spec::OperatorDef* def = spec::find_operator(op.op);
  const auto with = [&](spec::ClosedForm form) -> std::optional<Candidate> {
    if (def == nullptr) return std::nullopt;
    for (const spec::FamilyDef& family : def->families)
      if (family.form == form && family.has_degree) return Candidate{std::string(family.name), op.ranks};
    return std::nullopt;
  };
  const auto by_rows = with(per_shard), by_columns = with(slabs);
  if (!by_rows) return {std::string(spec::kLibrary), 1};
  if (op.k > op.m && by_columns) return *by_columns;
  const double m = static_cast<double>(op.m), n = static_cast<double>(op.n), k = static_cast<double>(op.k);
  const double bytes = static_cast<double>(dtype_bytes(op.dtype)) * (m * k + k * n + m * n);
  const double rate = std::max(machine.gemm.stream_GBps.value, 1.0);
  const double ridge = machine.gemm.sustained_TFLOPs.value * 1e3 / rate;
  const double intensity = 2 * m * n * k / bytes / std::max(ridge, 1e-9);
  const double traffic = bytes / (rate * 1e3) / std::max(machine.latency.launch_us.value, 1.0);
  const double size = std::sqrt(intensity * traffic);
  return with(size < 4 ? all_shards : size < 16 ? other_shards : per_shard).value_or(*by_rows);
}

struct Planner::State {
  State(Machine given, const PlannerParts& with)
      : machine(std::move(given)),
        small_m(small_m_of(machine)),
        simulation(with.simulation),
        prober(with.prober),
        cache(with.kept.empty() ? Cache(with.cache, machine) : Cache::of_text(with.kept, machine)),
        shipped(Cache::shipped(machine)),
        kept_in(with.kept_in) {}

  /// The machine for small M, of the same GPUs and host.
  static std::optional<Machine> small_m_of(const Machine& machine) {
    if (machine.small_m_machine.empty()) return std::nullopt;
    Machine out = spec::find_machine(machine.small_m_machine);
    out.compute_capability = machine.compute_capability;
    Machine::Latency& its = out.latency;
    const Machine::Latency& own = machine.latency;
    its.host_kernel_us = own.host_kernel_us, its.host_copy_us = own.host_copy_us;
    its.host_collective_us = own.host_collective_us, its.host_call_us = own.host_call_us;
    its.host_lanes_us = own.host_lanes_us;
    return out;
  }

  bool is_probed(const PlanOptions& options) const { return options.limit == Tier::probe && prober != nullptr; }
  bool is_kept(const OpSpec& op, const PlanOptions& options) const {
    return cache.is_on() && !options.paper_rule && options.heap_bytes == 0 && options.limit >= Tier::simulation &&
           op.ranks > 1;
  }

  /// With a prober the file is the first rank's: all take what that one finds, so nobody probes alone.
  std::optional<Decision> kept(const OpSpec& op, const std::string& key, const PlanOptions& options) const {
    const bool asks_first = is_probed(options);
    std::string line = asks_first && !prober->is_first() ? std::string() : cache.find(key);
    if (asks_first) line = prober->from_first(line).value();
    std::optional<Decision> found = decision_of(line, key, machine);
    return found && found->tier == options.limit && is_considered(op, *found) ? found : std::nullopt;
  }

  /// Nothing but candidates: a line that anybody may have written names no schedule of its own.
  bool is_considered(const OpSpec& op, const Decision& decision) const {
    const std::vector<Candidate> known = candidates(op, machine_for(op));
    const auto is_known = [&](const Candidate& one) {
      return std::find(known.begin(), known.end(), one) != known.end();
    };
    return is_known(decision.candidate) &&
           std::all_of(decision.others.begin(), decision.others.end(),
                       [&](const Alternative& other) { return is_known(other.candidate); });
  }

  /// The line of tier probe for the nearest bucket of rows below that of `op`, or above it, within a factor of two: its
  /// rows and its times.
  std::optional<std::pair<int64_t, std::vector<Alternative>>> neighbour(const OpSpec& op, bool is_above) const {
    const auto next = [&](int64_t m) { return is_above ? bucket_of(m + 1) : m - bucket_step(m); };
    for (int64_t m = next(op.m); m > 0 && m >= op.m / 2 && m <= 2 * op.m; m = next(m)) {
      const std::string key = key_of(op, {.limit = Tier::probe}, m);
      if (const auto mine = probed.find(key); mine != probed.end()) return std::pair(m, mine->second.first.others);
      for (const Cache* in : {&cache, &shipped}) {
        std::optional<Decision> found = decision_of(in->find(key), key, machine);
        if (found && found->tier == Tier::probe) return std::pair(m, std::move(found->others));
      }
    }
    return std::nullopt;
  }

  /// Between two buckets that were measured: schedules that were measured at both, by the recurrence times what
  /// measurement and recurrence differ by at the two, over the logarithm of the rows.
  std::optional<Decision> between(const OpSpec& op) const {
    const auto low = neighbour(op, false), high = low ? neighbour(op, true) : std::nullopt;
    if (!high) return std::nullopt;
    const auto model = [&](int64_t m, const Candidate& candidate) {
      OpSpec at = op;
      at.m = m;
      return Recurrence(at, machine_for(at)).us(candidate);
    };
    const double weight = std::log(static_cast<double>(op.m) / static_cast<double>(low->first)) /
                          std::log(static_cast<double>(high->first) / static_cast<double>(low->first));
    Decision out;
    for (const Alternative& one : low->second) {
      const auto other = std::find_if(high->second.begin(), high->second.end(),
                                      [&](const Alternative& a) { return a.candidate == one.candidate; });
      if (other == high->second.end()) continue;
      const auto here = model(op.m, one.candidate), below = model(low->first, one.candidate);
      const auto above = model(high->first, one.candidate);
      if (!here || !below || !above) continue;
      const double by = std::pow(one.us / *below, 1 - weight) * std::pow(other->us / *above, weight);
      out.others.push_back({one.candidate, *here * by, *here * by, *here * by});
    }
    const bool has_library = std::any_of(out.others.begin(), out.others.end(),
                                         [](const Alternative& a) { return a.candidate.family == spec::kLibrary; });
    if (!has_library || out.others.size() < 2) return std::nullopt;
    rank(&out.others);
    out.tier = Tier::recurrence;
    settle(op, machine_for(op), &out);
    out.reason += base::format("; by what was measured at M {} and {}", low->first, high->first);
    return is_considered(op, out) ? std::optional(std::move(out)) : std::nullopt;
  }

  Decision find(const OpSpec& op, const PlanOptions& options, const std::string& key) const {
    const bool keeps = is_kept(op, options);
    // Whether there is a cache is the first rank's to say, too.
    if (keeps || (is_probed(options) && op.ranks > 1 && !options.paper_rule)) {
      if (std::optional<Decision> found = kept(op, key, options)) return *found;
    }
    Decision out = decide(op, options);
    for (const std::string& why :
         {without_kernels(op, machine), not_measured(op, small_m.value_or(machine)), unmeasured_rate(op, machine)})
      if (!why.empty() && op.ranks > 1) out.reason += "; " + why;
    // What was found by less than what was asked for is tried again.
    if (keeps && out.tier == options.limit && (prober == nullptr || prober->is_first())) cache.put(key, out);
    return out;
  }

  Decision decide(const OpSpec& op, const PlanOptions& options) const {
    if (options.paper_rule) {
      const Candidate candidate = op.ranks == 1 ? Candidate{std::string(spec::kLibrary), 1} : paper_rule(op, machine);
      return {candidate, Tier::rule, "FiCCO's rule: " + to_string(candidate), {}};
    }
    if (options.limit == Tier::rule || op.ranks == 1 || op.m == 0 || !is_modelled(op, machine, options.limit))
      return by_rates(op, machine, options.heap_bytes);
    const Machine& figures = machine_for(op);
    Decision out = estimated(op, figures);
    const size_t known = out.others.size();
    std::erase_if(out.others, [&](const Alternative& a) { return !fits(op, a.candidate, options.heap_bytes); });
    const size_t left_out = known - out.others.size();
    if (options.limit >= Tier::simulation && simulation != nullptr) simulate(op, options, &out);
    std::string failure;
    if (is_probed(options)) failure = probe(op, decide(op, {.heap_bytes = options.heap_bytes}).candidate, &out);
    settle(op, figures, &out);
    if (left_out != 0)
      out.reason += base::format("; {} schedules need more than {} bytes of heap", left_out, options.heap_bytes);
    if (!failure.empty()) out.reason += "; not measured: " + failure;
    // Where the file says what lanes cost the host, estimates have what this rule stands for.
    const bool knows_host = figures.latency.host_lanes_us.value > 0;
    if (out.tier != Tier::probe && !has_small_m_kernel(op, figures) && !knows_host) {
      if (const std::string why = too_little_to_hide(op, machine); !why.empty()) {
        settle_short(op, figures, &out);
        out.reason = why + "; " + out.reason;
      }
    }
    return out;
  }

  /// Takes one that is short alone; all stay considered. `library` where models see less than kLeastShortGain:
  /// latencies are most of such times, and two H200 lost up to 10 % where the gain was said to be 5 % (mid_x2.jsonl).
  static void settle_short(const OpSpec& op, const Machine& figures, Decision* decision) {
    std::vector<Alternative> all = decision->others;
    double most = 0;  // that is worth it
    for (const Alternative& a : all)
      if (a.candidate.family == spec::kLibrary) most = a.us * (1 - kLeastShortGain);
    std::erase_if(decision->others, [&](const Alternative& a) {
      return a.candidate.family != spec::kLibrary && (!is_short(op, a.candidate) || a.us > most);
    });
    settle(op, figures, decision);
    decision->others = std::move(all);
  }

  /// Why nothing was measured; empty where it was. `usual`, which is taken where nothing is measured, is measured too:
  /// no choice gets worse by more than noise.
  std::string probe(const OpSpec& op, const Candidate& usual, Decision* decision) const {
    std::vector<Candidate> list;
    for (const Alternative& other : decision->others)
      if (list.size() < kProbed && other.candidate.family != spec::kLibrary) list.push_back(other.candidate);
    for (const Candidate& one : {usual, Candidate{std::string(spec::kLibrary), 1}})
      if (std::find(list.begin(), list.end(), one) == list.end()) list.push_back(one);
    std::vector<spec::Schedule> schedules;
    for (const Candidate& one : list) schedules.push_back(spec::make_schedule(op, one.family, one.degree));
    const base::Result<std::vector<spec::Estimate>> found = prober->measure(schedules, op);
    if (!found.ok()) return found.status().message();
    std::vector<Alternative> measured;
    for (size_t i = 0; i < list.size() && i < found->size(); ++i) {
      const spec::Estimate& one = (*found)[i];
      if (std::isfinite(one.us) && one.us > 0) measured.push_back({list[i], one.us, one.lo_us, one.hi_us});
    }
    if (measured.size() != list.size()) return "a time is missing";
    rank(&measured);
    decision->others = std::move(measured);
    decision->tier = Tier::probe;
    return {};
  }

  /// The best of the recurrence, those that it knows too little of, and those that it does not know.
  std::vector<Candidate> simulated(const OpSpec& op, const PlanOptions& options, const Decision& decision) const {
    using enum spec::ClosedForm;
    std::vector<Candidate> out;
    for (size_t i = 0; i < decision.others.size(); ++i) {
      const Candidate& candidate = decision.others[i].candidate;
      const spec::ClosedForm form = spec::form_of(op.op, candidate.family);
      const bool is_always = !spec::has_degree(candidate.family) || form == slab_kernel || form == tile_kernel;
      if (i < kSimulated || is_always) out.push_back(candidate);
    }
    for (const Candidate& candidate : candidates(op, machine_for(op)))
      if (spec::form_of(op.op, candidate.family) == none && fits(op, candidate, options.heap_bytes))
        out.push_back(candidate);
    return out;
  }

  void simulate(const OpSpec& op, const PlanOptions& options, Decision* decision) const {
    const Machine& figures = machine_for(op);
    std::vector<Alternative> times;
    for (const Candidate& candidate : simulated(op, options, *decision)) {
      const auto found = simulation->estimate(spec::make_schedule(op, candidate.family, candidate.degree), op, figures);
      if (found.ok() && std::isfinite(found->us) && found->us > 0)
        times.push_back(with_band(op, figures, Tier::simulation, candidate, found->us));
    }
    if (times.empty()) return;
    rank(&times);
    decision->others = std::move(times);
    decision->tier = Tier::simulation;
  }

  /// The one whose figures say something of the problem.
  const Machine& machine_for(const OpSpec& op) const {
    return small_m && spec::has_measured_tokens(op, *small_m) ? *small_m : machine;
  }

  const Machine machine;
  const std::optional<Machine> small_m;
  const spec::CostModel* const simulation;
  spec::Prober* const prober;
  const Cache cache;
  const Cache shipped;
  const std::string kept_in;
  std::mutex mutex;
  std::map<std::string, std::pair<Decision, std::string>> probed;    // by key: keep(), with where it is kept
  std::map<std::string, std::shared_ptr<const Decision>> decisions;  // by bucket of M
  std::map<std::string, std::shared_ptr<const Plan>> plans;          // by M
};

Planner::Planner(Machine machine, const PlannerParts& parts)
    : state_(std::make_unique<State>(std::move(machine), parts)) {}
Planner::~Planner() = default;

const Machine& Planner::machine() const { return state_->machine; }

namespace {

/// Decisions are kept for the upper end of a bucket of M.
OpSpec upper_of(const OpSpec& op) {
  OpSpec upper = op;
  if (op.row_offsets.empty() && op.splits.empty()) upper.m = bucket_of(op.m);
  return upper;
}

Plan plan_of(const OpSpec& op, const OpSpec& upper, const Decision& decision, const Machine& machine) {
  Plan plan;
  plan.candidate = decision.candidate;
  plan.tier = decision.tier;
  plan.reason = decision.reason;
  plan.others = decision.others;
  plan.options = decision.options;
  // The bucket's upper end may have its rows' scales at 16 bytes where the call has not.
  if (machine.is_gpu && has_odd_scales(op) && !multiplies_all_rows(op, plan.candidate.family)) {
    plan.reason += base::format("; {} cannot read the scales of these rows: library", to_string(plan.candidate));
    plan.candidate = {std::string(spec::kLibrary), 1};
    plan.options = {};
  }
  plan.schedule = spec::make_schedule(op, plan.candidate.family, plan.candidate.degree, plan.options);
  if (is_modelled(upper, machine, decision.tier))
    plan.estimate.parts = Recurrence(upper, machine).waterfall(plan.candidate);
  const auto mine = std::find_if(plan.others.begin(), plan.others.end(),
                                 [&](const Alternative& a) { return a.candidate == plan.candidate; });
  if (mine != plan.others.end()) {
    plan.estimate.us = mine->us;
    plan.estimate.lo_us = mine->lo_us;
    plan.estimate.hi_us = mine->hi_us;
  }
  return plan;
}

}  // namespace

std::shared_ptr<const Plan> Planner::kept(const OpSpec& op) const {
  const OpSpec upper = upper_of(op);
  const std::string exact = std::string(kKeptKey) + key_of(op, {}, op.m);
  const bool stays = !state_->cache.is_on();  // no file, whose lines others may replace
  const std::lock_guard lock(state_->mutex);
  if (const auto found = state_->plans.find(exact); stays && found != state_->plans.end()) return found->second;
  if (const auto probed = state_->probed.find(key_of(op, {.limit = Tier::probe}, upper.m));
      probed != state_->probed.end()) {
    const auto& [decision, kept_in] = probed->second;
    auto plan = std::make_shared<Plan>(plan_of(op, upper, decision, state_->machine_for(op)));
    plan->key = probed->first;
    plan->reason += "; kept in " + kept_in;
    if (state_->plans.size() < kKept) state_->plans[exact] = plan;
    return plan;
  }
  const auto made = [&](const std::string& key, const std::optional<Decision>& decision) -> std::shared_ptr<Plan> {
    if (!decision || !state_->is_considered(upper, *decision)) return nullptr;
    auto plan = std::make_shared<Plan>(plan_of(op, upper, *decision, state_->machine_for(op)));
    plan->key = key;
    return plan;
  };
  const auto found_in = [&](const Cache& cache, Tier tier) -> std::shared_ptr<Plan> {
    const std::string key = key_of(op, {.limit = tier}, upper.m);
    std::optional<Decision> found = decision_of(cache.find(key), key, state_->machine);
    return found && found->tier == tier ? made(key, found) : nullptr;
  };
  const bool has_buckets = op.m > 0 && op.ranks > 1 && op.row_offsets.empty() && op.splits.empty();
  const std::string kept_in = stays ? "; kept in " + state_->kept_in : "", shipped = "; comes with the library";
  std::shared_ptr<Plan> plan;
  const auto take = [&plan](std::shared_ptr<Plan> found, const std::string& where) {
    if (plan != nullptr || found == nullptr) return;
    plan = std::move(found);
    plan->reason += where;
  };
  take(found_in(state_->cache, Tier::probe), kept_in);
  if (plan == nullptr) take(found_in(state_->shipped, Tier::probe), shipped);
  if (plan == nullptr && stays && has_buckets)
    take(made(key_of(op, {.limit = Tier::probe}, upper.m), state_->between(upper)), "");
  if (plan == nullptr) take(found_in(state_->cache, Tier::simulation), kept_in);
  if (stays && state_->plans.size() < kKept) state_->plans[exact] = plan;  // null, too: it is not looked for again
  return plan;
}

void Planner::keep(const Plan& plan, const std::string& kept_in) {
  const std::lock_guard lock(state_->mutex);
  state_->probed[plan.key] = {{plan.candidate, plan.tier, plan.reason, plan.others, plan.options}, kept_in};
  std::erase_if(state_->plans, [](const auto& one) { return one.first.starts_with(kKeptKey); });
}

std::shared_ptr<const Plan> Planner::plan(const OpSpec& op, const PlanOptions& options) {
  const std::string key = key_of(op, options, op.m);
  const std::lock_guard lock(state_->mutex);
  if (const auto found = state_->plans.find(key); found != state_->plans.end()) return found->second;

  const OpSpec upper = upper_of(op);
  const std::string upper_key = key_of(op, options, upper.m);
  std::shared_ptr<const Decision>& decision = state_->decisions[upper_key];
  if (decision == nullptr) decision = std::make_shared<const Decision>(state_->find(upper, options, upper_key));
  auto plan = std::make_shared<Plan>(plan_of(op, upper, *decision, state_->machine_for(op)));
  plan->key = upper_key;
  if (state_->plans.size() >= kKept) state_->plans.clear();
  if (state_->decisions.size() >= kKept) state_->decisions.clear();
  state_->plans[key] = plan;
  return plan;
}

}  // namespace overlace::plan
