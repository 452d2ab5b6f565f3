// What an instance of the GEMM kernel is compiled for, and the configs of configs.def by name.
#pragma once

#include <cstdint>

#include "overlace/dtype_pod.h"

namespace overlace::gemm_core {

/// Contiguous dimension of B: k for `weight.t()` of an (N, K) parameter, n for a (K, N) matrix.
enum class BMajor : int32_t { k, n };

inline constexpr int kTileK = 64;  // 128 bytes of 16-bit elements: one swizzled row of shared memory
inline constexpr int kConsumerGroups = 2;
inline constexpr int kThreads = 128 * (1 + kConsumerGroups);
/// Items that a CTA remembers: more than its roles can be apart. Parts of its pushing warps likewise.
inline constexpr uint32_t kTicketSlots = 16, kPushSlots = 8;

/// A cluster of (cluster_m, cluster_n) CTAs computes as many neighbouring tiles. CTAs of a column share loads of B,
/// CTAs of a row those of A. `store_buffers`: staging buffers of each consumer warpgroup, store_rows() by store_cols().
/// `split_k` 2: the two CTAs of a cluster multiply half of K each, for one tile. `groups_per_tile` 1: consumer
/// warpgroups take tiles in ping-pong, so that one multiplies while the other ends its tile; else they share each.
/// `swaps_ab`: for small M. A is the weights (N, K), B the tokens (M, K), and the tiles of N rows by M columns are
/// stored transposed, as (M, N): no row of a GEMM is wasted, and weights are read once. `halves` not 0: B is a stack of
/// matrices, of which a tile takes the one of its shard; of 2 each matrix is two halves, a gate's rows and those of
/// what it is for, which a tile takes in turn, so that gated.cuh finds them beside each other. `groups_k`: A (K, M) and
/// B (K, N) are rows of groups, and C a stack of matrices: those of shard s are sums over the rows of group s
/// (GemmParams::groups). `stores_fp32`: sums are stored as they are. `chained`: items are of two products, whose
/// matrices are two stacks (ChainedParams): what the first gives is A of the second, whose matrices are not halves.
struct ConfigSpec {
  DType dtype = DType::bf16;
  BMajor b_major = BMajor::k;
  int tile_m = 128, tile_n = 256, cluster_m = 1, cluster_n = 1;
  int stages = 4, store_buffers = 2, split_k = 1, groups_per_tile = kConsumerGroups;
  bool swaps_ab = false;
  int halves = 0;
  bool groups_k = false, stores_fp32 = false, chained = false;

  /// Consumer warpgroups that take tiles in ping-pong; 1: they share each tile.
  constexpr int pingpong() const { return kConsumerGroups / groups_per_tile; }
  constexpr int cluster() const { return cluster_m * cluster_n * split_k; }
  /// The size of the boxes in which results are stored, as the output has them.
  constexpr int store_rows() const { return swaps_ab ? tile_n : 64; }
  constexpr int store_cols() const { return !stores_fp32 && (swaps_ab || tile_n % 64 == 0) ? 64 : 32; }
  constexpr int store_row_bytes() const { return store_cols() * (stores_fp32 ? 4 : 2); }
  constexpr uint32_t a_bytes() const { return static_cast<uint32_t>(tile_m * kTileK * 2); }
  constexpr uint32_t b_bytes() const { return static_cast<uint32_t>(tile_n * kTileK * 2); }
  constexpr uint32_t store_bytes() const { return static_cast<uint32_t>(store_rows() * store_row_bytes()); }
  /// What one consumer warpgroup gets from the other half of K: sums of 64 rows, fp32.
  constexpr uint32_t half_bytes() const { return split_k == 1 ? 0 : static_cast<uint32_t>(64 * tile_n * 4); }
  /// Boxes of the size of a staging buffer that the operands' place in a stage can hold.
  constexpr int stage_boxes() const { return static_cast<int>((a_bytes() + b_bytes()) / store_bytes()); }
};

/// Offsets in the CTA's shared memory: operands, staging buffers and the other half's sums at multiples of 1024, then
/// barriers, numbers of items, words that roles count in.
struct SharedLayout {
  uint32_t a = 0, b = 0, out = 0, half = 0, tickets = 0, full = 0, empty = 0, staged = 0, freed = 0, come = 0,
           taken = 0;
  uint32_t handed_barriers = 0, handed = 0, pushed = 0, words = 0, depths = 0;
  uint32_t bytes = 0;
};
constexpr SharedLayout shared_layout(const ConfigSpec& c) {
  SharedLayout s;
  const auto stages = static_cast<uint32_t>(c.stages);
  const auto buffers = static_cast<uint32_t>(kConsumerGroups * c.store_buffers);
  s.b = stages * c.a_bytes();
  s.out = s.b + stages * c.b_bytes();
  s.half = s.out + buffers * c.store_bytes();
  s.tickets = s.half + c.half_bytes();
  s.handed = s.tickets + kTicketSlots * 16;
  s.full = s.handed + kTicketSlots * 16;
  s.empty = s.full + stages * 8;
  s.staged = s.empty + stages * 8;
  s.freed = s.staged + buffers * 8;
  s.come = s.freed + buffers * 8;
  s.taken = s.come + 8;
  s.handed_barriers = s.taken + 8;
  s.pushed = s.handed_barriers + kTicketSlots * 8;
  s.words = s.pushed + kPushSlots * 4;
  s.depths = s.words + 4 * 4;
  s.bytes = s.depths + (c.groups_k ? kTicketSlots * 4 : 0);
  return s;
}
/// What a launch asks for: the base of dynamic shared memory is aligned by the kernel.
constexpr uint32_t dynamic_shared_bytes(const ConfigSpec& c) { return shared_layout(c).bytes + 1024; }
inline constexpr uint32_t kSharedLimit = 227 * 1024;
inline constexpr int kMostSums = 160;

constexpr bool is_valid(const ConfigSpec& c) {
  const bool groups = c.groups_per_tile == 1 || c.groups_per_tile == kConsumerGroups;
  // Sums of a thread: what registers hold beside all else.
  const bool fits = groups && c.tile_m % (64 * c.groups_per_tile) == 0 &&
                    c.tile_m * c.tile_n / (128 * c.groups_per_tile) <= kMostSums;
  const bool swapped = c.tile_m == 64 && (c.tile_n == 16 || c.tile_n == 64 || c.tile_n == 128 || c.tile_n == 256) &&
                       c.cluster_n == 1 && c.groups_per_tile == 1;
  const bool tile = c.swaps_ab ? swapped
                               : (c.tile_m == 128 && (c.tile_n == 64 || c.tile_n == 128 || c.tile_n == 160 ||
                                                      c.tile_n == 192 || c.tile_n == 224 || c.tile_n == 256)) ||
                                     (c.tile_m == 256 && (c.tile_n == 64 || c.tile_n == 128));
  const bool cluster = c.cluster_m >= 1 && c.cluster_n >= 1 && c.split_k >= 1 && c.cluster() <= 2;
  const bool split = c.split_k == 1 || c.tile_m == 64 * c.groups_per_tile;  // each CTA keeps a warpgroup's rows
  const bool major = c.b_major == BMajor::k || (c.tile_n % 64 == 0 && !c.swaps_ab);
  const bool stack = c.halves == 0 || (c.halves <= (c.b_major == BMajor::k ? 2 : 1) && c.cluster_m == 1 && !c.swaps_ab);
  const bool grouped =
      !c.groups_k || (c.b_major == BMajor::n && c.cluster() == 1 && c.halves == 0 && c.pingpong() == 1);
  const bool chain = !c.chained || (c.halves == 2 && !c.stores_fp32);
  const bool wide = !c.stores_fp32 || (c.tile_n % 32 == 0 && !c.swaps_ab && c.halves != 2);
  return tile && fits && cluster && split && major && stack && grouped && chain && wide &&
         (c.dtype == DType::bf16 || c.dtype == DType::fp16) && c.stages >= 2 && c.store_buffers >= 1 &&
         dynamic_shared_bytes(c) <= kSharedLimit;
}

#define CONFIG(name, dtype, b_major, ...) \
  inline constexpr ConfigSpec kSpec_##name{DType::dtype, BMajor::b_major, __VA_ARGS__};
#include "src/gemm_core/configs.def"
#undef CONFIG

/// A compiled kernel.
struct Instance {
  const char* name;
  ConfigSpec spec;
  const void* kernel;
};

}  // namespace overlace::gemm_core

/// Body of a unit: defines `space`::`kernel`_kernel_`name`, which gives the address of `function` for that config.
#define OVERLACE_UNIT(space, kernel, name, function)                       \
  const void* space::kernel##_kernel_##name() {                            \
    using namespace space;                                                 \
    return reinterpret_cast<const void*>(&function<Config<kSpec_##name>>); \
  }
