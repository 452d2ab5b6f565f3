#include "cli/run/schedules.h"

#include <algorithm>

#include "src/base/file.h"
#include "src/base/json.h"
#include "src/spec/check.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Json;
using base::Result;
using base::Status;

constexpr int kGpuSms = 132;                    // of an H200
constexpr int64_t kAnyHeap = int64_t{1} << 46;  // heaps are made as large as the schedules ask (run_memory.h)

Status bad_schedule(const std::string& why) { return Status(Errc::bad_schedule, why); }

Result<spec::Schedule> parse_schedule(const Json& json) {
  try {
    return spec::Schedule::from_json(json.dump());
  } catch (...) {
    return base::status_of_current_exception();
  }
}

/// "ag_gemm M 1024 N 512 K 512 G 2 fp32", also for what lacks a part.
std::string problem_of(const spec::Schedule& schedule) {
  std::string out = schedule.op;
  for (const char* key : {"M", "N", "K", "G", "dtype"}) {
    const auto found = schedule.params.find(key);
    if (found == schedule.params.end()) continue;
    const bool is_dtype = std::string_view(key) == "dtype";
    if (!is_dtype) out += base::format(" {}", key);
    if (const auto* number = std::get_if<int64_t>(&found->second)) out += base::format(" {}", *number);
    if (const auto* text = std::get_if<std::string>(&found->second)) out += " " + *text;
  }
  return out;
}

std::string problem_of(const model::Site& site) {
  return base::format("{} M {} N {} K {} G {} {}", site.op.op, site.op.m, site.op.n, site.op.k, site.op.ranks,
                      dtype_name(site.op.dtype));
}

std::string names_of(const std::vector<model::Site>& sites) {
  std::string out;
  for (const model::Site& site : sites) out += (out.empty() ? "" : ", ") + site.name;
  return out;
}

/// The first of the static checks that fails.
Status check_static(const spec::Schedule& schedule, const RunPlan& plan) {
  spec::Machine machine;
  machine.is_gpu = plan.backend == Backend::cuda_peer;
  machine.name = machine.is_gpu ? "GPUs" : "CPU ranks";
  machine.ranks = plan.ranks;
  machine.sms = machine.is_gpu ? kGpuSms : 1;
  machine.heap_bytes = kAnyHeap;
  spec::CheckOptions options;
  options.ranks = {plan.ranks};
  try {
    const spec::CheckReport report = spec::check(schedule, machine, options);
    for (const spec::Finding& f : report.findings)
      if (f.is_error) return bad_schedule(base::format("{}: task {}, rank {}: {}", f.code, f.task, f.rank, f.text));
    return {};
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Status add_single(const Json& json, const RunPlan& plan, ScheduleRequest* out) {
  const auto schedule = parse_schedule(json);
  if (!schedule.ok()) return schedule.status();
  for (const model::Site& site : plan.sites)
    if (problem_of(*schedule) == problem_of(site)) out->by_site[site.name] = *schedule;
  if (out->by_site.empty())
    return bad_schedule(base::format("it is for {}, which is none of the sites' problems: {} poses {}",
                                     problem_of(*schedule), plan.sites.front().name, problem_of(plan.sites.front())));
  return check_static(*schedule, plan);
}

Status add_named(const Json& json, const RunPlan& plan, ScheduleRequest* out) {
  for (const auto& [name, value] : json.as_object()) {
    const auto has_name = [&, &wanted = name](const model::Site& site) { return site.name == wanted; };
    const auto site = std::find_if(plan.sites.begin(), plan.sites.end(), has_name);
    if (site == plan.sites.end())
      return bad_schedule(base::format("there is no site {}, wanted some of {}", name, names_of(plan.sites)));
    auto schedule = parse_schedule(value);
    if (!schedule.ok()) return schedule.status();
    if (problem_of(*schedule) != problem_of(*site))
      return bad_schedule(
          base::format("{}: the schedule is for {}, wanted {}", name, problem_of(*schedule), problem_of(*site)));
    OVERLACE_TRY(check_static(*schedule, plan));
    out->by_site[name] = std::move(*schedule);
  }
  if (out->by_site.empty())
    return bad_schedule(base::format("it holds no schedule, wanted some of {}", names_of(plan.sites)));
  return {};
}

Status read_file(const std::string& path, const RunPlan& plan, ScheduleRequest* out) {
  const auto text = base::read_file(path);
  if (!text.ok()) return text.status();
  const auto json = Json::parse(*text, path);
  if (!json.ok()) return json.status();
  Status status;
  if (!json->is_object()) {
    status = bad_schedule(base::format("it is {}, wanted an object", json->type_name()));
  } else {
    status = json->find("op") != nullptr ? add_single(*json, plan, out) : add_named(*json, plan, out);
  }
  if (status.ok()) return status;
  return Status(status.code(), base::format("--schedule {}: {}", path, status.message()));
}

/// The sites that `where` names: one by its own name, or all of an operator.
std::vector<const model::Site*> sites_at(std::string_view where, const RunPlan& plan) {
  std::vector<const model::Site*> out;
  for (const model::Site& site : plan.sites)
    if (where.empty() || site.name == where || site.op.op == where) out.push_back(&site);
  return out;
}

/// "FAMILY", "FAMILY:DEGREE" at all sites, or a list of "WHERE=FAMILY:DEGREE". `auto` chooses.
Status read_words(const std::string& text, const RunPlan& plan, ScheduleRequest* out) {
  std::vector<std::string> seen;
  for (size_t begin = 0, end = 0; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find(',', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const size_t equals = word.find('=');
    const bool is_named = equals != std::string_view::npos;
    const std::string where(is_named ? word.substr(0, equals) : "");
    const std::string what(is_named ? word.substr(equals + 1) : word);
    const std::vector<const model::Site*> sites = sites_at(where, plan);
    if (is_named && (where.empty() || sites.empty()))
      return base::invalid_argument("--schedule {}: there is no site or operator {}, wanted some of {}", text,
                                    where.empty() ? "before =" : where, names_of(plan.sites));
    if (!is_named && word != text)
      return base::invalid_argument("--schedule {}: {} is at no site, wanted SITE=FAMILY or OPERATOR=FAMILY", text,
                                    what.empty() ? "nothing" : what);
    const bool is_auto = is_named && what == spec::kAuto;
    const std::optional<spec::NamedFamily> name = is_auto ? std::nullopt : spec::parse_family(what);
    if (!is_auto && !name)
      return base::invalid_argument("--schedule is {}, wanted {}, SITE=FAMILY,... or a file ending in .json", text,
                                    spec::kFamilyGrammar);
    for (const model::Site* site : sites) {
      if (std::find(seen.begin(), seen.end(), site->name) != seen.end())
        return base::invalid_argument("--schedule {}: {} is named twice, wanted once", text, site->name);
      seen.push_back(site->name);
      if (is_auto) continue;
      const spec::FamilyDef* family = spec::find_family(*spec::find_operator(site->op.op), name->family);
      if (family != nullptr && family->purpose != spec::Purpose::plan)
        return base::invalid_argument("--schedule is {}, which measures a part and gives no result", text);
      const spec::Params options = {{"hosts", int64_t{plan.hosts}}};
      try {
        out->by_site[site->name] = spec::make_schedule(site->op, name->family, name->degree, options);
      } catch (...) {
        return base::status_of_current_exception();
      }
    }
  }
  return {};
}

}  // namespace

Result<ScheduleRequest> request_schedules(const std::string& text, const RunPlan& plan) {
  ScheduleRequest out;
  if (text == spec::kAuto) return out;
  if (plan.sites.empty())
    return base::invalid_argument("--schedule is {}, but nothing that --part moe runs takes one, wanted {}", text,
                                  spec::kAuto);
  out.reason = "asked for: --schedule " + text;
  if (text.ends_with(".json")) {
    OVERLACE_TRY(read_file(text, plan, &out));
    return out;
  }
  OVERLACE_TRY(read_words(text, plan, &out));
  return out;
}

}  // namespace overlace::cli
