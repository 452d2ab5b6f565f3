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
    static_assert(kChunks <= 32);  // bits of OneShotParams::chunks_of
    using Element = typename Config::Element;
    const int32_t row = tile_of(*gemm, cta, item()).row;
    if (row >= s->n) return;  // behind the last tile of a cluster's column: of other clusters, other ranks have none
    const uint64_t at = static_cast<uint64_t>(row / 64 * s->chunks) * kChunkBytes + threadIdx.x % 128 * 8;
    float(&sum)[Config::kTileN / 2] = sums[0];
    // All leaves before anything is awaited.
#pragma unroll
    for (int first = 0; first < kChunks; first += Words<kChunks>::kCount)
      send_all(Words<kChunks>::template of<Element>(&sum[first * 4]), first, at);
#pragma unroll
    for (int first = 0; first < kChunks; first += Words<kChunks>::kCount)
      add_all<Element>(Words<kChunks>::template of<Element>(&sum[first * 4]), &sum[first * 4], first, at);
    if (s->bias != nullptr) add_bias_of_rows<Element>(sum, s->bias, row, s->n);
  }

 private:
  /// The words of a thread that are sent and read at once, a part of a tile of so many chunks: registers hold no more
  /// of them beside the sums.
  template <int kChunks>
  struct Words {
    static constexpr int kCount = kChunks < 8 ? kChunks : 8;
    uint2 of_chunk[kCount];

    template <class Element>
    __device__ __forceinline__ static Words of(const float* sum) {
      Words out;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        out.of_chunk[i] = {round_pair(sum[i * 4], sum[i * 4 + 1], Element{}),
                           round_pair(sum[i * 4 + 2], sum[i * 4 + 3], Element{})};
      }
      return out;
    }
  };
  /// Which of kCount chunks from `first` on a rank gets, as bits.
  template <int kCount>
  __device__ __forceinline__ uint32_t chunks_of(int rank, int first) const {
    return s->chunks_of[rank] >> first & ((1u << kCount) - 1);
  }

  template <int kChunks>
  __device__ __forceinline__ void send_all(const Words<kChunks>& own, int first, uint64_t at) const {
    const TeamPod& team = s->channel.team;
    const uint64_t to = buffer + static_cast<uint32_t>(team.rank) * s->slot_bytes + at;
    for (int hop = 1; hop < team.size; ++hop) send(own, (team.rank + hop) % team.size, first, to);
  }
  template <int kChunks>
  __device__ __forceinline__ void send(const Words<kChunks>& words, int peer, int first, uint64_t to) const {
    const uint32_t chunks = chunks_of<Words<kChunks>::kCount>(peer, first);
    char* const there = static_cast<char*>(device::peer_ptr(s->channel.team, peer, to)) + first * kChunkBytes;
#pragma unroll
    for (int i = 0; i < Words<kChunks>::kCount; ++i)
      if ((chunks >> i & 1) != 0)
        ptx::store_two_relaxed_sys(reinterpret_cast<uint2*>(there + i * kChunkBytes), words.of_chunk[i]);
  }

  /// The sums of all ranks, in their order, of chunks of which this rank gets any.
  template <class Element, int kChunks>
  __device__ __forceinline__ void add_all(const Words<kChunks>& own, float* sum, int first, uint64_t at) {
    const TeamPod& team = s->channel.team;
    if (chunks_of<Words<kChunks>::kCount>(team.rank, first) == 0) return;
#pragma unroll
    for (int i = 0; i < Words<kChunks>::kCount * 4; ++i) sum[i] = -0.0f;  // the zero that changes no summand
#pragma unroll 1
    for (int rank = 0; rank < team.size; ++rank) {
      Words<kChunks> part = own;
      if (rank != team.rank) receive(part, rank, first, buffer + static_cast<uint32_t>(rank) * s->slot_bytes + at);
#pragma unroll
      for (int i = 0; i < Words<kChunks>::kCount; ++i) {
        const float2 upper = unpack_pair(part.of_chunk[i].x, Element{});
        const float2 lower = unpack_pair(part.of_chunk[i].y, Element{});
        sum[i * 4] += upper.x;
        sum[i * 4 + 1] += upper.y;
        sum[i * 4 + 2] += lower.x;
        sum[i * 4 + 3] += lower.y;
      }
    }
  }

  /// What `sender` has sent; leaves kNotCome in its place. After a failure nobody is waited for. Polls hold up what
  /// comes in, so they come ever more seldom, but never later than by about an eighth of the time waited.
  template <int kChunks>
  __device__ __forceinline__ void receive(Words<kChunks>& part, int sender, int first, uint64_t from) {
    constexpr int kCount = Words<kChunks>::kCount;
    const TeamPod& team = s->channel.team;
    const uint32_t chunks = chunks_of<kCount>(team.rank, first);
    uint2(&words)[kCount] = part.of_chunk;
    char* const here = static_cast<char*>(device::peer_ptr(team, team.rank, from)) + first * kChunkBytes;
    const auto word = [=](int i) { return reinterpret_cast<uint2*>(here + i * kChunkBytes); };
    device::BackOff<8> polls;
    const auto has_come = [&](uint64_t& seen) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if ((chunks >> i & 1) != 0) words[i] = ptx::load_two_relaxed_sys(word(i));
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if ((chunks >> i & 1) != 0) all = all && words[i].x != kNotCome && words[i].y != kNotCome;
      seen = all ? 1 : 0;
      if (all) return true;
      polls.pause();
      return false;
    };
    if (has_failed) return;
    has_failed = device::poll_until(team, {WaitKind::word, static_cast<uint32_t>(sender), 0, 1}, has_come) != Errc::ok;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if ((chunks >> i & 1) != 0) ptx::store_two_relaxed_sys(word(i), {kNotCome, kNotCome});
  }
};

}  // namespace overlace::ops::fused
