#include "src/runtime/channel.h"

#include <utility>

#include "overlace/error.h"

namespace overlace {
namespace {

const char* domain_name(Domain domain) {
  switch (domain) {
    case Domain::cpu:
      return "cpu";
    case Domain::stream:
      return "stream";
    case Domain::device:
      return "device";
  }
  return "unknown";
}

}  // namespace

ChannelState::ChannelState(TeamState& team_state, StreamRef stream_ref, const ChannelOptions& channel_options)
    : team_handle(std::shared_ptr<TeamState>(std::shared_ptr<void>(), &team_state)),
      team_(team_state),
      stream_(stream_ref),
      options_(channel_options) {
  pod_.team = team_.pod;
  pod_.channel_id = team_.runtime->next_channel_id++;
  pod_.barrier_id = ids(1, stream_.kind == StreamRef::Kind::cpu ? Domain::cpu : Domain::device, "barrier").first;
}

ChannelState::~ChannelState() = default;

void ChannelState::use(StreamRef stream) {
  team_.runtime->enter();
  if (stream.kind != stream_.kind)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("channel.use: a {}, wanted a {} as before",
                                       stream.kind == StreamRef::Kind::cpu ? "CPU lane" : "CUDA stream",
                                       stream_.kind == StreamRef::Kind::cpu ? "CPU lane" : "CUDA stream"));
  stream_ = stream;
}

int ChannelState::limit_sms(int sms) {
  team_.runtime->enter();
  if (sms < 0)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("channel.limit_sms: sms is {}, wanted 0 (no limit) or more", sms));
  return std::exchange(sm_limit_, sms);
}

SignalIds ChannelState::ids(uint32_t count, Domain domain, const char* name) {
  RuntimeState& state = *team_.runtime;
  state.enter();
  const bool is_cpu = state.backend->kind() == Backend::cpu;
  if (is_cpu != (domain == Domain::cpu))
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("channel.ids \"{}\": domain is {}, wanted {}", name, domain_name(domain),
                                       is_cpu ? "cpu on CPU ranks" : "stream or device on GPUs"));
  if (count == 0) return {};
  const std::optional<uint64_t> first = team_.ids.take(count, 1);
  if (!first)
    throw OutOfMemory(
        Errc::heap_exhausted,
        base::format("signal ids exhausted: \"{}\" asked {}, largest free range {}, total {} of team \"{}\"; raise "
                     "num_signal_ids",
                     name, count, team_.ids.largest_free(), team_.ids.capacity(), team_.name));
  const auto first_id = static_cast<uint32_t>(*first);
  owned_[first_id] = count;
  state.names.set_ids(first_id, count, name);
  return {first_id, count};
}

void ChannelState::release(SignalIds ids) {
  RuntimeState& state = *team_.runtime;
  if (state.is_forked() || state.is_closed) state.enter();
  if (ids.count == 0) return;
  const auto it = owned_.find(ids.first);
  if (it == owned_.end() || it->second != ids.count)
    throw InvalidArgument(Errc::invalid_argument,
                          base::format("channel.release: ids {}..{} are not a range that this channel owns", ids.first,
                                       ids.first + ids.count - 1));
  owned_.erase(it);
  team_.ids.give_back(ids.first);
  state.names.clear_ids(ids.first);
}

namespace runtime {

Channel& make_channel(TeamState& team, StreamRef stream, const ChannelOptions& options) {
  const int room = team.runtime->backend->sm_room();
  if (options.sm_budget < 0)
    throw InvalidArgument(
        Errc::invalid_argument,
        base::format("ChannelOptions::sm_budget is {}, wanted 0 (all SMs) or more", options.sm_budget));
  if (room > 0 && options.sm_budget > room)
    throw Unsupported(Errc::co_residency, base::format("a channel of team \"{}\" asks for {} SMs, there is room for {}",
                                                       team.name, options.sm_budget, room));
  return *team.channels.emplace_back(std::make_unique<ChannelState>(team, stream, options));
}

}  // namespace runtime
}  // namespace overlace
