// Sends a tile's sums to the peers that want them and adds to them what the peers have sent of the same tile, in rank
// order.
#pragma once

#include "src/gemm_core/epilogue.cuh"
#include "src/gemm_core/hooks/add_bias.cuh"
#include "src/ops/fused/one_shot.cuh"

namespace overlace::ops::fused {

/// A Reduce hook without loads, of tiles with swapped operands. Each thread sends what it holds, rounded, and reads
/// what the same thread of each peer sent: two words for 8 tokens. Words tell by themselves that they have come: no
/// fence, no flag, no barrier of the CTA. No circle of waits: tiles come in ascending order in every CTA, and each is
/// sent before its peers' parts are awaited; places are drawn in ascending order, too (DrawnPlaces). So of all tiles
/// that somebody waits for the lowest is sent or computed everywhere. Sums of chunks that this rank does not get are
/// not stored.
struct AddPeers {
  static constexpr bool kReduces = true, kLoads = false;
  const OneShotParams* s;
  const GemmParams* gemm;
  uint64_t buffer = 0;  // of this call, in every heap
  bool has_failed = false;

  __device__ __forceinline__ void begin() {}
  __device__ __forceinline__ void end() const {}

  /// All lanes of a consumer warp.
  __device__ __forceinline__ void start() {
    ptx::wait_for_previous_grid();
    const uint32_t warp = threadIdx.x / 32 - 4;
    const uint32_t call = s->calls[blockIdx.x * (kConsumerGroups * 4) + warp];
    buffer = s->inbox + call % 2 * s->pitch;
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    // Calls are counted for CTAs that only a larger grid has, too.
    for (uint32_t cta = blockIdx.x; cta < s->count_ctas; cta += gridDim.x)
      s->calls[cta * (kConsumerGroups * 4) + warp] = call + 1;
  }

  template <class Config, class Item>
  __device__ __forceinline__ void add(Accumulators<Config>& sums, const Cta<Config>& cta, uint32_t, Item item,
                                      Ring<Config::kStages>&, Deadline&) {
    constexpr int kChunks = Config::kTileN / 8;
    static_assert(kChunks <= 8);  // bits of OneShotParams::chunks_of
    using Element = typename Config::Element;
    const TeamPod& team = s->channel.team;
    const int32_t row = tile_of(*gemm, cta, item()).row;
    const uint64_t at = static_cast<uint64_t>(row / 64 * s->chunks) * kChunkBytes + threadIdx.x % 128 * 8;
    float(&sum)[Config::kTileN / 2] = sums[0];
    uint2 own[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      own[i] = {round_pair(sum[i * 4], sum[i * 4 + 1], Element{}),
                round_pair(sum[i * 4 + 2], sum[i * 4 + 3], Element{})};
    }
    for (int hop = 1; hop < team.size; ++hop) {
      const int peer = (team.rank + hop) % team.size;
      send<kChunks>(own, peer, buffer + static_cast<uint32_t>(team.rank) * s->slot_bytes + at);
    }
#pragma unroll
    for (float& x : sum) x = -0.0f;  // the zero that changes no summand
#pragma unroll 1
    for (int rank = 0; rank < team.size; ++rank) {
      uint2 part[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) part[i] = own[i];
      if (rank != team.rank) receive<kChunks>(part, rank, buffer + static_cast<uint32_t>(rank) * s->slot_bytes + at);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const float2 upper = unpack_pair(part[i].x, Element{}), lower = unpack_pair(part[i].y, Element{});
        sum[i * 4] += upper.x;
        sum[i * 4 + 1] += upper.y;
        sum[i * 4 + 2] += lower.x;
        sum[i * 4 + 3] += lower.y;
      }
    }
    if (s->bias != nullptr) add_bias_of_rows<Element>(sum, s->bias, row, s->n);
  }

 private:
  template <int kChunks>
  __device__ __forceinline__ void send(const uint2 (&words)[kChunks], int peer, uint64_t to) const {
    const uint32_t chunks = s->chunks_of[peer];
    char* const there = static_cast<char*>(device::peer_ptr(s->channel.team, peer, to));
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      if ((chunks >> i & 1) != 0)
        ptx::store_two_relaxed_sys(reinterpret_cast<uint2*>(there + i * kChunkBytes), words[i]);
  }

  /// What `sender` has sent; leaves kNotCome in its place. After a failure nobody is waited for. Polls hold up what
  /// comes in, so they come ever more seldom, but never later than by about an eighth of the time waited.
  template <int kChunks>
  __device__ __forceinline__ void receive(uint2 (&words)[kChunks], int sender, uint64_t from) {
    const TeamPod& team = s->channel.team;
    const uint32_t chunks = s->chunks_of[team.rank];
    char* const here = static_cast<char*>(device::peer_ptr(team, team.rank, from));
    const auto word = [=](int i) { return reinterpret_cast<uint2*>(here + i * kChunkBytes); };
    device::BackOff<8> polls;
    const auto has_come = [&](uint64_t& seen) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        if ((chunks >> i & 1) != 0) words[i] = ptx::load_two_relaxed_sys(word(i));
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        if ((chunks >> i & 1) != 0) all = all && words[i].x != kNotCome && words[i].y != kNotCome;
      seen = all ? 1 : 0;
      if (all) return true;
      polls.pause();
      return false;
    };
    if (has_failed) return;
    has_failed = device::poll_until(team, {WaitKind::word, static_cast<uint32_t>(sender), 0, 1}, has_come) != Errc::ok;
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      if ((chunks >> i & 1) != 0) ptx::store_two_relaxed_sys(word(i), {kNotCome, kNotCome});
  }
};

}  // namespace overlace::ops::fused
