// What surrounds each call of an operator: OVERLACE_CHECK, and the order of channels that share a GPU.
#include <algorithm>
#include <cstring>
#include <utility>

#include "overlace/error.h"
#include "src/runtime/channel.h"

namespace overlace::runtime {
namespace {

/// What a rank is about to do. Other collectives of the team meet in the same exchange, so it says what it is.
struct CallRecord {
  static constexpr uint64_t kMagic = 0x0b1aceca11ull;
  uint64_t magic = kMagic, number = 0, hash = 0;
};
constexpr size_t kMaxText = 1024;

struct Entry {
  CallRecord record{.magic = 0};
  std::string text;
};

Entry read_entry(const Bytes& bytes) {
  Entry entry;
  if (bytes.size() < sizeof(CallRecord)) return entry;
  std::memcpy(&entry.record, bytes.data(), sizeof(CallRecord));
  entry.text.assign(reinterpret_cast<const char*>(bytes.data()) + sizeof(CallRecord),
                    bytes.size() - sizeof(CallRecord));
  return entry;
}

std::string text_of(const Entry& entry) {
  if (entry.record.magic != CallRecord::kMagic) return "no call, but another collective (a barrier, close)";
  return base::format("call {}: {}", entry.record.number, entry.text);
}

/// The ranks of the team see the same entries and come to the same end, each with the whole message. The others are
/// told once those have: an abort that came first would take its place.
[[noreturn]] void desync(RuntimeState& state, const TeamState& team, const std::string& message) {
  constexpr int64_t kMaxWaitMs = 1000;  // a rank that makes no calls does not answer
  const AbortCause cause{Errc::desync, message};
  state.backend->abort(cause);
  (void)state.control->exchange(team.members, {}, std::min(state.options.timeout_ms, kMaxWaitMs), "desync");
  state.control->spread(cause);
  state.has_thrown_cause = true;
  throw Desync(Errc::desync, message);
}

void compare_calls(RuntimeState& state, TeamState& team, const std::string& operation) {
  CallRecord record;
  record.number = ++team.calls;
  record.hash = hash_text(operation);
  const std::string text = operation.substr(0, kMaxText);
  Bytes mine(sizeof record + text.size());
  std::memcpy(mine.data(), &record, sizeof record);
  std::memcpy(mine.data() + sizeof record, text.data(), text.size());
  const std::vector<Bytes> all =
      state.exchange(team, mine, base::format("team \"{}\", call {}: {}", team.name, record.number, text));
  const Entry first = read_entry(all[0]);
  for (size_t r = 1; r < all.size(); ++r) {
    const Entry other = read_entry(all[r]);
    if (std::memcmp(&first.record, &other.record, sizeof record) == 0) continue;
    desync(state, team,
           base::format("ranks of team \"{}\" do not make the same calls: rank 0 makes {}; rank {} makes {}", team.name,
                        text_of(first), r, text_of(other)));
  }
}

CallSite site_of(const Channel& channel, const ChannelPod& pod) {
  return {pod.channel_id, channel.stream(), channel.options().sm_budget};
}

template <class Body>
base::Status guarded(Body body) {
  try {
    body();
    return {};
  } catch (...) {
    return base::status_of_current_exception();
  }
}

}  // namespace

base::Status begin_call(Channel& channel, const std::function<std::string()>& operation) {
  TeamState& team = channel.team().state();
  RuntimeState& state = *team.runtime;
  OVERLACE_TRY(guarded([&] {
    state.enter();
    if (state.options.checks.calls) compare_calls(state, team, operation());
  }));
  if (!state.findings.empty()) state.found = state.take_finding();
  OVERLACE_TRY(state.backend->begin_call(site_of(channel, channel.pod()), state.stats));
  ++state.stats.calls;
  return {};
}

base::Status end_call(Channel& channel, std::optional<bool> is_captured) {
  RuntimeState& state = *channel.team().state().runtime;
  OVERLACE_TRY(state.backend->end_call(site_of(channel, channel.pod()), is_captured));
  if (state.options.checks.sync) {
    OVERLACE_TRY(state.backend->drain(channel.stream()));
    OVERLACE_TRY(guarded([&] { state.enter(); }));
    if (!is_captured.value_or(false)) return state.take_finding();
  }
  return is_captured.value_or(false) ? base::Status() : std::exchange(state.found, base::Status());
}

}  // namespace overlace::runtime
