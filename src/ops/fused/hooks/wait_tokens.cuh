// Waits until the few tokens of all ranks are in the inbox.
#pragma once

#include "src/gemm_core/mainloop.cuh"
#include "src/ops/fused/gather_one_shot.cuh"

namespace overlace::ops::fused {

/// A wait of the load thread, once per CTA, when the weights of all stages have been asked for. After a failure nobody
/// is waited for: the pipeline runs on with what memory holds.
struct WaitTokens {
  static constexpr bool kWaits = true, kDrains = false;
  const OneShotGatherParams* g;
  const CUtensorMap* gathered = nullptr;
  bool is_over = false;

  __device__ __forceinline__ void begin() {
    for (const CUtensorMap& map : g->gathered) ptx::prefetch_map(&map);
    gathered = &g->gathered[buffer_of_call(*g)];
  }
  template <class Config>
  __device__ __forceinline__ Source source(const GemmParams&, const Tile& tile) const {
    return {gathered, tile.col};
  }
  template <class Config>
  __device__ __forceinline__ void wait(const Tile&, int32_t, Deadline&) {
    if (is_over) return;
    is_over = true;
    if (wait_for_all() != Errc::ok) return;
    for (int sender = 0; sender < g->channel.team.size; ++sender)
      (void)device::test_ge(g->channel, sender, g->ready_id, 0);  // acquire
    ptx::fence_proxy_async();
  }
  /// All lanes of the load warp. Some of its loads may still be under way: nobody writes there before this grid has
  /// ended.
  __device__ __forceinline__ void end() const { arrive(*g); }

 private:
  /// Looks at the words of all senders at once, ever more seldom, but never later than by about an eighth of the time
  /// waited: polls hold up what comes in.
  __device__ __forceinline__ Errc wait_for_all() const {
    const TeamPod& team = g->channel.team;
    device::BackOff<8> polls;
    device::WaitSite site{WaitKind::signal, 0, g->ready_id, 0};
    return device::poll_until(team, site, [&](uint64_t& seen) {
      bool all = true;
#pragma unroll 4
      for (int sender = 0; sender < team.size; ++sender) {
        const uint64_t want = device::ticket(g->channel, sender, g->ready_id) + kShares;
        const uint64_t now = ptx::load_relaxed_sys(device::local_slot(team, sender, g->ready_id));
        if (device::reached(now, want)) continue;
        all = false;
        seen = now;
        site.peer = static_cast<uint32_t>(sender);
        site.expected = want;
      }
      if (all) return true;
      polls.pause();
      return false;
    });
  }
};

}  // namespace overlace::ops::fused
