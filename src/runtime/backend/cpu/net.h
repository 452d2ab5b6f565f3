// Puts and signals to ranks on other hosts: messages, which the receiver's service thread applies in order, payload
// first, then the arrival.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/runtime/backend/cpu/wire.h"
#include "src/runtime/engine/mpi/service.h"

namespace overlace::runtime {

class Net {
 public:
  /// `ranks`: MPI's rank of each rank of the world. `near`: ranks whose memory is mapped here.
  Net(CpuAgent& agent, mpi::Service& service, std::vector<int> ranks, const std::vector<int>& near);
  ~Net();
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  mpi::Service& service() const { return service_; }
  const std::vector<int>& ranks() const { return ranks_; }
  bool carries(int peer) const { return is_far_[static_cast<size_t>(peer)]; }
  /// Bytes [begin, end) of the rows laid end to end (copied before it returns), then the arrival. Addresses lie in this
  /// rank's reservation for the peer's heap.
  void send(int peer, const Payload& payload, size_t begin, size_t end, const Arrival& arrival);
  /// Asks the peers to say when all that was sent so far has arrived; for is_quiet().
  std::vector<uint64_t> ask();
  bool is_quiet(const std::vector<uint64_t>& asked) const;
  /// The first rank that is_quiet() waits for, 0 if none.
  int first_missing(const std::vector<uint64_t>& asked) const;

 private:
  /// What cannot be true ends the run: `engine`, with the claim, on all ranks.
  void take(int from, const mpi::Message& message);
  base::Status check_answer(size_t peer, uint64_t said) const;
  /// Precondition: its claims were checked.
  void store(const mpi::Message& message);
  void fail(const base::Status& why);

  CpuAgent& agent_;
  mpi::Service& service_;
  const uint64_t context_;
  const std::vector<int> ranks_;
  std::vector<bool> is_far_;
  std::unique_ptr<std::atomic<uint64_t>[]> sent_, arrived_;  // by peer: messages sent, and known to have arrived
};

/// Until everything that this rank sent to other hosts so far has arrived.
[[nodiscard]] Errc wait_for_net(const ChannelPod& channel);

}  // namespace overlace::runtime
