// Names of teams and signal ids, for messages. Filled by team.cc and channel.cc, read by whoever words a failure.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "overlace/handle_pod.h"

namespace overlace::runtime {

/// How long a kernel's own pipeline waits for its next stage: longer than its threads wait for a peer, which may keep
/// the stage from coming.
constexpr uint64_t pipeline_timeout_ns(uint64_t timeout_ns) { return 2 * timeout_ns + 2'000'000'000; }
/// timeout after 8.0 s: rank 1: a stage of a fused kernel's own pipeline has not come, wanted at once; results of fused
/// kernels of this rank are wrong since then
std::string pipeline_text(int rank, uint64_t timeout_ns);

class Names {
 public:
  void set_team(uint32_t team, std::string name, std::vector<int> members);
  void set_ids(uint32_t first, uint32_t count, std::string name);
  void clear_ids(uint32_t first);
  /// Numbers that nobody has had before, from 1.
  uint32_t add_counters(std::string name);
  std::string team(uint32_t team) const;
  /// World rank of a member, -1 if there is none.
  int world_rank(uint32_t team, uint32_t rank) const;
  /// "" if nobody owns the id.
  std::string id(uint32_t id) const;
  /// The name behind a TimeoutRecord with kind counter: `extra` is the number, `id` the index.
  std::string counters(uint64_t number) const;
  /// timeout after 300.0 s: rank 2 waited for rank 1, team "tp", signal 37 (gemm_rs.arrive, block 5): expected >= 8192,
  /// seen 8176, last change 299.8 s ago; gemm_rs call 412; peer state alive
  std::string timeout_text(const TimeoutRecord& record, const std::string& peer_state) const;
  /// What timeout_text() gives without its beginning, "timeout after 3.0 s: ".
  std::string wait_text(const TimeoutRecord& record, const std::string& peer_state) const;

 private:
  struct TeamNames {
    std::string name;
    std::vector<int> members;
  };
  struct Ids {
    uint32_t count;
    std::string name;
  };
  mutable std::mutex mutex_;
  std::map<uint32_t, TeamNames> teams_;
  std::map<uint32_t, Ids> ids_;
  std::vector<std::string> counters_;
};

}  // namespace overlace::runtime
