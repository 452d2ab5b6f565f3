// Counters of this device that streams wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// Cells of kCounterPitch bytes in one block of cudaMalloc, made when a rank opens. NOTE: cuStreamWaitValue64 refuses
/// addresses of cudaMallocAsync's pool as an invalid value (driver 580.159.04), and cudaMalloc beside calls may wait
/// for them. Threads may share it.
class StreamWordPool {
 public:
  static constexpr uint32_t kCells = 1 << 16;  // 2 MiB

  /// The pool of the current device.
  static base::Result<std::shared_ptr<StreamWordPool>> open();
  StreamWordPool(const StreamWordPool&) = delete;
  StreamWordPool& operator=(const StreamWordPool&) = delete;
  ~StreamWordPool();

 private:
  friend class StreamWords;
  StreamWordPool() = default;

  char* memory_ = nullptr;
  std::mutex mutex_;
  std::vector<bool> taken_ = std::vector<bool>(kCells);
};

/// Neighbouring cells of a pool, all 0 when they are taken. Nobody may use them any more when they are given back.
class StreamWords {
 public:
  StreamWords() = default;
  StreamWords(StreamWords&& other) noexcept
      : pool_(std::move(other.pool_)), first_(other.first_), count_(std::exchange(other.count_, 0)) {}
  StreamWords& operator=(StreamWords&& other) noexcept {
    std::swap(pool_, other.pool_), std::swap(first_, other.first_), std::swap(count_, other.count_);
    return *this;
  }
  ~StreamWords();
  /// out_of_memory naming `what` where no such many neighbours are free.
  static base::Result<StreamWords> take(std::shared_ptr<StreamWordPool> pool, uint32_t count, const char* what);
  char* data() const;

 private:
  std::shared_ptr<StreamWordPool> pool_;
  uint32_t first_ = 0, count_ = 0;
};

}  // namespace overlace::runtime::cuda_peer
