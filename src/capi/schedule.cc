// Schedules of the C API: made, chosen, read, shown.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <span>

#include "overlace/ops/common.h"
#include "src/capi/convert.h"
#include "src/exec/run.h"
#include "src/runtime/hash.h"
#include "src/spec/check.h"
#include "src/spec/heap_layout.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// Schedules are checked for what is wrong wherever they run; what this machine lacks says ovl_schedule_supported.
spec::Machine any_machine() {
  spec::Machine machine;
  machine.name = "any";
  machine.sms = 132;  // of an H200: the largest that there is a schedule for
  machine.heap_bytes = int64_t{1} << 46;
  machine.num_signal_ids = int64_t{1} << 20;
  return machine;
}

base::Status check_static(const spec::Schedule& schedule) {
  spec::CheckOptions options;
  if (const auto ranks = schedule.params.find("G"); ranks != schedule.params.end())
    if (const auto* value = std::get_if<int64_t>(&ranks->second)) {
      if (*value < 1 || *value > 1024)
        return base::error(Errc::bad_schedule, "schedule /params/G: got {}, wanted 1 to 1024", *value);
      options.ranks = {static_cast<int>(*value)};
    }
  for (const spec::Finding& f : spec::check(schedule, any_machine(), options).findings)
    if (f.is_error)
      return base::error(Errc::bad_schedule, "schedule: {}: task {}, rank {}: {}", f.code, f.task, f.rank, f.text);
  return {};
}

std::unique_ptr<ScheduleTexts> with_texts(spec::Schedule schedule, std::string reason) {
  auto texts = std::make_unique<ScheduleTexts>();
  texts->schedule = std::move(schedule);
  texts->reason = std::move(reason);
  return texts;
}

}  // namespace

namespace overlace::capi {
namespace {

/// "family=NAME,degree=N", as plans were written before, as "NAME:N".
std::string as_written_now(std::string_view plan) {
  constexpr std::string_view kFamily = "family=", kDegree = ",degree=";
  if (!plan.starts_with(kFamily)) return std::string(plan);
  std::string out(plan.substr(kFamily.size()));
  if (const size_t at = out.find(kDegree); at != std::string::npos) out.replace(at, kDegree.size(), ":");
  return out;
}

std::shared_ptr<ScheduleObject> object_of(spec::Schedule schedule, std::string reason) {
  auto object = std::make_shared<ScheduleObject>();
  object->plans.push_back(with_texts(std::move(schedule), std::move(reason)));
  return object;
}

std::shared_ptr<ScheduleObject> chosen_for(const Context& context, const spec::OpSpec& op) {
  const std::shared_ptr<const plan::Plan> plan = context.plan(op);
  auto object = object_of(plan->schedule, plan->reason);
  object->chosen.emplace(Chosen{op, context});
  return object;
}

base::Result<std::shared_ptr<ScheduleObject>> make_object(const Context& context, const Channel& channel,
                                                          const spec::OpSpec& op, std::string_view plan) {
  if (plan.empty() || plan == spec::kAuto) {
    std::shared_ptr<ScheduleObject> object = chosen_for(context, op);
    if (ops::supports(channel, op, object->plan().schedule).ok()) return object;
    return object_of(spec::make_schedule(op, spec::kLibrary), "");
  }
  if (plan.front() == '{') {
    spec::Schedule read = spec::Schedule::from_json(plan);
    OVERLACE_TRY(check_static(read));
    return object_of(std::move(read), "");
  }
  const std::optional<spec::NamedFamily> named = spec::parse_family(as_written_now(plan));
  if (!named)
    return base::invalid_argument("{}: plan is '{}', wanted {}, or a schedule in JSON", op.op, plan,
                                  spec::kFamilyGrammar);
  spec::Schedule made = spec::make_schedule(op, named->family, named->degree);
  if (!spec::gives_result(made))
    return base::invalid_argument("{}: plan is '{}', which measures a part, wanted a family that gives the result",
                                  op.op, plan);
  return object_of(std::move(made), "");
}

}  // namespace

/// The hash of what most problems of a program differ in.
size_t CachedSchedules::Hash::operator()(const Key& key) const {
  uint64_t hash = runtime::hash_text(key.plan, runtime::hash_text(key.op.op));
  const auto mix = [&](int64_t value) { hash = runtime::mix_word(static_cast<uint64_t>(value), hash); };
  for (const int64_t size : {key.op.m, key.op.n, key.op.k}) mix(size);
  for (const auto* list : {&key.op.row_offsets, &key.op.splits, &key.op.blocks})
    std::for_each(list->begin(), list->end(), mix);
  return hash;
}

std::shared_ptr<ScheduleObject> CachedSchedules::find(const Key& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  list_.splice(list_.begin(), list_, found->second);
  return list_.front().second;
}

void CachedSchedules::add(Key key, std::shared_ptr<ScheduleObject> schedule) {
  list_.emplace_front(key, std::move(schedule));
  by_key_.emplace(std::move(key), list_.begin());
  if (list_.size() <= kMost) return;
  by_key_.erase(list_.back().first);
  list_.pop_back();
}

void CachedSchedules::follow(uint64_t generation) {
  if (generation == generation_) return;
  generation_ = generation;
  by_key_.clear();
  list_.clear();
}

base::Result<std::shared_ptr<ScheduleObject>> schedule_of(const RuntimeObject& runtime, ChannelObject& channel,
                                                          const spec::OpSpec& op, std::string_view plan) {
  channel.schedules.follow(runtime.context->generation());
  CachedSchedules::Key key{op, std::string(plan)};
  if (std::shared_ptr<ScheduleObject> kept = channel.schedules.find(key); kept != nullptr) return kept;
  base::Result<std::shared_ptr<ScheduleObject>> made = make_object(*runtime.context, *channel.channel, op, plan);
  if (made.ok()) channel.schedules.add(std::move(key), *made);
  return made;
}

base::Result<bool> ScheduleObject::give_way(Channel& channel, std::string_view local_param, exec::Impasse impasse) {
  const bool needs_less = impasse == exec::Impasse::heap_is_full;
  struct Vote {
    int64_t can = 0, value = 0;
  };
  const auto of = [&](const spec::OpSpec& op) { return local_param == "N" ? op.n : op.k; };
  const Vote mine{chosen ? 1 : 0, chosen ? of(chosen->op) : 0};
  std::vector<Vote> votes;
  for (const Bytes& entry : channel.team().exchange(std::as_bytes(std::span(&mine, 1)))) {
    Vote vote;
    std::memcpy(&vote, entry.data(), std::min(entry.size(), sizeof vote));
    votes.push_back(vote);
  }
  if (std::any_of(votes.begin(), votes.end(), [](const Vote& vote) { return vote.can == 0; })) return false;
  // All ranks see the same votes: the widest one decides, if what it takes can be made for the others.
  const auto with = [&](int64_t value) {
    spec::OpSpec op = chosen->op;
    (local_param == "N" ? op.n : op.k) = value;
    return op;
  };
  int64_t widest = 0;
  for (const Vote& vote : votes) widest = std::max(widest, vote.value);
  const uint64_t taken = spec::heap_bytes(plan().schedule, chosen->op.ranks);
  if (needs_less && taken == 0) return false;
  if (needs_less) chosen->heap_bytes = taken - 1;
  const std::shared_ptr<const plan::Plan> plan_of_widest = chosen->context.plan(with(widest), chosen->heap_bytes);
  const auto remade = [&](const spec::OpSpec& op) {
    const plan::Candidate& candidate = plan_of_widest->candidate;
    return spec::make_schedule(op, candidate.family, candidate.degree, plan_of_widest->options);
  };
  const bool fits_all = std::all_of(votes.begin(), votes.end(), [&](const Vote& vote) {
    return ops::supports(channel, with(vote.value), remade(with(vote.value))).ok();
  });
  spec::Schedule next = fits_all ? remade(chosen->op) : spec::make_schedule(chosen->op, spec::kLibrary);
  if (needs_less && spec::heap_bytes(next, chosen->op.ranks) >= taken) return false;
  std::string reason = plan_of_widest->reason + (fits_all ? "" : "; not all ranks can take it: library");
  if (needs_less)
    reason += base::format("; {} had no room for its {} bytes on the heap", plan().schedule.family, taken);
  else
    reason += base::format("; the ranks' own choices differ: that for {} {} counts", local_param, widest);
  plans.push_back(with_texts(std::move(next), std::move(reason)));
  return true;
}

base::Status ScheduleObject::follow_peers(Channel& channel, std::string_view local_param) {
  const int64_t value = local_param == "N" ? chosen->op.n : chosen->op.k;
  spec::Schedule theirs = exec::agreed_schedule(channel, local_param, value);
  if (const ops::Support support = ops::supports(channel, chosen->op, theirs); !support.ok()) {
    return base::error(Errc::not_supported,
                       "rank {} has {} {}, for which it cannot take {}, in which its peers are: {}",
                       channel.team().rank(), local_param, value, theirs.family, support.reason);
  }
  std::string reason = base::format("{}; {}, with which the peers have begun the call", plan().reason, theirs.family);
  plans.push_back(with_texts(std::move(theirs), std::move(reason)));
  return {};
}

}  // namespace overlace::capi

int ovl_operators_json(const char** json) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_operators_json", "json"}, json));
    static std::mutex mutex;
    static std::set<std::string>* const texts = new std::set<std::string>;  // operators may be added between two calls
    const std::lock_guard lock(mutex);
    *json = texts->insert(spec::operators_json()).first->c_str();
    return {};
  });
}

int ovl_schedule_make(const ovl_op* op, const char* family, int degree, ovl_schedule** schedule) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_schedule_make";
    OVERLACE_TRY(check_not_null({kCall, "schedule"}, schedule));
    OVERLACE_TRY(check_not_null({kCall, "family"}, family));
    const base::Result<spec::OpSpec> problem = op_of({kCall, "op"}, op);
    if (!problem.ok()) return problem.status();
    give(object_of(spec::make_schedule(*problem, family, degree), ""), schedule);
    return {};
  });
}

int ovl_schedule_choose(ovl_runtime* runtime, const ovl_op* op, ovl_schedule** schedule) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_schedule_choose";
    Entry entry;
    OVERLACE_TRY(check_not_null({kCall, "schedule"}, schedule));
    const base::Result<spec::OpSpec> problem = op_of({kCall, "op"}, op);
    if (!problem.ok()) return problem.status();
    OVERLACE_TRY(enter({kCall, "runtime"}, runtime, &entry));
    give(chosen_for(*entry.shared()->context, *problem), schedule);
    return {};
  });
}

int ovl_schedule_from_json(const char* json, ovl_schedule** schedule) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_schedule_from_json", "schedule"}, schedule));
    OVERLACE_TRY(check_not_null({"ovl_schedule_from_json", "json"}, json));
    spec::Schedule read = spec::Schedule::from_json(json);
    OVERLACE_TRY(check_static(read));
    give(object_of(std::move(read), ""), schedule);
    return {};
  });
}

int ovl_schedule_free(ovl_schedule* schedule) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(find<ScheduleObject>({"ovl_schedule_free", "schedule"}, schedule).status());
    Registry::instance().remove(number_of(schedule));
    return {};
  });
}

int ovl_schedule_json(ovl_schedule* schedule, const char** json) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_schedule_json", "json"}, json));
    const base::Result<std::shared_ptr<ScheduleObject>> found =
        find<ScheduleObject>({"ovl_schedule_json", "schedule"}, schedule);
    if (!found.ok()) return found.status();
    ScheduleTexts& texts = (*found)->plan();
    std::call_once(texts.json_once, [&] { texts.json = texts.schedule.to_json(); });
    *json = texts.json.c_str();
    return {};
  });
}

int ovl_schedule_text(ovl_schedule* schedule, const char** text) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_schedule_text", "text"}, text));
    const base::Result<std::shared_ptr<ScheduleObject>> found =
        find<ScheduleObject>({"ovl_schedule_text", "schedule"}, schedule);
    if (!found.ok()) return found.status();
    ScheduleTexts& texts = (*found)->plan();
    std::call_once(texts.text_once, [&] { texts.text = texts.schedule.to_string(); });
    *text = texts.text.c_str();
    return {};
  });
}

int ovl_schedule_reason(ovl_schedule* schedule, const char** reason) {
  return guarded([&]() -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_schedule_reason", "reason"}, reason));
    const base::Result<std::shared_ptr<ScheduleObject>> found =
        find<ScheduleObject>({"ovl_schedule_reason", "schedule"}, schedule);
    if (!found.ok()) return found.status();
    *reason = (*found)->plan().reason.c_str();
    return {};
  });
}

int ovl_schedule_supported(ovl_schedule* schedule, ovl_channel* channel, const ovl_op* op) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_schedule_supported";
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    const base::Result<spec::OpSpec> problem = op_of({kCall, "op"}, op);
    if (!problem.ok()) return problem.status();
    const base::Result<std::shared_ptr<ScheduleObject>> found = find<ScheduleObject>({kCall, "schedule"}, schedule);
    if (!found.ok()) return found.status();
    OVERLACE_TRY(enter({kCall, "channel"}, channel, &entry, &object));
    const ops::Support support = ops::supports(*object->channel, *problem, (*found)->plan().schedule);
    return support.ok() ? base::Status() : base::Status(Errc::not_supported, support.reason);
  });
}

int ovl_schedule_memory(ovl_schedule* schedule, const ovl_op* op, int rank, uint64_t* workspace, uint64_t* heap) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_schedule_memory";
    OVERLACE_TRY(check_not_null({kCall, "workspace"}, workspace));
    OVERLACE_TRY(check_not_null({kCall, "heap"}, heap));
    const base::Result<spec::OpSpec> problem = op_of({kCall, "op"}, op);
    if (!problem.ok()) return problem.status();
    const base::Result<std::shared_ptr<ScheduleObject>> found = find<ScheduleObject>({kCall, "schedule"}, schedule);
    if (!found.ok()) return found.status();
    const uint64_t local = ops::workspace_bytes(*problem, (*found)->plan().schedule, rank);
    *heap = ops::heap_bytes(*problem, (*found)->plan().schedule);
    *workspace = local;
    return {};
  });
}
