// Reads and writes of files, many at a time, past the page cache where that is possible.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/io/file.h"
#include "src/io/queue.h"

namespace overlace::io {

struct EngineOptions {
  std::string engine = {};          // auto, uring, pread or buffered; empty: OVERLACE_IO
  int depth = 32;                   // requests to the kernel at a time, 1 to 4096
  int64_t request_bytes = 1 << 20;  // larger ones are cut; a multiple of a page
  int64_t timeout_ms = 0;           // longest that a request may take; 0: OVERLACE_TIMEOUT_S
  int64_t pace_bytes_per_s = 0;     // plays a disk of this rate, on one that is faster; 0: as fast as it is
  std::function<std::unique_ptr<Queue>(std::unique_ptr<Queue>)> wrap = {};  // tests put their faults between
};

/// Which way requests go, and why no better one.
struct EngineChoice {
  std::string name;    // uring, pread or buffered
  std::string reason;  // of auto, why not uring; else empty
};
/// What `engine` (empty: OVERLACE_IO) comes to on this machine; tried, not guessed. not_supported where uring is asked
/// for and refused, invalid_argument for other words.
base::Result<EngineChoice> choose_engine(const std::string& engine = {});

/// A read or write that has ended, well or not.
struct Completion {
  uint64_t tag = 0;
  int64_t bytes = 0;  // moved: all of them where status is ok
  base::Status status;
};

struct EngineStats {
  int64_t requests = 0, bytes_read = 0, bytes_written = 0;  // asked of the kernel; bytes that it moved
  int64_t continued = 0;                                    // short ones, asked again for the rest
  int64_t repeated = 0;                                     // interrupted, or no room in the kernel
  int64_t through_cache = 0;                                // requests that were not direct
  int64_t failed = 0;                                       // reads and writes that ended with an error
};

/// One thread uses an engine; several threads take one each. A buffer belongs to the engine from read() or write()
/// until its completion is polled. Closing waits for what the kernel has begun: no request outlives its buffer.
class IoEngine {
 public:
  static base::Result<std::unique_ptr<IoEngine>> open(EngineOptions options = {});
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  /// "uring", "pread" or "buffered".
  const std::string& name() const { return name_; }
  /// Opens a file that fits the engine: "buffered" opens no direct descriptor.
  base::Result<std::shared_ptr<File>> open_file(const std::string& path, FileMode mode) const;
  /// Memory that buffers are cut from, known to the kernel once. False where it is not taken (the limit on locked
  /// memory, pread): reads work all the same. Nothing may be under way.
  bool use_memory(std::span<std::byte> memory);

  /// `buffer` holds at least `bytes`. Direct where buffer and offset are aligned as the file asks; what is left over,
  /// and a tail without room in the buffer to be rounded up, passes the cache. Returns at once; invalid_argument for a
  /// negative range or a small buffer.
  base::Status read(std::shared_ptr<File> file, int64_t offset, int64_t bytes, std::span<std::byte> buffer,
                    uint64_t tag);
  /// Writes that share a page must not be under way together.
  base::Status write(std::shared_ptr<File> file, int64_t offset, std::span<const std::byte> data, uint64_t tag);
  /// Completions, at least one unless nothing is under way or `wait_ms` have passed; 0: looks and returns. timeout,
  /// which names the request, where there is none and a request's time is over.
  base::Result<size_t> poll(std::span<Completion> completions, int64_t wait_ms = -1);
  /// Waits for all; the first failure, or ok. Completions are discarded.
  base::Status drain();
  /// Nothing is under way afterwards, and every buffer is its owner's again: waits past deadlines, too. Where the queue
  /// itself fails it is closed, and every later read or write is that failure. The first failure, or ok.
  base::Status settle();
  /// Reads and writes whose completion was not polled.
  int64_t pending() const { return pending_; }
  const EngineStats& stats() const { return stats_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    std::shared_ptr<File> file;
    bool is_write = false;
    int64_t offset = 0, bytes = 0, capacity = 0;
    std::byte* data = nullptr;
    uint64_t tag = 0;
    int64_t moved = 0, pieces = 0;
    base::Status status;
    Clock::time_point deadline;
  };
  /// What the kernel is asked for at once.
  struct Piece {
    uint32_t request = 0;
    int64_t at = 0, bytes = 0;  // of the request; still wanted
    int64_t asked = 0;          // bytes, rounded up where direct
    bool direct = false;
  };

  IoEngine(EngineOptions options, std::string name, std::unique_ptr<Queue> queue);
  base::Status start(Request request);
  void cut(uint32_t index);
  void aim(Piece& piece) const;
  void queue_pieces();
  void ended(const QueueResult& result);
  void retire(uint32_t piece);
  base::Status io_error(const Request& request, int code) const;
  base::Status overdue() const;
  void close_queue(const base::Status& why);

  EngineOptions options_;
  std::string name_;
  std::vector<Request> requests_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> free_requests_, free_pieces_;
  std::deque<uint32_t> backlog_;  // pieces not yet given to the queue
  std::deque<Completion> done_;
  std::vector<QueueResult> results_;
  int64_t pending_ = 0, under_way_ = 0;
  base::Status broken_;  // the queue's failure, once it is closed
  EngineStats stats_;
  std::unique_ptr<Queue> queue_;  // last: it goes first, and with it all that is under way
};

}  // namespace overlace::io
