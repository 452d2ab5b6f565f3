// Blocks of bytes that do not fit into memory together, read from files ahead of who uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/io/engine.h"

namespace overlace::offload {

/// A range of a file.
struct Piece {
  std::shared_ptr<io::File> file;
  int64_t offset = 0, bytes = 0;
};

/// What is used together: the weights of a layer, say. Pieces may lie anywhere in any files.
struct Block {
  std::string name;
  std::vector<Piece> pieces;
};

struct BlockStreamOptions {
  int slots = 2;  // blocks in memory at a time: the one in use and those that are read ahead; at least 2
  /// Of a slot; 0: as large as the largest block needs. More than that many times `slots` is never taken.
  int64_t slot_bytes = 0;
  io::EngineOptions engine = {};
};

struct BlockStreamStats {
  int64_t blocks = 0, bytes = 0;  // that were acquired
  int64_t waits = 0;              // acquires that found their block unread
  double waited_s = 0;            // in these
};

/// A ring of slots at fixed addresses, filled from files in an order that is known beforehand (FlexGen, arXiv
/// 2303.06865, without its choice of placement). One thread uses it. Each piece begins at the same place of a page as
/// in its file, so that reads pass the page cache whatever their offset.
class BlockStream {
 public:
  /// `order`: indices into `blocks`, one for each use, over and over. Reading begins at once. invalid_argument with the
  /// block's name for a block larger than `slot_bytes`, an order of nothing or of blocks that are not there, a negative
  /// range; corrupt where a file ends before a piece does.
  static base::Result<std::unique_ptr<BlockStream>> open(std::vector<Block> blocks, std::vector<int> order,
                                                         BlockStreamOptions options = {});
  /// Waits for what is under way: its memory goes.
  ~BlockStream();
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  /// The pieces of a block, which stay until release(). Waits for its reads, at most until the engine's deadline.
  /// desync where the order has another block now, or the slots are all in use; a read that failed gives its error
  /// here.
  base::Result<std::span<const std::span<const std::byte>>> acquire(int block);
  /// The slot of the block that was acquired first goes to the next one of the order. desync for another block.
  base::Status release(int block);

  const BlockStreamStats& stats() const { return stats_; }
  int64_t memory_bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  struct Slot {
    int64_t step = -1;  // of the order, counted on
    int pending = 0;    // reads
    base::Status status;
    std::vector<std::span<const std::byte>> pieces;
  };

  BlockStream(std::vector<Block> blocks, std::vector<int> order)
      : blocks_(std::move(blocks)), order_(std::move(order)) {}
  int block_of(int64_t step) const { return order_[static_cast<size_t>(step % static_cast<int64_t>(order_.size()))]; }
  Slot& slot_of(int64_t step) { return slots_[static_cast<size_t>(step % static_cast<int64_t>(slots_.size()))]; }
  /// Asks for the block of the next step that has a free slot.
  base::Status read_ahead();
  base::Status poll(int64_t wait_ms);

  std::vector<Block> blocks_;
  std::vector<int> order_;
  std::vector<Slot> slots_;
  io::AlignedBuffer memory_;
  int64_t slot_bytes_ = 0;
  int64_t asked_ = 0, acquired_ = 0, released_ = 0;  // steps
  BlockStreamStats stats_;
  std::unique_ptr<io::IoEngine> engine_;  // last: it goes first, and waits for what is under way
};

}  // namespace overlace::offload
