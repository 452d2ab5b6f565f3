// Block streams: blocks of bytes that do not fit into memory together pass through a ring of slots, ahead of their use.
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

/// The source of a part of a block: exactly one of a range of a file, memory that outlives the stream, and a function
/// that writes all bytes of its argument on a thread of the stream. What that function throws is thrown with its block.
/// A piece of no bytes needs no source.
struct StreamPiece {
  int64_t bytes = 0;
  std::string path = {};
  int64_t offset = 0;  // in the file
  const void* memory = nullptr;
  std::function<void(std::span<std::byte>)> fill = {};
};

/// Bytes that are used together, such as the weights of a layer.
struct StreamBlock {
  std::string name;  // errors show it
  std::vector<StreamPiece> pieces;
};

struct BlockStreamOptions {
  int slots = 2;            // blocks in memory at a time, those read ahead included; at least 2
  int64_t slot_bytes = 0;   // size of a slot; 0: what the largest block needs, in whole pages
  std::string engine = {};  // auto, uring, pread or buffered; empty: OVERLACE_IO
  int64_t timeout_ms = 0;   // longest that a block may take; 0: OVERLACE_TIMEOUT_S
};

struct BlockStreamStats {
  int64_t blocks = 0, bytes = 0;  // acquired blocks, and their bytes
  int64_t waits = 0;              // acquires that waited
  double waited_s = 0;            // time of these waits
  double filled_s = 0;            // time of copying memory and of StreamPiece::fill, beside the user of the stream
};

/// A stream of blocks in host memory, used by one thread. Slots have fixed addresses, and a piece of a file begins at
/// the offset in a page that it has in its file, so that reads bypass the page cache whatever their offset.
class BlockStream {
 public:
  using Pieces = std::span<const std::span<const std::byte>>;

  /// Opens a stream, which begins to read at once. `order` has indices into `blocks`, one for each use, and repeats.
  /// Throws InvalidArgument for a block larger than a slot, an empty order or one with an unknown block, or a piece
  /// without a source or with two; IoError for files that are missing or too short; OutOfMemory.
  BlockStream(const std::vector<StreamBlock>& blocks, const std::vector<int>& order,
              const BlockStreamOptions& options = {});
  /// Waits for reads that are under way.
  ~BlockStream();
  BlockStream(BlockStream&&) noexcept;
  BlockStream& operator=(BlockStream&&) noexcept;

  /// Returns the pieces of a block, which are valid until release(). Waits for them, at most until the deadline. Throws
  /// Desync, with both names, if the order has another block now or all slots are in use; IoError or Timeout of a read
  /// that failed.
  Pieces acquire(int block);
  /// Releases the block that was acquired first; its slot goes to the next block of the order. Throws Desync if `block`
  /// is another one.
  void release(int block);
  /// Begins the order again: blocks in use are released, and those read ahead are dropped.
  void restart();
  BlockStreamStats stats() const;
  /// Returns the memory of all slots, which lie one behind the other.
  std::span<const std::byte> memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

#pragma GCC visibility pop

}  // namespace overlace
