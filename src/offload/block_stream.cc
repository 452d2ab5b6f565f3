#include "src/offload/block_stream.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "src/base/env.h"
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
      if ((piece.file == nullptr) == (piece.fill == nullptr))
        return base::invalid_argument("block stream: block {} has a piece with {}, wanted a file or what fills it",
                                      block.name, piece.file == nullptr ? "no source" : "two sources");
      if (piece.file != nullptr && !options.memory.empty())
        return base::invalid_argument("block stream: block {} has a piece of {}, wanted what fills the memory given",
                                      block.name, piece.file->path());
      if (piece.fill != nullptr) {
        if (piece.offset != 0 || piece.bytes < 0)
          return base::invalid_argument("block stream: block {} has {} bytes at {} to fill, wanted 0 or more at 0",
                                        block.name, piece.bytes, piece.offset);
        continue;
      }
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
  const auto bytes = static_cast<size_t>(stream->slot_bytes_ * options.slots);
  const bool is_given = !options.memory.empty();
  if (is_given && options.memory.size() < bytes)
    return base::invalid_argument("block stream: memory has {} bytes, wanted {} for {} slots", options.memory.size(),
                                  bytes, options.slots);
  Result<io::AlignedBuffer> owned = io::AlignedBuffer::allocate(is_given ? 0 : bytes);
  if (!owned.ok()) return owned.status();
  stream->owned_ = std::move(*owned);
  stream->memory_ = is_given ? options.memory.first(bytes) : std::span(stream->owned_.data(), bytes);
  stream->timeout_ms_ = options.engine.timeout_ms > 0 ? options.engine.timeout_ms : base::env().timeout_s * 1000;
  // What the kernel has not been asked for goes on only when somebody polls: all slots at once, so that reading goes on
  // while blocks are in use.
  const int64_t all_at_once =
      io::round_up(stream->slot_bytes_ * options.slots / std::max(options.engine.depth, 1), kPageBytes);
  options.engine.request_bytes = std::max(options.engine.request_bytes, all_at_once);
  Result<std::unique_ptr<io::IoEngine>> engine = io::IoEngine::open(std::move(options.engine));
  if (!engine.ok()) return engine.status();
  stream->engine_ = std::move(*engine);
  if (!is_given) stream->engine_->use_memory(stream->memory_);
  const auto is_filled = [](const Block& block) {
    return std::any_of(block.pieces.begin(), block.pieces.end(), [](const Piece& p) { return p.fill != nullptr; });
  };
  if (std::any_of(stream->blocks_.begin(), stream->blocks_.end(), is_filled))
    stream->filler_ = std::make_unique<Filler>();
  for (const Block& block : stream->blocks_) {
    for (const Piece& piece : block.pieces) {
      if (piece.file == nullptr || stream->files_.contains(piece.file.get())) continue;
      const Result<FileState> state = state_of(*piece.file);
      if (!state.ok()) return state.status();
      stream->files_.emplace(piece.file.get(), *state);
    }
  }
  for (int i = 0; i < options.slots; ++i) OVERLACE_TRY(stream->read_ahead());
  return stream;
}

BlockStream::~BlockStream() = default;

Status BlockStream::read_ahead() {
  const int64_t step = asked_++;
  Slot& slot = slot_of(step);
  OVERLACE_ASSERT(step < released_ + std::ssize(slots_) && slot.pending == 0);  // nobody reads or fills it
  const size_t place = static_cast<size_t>(step % static_cast<int64_t>(slots_.size()));
  std::byte* at = memory_.data() + static_cast<int64_t>(place) * slot_bytes_;
  slot.step = step;
  slot.status = {};
  slot.pieces.clear();
  for (const Piece& piece : blocks_[static_cast<size_t>(block_of(step))].pieces) {
    const int64_t skipped = piece.offset % kPageBytes, whole = span_of(piece);
    slot.pieces.emplace_back(at + skipped, static_cast<size_t>(piece.bytes));
    if (piece.bytes > 0 && piece.fill != nullptr) {
      const std::span<std::byte> target(at, static_cast<size_t>(piece.bytes));
      filler_->start([fill = &piece.fill, target] { return (*fill)(target); }, static_cast<uint64_t>(step));
      ++slot.pending;
    } else if (piece.bytes > 0) {
      OVERLACE_TRY(engine_->read(piece.file, piece.offset - skipped, skipped + piece.bytes,
                                 {at, static_cast<size_t>(whole)}, static_cast<uint64_t>(step)));
      ++slot.pending;
    }
    at += whole;
  }
  return {};
}

void BlockStream::ended(uint64_t step, Status status) {
  Slot& slot = slot_of(static_cast<int64_t>(step));
  --slot.pending;
  if (slot.status.ok()) slot.status = std::move(status);
}

Status BlockStream::poll(int64_t wait_ms) {
  std::array<io::Completion, 16> done;
  const Result<size_t> count = engine_->poll(done, engine_->pending() > 0 ? wait_ms : 0);
  if (!count.ok()) return count.status();
  for (size_t i = 0; i < *count; ++i) ended(done[i].tag, std::move(done[i].status));
  if (filler_ == nullptr) return {};
  // A wait for reads is over with the first of them; so is one for fills.
  const int64_t fill_wait_ms = wait_ms < 0 && *count == 0 && engine_->pending() == 0 ? timeout_ms_ : 0;
  for (FillEnd& end : filler_->poll(fill_wait_ms)) ended(end.tag, std::move(end.status));
  return {};
}

Status BlockStream::wait_for(Slot& slot) {
  const auto begin = std::chrono::steady_clock::now();
  while (slot.pending > 0) {
    OVERLACE_TRY(poll(-1));
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (slot.pending > 0 && waited > std::chrono::milliseconds(timeout_ms_))
      return base::error(Errc::timeout, "block stream: block {} did not come within {} ms",
                         name_of(block_of(slot.step)), timeout_ms_);
  }
  return {};
}

std::string BlockStream::text_of(int block) const {
  const bool is_known = block >= 0 && static_cast<size_t>(block) < blocks_.size();
  return is_known ? name_of(block) : std::to_string(block);
}

BlockStreamStats BlockStream::stats() const {
  BlockStreamStats stats = stats_;
  if (filler_ != nullptr) stats.filled_s = filler_->busy_s();
  return stats;
}

Result<BlockStream::FileState> BlockStream::state_of(const io::File& file) {
  struct stat info;
  if (::fstat(file.descriptor(false), &info) != 0)
    return base::error(Errc::io, "{}: fstat: {}", file.path(), std::strerror(errno));
  constexpr int64_t kNsPerS = 1'000'000'000;
  return FileState{info.st_size, info.st_mtim.tv_sec * kNsPerS + info.st_mtim.tv_nsec};
}

Status BlockStream::check_files(int block) const {
  const io::File* checked = nullptr;
  for (const Piece& piece : blocks_[static_cast<size_t>(block)].pieces) {
    if (piece.file == nullptr || piece.file.get() == checked) continue;
    checked = piece.file.get();
    const Result<FileState> state = state_of(*checked);
    if (!state.ok()) return state.status();
    if (*state == files_.at(checked)) continue;
    return base::error(Errc::corrupt,
                       "block stream: block {}: {} was written while it streamed: {} bytes, wanted {} "
                       "for {} at offset {}",
                       name_of(block), checked->path(), state->bytes, files_.at(checked).bytes, piece.bytes,
                       piece.offset);
  }
  return {};
}

Status BlockStream::restart() {
  for (int64_t step = released_; step < asked_; ++step) OVERLACE_TRY(wait_for(slot_of(step)));
  asked_ = acquired_ = released_ = 0;
  for (size_t i = 0; i < slots_.size(); ++i) OVERLACE_TRY(read_ahead());
  return {};
}

Result<std::span<const std::span<const std::byte>>> BlockStream::acquire(int block) {
  if (block != next_block())
    return base::error(Errc::desync, "block stream: block {} was asked for, wanted {}, the next of the order",
                       text_of(block), name_of(next_block()));
  if (acquired_ == asked_)
    return base::error(Errc::desync,
                       "block stream: block {} was asked for while all {} slots are in use; wanted {} released",
                       name_of(block), static_cast<int64_t>(slots_.size()), name_of(block_of(released_)));
  Slot& slot = slot_of(acquired_);
  OVERLACE_TRY(poll(0));
  if (slot.pending > 0) {
    const auto begin = std::chrono::steady_clock::now();
    ++stats_.waits;
    OVERLACE_TRY(wait_for(slot));
    stats_.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  OVERLACE_TRY(check_files(block));
  if (!slot.status.ok())
    return base::error(slot.status.code(), "block stream: block {}: {}", name_of(block), slot.status.message());
  OVERLACE_ASSERT(slot.step == acquired_ && slot.pending == 0);  // it is filled, and with this block
  ++acquired_;
  ++stats_.blocks;
  for (const std::span<const std::byte> piece : slot.pieces) stats_.bytes += static_cast<int64_t>(piece.size());
  return std::span<const std::span<const std::byte>>(slot.pieces);
}

Status BlockStream::release(int block) {
  if (released_ == acquired_ || block != block_of(released_))
    return base::error(Errc::desync, "block stream: block {} was released, wanted {}", text_of(block),
                       released_ == acquired_ ? std::string("none: none is in use") : name_of(block_of(released_)));
  ++released_;
  return read_ahead();
}

}  // namespace overlace::offload
