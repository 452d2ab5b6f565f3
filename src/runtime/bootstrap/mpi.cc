#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "overlace/error.h"
#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/clock.h"
#include "src/runtime/engine/mpi/port.h"
#include "src/runtime/hash.h"

namespace overlace::runtime {
namespace {

/// Every rank sends to every other: a job has few ranks before it has a team.
class MpiBootstrap final : public Bootstrap {
 public:
  MpiBootstrap(mpi::Service& service, int rank, int size, uint64_t number)
      : rank_(rank),
        size_(static_cast<size_t>(size)),
        number_(number),
        port_(service, hash_text("bootstrap", number), all_ranks(size), [this] { wake(); }) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(size_); }
  std::string token() const override { return base::format("mpi.{}", number_); }

  std::vector<Bytes> allgather(std::span<const std::byte> mine, int64_t timeout_ms) override {
    for (size_t peer = 0; peer < size_; ++peer)
      if (peer != self()) port_.send(peer, {}, mine.data(), mine.size());
    std::unique_lock lock(mutex_);
    const auto has_all = [&] { return missing().empty() || !port_.failure().ok(); };
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), has_all);
    if (const std::string ranks = missing(); !ranks.empty()) {
      const base::Status failure = port_.failure();
      throw PeerLost(Errc::bootstrap,
                     base::format("bootstrap: rank {} of {}: {}", rank_, size_,
                                  failure.ok() ? base::format("rank {} is missing after {:.1f} s", ranks,
                                                              static_cast<double>(timeout_ms) * 1e-3)
                                               : failure.message()));
    }
    std::vector<Bytes> all;
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer == self()) {
        all.emplace_back(mine.begin(), mine.end());
        continue;
      }
      const std::vector<char> data = port_.take(peer).data;
      const auto* const bytes = reinterpret_cast<const std::byte*>(data.data());
      all.emplace_back(bytes, bytes + data.size());
    }
    return all;
  }

 private:
  static std::vector<int> all_ranks(int size) {
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(r);
    return ranks;
  }
  size_t self() const { return static_cast<size_t>(rank_); }
  void wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  std::string missing() const {
    std::string ranks;
    for (size_t peer = 0; peer < size_; ++peer)
      if (peer != self() && !port_.has(peer)) ranks += (ranks.empty() ? "" : ", ") + base::format("{}", peer);
    return ranks;
  }

  const int rank_;
  const size_t size_;
  const uint64_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  mpi::Port port_;
};

}  // namespace

base::Result<std::unique_ptr<Bootstrap>> mpi_bootstrap(int rank, int size, int64_t timeout_ms) {
  static std::atomic<uint64_t> opened{0};  // all ranks open as many
  base::Result<mpi::Service*> service = mpi::Service::open(timeout_ms);
  if (!service.ok()) return service.status();
  if ((*service)->rank() != rank || (*service)->size() != size)
    return base::error(Errc::bootstrap, "bootstrap: the launcher says rank {} of {}, {} says {} of {}", rank, size,
                       (*service)->name(), (*service)->rank(), (*service)->size());
  return std::unique_ptr<Bootstrap>(std::make_unique<MpiBootstrap>(**service, rank, size, opened.fetch_add(1)));
}

}  // namespace overlace::runtime
