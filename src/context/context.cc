#include "overlace/context.h"

#include <atomic>
#include <cstdio>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/base/status.h"
#include "src/context/machine.h"
#include "src/plan/cache.h"
#include "src/runtime/state.h"
#include "src/spec/operators.h"

namespace overlace {
namespace {

constexpr size_t kMostMet = 4096;  // problems

using base::Json;
using base::Result;

/// What rank 0 tells the others, as text: an error, or a machine, where it comes from, and what is kept for it.
std::string found_by_first(Runtime& runtime, const ContextOptions& options) {
  const RuntimeState& state = runtime.state();
  const LinkOptions& link = runtime.options().link;
  context::Site site;
  site.is_gpu = runtime.backend() == Backend::cuda_peer;
  site.device = state.backend->device_name();
  site.compute_capability = context::capability_of_team(runtime);
  site.ranks = state.world;
  site.hosts = state.num_hosts;
  site.emulated_bytes_per_s = link.enabled ? link.bytes_per_s : 0;
  Json out = Json::object();
  const Result<context::Found> found =
      context::find_machine(site, {options.machine, base::env().machine, context::machines_folder(), options.rates});
  if (!found.ok()) {
    out.set("code", static_cast<int64_t>(found.status().code())).set("error", found.status().message());
    return out.dump();
  }
  const spec::Machine& machine = found->machine;
  const bool tunes = base::env().tune == "first_use";
  if (tunes && !machine.has_costs()) {
    out.set("code", static_cast<int64_t>(Errc::not_supported));
    out.set("error",
            base::format("OVERLACE_TUNE is first_use, but {} ({}) has no costs to choose candidates by; wanted "
                         "a machine file: OVERLACE_MACHINE, or overlace calibrate",
                         machine.name, found->origin));
    return out.dump();
  }
  out.set("tunes", tunes);
  if (machine.has_costs()) {
    out.set("machine", Json::parse(spec::to_json(machine), "machine").value());
    out.set("kept", plan::Cache(base::env().plan_cache, machine).text()).set("kept_in", base::env().plan_cache);
  } else {
    out.set("link_GBps", machine.copy.all_GBps.value).set("TFLOPs", machine.gemm.sustained_TFLOPs.value);
    out.set("is_gpu", machine.is_gpu).set("hosts", machine.hosts);
    out.set("compute_capability", machine.compute_capability);
  }
  return out.set("origin", found->origin).dump();
}

spec::Machine machine_of(const Json& json) {
  if (const Json* machine = json.find("machine"); machine != nullptr) return spec::machine_from_json(machine->dump());
  spec::MachineRates rates;
  rates.is_gpu = json.find("is_gpu")->as_bool();
  rates.hosts = static_cast<int>(json.find("hosts")->as_int());
  spec::Machine out = spec::rated_machine(rates);
  out.copy.all_GBps = {json.find("link_GBps")->as_double()};  // bit for bit those of rank 0
  out.compute_capability = static_cast<int>(json.find("compute_capability")->as_int());
  out.gemm.sustained_TFLOPs = {json.find("TFLOPs")->as_double()};
  return out;
}

std::string text_of(const Json& json, std::string_view key) {
  const Json* text = json.find(key);
  return text != nullptr ? text->as_string() : std::string();
}

}  // namespace

struct Context::State {
  State(const spec::Machine& machine, const Json& json)
      : planner(machine, {.kept = text_of(json, "kept"), .kept_in = text_of(json, "kept_in")}),
        origin(text_of(json, "origin")),
        tunes(json.find("tunes")->as_bool()) {}

  plan::Planner planner;
  const std::string origin;
  const bool tunes;
  bool explains = false;
  std::atomic<uint64_t> generation = 0;
  std::mutex mutex;
  std::set<std::string> explained;
  std::list<spec::OpSpec> met;  // the latest first
  std::map<std::string, std::list<spec::OpSpec>::iterator> met_by_key;

  void meet(const spec::OpSpec& op) {
    const std::lock_guard lock(mutex);
    const auto [known, is_new] = met_by_key.try_emplace(spec::key_of(op), met.end());
    if (!is_new) {
      met.splice(met.begin(), met, known->second);
      return;
    }
    met.push_front(op);
    known->second = met.begin();
    if (met.size() <= kMostMet) return;
    met_by_key.erase(spec::key_of(met.back()));
    met.pop_back();
  }

  void explain(const spec::OpSpec& op, const plan::Plan& plan) {
    const std::string line =
        base::format("overlace: {}: {}: {} [{}]\n", op.to_string(), to_string(plan.candidate), plan.reason, origin);
    const std::lock_guard lock(mutex);
    if (explained.insert(line).second) std::fputs(line.c_str(), stderr);
  }
};

Context::Context(std::shared_ptr<State> state) : state_(std::move(state)) {}

Context Context::open(Runtime& runtime, const ContextOptions& options) {
  Team& team = runtime.world();
  const std::string text = runtime::text_of_first(team, team.rank() == 0 ? found_by_first(runtime, options) : "");
  const Json json = Json::parse(text, "context").value();
  if (const Json* error = json.find("error"); error != nullptr)
    throw_error(static_cast<Errc>(json.find("code")->as_int()), error->as_string());
  auto state = std::make_shared<State>(machine_of(json), json);
  state->explains = base::env().explain && team.rank() == 0;
  return Context(std::move(state));
}

const spec::Machine& Context::machine() const { return state_->planner.machine(); }

const std::string& Context::machine_origin() const { return state_->origin; }

std::shared_ptr<const plan::Plan> Context::plan(const spec::OpSpec& op, uint64_t heap_bytes) const {
  if (heap_bytes == 0) state_->meet(op);
  std::shared_ptr<const plan::Plan> found = heap_bytes == 0 ? state_->planner.kept(op) : nullptr;
  if (found == nullptr) found = state_->planner.plan(op, {.heap_bytes = heap_bytes});
  if (state_->explains) state_->explain(op, *found);
  return found;
}

std::vector<spec::OpSpec> Context::met() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->met.begin(), state_->met.end()};
}

void Context::keep(const std::vector<std::shared_ptr<const plan::Plan>>& plans, const std::string& kept_in) const {
  if (plans.empty()) return;  // what was chosen stays
  for (const auto& plan : plans) state_->planner.keep(*plan, kept_in);
  ++state_->generation;
}

bool Context::tunes_at_first_use() const { return state_->tunes; }

uint64_t Context::generation() const { return state_->generation.load(std::memory_order_relaxed); }

}  // namespace overlace
