// Messages between the members of a group, in order per sender, for who fetches them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "src/runtime/engine/mpi/service.h"

namespace overlace::runtime::mpi {

class Port {
 public:
  struct Letter {
    Head head;
    std::vector<char> data;
  };

  /// `members`: their ranks in MPI's world. `wake` runs after each arrival, each
  /// letter sent, and when MPI failed, in the service's thread.
  Port(Service& service, uint64_t context, std::vector<int> members, std::function<void()> wake);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  size_t size() const { return members_.size(); }
  void send(size_t member, Head head, const void* data, size_t bytes);
  bool has(size_t member) const;
  /// Precondition: has(member).
  Letter take(size_t member);
  /// Letters that came from a member so far; for WaitSite.
  const uint64_t* arrived(size_t member) const { return &arrived_[member]; }
  /// Letters to a member that MPI has not sent yet.
  uint64_t unsent(size_t member) const { return unsent_[member]->load(std::memory_order_acquire); }
  base::Status failure() const;

 private:
  Service& service_;
  const uint64_t context_;
  const std::vector<int> members_;
  const std::function<void()> wake_;
  std::vector<uint64_t> arrived_;
  std::vector<std::shared_ptr<std::atomic<uint64_t>>> unsent_;
  mutable std::mutex mutex_;
  std::vector<std::deque<Letter>> boxes_;
  base::Status failure_;
};

}  // namespace overlace::runtime::mpi
