// include/overlace/offload.h around BlockStream of this layer.
#include "overlace/offload.h"

#include <cstring>
#include <map>
#include <utility>

#include "src/base/status.h"
#include "src/offload/block_stream.h"

namespace overlace {
namespace {

using base::Result;
using base::Status;

using Files = std::map<std::string, std::shared_ptr<io::File>>;

Status check_sources(const StreamBlock& block, const StreamPiece& piece) {
  const int sources = (piece.path.empty() ? 0 : 1) + (piece.memory != nullptr ? 1 : 0) + (piece.fill ? 1 : 0);
  if (sources != 1 && (sources > 0 || piece.bytes != 0))
    return base::invalid_argument(
        "block stream: block {} has a piece with {} sources, wanted one of path, memory, fill", block.name, sources);
  if (piece.path.empty() && piece.offset != 0)
    return base::invalid_argument("block stream: block {} has offset {} of a piece without a file, wanted 0",
                                  block.name, piece.offset);
  return {};
}

Result<offload::Piece> piece_of(const StreamBlock& block, const StreamPiece& given, bool direct, Files* files) {
  OVERLACE_TRY(check_sources(block, given));
  offload::Piece piece{nullptr, given.offset, given.bytes, {}};
  if (given.memory != nullptr) {
    piece.fill = [from = given.memory](std::span<std::byte> to) {
      std::memcpy(to.data(), from, to.size());
      return Status();
    };
  } else if (given.fill) {
    piece.fill = [fill = given.fill](std::span<std::byte> to) { return fill(to), Status(); };
  } else if (given.path.empty()) {
    piece.fill = [](std::span<std::byte>) { return Status(); };
  } else {
    std::shared_ptr<io::File>& file = (*files)[given.path];
    if (file == nullptr) {
      auto opened = io::File::open(given.path, io::FileMode::read, direct);
      if (!opened.ok()) return opened.status();
      file = std::move(*opened);
    }
    piece.file = file;
  }
  return piece;
}

Result<std::unique_ptr<offload::BlockStream>> open_stream(const std::vector<StreamBlock>& given,
                                                          const std::vector<int>& order,
                                                          const BlockStreamOptions& options) {
  const auto choice = io::choose_engine(options.engine);
  if (!choice.ok()) return choice.status();
  Files files;
  std::vector<offload::Block> blocks;
  for (const StreamBlock& block : given) {
    blocks.push_back({block.name, {}});
    for (const StreamPiece& piece : block.pieces) {
      auto made = piece_of(block, piece, choice->name != "buffered", &files);
      if (!made.ok()) return made.status();
      blocks.back().pieces.push_back(std::move(*made));
    }
  }
  offload::BlockStreamOptions wanted{.slots = options.slots, .slot_bytes = options.slot_bytes};
  wanted.engine.engine = options.engine;
  wanted.engine.timeout_ms = options.timeout_ms;
  return offload::BlockStream::open(std::move(blocks), order, std::move(wanted));
}

}  // namespace

struct BlockStream::Impl {
  std::unique_ptr<offload::BlockStream> stream;
};

BlockStream::BlockStream(const std::vector<StreamBlock>& blocks, const std::vector<int>& order,
                         const BlockStreamOptions& options) {
  auto stream = open_stream(blocks, order, options);
  stream.status().or_throw();
  impl_ = std::make_unique<Impl>(Impl{std::move(*stream)});
}
BlockStream::~BlockStream() = default;
BlockStream::BlockStream(BlockStream&&) noexcept = default;
BlockStream& BlockStream::operator=(BlockStream&&) noexcept = default;

BlockStream::Pieces BlockStream::acquire(int block) {
  const auto pieces = impl_->stream->acquire(block);
  pieces.status().or_throw();
  return *pieces;
}

void BlockStream::release(int block) { impl_->stream->release(block).or_throw(); }
void BlockStream::restart() { impl_->stream->restart().or_throw(); }
std::span<const std::byte> BlockStream::memory() const { return impl_->stream->memory(); }

BlockStreamStats BlockStream::stats() const {
  const offload::BlockStreamStats s = impl_->stream->stats();
  return {s.blocks, s.bytes, s.waits, s.waited_s, s.filled_s};
}

}  // namespace overlace
