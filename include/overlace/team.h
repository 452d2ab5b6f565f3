// An ordered set of ranks.
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

/// self: this rank; lsa: loads and stores reach its heap; net: only a network engine does.
enum class Reach { self, lsa, net };

struct TeamOptions {
  std::string name = "team";
  int max_ctas = 0;  // of the network engine; 0: its default
};

/// Cheap handle; lives as long as its Runtime.
class Team {
 public:
  int rank() const;
  int size() const;
  const std::string& name() const;
  Reach reach(int peer) const;
  /// Returns the rank in the world of member `peer`.
  int world_rank(int peer) const;
  /// Collective on this team; ranks outside `ranks` call it too and get an empty handle (size() == 0).
  Team sub(std::span<const int> ranks, const TeamOptions& options = {});
  /// Collective: every member opens its channels in the same order. Lives as long as the runtime.
  Channel& channel(StreamRef stream, const ChannelOptions& options = {});
  /// Barrier of the host threads, with the runtime's deadline.
  void barrier();
  /// All-gather of host memory, at most 64 KiB a rank, with the runtime's deadline.
  std::vector<Bytes> exchange(std::span<const std::byte> mine);
  /// Compares the texts of all ranks. If they differ, throws PlanMismatch on all ranks, with the first rank that
  /// differs and both values.
  void agree(std::string_view text, std::string_view what);
  /// Returns the address of `buffer` in the heap of member `peer`; null where reach is net.
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
