// Messages to and from ranks on other hosts: grouped sends and receives of the team's engine, then the signals of what
// was received, all in stream order.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "src/exec/program.h"

namespace overlace::exec {

/// Per rank of the team: equal for those that reach each other with loads and stores.
std::vector<int> groups_of(const Team& team);

/// The rounds of one program.
class NetRounds {
 public:
  /// Allocates room for what does not lie in one piece. not_supported without an engine.
  static base::Result<std::unique_ptr<NetRounds>> make(const Program& program, Team& team,
                                                       std::vector<spec::Round> rounds);
  ~NetRounds();
  NetRounds(const NetRounds&) = delete;
  NetRounds& operator=(const NetRounds&) = delete;

  const std::vector<spec::Round>& rounds() const { return rounds_; }
  /// Queues round `index`. A failure aborts the runtime: what the peers wait for does not come any more.
  base::Status run(const Call& call, int index, cudaStream_t stream);

 private:
  /// Bytes to or from a peer.
  struct Piece {
    int peer = 0;
    void* data = nullptr;
    size_t bytes = 0;
  };
  /// What one round moves: sends and receives, and strided boxes with their place in the room.
  struct Plan {
    std::vector<Piece> sends, receives;
    std::vector<std::pair<TensorView, TensorView>> packed, unpacked;  // (from, to)
    size_t room = 0;
  };

  NetRounds(Team& team, std::vector<spec::Round> rounds) : team_(team), rounds_(std::move(rounds)) {}
  base::Status queue(const Call& call, const spec::Round& round, cudaStream_t stream);
  base::Status exchange(const Plan& plan, const std::string& what, cudaStream_t stream);
  base::Status add_signals(const Call& call, const spec::Round& round, cudaStream_t stream);
  void* take(Plan* plan, size_t bytes) const;
  void add_box(const Call& call, const spec::Box& box, int peer, bool is_send, Plan* plan) const;

  Team& team_;
  const std::vector<spec::Round> rounds_;
  char* room_ = nullptr;
  size_t room_bytes_ = 0;
};

}  // namespace overlace::exec
