#include "src/offload/block_stream.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "src/io/alignment.h"

namespace overlace::offload {
namespace {

using base::Result;
using base::Status;
using io::kPageBytes;

/// Whole pages that a piece touches.
int64_t span_of(const Piece& piece) {
  const int64_t begin = piece.offset / kPageBytes * kPageBytes;
  return io::round_up(piece.offset + piece.bytes, kPageBytes) - begin;
}

int64_t span_of(const Block& block) {
  int64_t bytes = 0;
  for (const Piece& piece : block.pieces) bytes += span_of(piece);
  return bytes;
}

Status check(const std::vector<Block>& blocks, const std::vector<int>& order, const BlockStreamOptions& options) {
  if (options.slots < 2) return base::invalid_argument("block stream: slots is {}, wanted 2 or more", options.slots);
  if (options.slot_bytes < 0)
    return base::invalid_argument("block stream: slot_bytes is {}, wanted 0 or more", options.slot_bytes);
  if (order.empty()) return base::invalid_argument("block stream: the order is empty, wanted one block or more");
  for (const int index : order) {
    if (index < 0 || static_cast<size_t>(index) >= blocks.size())
      return base::invalid_argument("block stream: the order has block {}, wanted 0 to {}", index,
                                    static_cast<int64_t>(blocks.size()) - 1);
  }
  for (const Block& block : blocks) {
    for (const Piece& piece : block.pieces) {
      if (piece.file == nullptr) return base::invalid_argument("block stream: block {} has no file", block.name);
      if (piece.offset < 0 || piece.bytes < 0)
        return base::invalid_argument("block stream: block {} has {} bytes at {} of {}, wanted no negative number",
                                      block.name, piece.bytes, piece.offset, piece.file->path());
      const Result<int64_t> size = piece.file->size();
      if (!size.ok()) return size.status();
      if (piece.offset + piece.bytes > *size)
        return base::error(Errc::corrupt, "block stream: {} has {} bytes, block {} wants {} at {}", piece.file->path(),
                           *size, block.name, piece.bytes, piece.offset);
    }
    if (options.slot_bytes > 0 && span_of(block) > options.slot_bytes)
      return base::invalid_argument("block stream: block {} takes {} bytes in whole pages, a slot has {}", block.name,
                                    span_of(block), options.slot_bytes);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BlockStream>> BlockStream::open(std::vector<Block> blocks, std::vector<int> order,
                                                       BlockStreamOptions options) {
  OVERLACE_TRY(check(blocks, order, options));
  auto stream = std::unique_ptr<BlockStream>(new BlockStream(std::move(blocks), std::move(order)));
  stream->slot_bytes_ = kPageBytes;
  for (const int index : stream->order_)
    stream->slot_bytes_ = std::max(stream->slot_bytes_, span_of(stream->blocks_[static_cast<size_t>(index)]));
  stream->slots_.resize(static_cast<size_t>(options.slots));
  Result<io::AlignedBuffer> memory =
      io::AlignedBuffer::allocate(static_cast<size_t>(stream->slot_bytes_ * options.slots));
  if (!memory.ok()) return memory.status();
  stream->memory_ = std::move(*memory);
  Result<std::unique_ptr<io::IoEngine>> engine = io::IoEngine::open(std::move(options.engine));
  if (!engine.ok()) return engine.status();
  stream->engine_ = std::move(*engine);
  stream->engine_->use_memory({stream->memory_.data(), stream->memory_.size()});
  for (int i = 0; i < options.slots; ++i) OVERLACE_TRY(stream->read_ahead());
  return stream;
}

BlockStream::~BlockStream() = default;

Status BlockStream::read_ahead() {
  const int64_t step = asked_++;
  Slot& slot = slot_of(step);
  const size_t place = static_cast<size_t>(step % static_cast<int64_t>(slots_.size()));
  std::byte* at = memory_.data() + static_cast<int64_t>(place) * slot_bytes_;
  slot.step = step;
  slot.status = {};
  slot.pieces.clear();
  for (const Piece& piece : blocks_[static_cast<size_t>(block_of(step))].pieces) {
    const int64_t skipped = piece.offset % kPageBytes, whole = span_of(piece);
    slot.pieces.emplace_back(at + skipped, static_cast<size_t>(piece.bytes));
    if (piece.bytes > 0) {
      OVERLACE_TRY(engine_->read(piece.file, piece.offset - skipped, skipped + piece.bytes,
                                 {at, static_cast<size_t>(whole)}, static_cast<uint64_t>(step)));
      ++slot.pending;
    }
    at += whole;
  }
  return {};
}

Status BlockStream::poll(int64_t wait_ms) {
  std::array<io::Completion, 16> done;
  const Result<size_t> count = engine_->poll(done, wait_ms);
  if (!count.ok()) return count.status();
  for (size_t i = 0; i < *count; ++i) {
    Slot& slot = slot_of(static_cast<int64_t>(done[i].tag));
    --slot.pending;
    if (slot.status.ok()) slot.status = std::move(done[i].status);
  }
  return {};
}

Result<std::span<const std::span<const std::byte>>> BlockStream::acquire(int block) {
  if (block != block_of(acquired_)) {
    const bool is_known = block >= 0 && static_cast<size_t>(block) < blocks_.size();
    return base::error(Errc::desync, "block stream: block {} was asked for, wanted {}, the next of the order",
                       is_known ? blocks_[static_cast<size_t>(block)].name : std::to_string(block),
                       blocks_[static_cast<size_t>(block_of(acquired_))].name);
  }
  if (acquired_ == asked_)
    return base::error(Errc::desync,
                       "block stream: block {} was asked for while all {} slots are in use; wanted {} "
                       "released",
                       blocks_[static_cast<size_t>(block)].name, static_cast<int64_t>(slots_.size()),
                       blocks_[static_cast<size_t>(block_of(released_))].name);
  Slot& slot = slot_of(acquired_);
  OVERLACE_TRY(poll(0));
  if (slot.pending > 0) {
    const auto begin = std::chrono::steady_clock::now();
    ++stats_.waits;
    while (slot.pending > 0) OVERLACE_TRY(poll(-1));
    stats_.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (!slot.status.ok())
    return base::error(slot.status.code(), "block stream: block {}: {}", blocks_[static_cast<size_t>(block)].name,
                       slot.status.message());
  ++acquired_;
  ++stats_.blocks;
  for (const std::span<const std::byte> piece : slot.pieces) stats_.bytes += static_cast<int64_t>(piece.size());
  return std::span<const std::span<const std::byte>>(slot.pieces);
}

Status BlockStream::release(int block) {
  if (released_ == acquired_ || block != block_of(released_)) {
    const bool is_known = block >= 0 && static_cast<size_t>(block) < blocks_.size();
    return base::error(Errc::desync, "block stream: block {} was released, wanted {}",
                       is_known ? blocks_[static_cast<size_t>(block)].name : std::to_string(block),
                       released_ == acquired_ ? std::string("none: none is in use")
                                              : blocks_[static_cast<size_t>(block_of(released_))].name);
  }
  ++released_;
  return read_ahead();
}

}  // namespace overlace::offload
