#include "cli/run/kept.h"

#include <exception>
#include <span>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/base/log.h"

namespace overlace::cli {
namespace {

using base::Json;
using base::Result;

constexpr const char* kGpuMachine = "h200x4";  // what `auto` chooses by

/// {"layers.0.qkv": ["k_slab", 4, "probe: ..."]}
Json find_kept(const RunPlan& plan, const base::Env& env) {
  Json out = Json::object();
  const bool is_gpu = plan.backend == Backend::cuda_peer;
  const std::string name = !env.machine.empty() ? env.machine : is_gpu ? kGpuMachine : "";
  if (env.plan_cache.empty() || name.empty() || plan.placement.hosts > 1 || plan.hosts > 1 || plan.link.enabled)
    return out;
  try {
    const plan::Planner planner(spec::find_machine(name), {.cache = env.plan_cache});
    if (planner.machine().is_gpu != is_gpu) return out;
    for (const model::Site& site : plan.sites) {
      const auto kept = plan.request.by_site.contains(site.name) ? nullptr : planner.kept(site.op);
      if (kept == nullptr) continue;
      Json row = Json::array();
      row.push_back(kept->candidate.family);
      row.push_back(kept->candidate.degree);
      row.push_back(kept->reason + "; kept in " + env.plan_cache);
      out.set(site.name, std::move(row));
    }
  } catch (const std::exception& e) {  // the others wait for what this rank says
    base::warn_once("run", base::format("{}; kept plans are not used", e.what()));
    return Json::object();
  }
  return out;
}

}  // namespace

Result<std::map<std::string, plan::Choice>> kept_choices(const RunPlan& plan, const base::Env& env, Team& team) {
  std::map<std::string, plan::Choice> out;
  try {
    const std::string mine = team.rank() == 0 ? find_kept(plan, env).dump() : "";
    const auto all = team.exchange(std::as_bytes(std::span(mine)));
    const std::string first(reinterpret_cast<const char*>(all.front().data()), all.front().size());
    const Result<Json> kept = Json::parse(first, "kept plans");
    if (!kept.ok()) return kept.status();
    for (const model::Site& site : plan.sites) {
      const Json* row = kept->find(site.name);
      if (row == nullptr) continue;
      const Json::Array& cells = row->as_array();
      out[site.name] = {spec::make_schedule(site.op, cells[0].as_string(), static_cast<int>(cells[1].as_int())),
                        cells[2].as_string()};
    }
  } catch (...) {
    return base::status_of_current_exception();
  }
  return out;
}

}  // namespace overlace::cli
