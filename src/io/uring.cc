// Requests through io_uring. The one file that knows liburing.
#include "src/io/queue.h"

#if OVERLACE_HAS_URING

#include <liburing.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

namespace overlace::io {
namespace {

/// The kernel accepts at most this much per registered buffer.
constexpr size_t kMostRegisteredBytes = size_t{1} << 30;

base::Status failed(Errc code, const char* step, int negative_errno) {
  return base::error(code, "io_uring: {}: {}", step, std::generic_category().message(-negative_errno));
}

class UringQueue final : public Queue {
 public:
  explicit UringQueue(int depth) : capacity_(depth) {}
  ~UringQueue() override {
    if (!is_open_) return;
    drain();
    ::io_uring_queue_exit(&ring_);
  }

  base::Status open() {
    io_uring_params parameters{};
    if (const int code = ::io_uring_queue_init_params(static_cast<unsigned>(capacity_), &ring_, &parameters); code < 0)
      return failed(Errc::not_supported, "setup is refused", code);
    is_open_ = true;
    // NOTE: timed waits without a request of their own, completions that are never dropped: kernel 5.11.
    if ((parameters.features & IORING_FEAT_EXT_ARG) == 0 || (parameters.features & IORING_FEAT_NODROP) == 0)
      return base::error(Errc::not_supported, "io_uring: the kernel is older than 5.11");
    return {};
  }

  const char* name() const override { return "uring"; }
  int capacity() const override { return capacity_; }

  void push(const QueueRequest& r) override {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    OVERLACE_ASSERT(entry != nullptr);  // fewer than capacity() are under way
    const int buffer = registered_at(r);
    const auto bytes = static_cast<unsigned>(r.bytes);
    const auto offset = static_cast<uint64_t>(r.offset);
    if (r.is_write && buffer >= 0)
      ::io_uring_prep_write_fixed(entry, r.fd, r.data, bytes, offset, buffer);
    else if (r.is_write)
      ::io_uring_prep_write(entry, r.fd, r.data, bytes, offset);
    else if (buffer >= 0)
      ::io_uring_prep_read_fixed(entry, r.fd, r.data, bytes, offset, buffer);
    else
      ::io_uring_prep_read(entry, r.fd, r.data, bytes, offset);
    ::io_uring_sqe_set_data64(entry, r.id);
    ++under_way_;
  }

  base::Status submit() override {
    while (::io_uring_sq_ready(&ring_) > 0) {
      const int n = ::io_uring_submit(&ring_);
      if (n > 0 || n == -EINTR) continue;
      // NOTE: the kernel has no room just now; what is left goes with the next call, after completions were taken.
      if (n == 0 || n == -EAGAIN || n == -EBUSY) return {};
      return failed(Errc::io, "submit", n);
    }
    return {};
  }

  base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) override {
    OVERLACE_TRY(submit());
    if (::io_uring_cq_ready(&ring_) == 0 && timeout_ms > 0) {
      io_uring_cqe* first = nullptr;
      __kernel_timespec time{timeout_ms / 1000, timeout_ms % 1000 * 1000000};
      const int code = ::io_uring_wait_cqe_timeout(&ring_, &first, &time);
      if (code < 0 && code != -ETIME && code != -EINTR && code != -EAGAIN) return failed(Errc::io, "wait", code);
    }
    size_t n = 0;
    for (io_uring_cqe* done = nullptr; n < results.size() && ::io_uring_peek_cqe(&ring_, &done) == 0; ++n) {
      results[n] = {done->user_data, done->res};
      ::io_uring_cqe_seen(&ring_, done);
      --under_way_;
    }
    return n;
  }

  base::Status use_memory(std::span<std::byte> memory) override {
    if (registered_.data() != nullptr) ::io_uring_unregister_buffers(&ring_);
    registered_ = {};
    std::vector<iovec> parts;
    for (size_t at = 0; at < memory.size(); at += kMostRegisteredBytes)
      parts.push_back({memory.data() + at, std::min(kMostRegisteredBytes, memory.size() - at)});
    if (parts.empty()) return {};
    const int code = ::io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size()));
    if (code < 0) return failed(Errc::not_supported, "memory cannot be registered", code);
    registered_ = memory;
    return {};
  }

 private:
  /// The registered part that holds all of the request, or -1.
  int registered_at(const QueueRequest& r) const {
    if (r.data < registered_.data() || r.data + r.bytes > registered_.data() + registered_.size()) return -1;
    const auto first = static_cast<size_t>(r.data - registered_.data());
    const size_t last = first + static_cast<size_t>(r.bytes) - 1;
    if (r.bytes < 1 || first / kMostRegisteredBytes != last / kMostRegisteredBytes) return -1;
    return static_cast<int>(first / kMostRegisteredBytes);
  }
  /// Buffers belong to the kernel until each request has ended. Entries never submitted vanish with the ring.
  void drain() {
    auto begun = under_way_ - static_cast<int64_t>(::io_uring_sq_ready(&ring_));
    while (begun > 0) {
      io_uring_cqe* done = nullptr;
      const int code = ::io_uring_wait_cqe(&ring_, &done);
      if (code == -EINTR || code == -EAGAIN) continue;
      if (code < 0) return;
      ::io_uring_cqe_seen(&ring_, done);
      --begun;
    }
  }

  const int capacity_;
  io_uring ring_{};
  bool is_open_ = false;
  int64_t under_way_ = 0;
  std::span<std::byte> registered_;
};

}  // namespace

base::Result<std::unique_ptr<Queue>> open_uring(int depth) {
  auto queue = std::make_unique<UringQueue>(depth);
  OVERLACE_TRY(queue->open());
  return std::unique_ptr<Queue>(std::move(queue));
}

}  // namespace overlace::io

#else

namespace overlace::io {

base::Result<std::unique_ptr<Queue>> open_uring(int) {
  return base::error(Errc::not_supported, "io_uring: built without liburing (package liburing-dev)");
}

}  // namespace overlace::io

#endif
