// Blocks of bytes that do not fit into memory together, read from files or filled otherwise ahead of who uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/io/engine.h"
#include "src/offload/filler.h"

namespace overlace::offload {

/// A range of a file, or what `fill` writes: all bytes of what it is given, on a thread of the stream, one piece after
/// the other in the order of use. An error that it returns is given with the block.
struct Piece {
  std::shared_ptr<io::File> file;
  int64_t offset = 0, bytes = 0;  // offset: of the file
  std::function<base::Status(std::span<std::byte>)> fill = {};
};

/// What is used together: the weights of a layer, say. Pieces may lie anywhere in any files.
struct Block {
  std::string name;
  std::vector<Piece> pieces;
};

struct BlockStreamOptions {
  int slots = 2;  // blocks in memory at a time: the one in use and those that are read ahead; at least 2
  /// Bytes of a slot; 0: as many as the largest block needs. More than that many times `slots` is never taken.
  int64_t slot_bytes = 0;
  /// Where slots lie, each at the next whole page: memory that only `fill` touches, such as a device's. Empty: the
  /// stream's own.
  std::span<std::byte> memory = {};
  io::EngineOptions engine = {};
};

struct BlockStreamStats {
  int64_t blocks = 0, bytes = 0;  // that were acquired
  int64_t waits = 0;              // acquires that found their block unread
  double waited_s = 0;            // in these
  double filled_s = 0;            // in Piece::fill, beside whoever uses the stream
};

/// A ring of slots at fixed addresses, filled from files in an order that is known beforehand (FlexGen, arXiv
/// 2303.06865, without its choice of placement). One thread uses it. Each piece begins at the same place of a page as
/// in its file, so that reads pass the page cache whatever their offset.
class BlockStream {
 public:
  /// `order`: indices into `blocks`, one for each use, over and over. Reading begins at once. invalid_argument with the
  /// block's name for a block larger than `slot_bytes`, an order of nothing or of blocks that are not there, a negative
  /// range, a piece without a source or with two, a file's piece or too few bytes where `memory` is given; corrupt
  /// where a file ends before a piece does.
  static base::Result<std::unique_ptr<BlockStream>> open(std::vector<Block> blocks, std::vector<int> order,
                                                         BlockStreamOptions options = {});
  /// Waits for what is under way: its memory goes.
  ~BlockStream();
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  /// The pieces of a block, which stay until release(). Waits for its reads, at most until the engine's deadline.
  /// desync where the order has another block now, or the slots are all in use; a read that failed gives its error
  /// here; corrupt where a file of the block was cut or written since it was opened.
  base::Result<std::span<const std::span<const std::byte>>> acquire(int block);
  /// The slot of the block that was acquired first goes to the next one of the order. desync for another block.
  base::Status release(int block);
  /// The order begins again: blocks in use are given back, those read ahead are dropped once their reads have ended.
  base::Status restart();
  /// The next block of the order, which acquire() wants now.
  int next_block() const { return block_of(acquired_); }

  BlockStreamStats stats() const;
  std::span<const std::byte> memory() const { return memory_; }
  int64_t memory_bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  struct FileState {
    int64_t bytes = 0, changed_ns = 0;
    bool operator==(const FileState&) const = default;
  };
  static base::Result<FileState> state_of(const io::File& file);
  struct Slot {
    int64_t step = -1;  // of the order, counted on
    int pending = 0;    // reads and fills
    base::Status status;
    std::vector<std::span<const std::byte>> pieces;
  };

  BlockStream(std::vector<Block> blocks, std::vector<int> order)
      : blocks_(std::move(blocks)), order_(std::move(order)) {}
  int block_of(int64_t step) const { return order_[static_cast<size_t>(step % static_cast<int64_t>(order_.size()))]; }
  Slot& slot_of(int64_t step) { return slots_[static_cast<size_t>(step % static_cast<int64_t>(slots_.size()))]; }
  const std::string& name_of(int block) const { return blocks_[static_cast<size_t>(block)].name; }
  /// A name, or the number of a block that is not there.
  std::string text_of(int block) const;
  /// Asks for the block of the next step that has a free slot.
  base::Status read_ahead();
  base::Status poll(int64_t wait_ms);
  /// Until nothing of the slot is under way; a timeout says so of the block.
  base::Status wait_for(Slot& slot);
  void ended(uint64_t step, base::Status status);
  /// corrupt where a file of the block is another one than at open.
  base::Status check_files(int block) const;

  std::vector<Block> blocks_;
  std::vector<int> order_;
  std::map<const io::File*, FileState> files_;  // as they were at open
  std::vector<Slot> slots_;
  io::AlignedBuffer owned_;
  std::span<std::byte> memory_;  // owned_, or what was given
  int64_t slot_bytes_ = 0, timeout_ms_ = 0;
  int64_t asked_ = 0, acquired_ = 0, released_ = 0;  // steps
  BlockStreamStats stats_;
  std::unique_ptr<io::IoEngine> engine_;  // these are last: they go first, and wait for what is under way
  std::unique_ptr<Filler> filler_;        // none where no piece is filled
};

}  // namespace overlace::offload
