// The ways to hand a request to the kernel. Below the engine: nothing here continues, repeats or interprets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/status.h"

namespace overlace::io {

struct QueueRequest {
  bool is_write = false;
  int fd = -1;
  int64_t offset = 0, bytes = 0;
  std::byte* data = nullptr;
  uint64_t id = 0;
};

/// What pread and pwrite give: bytes moved, or -errno.
struct QueueResult {
  uint64_t id = 0;
  int64_t result = 0;
};

/// One thread uses it. When it goes, no request is under way any more: what had not begun is dropped, the rest awaited.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual const char* name() const = 0;
  virtual int capacity() const = 0;
  /// Precondition: fewer than capacity() under way. May wait for submit() before it begins.
  virtual void push(const QueueRequest& request) = 0;
  virtual base::Status submit() = 0;
  /// At least one result, or none where `timeout_ms` passed. Never waits with 0.
  virtual base::Result<size_t> wait(std::span<QueueResult> results, int64_t timeout_ms) = 0;
  /// Memory that requests will use, pinned once; without effect where that is not possible. Nothing is under way.
  virtual base::Status use_memory(std::span<std::byte>) { return {}; }
};

/// not_supported with the reason where the kernel, a sandbox or the build has no io_uring.
base::Result<std::unique_ptr<Queue>> open_uring(int depth);
/// Threads that call pread and pwrite, at most 64; fewer where the system gives fewer, out_of_memory where none.
base::Result<std::unique_ptr<Queue>> open_threads(int depth);

}  // namespace overlace::io
