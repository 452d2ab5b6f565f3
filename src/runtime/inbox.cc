// Inboxes and local counters of a channel: their memory, ids and names.
#include <algorithm>
#include <cstring>
#include <limits>

#include "overlace/error.h"
#include "src/runtime/channel.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

constexpr int kMaxBuffers = 64;
constexpr uint32_t kMaxCounters = 1 << 24;

/// All ranks of the team said the same, or PlanMismatch on all of them with the first that did not. What a rank cannot
/// do it says instead, so that nobody waits for it.
void agree_on_inbox(RuntimeState& state, const TeamState& team, const std::string& mine, const char* name) {
  const std::string what = base::format("channel.inbox \"{}\"", name);
  const std::vector<Bytes> all = state.exchange(team, runtime::bytes_of(mine), what);
  std::vector<std::string> texts;
  for (const Bytes& entry : all) texts.emplace_back(reinterpret_cast<const char*>(entry.data()), entry.size());
  for (size_t r = 1; r < texts.size(); ++r)
    if (texts[r] != texts[0])
      throw PlanMismatch(Errc::plan_mismatch, base::format("{} differs between ranks of team \"{}\": rank 0 has {}, "
                                                           "rank {} has {}",
                                                           what, team.name, texts[0], r, texts[r]));
}

}  // namespace

std::string ChannelState::make_inbox(size_t bytes, const std::string& name, InboxPod& pod, Inbox& made) {
  RuntimeState& state = *team_.runtime;
  if (made.buffers < 1 || made.buffers > kMaxBuffers)
    throw InvalidArgument(Errc::invalid_argument, base::format("channel.inbox \"{}\": k is {}, wanted 1 to {} buffers",
                                                               name, made.buffers, kMaxBuffers));
  const auto k = static_cast<uint64_t>(made.buffers);
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 2 / k)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("channel.inbox \"{}\": buffers of {} bytes, wanted 1 to {}", name, bytes,
                                       std::numeric_limits<size_t>::max() / 2 / k));
  made.pitch = align_up(bytes, kHeapAlign);
  made.memory = state.heap.alloc(made.pitch * k, kHeapAlign, name.c_str());
  const Domain domain = stream_.kind == StreamRef::Kind::cpu ? Domain::cpu : Domain::device;
  made.data = ids(1, domain, (name + ".data").c_str());
  made.credit = ids(1, domain, (name + ".credit").c_str());
  const auto ranks = static_cast<uint32_t>(team_.members.size());
  base::Result<void*> cells = state.backend->allocate_local(inbox_cells(ranks) * sizeof(uint64_t), stream_);
  cells.status().or_throw();
  pod = {.offset = made.memory.offset,
         .pitch = made.pitch,
         .cells = static_cast<uint64_t*>(*cells),
         .buffers = static_cast<uint32_t>(k),
         .ranks = ranks,
         .data_id = made.data.first,
         .credit_id = made.credit.first};
  return base::format("{} buffers of {} bytes at offset {}, signals {} and {}", k, bytes, pod.offset, pod.data_id,
                      pod.credit_id);
}

/// What a rank cannot do it says in the exchange, so that nobody waits for it; what it had comes back then.
Inbox ChannelState::inbox(size_t bytes, int k, const char* name) {
  RuntimeState& state = *team_.runtime;
  state.enter();
  auto pod = std::make_unique<InboxPod>();
  Inbox made{.buffers = k, .handle = pod.get()};
  base::Status status;
  try {
    std::string text;
    try {
      text = make_inbox(bytes, name, *pod, made);
    } catch (...) {
      status = base::status_of_current_exception();
      text = "refused: " + status.message();
    }
    agree_on_inbox(state, team_, text, name);
    status.or_throw();
  } catch (...) {
    give_back(made);
    status.or_throw();
    throw;
  }
  inboxes_.push_back(std::move(pod));
  return made;
}

void ChannelState::give_back(const Inbox& inbox) {
  RuntimeState& state = *team_.runtime;
  state.backend->free_local(inbox.handle->cells);
  if (inbox.credit.count != 0) release(inbox.credit);
  if (inbox.data.count != 0) release(inbox.data);
  if (inbox.memory) state.heap.free(inbox.memory);
}

void ChannelState::release(const Inbox& inbox) {
  RuntimeState& state = *team_.runtime;
  state.enter();
  const auto at =
      std::find_if(inboxes_.begin(), inboxes_.end(), [&](const auto& one) { return one.get() == inbox.handle; });
  if (at == inboxes_.end())
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("channel.release: the inbox at offset {} is not one that this channel made, or "
                                       "was released before",
                                       inbox.memory.offset));
  // Nobody writes into the buffers any more once all have come here.
  state.exchange(team_, {}, base::format("team \"{}\", release of an inbox", team_.name));
  give_back(inbox);
  inboxes_.erase(at);
}

Counters ChannelState::counters(uint32_t count, const char* name) {
  RuntimeState& state = *team_.runtime;
  state.enter();
  if (count == 0 || count > kMaxCounters)
    throw InvalidArgument(Errc::invalid_argument, base::format("channel.counters \"{}\": count is {}, wanted 1 to {}",
                                                               name, count, kMaxCounters));
  base::Result<void*> words = state.backend->allocate_local(size_t{count} * kCounterPitch, stream_);
  words.status().or_throw();
  counters_.push_back(
      std::make_unique<CountersPod>(CountersPod{static_cast<char*>(*words), count, state.names.add_counters(name)}));
  return {count, counters_.back().get()};
}

size_t ChannelState::find(const Counters& counters, const char* call) const {
  for (size_t i = 0; i < counters_.size(); ++i)
    if (counters_[i].get() == counters.handle) return i;
  throw InvalidArgument(Errc::invalid_argument,
                        base::format("channel.{}: the {} counters are not ones that this channel made, or were "
                                     "released before",
                                     call, counters.count));
}

void ChannelState::reset(const Counters& counters) {
  RuntimeState& state = *team_.runtime;
  state.enter();
  const CountersPod& pod = *counters_[find(counters, "reset")];
  state.backend->zero_local(pod.words, size_t{pod.count} * kCounterPitch, stream_).or_throw();
}

void ChannelState::release(const Counters& counters) {
  RuntimeState& state = *team_.runtime;
  if (state.is_forked() || state.is_closed) state.enter();
  const size_t at = find(counters, "release");
  state.backend->free_local(counters_[at]->words);
  counters_.erase(counters_.begin() + static_cast<std::ptrdiff_t>(at));
}

}  // namespace overlace
