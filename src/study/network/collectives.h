// Collectives as messages on a network: links serve them first come, first served.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/study/network/network.h"
#include "src/study/network/reserve.h"

namespace overlace::study {

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

/// Ranks r, r + stride, ... (size of them) are one group; such groups tile the network. Size 0: all ranks are one.
struct Grouping {
  int stride = 1, size = 0;
};
using Groups = std::vector<std::vector<int>>;
/// Errc::invalid_argument where groups do not tile `ranks`.
base::Result<Groups> groups_of(int ranks, const Grouping& grouping);

/// `bytes`: of one rank's input (all-reduce, reduce-scatter, all-to-all), of the whole result (all-gather). One
/// instance is one run: messages of an earlier collective keep their links busy.
class Collectives {
 public:
  explicit Collectives(const Network& network, const CollectiveOptions& options = {});

  // One after the other, in the order of calls: each rank goes on when its part before is done.
  // Groups run side by side.
  void ring_pass(const Groups& groups, uint64_t message_bytes, int steps);
  void direct(const Groups& groups, uint64_t message_bytes);
  /// Sends as direct() does; `bytes_of(from rank, to rank)` may differ from pair to pair, and be 0.
  void exchange(const Groups& groups, const std::function<uint64_t(int, int)>& bytes_of);
  void tree(const std::vector<int>& members, uint64_t bytes);
  void ring_all_to_all(const std::vector<int>& members, uint64_t block_bytes);

  /// One message that may leave at time 0: its arrival.
  sim::Time message(int from, int to, uint64_t bytes) { return send(from, to, bytes, 0); }

  /// What follows begins at time 0 again, on links that are busy with what was before.
  void restart();
  /// The time of all so far.
  CollectiveTime time() const;
  /// When a rank is done with what was called so far.
  sim::Time done(int rank) const { return ready_[static_cast<size_t>(rank)]; }

 private:
  template <class BytesOf>
  void send_to_all(const Groups& groups, BytesOf bytes_of);
  sim::Time send(int from, int to, uint64_t bytes, sim::Time ready);
  sim::Time send_over_star(int from, int to, uint64_t bytes, sim::Time ready);
  sim::Time send_on(const std::vector<uint32_t>& way, uint64_t bytes, sim::Time ready);
  Network network_;
  CollectiveOptions options_;
  Router router_;
  ReserveLinks links_;
  std::vector<sim::Time> ready_;  // of each rank
  sim::Time latest_ = 0;          // before the last restart
  std::vector<uint32_t> way_;
  uint64_t messages_ = 0, bytes_ = 0;
};

enum class Collective { all_gather, reduce_scatter, all_reduce, all_to_all };

/// Names of the ways of a collective: ring, direct, tree, two_shot, hierarchical, rail.
std::vector<std::string_view> algorithms(Collective op, const Network& network, const Grouping& grouping = {});
/// In all groups at once. Errc::invalid_argument for an algorithm that the collective or the network does not have, or
/// no bytes. Groups of one rank take no time.
base::Result<CollectiveTime> run_collective(Collective op, std::string_view algorithm, const Network& network,
                                            uint64_t bytes, const CollectiveOptions& options = {},
                                            const Grouping& grouping = {});
/// The fastest of them: what hiding communication is to be compared with.
base::Result<CollectiveTime> best_collective(Collective op, const Network& network, uint64_t bytes,
                                             const CollectiveOptions& options = {}, const Grouping& grouping = {});

struct UnevenTime {
  std::vector<double> us;  // by member, the slowest group's
  std::string algorithm;
  double longest_us() const { return us.empty() ? 0 : *std::max_element(us.begin(), us.end()); }
};
/// All-to-all in all groups at once: bytes[i * size + j] go from member i of a group to member j. The faster of direct
/// and (groups of whole hosts) rail.
base::Result<UnevenTime> all_to_all_uneven(const Network& network, const std::vector<uint64_t>& bytes,
                                           const Grouping& grouping, const CollectiveOptions& options = {});
/// All ranks below ranks - stride send `bytes` to the rank `stride` above at once: the last arrival.
base::Result<double> shift_us(const Network& network, int stride, uint64_t bytes);

/// What links allow: bytes that must leave a rank, a host, and the halves of a torus, over what carries them.
double lower_bound_us(Collective op, const Network& network, uint64_t bytes);

}  // namespace overlace::study
