#include "overlace/team.h"

#include <algorithm>
#include <cstring>

#include "overlace/error.h"
#include "src/runtime/channel.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

std::string text_of_bytes(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

char* heap_of(const TeamPod& pod, int peer) { return pod.heap_more == nullptr ? pod.heap[peer] : pod.heap_more[peer]; }

void check_member(const TeamState& team, int peer, const char* call) {
  if (peer < 0 || static_cast<size_t>(peer) >= team.members.size())
    throw InvalidArgument(Errc::invalid_argument, base::format("{}: peer is {}, wanted 0 to {} (team \"{}\")", call,
                                                               peer, team.members.size() - 1, team.name));
}

std::string list_text(std::span<const int> ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + base::format("{}", rank);
  return text;
}

/// What each member of the parent would take next, so that all take the same.
struct Proposal {
  uint32_t team_id, first_id;
};

}  // namespace

TeamState::TeamState() = default;
TeamState::~TeamState() = default;

int Team::rank() const { return state_ ? state_->rank : -1; }

int Team::size() const { return state_ ? static_cast<int>(state_->members.size()) : 0; }

const std::string& Team::name() const {
  static const std::string empty;
  return state_ ? state_->name : empty;
}

Reach Team::reach(int peer) const {
  check_member(*state_, peer, "team.reach");
  return state_->runtime->backend->reach(state_->members[static_cast<size_t>(peer)]);
}

int Team::world_rank(int peer) const {
  check_member(*state_, peer, "team.world_rank");
  return state_->members[static_cast<size_t>(peer)];
}

Team Team::sub(std::span<const int> ranks, const TeamOptions& options) {
  RuntimeState& runtime = *state_->runtime;
  runtime.enter();
  std::vector<int> members;
  int mine = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    check_member(*state_, ranks[i], "team.sub");
    const int world = state_->members[static_cast<size_t>(ranks[i])];
    if (std::find(members.begin(), members.end(), world) != members.end())
      throw InvalidArgument(Errc::invalid_argument, base::format("team.sub \"{}\": rank {} is named twice in [{}]",
                                                                 options.name, ranks[i], list_text(ranks)));
    if (world == runtime.rank) mine = static_cast<int>(i);
    members.push_back(world);
  }
  agree(base::format("[{}] \"{}\" {}", list_text(ranks), options.name, options.max_ctas), "team.sub");
  const Proposal proposal{runtime.next_team_id, runtime.next_team_ids};
  Proposal agreed = proposal;
  for (const Bytes& entry : exchange(std::as_bytes(std::span(&proposal, 1)))) {
    Proposal theirs{};
    std::memcpy(&theirs, entry.data(), std::min(entry.size(), sizeof theirs));
    agreed.team_id = std::max(agreed.team_id, theirs.team_id);
    agreed.first_id = std::max(agreed.first_id, theirs.first_id);
  }
  const uint32_t num_ids = std::max<uint32_t>(runtime.options.num_signal_ids / runtime::kSubTeamShare, 8);
  const uint32_t total = runtime.options.num_signal_ids;
  const uint32_t free = total - std::min(agreed.first_id, total);
  if (num_ids > free)
    throw OutOfMemory(Errc::heap_exhausted,
                      base::format("signal ids exhausted: team \"{}\" asked {}, free {}, total {}; raise "
                                   "num_signal_ids",
                                   options.name, num_ids, free, total));
  runtime.next_team_id = agreed.team_id + 1;
  runtime.next_team_ids = agreed.first_id + num_ids;
  if (mine < 0) return {};
  return Team(runtime.make_team(std::move(members), agreed.team_id, agreed.first_id, num_ids, options));
}

Channel& Team::channel(StreamRef stream, const ChannelOptions& options) {
  state_->runtime->enter();
  for (const std::unique_ptr<ChannelState>& channel : state_->channels)
    if (channel->stream().kind == stream.kind && channel->stream().cuda_stream == stream.cuda_stream &&
        channel->options().sm_budget == options.sm_budget && channel.get() != state_->engine_channel)
      return *channel;
  return runtime::make_channel(*state_, stream, options);
}

void Team::barrier() {
  state_->runtime->enter();
  state_->runtime->exchange(*state_, {}, base::format("team \"{}\", barrier", state_->name));
}

std::vector<Bytes> Team::exchange(std::span<const std::byte> mine) {
  RuntimeState& runtime = *state_->runtime;
  runtime.enter();
  if (mine.size() > runtime::Control::kMaxBytes)
    throw InvalidArgument(Errc::invalid_argument, base::format("team.exchange: {} bytes, wanted at most {} a rank",
                                                               mine.size(), runtime::Control::kMaxBytes));
  return runtime.exchange(*state_, mine, base::format("team \"{}\", exchange", state_->name));
}

void Team::agree(std::string_view text, std::string_view what) {
  const std::vector<Bytes> all = exchange(runtime::bytes_of(std::string(text)));
  const std::string first = text_of_bytes(all[0]);
  for (size_t r = 1; r < all.size(); ++r)
    if (const std::string other = text_of_bytes(all[r]); other != first)
      throw PlanMismatch(Errc::plan_mismatch, base::format("{} differs between ranks of team \"{}\": rank 0 has {}, "
                                                           "rank {} has {}",
                                                           what, state_->name, first, r, other));
}

void* Team::peer_ptr(SymBuffer buffer, int peer) const {
  check_member(*state_, peer, "team.peer_ptr");
  char* base = heap_of(state_->pod, peer);
  return base == nullptr || !buffer ? nullptr : base + buffer.offset;
}

const TeamPod& Team::pod() const { return state_->pod; }

NetEngine* Team::net() { return state_ ? state_->engine.get() : nullptr; }

Runtime& Team::runtime() const { return *state_->runtime->owner; }

std::string runtime::text_of_first(Team& team, const std::string& mine) {
  constexpr size_t kMost = 60 << 10;  // less than an exchange takes
  const uint64_t size = mine.size();
  const std::vector<Bytes> sizes = team.exchange(std::as_bytes(std::span(&size, 1)));
  uint64_t total = 0;
  std::memcpy(&total, sizes.front().data(), std::min(sizes.front().size(), sizeof total));
  std::string out;
  while (out.size() < total) {
    const std::string part = team.rank() == 0 ? mine.substr(out.size(), kMost) : std::string();
    const std::vector<Bytes> parts = team.exchange(std::as_bytes(std::span(part)));
    if (parts.front().empty()) throw_error(Errc::internal, "text_of_first: rank 0 sent less than it said");
    out.append(reinterpret_cast<const char*>(parts.front().data()), parts.front().size());
  }
  return out;
}

}  // namespace overlace
