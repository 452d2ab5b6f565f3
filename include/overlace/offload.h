// Blocks of bytes that do not fit into memory together: they pass through a ring of slots, ahead of who uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Where bytes of a block come from: exactly one of a range of a file, memory that outlives the stream, and a function
/// that writes all bytes of what it is given, on a thread of the stream; what that throws is thrown with its block. No
/// bytes need no source.
struct StreamPiece {
  int64_t bytes = 0;
  std::string path = {};
  int64_t offset = 0;  // in the file
  const void* memory = nullptr;
  std::function<void(std::span<std::byte>)> fill = {};
};

/// Bytes that are used together, such as the weights of a layer.
struct StreamBlock {
  std::string name;  // errors bear it
  std::vector<StreamPiece> pieces;
};

struct BlockStreamOptions {
  int slots = 2;            // blocks in memory at a time: the one in use and those that are read ahead; at least 2
  int64_t slot_bytes = 0;   // of a slot; 0: as large as the largest block needs in whole pages
  std::string engine = {};  // auto, uring, pread or buffered; empty: OVERLACE_IO
  int64_t timeout_ms = 0;   // longest that a block may take; 0: OVERLACE_TIMEOUT_S
};

struct BlockStreamStats {
  int64_t blocks = 0, bytes = 0;  // that were acquired
  int64_t waits = 0;              // acquires that found their block unread
  double waited_s = 0;            // in these
  double filled_s = 0;            // copying memory and in StreamPiece::fill, beside whoever uses the stream
};

/// Host memory. One thread uses a stream. Slots are at fixed addresses, and a piece of a file begins at the place of a
/// page that it has in its file, so that reads pass the page cache whatever their offset.
class BlockStream {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  /// `order`: indices into `blocks`, one for each use, over and over. Reading begins at once. Throws InvalidArgument
  /// for a block larger than a slot, an order of nothing or of blocks that are not there, a piece without a source or
  /// with two; IoError for files that are not there or too short; OutOfMemory.
  BlockStream(const std::vector<StreamBlock>& blocks, const std::vector<int>& order,
              const BlockStreamOptions& options = {});
  /// Waits for reads that are under way.
  ~BlockStream();
  BlockStream(BlockStream&&) noexcept;
  BlockStream& operator=(BlockStream&&) noexcept;

  /// Returns the pieces of a block, which stay until release(). Waits until they are there, at most until the deadline.
  /// Throws Desync, with both names, where the order has another block now, or all slots are in use; IoError or Timeout
  /// of a read that failed.
  Pieces acquire(int block);
  /// The slot of the block that was acquired first goes to the next one of the order. Throws Desync for another block.
  void release(int block);
  /// The order begins again: blocks in use are given back, those read ahead are dropped.
  void restart();
  BlockStreamStats stats() const;
  /// Returns the memory of all slots, one behind the other.
  std::span<const std::byte> memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

#pragma GCC visibility pop

}  // namespace overlace
