#include "bench/fused/copies.cuh"

#include <algorithm>
#include <vector>

#include "src/gemm_core/host.cuh"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/backend/cuda_peer/stream_ops.h"

namespace overlace::bench {

namespace node = runtime::cuda_peer;
using namespace ops::fused;

base::Status initial_totals(const ChannelPod& channel, uint32_t first_id, int count, uint64_t step, uint64_t* totals) {
  const TeamPod& team = channel.team;
  std::vector<uint64_t> values;
  for (int i = 0; i < count; ++i) {
    for (int peer = 0; peer < team.size; ++peer) {
      uint64_t now = 0;
      const uint64_t* slot = node::slot_address(team, peer, first_id + static_cast<uint32_t>(i), team.rank);
      OVERLACE_TRY(cuda_status(cudaMemcpy(&now, slot, sizeof now, cudaMemcpyDeviceToHost), "cudaMemcpy"));
      values.push_back(now + step);
    }
  }
  const size_t bytes = values.size() * sizeof(uint64_t);
  OVERLACE_TRY(cuda_status(cudaMemcpy(totals, values.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy"));
  return cuda_status(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");  // it may return before
}

namespace {

/// One piece of the own shard to one peer.
base::Status copy_piece(const PreparedGather& prepared, uint64_t epoch, int piece, int peer, cudaStream_t copies) {
  const GatherParams& g = prepared.params.gather;
  const TeamPod& team = g.channel.team;
  int64_t row = 0, rows = g.shard_rows, col = 0, bytes = prepared.k_bytes;
  if (prepared.arrival == Arrival::rows) {
    row = std::min<int64_t>(int64_t{piece} * g.chunk_rows, rows);
    const bool is_last = piece + 1 == g.chunks;
    rows = is_last ? rows - row : std::min<int64_t>(g.chunk_rows, rows - row);
  } else {
    const int64_t width = int64_t{g.slab_blocks} * kTileK * 2;
    col = std::min(piece * width, bytes);
    bytes = std::min(width, bytes - col);
  }
  if (rows > 0 && bytes > 0) {
    const int64_t first = prepared.params.gemm.order.row_begin[team.rank] + row;
    char* to = team.heap[peer] + g.inbox.buffer_offset(epoch) + first * prepared.k_bytes + col;
    const char* from = reinterpret_cast<const char*>(g.shard) + row * prepared.shard_pitch_bytes + col;
    const auto size = [](int64_t x) { return static_cast<size_t>(x); };
    if (bytes == prepared.shard_pitch_bytes && bytes == prepared.k_bytes) {
      OVERLACE_TRY(node::stream_put(to, from, size(bytes * rows), copies));
    } else {
      OVERLACE_TRY(node::stream_put_2d(to, size(prepared.k_bytes), from, size(prepared.shard_pitch_bytes), size(bytes),
                                       size(rows), copies));
    }
  }
  const auto id = g.ready_id + static_cast<uint32_t>(piece);
  return node::stream_post(node::slot_address(team, peer, id, team.rank), g.totals + piece * team.size + peer, copies);
}

}  // namespace

base::Status queue_copies(const PreparedGather& prepared, uint64_t epoch, cudaStream_t copies) {
  const GatherParams& g = prepared.params.gather;
  const TeamPod& team = g.channel.team;
  const int pieces = count_pieces(g), hops = team.size - 1;
  for (int i = 0; i < pieces * hops; ++i) {
    // Rows: all of the shard to who needs it first. Slabs: each slab to everybody, who all need it now.
    const bool by_peer = prepared.arrival == Arrival::rows;
    const int hop = 1 + (by_peer ? i / pieces : i % hops), piece = by_peer ? i % pieces : i / hops;
    OVERLACE_TRY(copy_piece(prepared, epoch, piece, (team.rank - hop + team.size) % team.size, copies));
  }
  return node::stream_post(node::slot_address(team, team.rank, g.ready_id, team.rank), g.totals + team.rank, copies);
}

}  // namespace overlace::bench
