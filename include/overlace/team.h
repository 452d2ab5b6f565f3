// A team is an ordered set of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/channel.h"
#include "overlace/stream.h"
#include "overlace/symmetric.h"

namespace overlace {

struct TeamPod;
struct TeamState;

#pragma GCC visibility push(default)  // exported by liboverlace.so

class NetEngine;
class Runtime;

/// How a rank is reached. `self` is this rank; with `lsa` loads and stores reach its heap; with `net` only a network
/// engine does.
enum class Reach { self, lsa, net };

struct TeamOptions {
  std::string name = "team";
  int max_ctas = 0;  // CTAs of the network engine; 0: its default
};

/// A cheap handle that lives as long as its Runtime. Ranks that methods take as `peer` are ranks of the team.
class Team {
 public:
  int rank() const;
  int size() const;
  const std::string& name() const;
  Reach reach(int peer) const;
  /// Returns the rank in the world of member `peer`.
  int world_rank(int peer) const;
  /// Makes a team of some of these ranks. Collective on this team: ranks outside `ranks` call it too and get an empty
  /// handle (size() == 0).
  Team sub(std::span<const int> ranks, const TeamOptions& options = {});
  /// Opens a channel. Collective: every member opens its channels in the same order. The channel lives as long as the
  /// runtime.
  Channel& channel(StreamRef stream, const ChannelOptions& options = {});
  /// Waits for the host threads of all ranks, with the runtime's deadline.
  void barrier();
  /// Returns the bytes of all ranks in rank order, at most 64 KiB a rank, with the runtime's deadline.
  std::vector<Bytes> exchange(std::span<const std::byte> mine);
  /// Compares the texts of all ranks. If they differ, throws PlanMismatch on all ranks, with the first rank that
  /// differs and both values.
  void agree(std::string_view text, std::string_view what);
  /// Returns the address of `buffer` in the heap of rank `peer`, or null if its reach is net.
  void* peer_ptr(SymBuffer buffer, int peer) const;
  void* local_ptr(SymBuffer buffer) const { return peer_ptr(buffer, rank()); }
  const TeamPod& pod() const;
  /// Returns the team's engine of collectives (NCCL on GPUs); null if it has none.
  NetEngine* net();
  Runtime& runtime() const;
  explicit operator bool() const { return state_ != nullptr; }

  Team() = default;
  explicit Team(std::shared_ptr<TeamState> state) : state_(std::move(state)) {}
  TeamState& state() const { return *state_; }

 private:
  std::shared_ptr<TeamState> state_;
};

#pragma GCC visibility pop

}  // namespace overlace
