#include <utility>

#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "src/base/format.h"

namespace overlace {
namespace {

using Allgather = std::function<std::vector<Bytes>(std::span<const std::byte>)>;

/// Deadlines are the caller's: its all-gather ends or throws.
class CallbackBootstrap final : public Bootstrap {
 public:
  CallbackBootstrap(int rank, int size, std::string token, Allgather allgather)
      : rank_(rank), size_(size), token_(std::move(token)), allgather_(std::move(allgather)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<Bytes> allgather(std::span<const std::byte> mine, int64_t) override {
    std::vector<Bytes> all = allgather_(mine);
    if (all.size() != static_cast<size_t>(size_))
      throw PeerLost(Errc::bootstrap, base::format("bootstrap: the callback gave {} entries, wanted one for each of {} "
                                                   "ranks",
                                                   all.size(), size_));
    return all;
  }
  std::string token() const override { return token_; }

 private:
  const int rank_, size_;
  const std::string token_;
  const Allgather allgather_;
};

}  // namespace

std::unique_ptr<Bootstrap> callback_bootstrap(int rank, int size, std::string token, Allgather allgather) {
  if (size < 1 || rank < 0 || rank >= size || !allgather)
    throw InvalidArgument(
        Errc::invalid_argument,
        base::format("callback_bootstrap: rank is {} of {}, wanted 0 <= rank < size and a callable", rank, size));
  return std::make_unique<CallbackBootstrap>(rank, size, std::move(token), std::move(allgather));
}

}  // namespace overlace
