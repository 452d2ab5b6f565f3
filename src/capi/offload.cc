// Block streams of the C API.
#include "overlace/offload.h"

#include "overlace/capi_offload.h"
#include "src/capi/handles.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

using base::Status;

constexpr const char* kOpen = "ovl_block_stream_open";

struct BlockStreamObject : Object {
  static constexpr std::string_view kName = "block_stream";
  explicit BlockStreamObject(BlockStream opened) : stream(std::move(opened)) {}
  std::mutex busy;
  BlockStream stream;
  std::vector<int32_t> num_pieces;  // of each block
};

Status check_options(const ovl_block_stream_options* given, ovl_block_stream** out) {
  OVERLACE_TRY(check_struct({kOpen, "options"}, given));
  OVERLACE_TRY(check_not_null({kOpen, "out"}, out));
  if (given->num_blocks < 1)
    return base::invalid_argument("{}: num_blocks is {}, wanted 1 or more", kOpen, given->num_blocks);
  if (given->order_length < 1)
    return base::invalid_argument("{}: order_length is {}, wanted 1 or more", kOpen, given->order_length);
  OVERLACE_TRY(check_not_null({kOpen, "names"}, given->names));
  OVERLACE_TRY(check_not_null({kOpen, "first_piece"}, given->first_piece));
  OVERLACE_TRY(check_not_null({kOpen, "order"}, given->order));
  for (int32_t b = 0; b <= given->num_blocks; ++b) {
    const int32_t least = b == 0 ? 0 : given->first_piece[b - 1], got = given->first_piece[b];
    if (got < least || (b == 0 && got != 0))
      return base::invalid_argument("{}: first_piece[{}] is {}, wanted {}{}", kOpen, b, got, least,
                                    b == 0 ? "" : " or more");
  }
  if (given->first_piece[given->num_blocks] == 0) return {};
  OVERLACE_TRY(check_not_null({kOpen, "paths"}, given->paths));
  OVERLACE_TRY(check_not_null({kOpen, "offsets"}, given->offsets));
  return check_not_null({kOpen, "bytes"}, given->bytes);
}

Status open_stream(const ovl_block_stream_options* given, ovl_block_stream** out) {
  OVERLACE_TRY(check_options(given, out));
  std::vector<StreamBlock> blocks;
  std::vector<int32_t> num_pieces;
  for (int32_t b = 0; b < given->num_blocks; ++b) {
    OVERLACE_TRY(check_not_null({kOpen, "names"}, given->names[b]));
    StreamBlock block{given->names[b], {}};
    for (int32_t p = given->first_piece[b]; p < given->first_piece[b + 1]; ++p) {
      StreamPiece piece;
      piece.bytes = given->bytes[p];
      piece.offset = given->offsets[p];
      if (given->paths[p] != nullptr) {
        piece.path = given->paths[p];
      } else if (given->memory != nullptr) {
        piece.memory = given->memory[p];
      }
      block.pieces.push_back(std::move(piece));
    }
    num_pieces.push_back(static_cast<int32_t>(block.pieces.size()));
    blocks.push_back(std::move(block));
  }
  BlockStreamOptions options;
  options.slots = given->slots;
  options.slot_bytes = given->slot_bytes;
  if (given->engine != nullptr) options.engine = given->engine;
  options.timeout_ms = given->timeout_ms;
  const std::vector<int> order(given->order, given->order + given->order_length);
  auto object = std::make_shared<BlockStreamObject>(BlockStream(blocks, order, options));
  object->num_pieces = std::move(num_pieces);
  give(std::move(object), out);
  return {};
}

/// Finds a stream and calls `body` with its object, one thread at a time.
template <class Body>
int with_stream(const char* call, ovl_block_stream* handle, Body body) {
  return guarded([&]() -> Status {
    const auto found = find<BlockStreamObject>({call, "stream"}, handle);
    if (!found.ok()) return found.status();
    const std::unique_lock lock((*found)->busy, std::try_to_lock);
    if (!lock) return base::invalid_argument("{}: stream is used by another thread, wanted one at a time", call);
    return body(**found);
  });
}

Status acquire(BlockStreamObject& object, int32_t block, const void** pieces, int32_t num_pieces) {
  constexpr const char* kCall = "ovl_block_stream_acquire";
  OVERLACE_TRY(check_not_null({kCall, "pieces"}, pieces));
  if (block >= 0 && block < std::ssize(object.num_pieces)) {
    const int32_t wanted = object.num_pieces[static_cast<size_t>(block)];
    if (num_pieces != wanted)
      return base::invalid_argument("{}: num_pieces is {}, wanted {}, those of block {}", kCall, num_pieces, wanted,
                                    block);
  }
  for (const std::span<const std::byte> piece : object.stream.acquire(block)) *pieces++ = piece.data();
  return {};
}

Status stream_stats(const BlockStream& stream, ovl_block_stream_stats* out) {
  OVERLACE_TRY(check_struct({"ovl_block_stream_stats_of", "out"}, out));
  const BlockStreamStats s = stream.stats();
  const std::span<const std::byte> memory = stream.memory();
  *out = {sizeof(ovl_block_stream_stats),
          s.blocks,
          s.bytes,
          s.waits,
          std::ssize(memory),
          memory.data(),
          s.waited_s,
          s.filled_s};
  return {};
}

}  // namespace

extern "C" {

int ovl_block_stream_open(const ovl_block_stream_options* options, ovl_block_stream** out) {
  return guarded([&] { return open_stream(options, out); });
}
int ovl_block_stream_acquire(ovl_block_stream* stream, int32_t block, const void** pieces, int32_t num_pieces) {
  return with_stream("ovl_block_stream_acquire", stream,
                     [&](BlockStreamObject& o) { return acquire(o, block, pieces, num_pieces); });
}
int ovl_block_stream_release(ovl_block_stream* stream, int32_t block) {
  return with_stream("ovl_block_stream_release", stream,
                     [&](BlockStreamObject& o) { return o.stream.release(block), Status(); });
}
int ovl_block_stream_restart(ovl_block_stream* stream) {
  return with_stream("ovl_block_stream_restart", stream,
                     [](BlockStreamObject& o) { return o.stream.restart(), Status(); });
}
int ovl_block_stream_stats_of(ovl_block_stream* stream, ovl_block_stream_stats* out) {
  return with_stream("ovl_block_stream_stats_of", stream,
                     [&](BlockStreamObject& o) { return stream_stats(o.stream, out); });
}
int ovl_block_stream_close(ovl_block_stream* stream) {
  return guarded([&]() -> Status {
    const auto found = find<BlockStreamObject>({"ovl_block_stream_close", "stream"}, stream);
    if (!found.ok()) return found.status();
    Registry::instance().remove(number_of(stream));
    return {};
  });
}

}  // extern "C"
