#include "src/io/engine.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "src/base/env.h"
#include "src/io/pace.h"

namespace overlace::io {
namespace {

constexpr int kMostDepth = 4096;

int64_t round_down(int64_t value, int64_t step) { return value - value % step; }

base::Status check(const EngineOptions& options) {
  if (options.depth < 1 || options.depth > kMostDepth)
    return base::invalid_argument("engine: depth is {}, wanted 1 to {}", options.depth, kMostDepth);
  // NOTE: the kernel moves at most 2 GiB less a page at a time, and io_uring counts in 32 bits.
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  if (options.request_bytes < kPageBytes || options.request_bytes > kMostBytes ||
      options.request_bytes % kPageBytes != 0)
    return base::invalid_argument("engine: request_bytes is {}, wanted a multiple of {} of at most {}",
                                  options.request_bytes, kPageBytes, kMostBytes);
  if (options.pace_bytes_per_s < 0)
    return base::invalid_argument("engine: pace_bytes_per_s is {}, wanted at least 0", options.pace_bytes_per_s);
  return {};
}

struct Chosen {
  EngineChoice choice;
  std::unique_ptr<Queue> queue;
};

base::Result<Chosen> choose(std::string engine, int depth) {
  if (engine.empty()) engine = base::env().io;
  if (engine != "auto" && engine != "uring" && engine != "pread" && engine != "buffered")
    return base::invalid_argument("engine is \"{}\", wanted auto, uring, pread or buffered", engine);
  Chosen chosen;
  if (engine == "auto" || engine == "uring") {
    base::Result<std::unique_ptr<Queue>> queue = open_uring(depth);
    if (queue.ok()) {
      chosen.choice.name = "uring";
      chosen.queue = std::move(queue).value();
      return chosen;
    }
    if (engine == "uring") return queue.status();
    chosen.choice.reason = queue.status().message();
  }
  chosen.choice.name = engine == "buffered" ? "buffered" : "pread";
  base::Result<std::unique_ptr<Queue>> threads = open_threads(depth);
  if (!threads.ok()) return threads.status();
  chosen.queue = std::move(threads).value();
  return chosen;
}

}  // namespace

base::Result<EngineChoice> choose_engine(const std::string& engine) {
  base::Result<Chosen> chosen = choose(engine, 1);
  if (!chosen.ok()) return chosen.status();
  return std::move(chosen->choice);
}

base::Result<std::unique_ptr<IoEngine>> IoEngine::open(EngineOptions options) {
  OVERLACE_TRY(check(options));
  if (options.timeout_ms <= 0) options.timeout_ms = base::env().timeout_s * 1000;
  base::Result<Chosen> chosen = choose(options.engine, options.depth);
  if (!chosen.ok()) return chosen.status();
  std::unique_ptr<Queue> queue = std::move(chosen->queue);
  if (options.wrap) queue = options.wrap(std::move(queue));
  if (options.pace_bytes_per_s > 0) queue = with_pace({.bytes_per_s = options.pace_bytes_per_s})(std::move(queue));
  return std::unique_ptr<IoEngine>(new IoEngine(std::move(options), chosen->choice.name, std::move(queue)));
}

IoEngine::IoEngine(EngineOptions options, std::string name, std::unique_ptr<Queue> queue)
    : options_(std::move(options)),
      name_(std::move(name)),
      results_(static_cast<size_t>(queue->capacity())),
      queue_(std::move(queue)) {}

IoEngine::~IoEngine() = default;

base::Result<std::shared_ptr<File>> IoEngine::open_file(const std::string& path, FileMode mode) const {
  return File::open(path, mode, name_ != "buffered");
}

bool IoEngine::use_memory(std::span<std::byte> memory) {
  OVERLACE_ASSERT(pending_ == 0);
  return queue_ != nullptr && queue_->use_memory(memory).ok();
}

base::Status IoEngine::read(std::shared_ptr<File> file, int64_t offset, int64_t bytes, std::span<std::byte> buffer,
                            uint64_t tag) {
  Request request;
  request.file = std::move(file);
  request.offset = offset;
  request.bytes = bytes;
  request.capacity = static_cast<int64_t>(buffer.size());
  request.data = buffer.data();
  request.tag = tag;
  return start(std::move(request));
}

base::Status IoEngine::write(std::shared_ptr<File> file, int64_t offset, std::span<const std::byte> data,
                             uint64_t tag) {
  Request request;
  request.file = std::move(file);
  request.is_write = true;
  request.offset = offset;
  request.bytes = request.capacity = static_cast<int64_t>(data.size());
  request.data = const_cast<std::byte*>(data.data());
  request.tag = tag;
  return start(std::move(request));
}

base::Status IoEngine::start(Request request) {
  const char* what = request.is_write ? "write" : "read";
  if (request.offset < 0 || request.bytes < 0 || request.offset > std::numeric_limits<int64_t>::max() - request.bytes)
    return base::invalid_argument("{}: {} of {} bytes at offset {}, wanted a range inside 64 bits",
                                  request.file->path(), what, request.bytes, request.offset);
  if (request.capacity < request.bytes)
    return base::invalid_argument("{}: {} of {} bytes with a buffer of {}, wanted a buffer of at least {}",
                                  request.file->path(), what, request.bytes, request.capacity, request.bytes);
  OVERLACE_TRY(broken_);
  request.deadline = Clock::now() + std::chrono::milliseconds(options_.timeout_ms);
  ++pending_;
  if (request.bytes == 0) {
    done_.push_back({request.tag, 0, {}});
    return {};
  }
  uint32_t index = static_cast<uint32_t>(requests_.size());
  if (free_requests_.empty()) {
    requests_.push_back(std::move(request));
  } else {
    index = free_requests_.back();
    free_requests_.pop_back();
    requests_[index] = std::move(request);
  }
  cut(index);
  queue_pieces();
  // The request is taken, whatever the queue says: poll() submits again and reports what stays.
  (void)queue_->submit();
  return {};
}

/// Pieces of request_bytes; a tail that fills no page is a piece of its own where it cannot be rounded up.
void IoEngine::cut(uint32_t index) {
  Request& request = requests_[index];
  for (int64_t at = 0; at < request.bytes;) {
    Piece piece{index, at, std::min(options_.request_bytes, request.bytes - at), 0, false};
    const int64_t whole = round_down(piece.bytes, request.file->alignment().offset_bytes);
    const bool has_room = at + round_up(piece.bytes, request.file->alignment().offset_bytes) <= request.capacity;
    if (whole > 0 && (request.is_write || !has_room)) piece.bytes = whole;
    aim(piece);
    at += piece.bytes;
    ++request.pieces;
    if (free_pieces_.empty()) {
      backlog_.push_back(static_cast<uint32_t>(pieces_.size()));
      pieces_.push_back(piece);
      continue;
    }
    backlog_.push_back(free_pieces_.back());
    pieces_[free_pieces_.back()] = piece;
    free_pieces_.pop_back();
  }
}

/// Past the cache where all is aligned, else through it.
void IoEngine::aim(Piece& piece) const {
  const Request& request = requests_[piece.request];
  const Alignment& alignment = request.file->alignment();
  const auto address = reinterpret_cast<uintptr_t>(request.data + piece.at);
  const int64_t rounded = round_up(piece.bytes, alignment.offset_bytes);
  piece.direct = request.file->is_direct() && address % static_cast<uintptr_t>(alignment.memory_bytes) == 0 &&
                 (request.offset + piece.at) % alignment.offset_bytes == 0 &&
                 (rounded == piece.bytes || (!request.is_write && piece.at + rounded <= request.capacity));
  piece.asked = piece.direct ? rounded : piece.bytes;
}

void IoEngine::queue_pieces() {
  while (!backlog_.empty() && under_way_ < queue_->capacity()) {
    const uint32_t index = backlog_.front();
    backlog_.pop_front();
    const Piece& piece = pieces_[index];
    const Request& request = requests_[piece.request];
    if (!request.status.ok()) {  // another piece of it has failed
      retire(index);
      continue;
    }
    ++under_way_;
    ++stats_.requests;
    if (!piece.direct) ++stats_.through_cache;
    queue_->push({request.is_write, request.file->descriptor(piece.direct), request.offset + piece.at, piece.asked,
                  request.data + piece.at, index});
  }
}

base::Status IoEngine::io_error(const Request& request, int code) const {
  return base::error(Errc::io, "{}: {} of {} bytes at offset {} got {}: {} (errno {})", request.file->path(),
                     request.is_write ? "write" : "read", request.bytes, request.offset, request.moved,
                     std::generic_category().message(code), code);
}

void IoEngine::ended(const QueueResult& result) {
  --under_way_;
  const auto index = static_cast<uint32_t>(result.id);
  Piece& piece = pieces_[index];
  Request& request = requests_[piece.request];
  const auto again = [&] {
    aim(piece);
    backlog_.push_front(index);
  };
  const auto fail = [&](base::Status status) {
    if (request.status.ok()) request.status = std::move(status);
  };
  if (result.result == -EINTR || result.result == -EAGAIN) {
    if (Clock::now() < request.deadline) {
      ++stats_.repeated;
      return again();
    }
    fail(io_error(request, EAGAIN));
  } else if (result.result == -EINVAL && piece.direct) {
    request.file->leave_direct("a direct request was refused: " + std::generic_category().message(EINVAL));
    return again();
  } else if (result.result < 0) {
    fail(io_error(request, static_cast<int>(-result.result)));
  } else if (result.result == 0 && !request.is_write) {
    const base::Result<int64_t> size = request.file->size();
    fail(!size.ok() ? size.status()
                    : base::error(Errc::io, "{}: read of {} bytes at offset {} got {}: the file has {} bytes",
                                  request.file->path(), request.bytes, request.offset, request.moved, *size));
  } else if (result.result == 0) {
    fail(io_error(request, ENOSPC));
  } else if (result.result > piece.asked) {
    fail(base::error(Errc::internal, "{}: {} bytes at offset {} were asked for, {} moved", request.file->path(),
                     piece.asked, request.offset + piece.at, result.result));
  } else {
    const int64_t moved = std::min(result.result, piece.bytes);
    (request.is_write ? stats_.bytes_written : stats_.bytes_read) += moved;
    request.moved += moved;
    piece.at += moved;
    piece.bytes -= moved;
    if (piece.bytes > 0) {
      ++stats_.continued;
      return again();
    }
  }
  retire(index);
}

void IoEngine::retire(uint32_t piece) {
  const uint32_t index = pieces_[piece].request;
  free_pieces_.push_back(piece);
  Request& request = requests_[index];
  if (--request.pieces > 0) return;
  if (!request.status.ok()) ++stats_.failed;
  done_.push_back({request.tag, request.moved, std::move(request.status)});
  request = Request();
  free_requests_.push_back(index);
}

base::Status IoEngine::overdue() const {
  const Clock::time_point now = Clock::now();
  for (const Request& request : requests_)
    if (request.file && now >= request.deadline)
      return base::error(Errc::timeout, "{}: {} of {} bytes at offset {}: {} moved within {} ms", request.file->path(),
                         request.is_write ? "write" : "read", request.bytes, request.offset, request.moved,
                         options_.timeout_ms);
  return {};
}

base::Result<size_t> IoEngine::poll(std::span<Completion> completions, int64_t wait_ms) {
  if (completions.empty() || pending_ == 0) return size_t{0};
  // Looks at once every 100 ms at least, so that a request whose time is over is found.
  constexpr int64_t kLookMs = 100;
  const Clock::time_point until = Clock::now() + std::chrono::milliseconds(std::max<int64_t>(wait_ms, 0));
  while (true) {
    int64_t look_ms = done_.empty() ? kLookMs : 0;
    if (wait_ms >= 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      look_ms = std::clamp<int64_t>(left, 0, look_ms);
    }
    queue_pieces();
    const base::Result<size_t> n = queue_->wait(results_, look_ms);
    if (!n.ok()) return n.status();
    for (size_t i = 0; i < *n; ++i) ended(results_[i]);
    queue_pieces();
    OVERLACE_TRY(queue_->submit());
    if (!done_.empty()) break;
    if (*n == 0) OVERLACE_TRY(overdue());
    if (wait_ms >= 0 && Clock::now() >= until) break;
  }
  size_t n = 0;
  for (; n < completions.size() && !done_.empty(); ++n) {
    completions[n] = std::move(done_.front());
    done_.pop_front();
    --pending_;
  }
  return n;
}

base::Status IoEngine::drain() {
  base::Status first;
  Completion completions[64];
  while (pending_ > 0) {
    const base::Result<size_t> n = poll(completions);
    if (!n.ok()) return n.status();
    for (size_t i = 0; i < *n; ++i)
      if (first.ok() && !completions[i].status.ok()) first = completions[i].status;
  }
  return first;
}

/// Closing waits for what the kernel has begun; the rest was never begun.
void IoEngine::close_queue(const base::Status& why) {
  queue_.reset();
  broken_ = why;
  requests_.clear();
  pieces_.clear();
  free_requests_.clear();
  free_pieces_.clear();
  backlog_.clear();
  done_.clear();
  pending_ = under_way_ = 0;
}

base::Status IoEngine::settle() {
  base::Status first;
  Completion completions[64];
  while (pending_ > 0) {
    const base::Result<size_t> n = poll(completions);
    if (!n.ok()) {
      if (first.ok()) first = n.status();
      if (n.status().code() != Errc::timeout) close_queue(n.status());
      continue;
    }
    for (size_t i = 0; i < *n; ++i)
      if (first.ok() && !completions[i].status.ok()) first = completions[i].status;
  }
  return first;
}

}  // namespace overlace::io
