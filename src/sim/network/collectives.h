// Collectives as messages on a network: links serve them first come, first served.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/sim/network/network.h"
#include "src/sim/resource/reserve.h"

namespace overlace::sim {

enum class Forwarding { cut_through, store_and_forward };

struct CollectiveOptions {
  Forwarding forwarding = Forwarding::cut_through;
  int splits = 1;  // of each message, pipelined
  uint64_t seed = 0;
};

struct CollectiveTime {
  double us = 0;
  uint64_t messages = 0;
  uint64_t bytes = 0;  // sent by all ranks
  std::string algorithm;
};

/// `bytes`: of one rank's input (all-reduce, reduce-scatter, all-to-all), of the whole result (all-gather). One
/// instance is one run: messages of an earlier collective keep their links busy.
class Collectives {
 public:
  explicit Collectives(const Network& network, const CollectiveOptions& options = {});

  // One after the other, in the order of calls: each rank goes on when its part before is done.
  void ring_pass(const std::vector<int>& members, uint64_t message_bytes, int steps);
  void direct(const std::vector<int>& members, uint64_t message_bytes);
  void tree(const std::vector<int>& members, uint64_t bytes);
  void ring_all_to_all(const std::vector<int>& members, uint64_t block_bytes);

  /// What follows begins at time 0 again, on links that are busy with what was before.
  void restart();
  /// Of all so far.
  CollectiveTime time() const;

 private:
  Time send(int from, int to, uint64_t bytes, Time ready);
  Network network_;
  CollectiveOptions options_;
  Router router_;
  ReserveLinks links_;
  std::vector<Time> ready_;  // of each rank
  Time latest_ = 0;          // before the last restart
  std::vector<uint32_t> way_;
  uint64_t messages_ = 0, bytes_ = 0;
};

enum class Collective { all_gather, reduce_scatter, all_reduce, all_to_all };

/// Names of the ways of a collective: ring, direct, tree, two_shot, hierarchical, rail.
std::vector<std::string_view> algorithms(Collective op, const Network& network);
/// Errc::invalid_argument for an algorithm that the collective or the network does not have, or no bytes.
base::Result<CollectiveTime> run_collective(Collective op, std::string_view algorithm, const Network& network,
                                            uint64_t bytes, const CollectiveOptions& options = {});
/// The fastest of them: what hiding communication is to be compared with.
base::Result<CollectiveTime> best_collective(Collective op, const Network& network, uint64_t bytes,
                                             const CollectiveOptions& options = {});

/// What links allow: bytes that must leave a rank, a host, and the halves of a torus, over what carries them.
double lower_bound_us(Collective op, const Network& network, uint64_t bytes);

}  // namespace overlace::sim
