// Measuring what will run, of the C API.
#include "overlace/tune.h"

#include <algorithm>
#include <span>

#include "src/capi/convert.h"
#include "src/runtime/hash.h"
#include "src/runtime/state.h"
#include "src/spec/operators.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

std::string plan_text(const plan::Candidate& candidate) {
  return spec::has_degree(candidate.family) ? base::format("{}:{}", candidate.family, candidate.degree)
                                            : candidate.family;
}

/// Replaces what the channel has of an earlier call.
void keep(const TuneResult& result, ChannelObject* channel) {
  channel->tuned.clear();
  channel->tuned_texts.clear();
  const auto text = [&](std::string words) { return channel->tuned_texts.emplace_back(std::move(words)).c_str(); };
  for (const Tuned& one : result.tuned) {
    const bool has_failed = !one.failure.empty();
    const int state = has_failed ? OVL_TUNE_FAILED : one.was_kept ? OVL_TUNED_BEFORE : OVL_TUNED_NOW;
    channel->tuned.push_back({text(one.op.to_string()), text(plan_text(one.usual)), text(plan_text(one.tuned)),
                              text(one.failure), one.usual_us, one.tuned_us, one.library_us, state});
  }
  for (const spec::OpSpec& op : result.left)
    channel->tuned.push_back({text(op.to_string()), text(""), text(""), text(""), 0, 0, 0, OVL_TUNE_LEFT});
}

/// A call of few milliseconds may not become one of seconds: a third of what a shape takes without a limit.
constexpr double kFirstUseMs = 20;
constexpr size_t kMostMet = 4096;

}  // namespace

void capi::tune_first_use(const Context& context, ChannelObject& object, const spec::OpSpec& op, bool is_chosen) {
  Channel& channel = *object.channel;
  Team& team = channel.team();
  const RuntimeState& state = team.runtime().state();
  // The planner's winners are the context's, which all of its ranks share: teams of some of them would differ. Splits
  // change from call to call.
  if (team.size() == 1 || team.size() != state.world || !op.splits.empty()) return;
  // NOTE: whether to meet is decided by what all ranks have alike; what a rank alone knows goes into the meeting.
  spec::OpSpec shared = op;
  const std::string_view local_param = spec::find_operator(op.op)->local_param;
  if (local_param == "N") shared.n = 0;
  if (local_param == "K") shared.k = 0;
  if (object.met.size() >= kMostMet) object.met.clear();
  if (!object.met.insert(spec::key_of(shared)).second) return;
  const bool is_new = is_chosen && state.check_no_capture("").ok() && context.plan(op)->tier != plan::Tier::probe;
  const uint64_t mine[] = {runtime::hash_text(spec::key_of(op)), is_new ? 1u : 0u};
  const std::vector<Bytes> all = team.exchange(std::as_bytes(std::span(mine)));
  const bool differ = std::any_of(all.begin(), all.end(), [&](const Bytes& theirs) { return theirs != all.front(); });
  if (is_new && !differ) tune(context, channel, {op}, {.problem_ms = kFirstUseMs});
}

int ovl_tune(ovl_channel* channel, const ovl_op* problems, int count, double seconds, const ovl_tuned** tuned,
             int* num_tuned) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_tune";
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(check_not_null({kCall, "tuned"}, tuned));
    OVERLACE_TRY(check_not_null({kCall, "num_tuned"}, num_tuned));
    if (count < 0) return base::invalid_argument("{}: count is {}, wanted 0 or more", kCall, count);
    std::vector<spec::OpSpec> list;
    for (int i = 0; problems != nullptr && i < count; ++i) {
      base::Result<spec::OpSpec> problem = op_of({kCall, "problems"}, &problems[i]);
      if (!problem.ok()) return problem.status();
      list.push_back(std::move(*problem));
    }
    OVERLACE_TRY(enter({kCall, "channel"}, channel, &entry, &object));
    const Context& context = *entry.shared()->context;
    const TuneOptions options = {.seconds = seconds};
    keep(
        problems == nullptr ? tune(context, *object->channel, options) : tune(context, *object->channel, list, options),
        object.get());
    *tuned = object->tuned.data();
    *num_tuned = static_cast<int>(object->tuned.size());
    return {};
  });
}
