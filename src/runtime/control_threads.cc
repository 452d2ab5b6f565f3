// Control plane of ranks that are threads: a sender puts messages into the receiver's mailbox itself.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/runtime/hash.h"
#include "src/runtime/in_process.h"
#include "src/runtime/mailbox.h"

namespace overlace::runtime {
namespace {

class ThreadsControl;

/// Who is there. A rank is called under the lock, so that it cannot vanish meanwhile.
struct Hub {
  explicit Hub(int size) : ranks(static_cast<size_t>(size), nullptr) {}
  std::recursive_mutex mutex;  // leave() tells the peers while it holds it
  std::vector<ThreadsControl*> ranks;
};

class ThreadsControl final : public MailboxControl {
 public:
  ThreadsControl(int rank, int size, uint64_t generation, std::shared_ptr<Hub> hub)
      : MailboxControl(rank, size, generation), hub_(std::move(hub)) {
    for (int peer = 0; peer < size; ++peer) set_peer(peer, ::getpid(), RankState::starting);
    const std::lock_guard lock(hub_->mutex);
    hub_->ranks[static_cast<size_t>(rank)] = this;
  }
  ~ThreadsControl() override { leave(false); }
  bool in_process() const override { return true; }

  base::Status send(int to, const Tag& tag, std::span<const std::byte> bytes, int fd) override {
    Message message{Bytes(bytes.begin(), bytes.end()), -1};
    if (fd >= 0) {
      message.fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
      if (message.fd < 0) return base::error(Errc::io, "cannot duplicate a descriptor: {}", std::strerror(errno));
    }
    const std::lock_guard lock(hub_->mutex);
    ThreadsControl* peer = hub_->ranks[static_cast<size_t>(to)];
    if (peer != nullptr) {
      peer->arrived(rank(), tag, std::move(message));
      return {};
    }
    if (message.fd >= 0) ::close(message.fd);
    return {};  // whoever waits for this peer's answer is told why it is gone
  }

  void spread(const AbortCause& cause) override {
    fail(cause, false);
    for_each_peer([&](ThreadsControl& peer) { peer.peer_aborted(rank(), cause); });
  }
  void set_alive() override {
    for_each_peer([&](ThreadsControl& peer) { peer.set_peer(rank(), 0, RankState::alive); });
    start_failing();
  }
  void set_closing() override {
    for_each_peer([&](ThreadsControl& peer) { peer.set_peer(rank(), 0, RankState::closing); });
  }
  void leave(bool clean) override {
    const std::lock_guard lock(hub_->mutex);
    ThreadsControl*& self = hub_->ranks[static_cast<size_t>(rank())];
    if (self != this) return;
    self = nullptr;
    for_each_peer([&](ThreadsControl& peer) { peer.peer_left(rank(), clean); });
  }

 private:
  template <class Function>
  void for_each_peer(Function function) {
    const std::lock_guard lock(hub_->mutex);
    for (ThreadsControl* peer : hub_->ranks)
      if (peer != nullptr && peer != this) function(*peer);
  }
  std::shared_ptr<Hub> hub_;
};

}  // namespace

base::Result<std::unique_ptr<Control>> open_threads_control(Bootstrap& bootstrap, uint64_t generation,
                                                            int64_t timeout_ms) {
  const int size = bootstrap.size();
  const std::shared_ptr<void> hub =
      share_in_process(hash_text("control", generation), [&] { return std::make_shared<Hub>(size); });
  auto control =
      std::make_unique<ThreadsControl>(bootstrap.rank(), size, generation, std::static_pointer_cast<Hub>(hub));
  bootstrap.barrier(timeout_ms);
  return std::unique_ptr<Control>(std::move(control));
}

}  // namespace overlace::runtime
