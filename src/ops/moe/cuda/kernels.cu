#include "src/base/ceil_div_pod.h"
#include "src/device/math/swiglu.cuh"
#include "src/ops/moe/cuda/kernels.h"
#include "src/ops/moe/cuda/order_pod.h"
#include "src/ops/moe/cuda/rows.cuh"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/preload.h"
#include "src/spec/work_order_pod.h"

namespace overlace::ops::moe {
namespace {

using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::RegisteredKernel;

constexpr int kWarps = 8, kThreads = kWarps * 32, kPlanThreads = 1024;
constexpr int kFlight = 4;  // loads of a lane that are under way at a time
__device__ __forceinline__ int64_t warp_of_grid() { return int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; }
__device__ __forceinline__ int64_t warps_of_grid() { return int64_t{gridDim.x} * kWarps; }

// ---- numbering ----

/// One warp a block: `slots` counts earlier copies for the same expert in this block, `hist` all of this block's.
__global__ __launch_bounds__(32) void moe_number(const __grid_constant__ LayerPod p,
                                                 const __grid_constant__ TokensPod call) {
  extern __shared__ int32_t count[];  // (E)
  const int32_t lane = lane_of();
  for (int32_t e = lane; e < p.num_experts; e += 32) count[e] = 0;
  __syncwarp();
  const int64_t end = call.tokens * p.top_k, first = int64_t{blockIdx.x} * kEntriesPerBlock;
  constexpr int kAtOnce = 8;  // loads that are under way
  for (int64_t some = first; some < first + kEntriesPerBlock && some < end; some += 32 * kAtOnce) {
    int32_t experts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t number = some + i * 32 + lane, token = number / p.top_k;
      experts[i] = number < end ? call.idx[token * call.idx_pitch + (number - token * p.top_k)] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t number = some + i * 32 + lane;
      int32_t expert = experts[i];
      if (expert < -1 || expert >= p.num_experts) {
        const auto token = static_cast<int32_t>(number / p.top_k);
        if (atomicCAS(&p.account->bad_token, 0, token + 1) == 0) {
          p.account->bad_choice = static_cast<int32_t>(number % p.top_k) + 1;
          p.account->bad_expert = expert;
        }
        expert = -1;
      }
      const uint32_t alike = __match_any_sync(kAll, expert);
      const int32_t before = expert < 0 ? 0 : count[expert];
      __syncwarp();
      if (expert >= 0) {
        p.slots[number] = before + __popc(alike & ((1u << lane) - 1));
        if (lane == 31 - __clz(static_cast<int>(alike))) count[expert] = before + __popc(alike);
      }
      __syncwarp();
    }
  }
  for (int32_t e = lane; e < p.num_experts; e += 32) p.hist[int64_t{blockIdx.x} * p.num_experts + e] = count[e];
}

/// A thread for each expert: what is before each block, and all there are, of which peers hear.
__global__ __launch_bounds__(kThreads) void moe_scan(const __grid_constant__ LayerPod p, int32_t blocks, int64_t tokens,
                                                     int64_t capacity) {
  const auto e = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (e == 0) *at<int64_t>(p, p.rank, p.tokens) = tokens;
  if (e >= p.num_experts) return;
  constexpr int kAtOnce = 16;
  int32_t sum = 0;
  for (int32_t first = 0; first < blocks; first += kAtOnce) {
    int32_t of_block[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      of_block[i] = first + i < blocks ? p.hist[int64_t{first + i} * p.num_experts + e] : 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < blocks) p.hist[int64_t{first + i} * p.num_experts + e] = sum;
      sum += of_block[i];
    }
  }
  at<int32_t>(p, p.rank, p.counts)[e] = sum < capacity ? sum : static_cast<int32_t>(capacity);
}

/// A warp for each token. Rows of 0 planes, where nobody reads them.
template <int kPlanes>
__global__ __launch_bounds__(kThreads) void moe_publish(const __grid_constant__ LayerPod p,
                                                        const __grid_constant__ TokensPod call) {
  const int32_t lane = lane_of();
  for (int64_t token = warp_of_grid(); token < call.tokens; token += warps_of_grid()) {
    if (lane < p.top_k) {
      const int64_t number = token * p.top_k + lane;
      Entry entry{call.idx[token * call.idx_pitch + lane], 0, call.weights[token * call.weights_pitch + lane], 0};
      if (entry.expert < 0 || entry.expert >= p.num_experts) {
        entry.expert = -1;
      } else {
        entry.slot = p.slots[number] + p.hist[number / kEntriesPerBlock * p.num_experts + entry.expert];
        if (entry.slot >= call.capacity) {
          entry.expert = -1;
          atomicAdd(&p.account->dropped, 1);
        }
      }
      at<Entry>(p, p.rank, p.entries)[number] = entry;
    }
#pragma unroll 1
    for (int plane = 0; plane < kPlanes; ++plane) {
      const uint4* const from = call.rows[plane] + token * call.row_pitches[plane];
      uint4* const to = at<uint4>(p, p.rank, p.rows[plane]) + token * p.row_units;
      for (int32_t unit = lane; unit < p.row_units; unit += 32) to[unit] = from[unit];
    }
  }
}

// ---- the pool ----
/// Called by a whole warp: the items of an expert's tiles; those of the same columns follow each other, as they take
/// the same weights.
__device__ __forceinline__ void list_tiles(uint4* to, int32_t first_row, int32_t rows, int32_t columns, int32_t shard) {
  for (int32_t i = lane_of(); i < rows * columns; i += 32) {
    const int32_t column = i / rows, row = i - column * rows;
    to[i] = {static_cast<uint32_t>(Work::product), static_cast<uint32_t>(first_row + row),
             static_cast<uint32_t>(column), static_cast<uint32_t>(shard)};
  }
}
/// Called by a whole warp: how many rows are before those of each expert. Returns how many there are.
__device__ __forceinline__ int32_t place_rows(const int32_t* rows, int32_t experts, int32_t* first) {
  const int32_t lane = lane_of();
  int32_t before = 0;
  for (int32_t some = 0; some < experts; some += 32) {
    const int32_t own = some + lane < experts ? rows[some + lane] : 0;
    int32_t sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t left = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += left;
    }
    if (some + lane < experts) first[some + lane] = before + sum - own;
    before += __shfl_sync(kAll, sum, 31);
  }
  return before;
}

/// Rows of the experts of this rank, from all ranks: expert by expert, from this rank first, then from those behind it
/// in turn; and the tiles of all products. One block.
__global__ __launch_bounds__(kPlanThreads, 1) void moe_plan(const __grid_constant__ LayerPod p,
                                                            const __grid_constant__ FlowPod flow, int64_t* load,
                                                            int64_t* dropped) {
  const int32_t local = local_experts(p), mine = p.begin[p.rank];
  const auto most = static_cast<int32_t>(p.pool_rows), most_tiles = most / kPoolTile;
  for (auto e = static_cast<int32_t>(threadIdx.x); e < local; e += kPlanThreads) {
    int32_t sum = 0;
    for (int step = 0; step < p.size; ++step) {
      const int source = (p.rank + step) % p.size;
      p.first[int64_t{source} * local + e] = sum;  // in the expert
      sum += min(max(at<int32_t>(p, source, p.counts)[mine + e], 0), most - sum);
    }
    p.load[e] = sum;
    if (load != nullptr) load[e] = sum;
  }
  if (threadIdx.x == 0 && dropped != nullptr) *dropped = p.account->dropped;
  __syncthreads();
  extern __shared__ int32_t begin[];  // (E_loc + 1): tiles of rows before those of an expert
  if (threadIdx.x < 32) {
    const int32_t lane = lane_of();
    int32_t before = 0;
    for (int32_t first = 0; first < local; first += 32) {
      const int32_t e = first + lane;
      int32_t sum = e < local ? base::ceil_div(p.load[e], kPoolTile) : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int32_t left = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum = min(sum + left, most_tiles);
      }
      if (e < local) begin[e + 1] = min(before + sum, most_tiles);
      before = min(before + __shfl_sync(kAll, sum, 31), most_tiles);
    }
    if (lane == 0) begin[0] = 0;
  }
  __syncthreads();
  for (int32_t e = static_cast<int32_t>(threadIdx.x / 32); e < local; e += kPlanThreads / 32) {
    const int32_t tiles_before = begin[e], tiles = begin[e + 1] - tiles_before;
    for (int source = lane_of(); source < p.size; source += 32)
      p.first[int64_t{source} * local + e] += int64_t{tiles_before} * kPoolTile;
    if (lane_of() == 0) p.groups[e] = {tiles_before * kPoolTile, p.load[e]};
    if (flow.items != nullptr) {
      const ItemOrder order{begin, local, flow.up, flow.down, flow.lag};
      list_tiles(flow.items + first_up(order, e), tiles_before, tiles, order.up, e);
      list_tiles(flow.items + first_down(order, e), tiles_before, tiles, order.down, local + e);
      continue;
    }
#pragma unroll
    for (int product = 0; product < kProducts; ++product) {
      const int32_t columns = p.columns[product];
      list_tiles(p.items[product] + int64_t{tiles_before} * columns, tiles_before, tiles, columns, e);
    }
  }
  if (flow.items != nullptr) {
    if (threadIdx.x == 0) {
      const int32_t count = count_items({begin, local, flow.up, flow.down, flow.lag});
      flow.items[count] = {kWorks, 0, 0, 0};
      *flow.num_items = count;
    }
    if (threadIdx.x / 32 == 1) *flow.num_rows = place_rows(flow.first_rows, local, flow.next_in);
    if (threadIdx.x / 32 == 2) place_rows(flow.last_rows, local, flow.next_out);
    return;
  }
  if (threadIdx.x < kProducts && p.columns[threadIdx.x] > 0) {
    const int32_t count = begin[local] * p.columns[threadIdx.x];
    p.items[threadIdx.x][count] = {kWorks, 0, 0, 0};
    p.num_items[threadIdx.x] = count;
  }
}

/// The tokens of all ranks, a warp at a time: this rank's first, then those of the ranks behind it in turn.
template <class Body>
__device__ __forceinline__ void for_tokens(const LayerPod& p, int first_step, Body body) {
  for (int step = first_step; step < p.size; ++step) {
    const int source = (p.rank + step) % p.size;
    const int64_t said = *at<int64_t>(p, source, p.tokens), tokens = said < p.max_tokens ? said : p.max_tokens;
    for (int64_t token = warp_of_grid(); token < tokens; token += warps_of_grid()) body(source, token);
  }
}

// ---- lists of the layer in one kernel ----

/// A token of `source`, told to the first lane of each group of `width`: its first and last expert of this rank, `last`
/// -1 if it is no row here.
struct RowExperts {
  int32_t first, last;
};
__device__ __forceinline__ RowExperts experts_of(const LayerPod& p, const Entry& entry, int source, int32_t width) {
  const int32_t expert = entry.expert - p.begin[p.rank];
  const bool is_mine = entry.expert >= 0 && expert >= 0 && expert < local_experts(p);
  RowExperts out{is_mine ? expert : INT32_MAX, is_mine ? expert : -1};
  for (int32_t other = width / 2; other > 0; other /= 2) {
    out.first = min(out.first, __shfl_xor_sync(kAll, out.first, other));
    out.last = max(out.last, __shfl_xor_sync(kAll, out.last, other));
  }
  // NOTE: with one rank nobody else writes zeros for a token without copies.
  if (out.last < 0 && source == p.rank && p.size == 1) out = {0, 0};
  return out;
}
/// All tokens of all ranks, a lane for each choice; `width`: the power of two from top_k on. `entries_of`: where those
/// of a rank are.
template <class EntriesOf, class Body>
__device__ __forceinline__ void for_choices(const LayerPod& p, int32_t width, EntriesOf entries_of, Body body) {
  const int32_t lane = lane_of(), choice = lane % width, at_once = 32 / width;
  for (int source = 0; source < p.size; ++source) {
    const int64_t said = *at<int64_t>(p, source, p.tokens), tokens = said < p.max_tokens ? said : p.max_tokens;
    const Entry* const entries = entries_of(source);
    for (int64_t some = warp_of_grid() * at_once; some < tokens; some += warps_of_grid() * at_once) {
      const int64_t token = some + lane / width;
      const bool is_there = token < tokens && choice < p.top_k;
      Entry entry{-1, 0, 0, 0};
      if (is_there) entry = entries[token * p.top_k + choice];
      body(source, token, entry, is_there);
    }
  }
}
__device__ __forceinline__ Entry* entries_here(const LayerPod& p, const FlowPod& flow, int source) {
  return flow.entries + int64_t{source} * p.max_tokens * p.top_k;
}

/// The choices of all ranks come here, and each expert's rows are counted.
__global__ __launch_bounds__(kThreads) void moe_count(const __grid_constant__ LayerPod p,
                                                      const __grid_constant__ FlowPod flow, int32_t width) {
  for_choices(
      p, width, [&](int source) { return at<Entry>(p, source, p.entries); },
      [&](int source, int64_t token, const Entry& entry, bool is_there) {
        const int32_t choice = lane_of() % width;
        if (is_there) entries_here(p, flow, source)[token * p.top_k + choice] = entry;
        const RowExperts experts = experts_of(p, entry, source, width);
        if (!is_there || choice != 0 || experts.last < 0) return;
        atomicAdd(flow.first_rows + experts.first, 1);
        atomicAdd(flow.last_rows + experts.last, 1);
      });
}

/// Rows of one expert are in whatever order: nothing is added up in it.
__global__ __launch_bounds__(kThreads) void moe_list(const __grid_constant__ LayerPod p,
                                                     const __grid_constant__ FlowPod flow, int32_t width) {
  for_choices(
      p, width, [&](int source) { return entries_here(p, flow, source); },
      [&](int source, int64_t token, const Entry& entry, bool is_there) {
        const RowExperts experts = experts_of(p, entry, source, width);
        if (!is_there || lane_of() % width != 0 || experts.last < 0) return;
        const auto number = static_cast<int32_t>(token);
        flow.incoming[atomicAdd(flow.next_in + experts.first, 1)] = {source, number, experts.first, 0};
        flow.outgoing[atomicAdd(flow.next_out + experts.last, 1)] = {source, number, experts.last, 0};
      });
}

template <int kPlanes>
__global__ __launch_bounds__(kThreads) void moe_expand(const __grid_constant__ LayerPod p) {
  const int32_t lane = lane_of();
  for_tokens(p, 0, [&](int source, int64_t token) {
    const Copies copies = copies_of(p, at<Entry>(p, source, p.entries), source, token);
    if (copies.choices == 0) return;
    if ((copies.choices >> lane & 1) != 0) p.row_weights[copies.row] = copies.weight;
#pragma unroll
    for (int plane = 0; plane < kPlanes; ++plane)
      expand_rows<kFlight, 1>(p, {at<uint4>(p, source, p.rows[plane]) + token * p.row_units}, {copies}, p.pools[plane]);
  });
}

// ---- sums ----

__device__ __forceinline__ void load_floats(const float* from, int32_t unit, float (&to)[kPerUnit]) {
  const auto* const fours = reinterpret_cast<const float4*>(from) + unit * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 x = fours[i];
    to[4 * i] = x.x;
    to[4 * i + 1] = x.y;
    to[4 * i + 2] = x.z;
    to[4 * i + 3] = x.w;
  }
}

/// Returns the sums of peers' tokens, and gradients of their choices' weights, into the peers' heaps.
template <class Element>
__global__ __launch_bounds__(kThreads) void moe_return(const __grid_constant__ LayerPod p) {
  for_tokens(p, 1, [&](int source, int64_t token) {
    const Copies copies = copies_of(p, at<Entry>(p, source, p.entries), source, token);
    if (copies.choices == 0) return;
    if (p.dots != nullptr && (copies.choices >> lane_of() & 1) != 0)
      at<float>(p, source, p.dweights)[token * p.top_k + lane_of()] = p.dots[copies.row];
    uint4* const to = at<uint4>(p, source, p.sums) + (p.rank * p.max_tokens + token) * p.row_units;
    for (int32_t first = 0; first < p.row_units; first += 32) {
      const int32_t unit = first + lane_of();
      float sums[1][kPerUnit] = {};
      add_copies<Element, kFlight>(p, copies, unit, sums);
      if (unit < p.row_units) to[unit] = rounded<Element>(sums[0]);
    }
  });
}

/// kIsSummed: sums of this rank's copies are there, as they are.
template <class Element, bool kIsSummed>
__global__ __launch_bounds__(kThreads) void moe_sum(const __grid_constant__ LayerPod p,
                                                    const __grid_constant__ TokensPod call) {
  const int32_t lane = lane_of();
  const uint4* const sums = at<uint4>(p, p.rank, p.sums);
  for (int64_t token = warp_of_grid(); token < call.tokens; token += warps_of_grid()) {
    const Copies own = copies_of(p, at<Entry>(p, p.rank, p.entries), p.rank, token);
    int32_t owner = -1;
    if (lane < p.top_k) {
      const int32_t expert = at<Entry>(p, p.rank, p.entries)[token * p.top_k + lane].expert;
      for (int rank = 0; rank < p.size; ++rank)
        if (expert >= p.begin[rank] && expert < p.begin[rank + 1]) owner = rank;
    }
    if (call.dweights != nullptr && lane < p.top_k) {
      const bool is_own = (own.choices >> lane & 1) != 0, has_copy = is_own || (owner >= 0 && owner != p.rank);
      const float* const from = is_own ? p.dots + own.row : at<float>(p, p.rank, p.dweights) + token * p.top_k + lane;
      call.dweights[token * call.dweights_pitch + lane] = has_copy ? *from : 0;
    }
    uint32_t ranks = 0;  // that have computed copies
    for (int rank = 0; rank < p.size; ++rank)
      if (__any_sync(kAll, owner == rank)) ranks |= 1u << rank;
    for (int32_t first = 0; first < p.row_units; first += 32) {
      const int32_t unit = first + lane;
      float sum[kPerUnit] = {};
      for (int rank = 0; rank < p.size; ++rank) {
        if ((ranks >> rank & 1) == 0) continue;
        if (rank != p.rank) {
          if (unit < p.row_units) add<Element>(sums[(rank * p.max_tokens + token) * p.row_units + unit], sum);
          continue;
        }
        float part[1][kPerUnit] = {};
        if (kIsSummed) {
          if (unit < p.row_units) load_floats(p.own_sums + token * p.row_units * kPerUnit, unit, part[0]);
        } else {
          add_copies<Element, kFlight>(p, own, unit, part);
        }
#pragma unroll
        for (int i = 0; i < kPerUnit; ++i) sum[i] += part[0][i];
      }
      if (unit < p.row_units) store_result<Element>(call, token, unit, sum);
    }
  }
}

// ---- gradients ----

/// A warp for each row of the pool, those between the end of an expert and the next multiple of kPoolTile too, which
/// nobody reads. In fp32: each value is rounded once.
template <class Element>
__global__ __launch_bounds__(kThreads) void moe_gate_gradients(const __grid_constant__ GatePod p) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t rows = int64_t{*p.num_items / p.columns} * kPoolTile, step = int64_t{gridDim.x} * kWarps;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows; row += step) {
    const int64_t at = row * p.inter_units;  // of a row of I
    const float* const before = p.before + at * 2 * kPerUnit;
    const float weight = p.row_weights[row];
    auto* const dbefore = static_cast<uint4*>(p.dbefore) + at * 2;
    auto* const inner = static_cast<uint4*>(p.inner) + at;
    float dot = 0;
    for (int32_t unit = lane; unit < p.inter_units; unit += 32) {
      float gate[kPerUnit], up[kPerUnit], q[kPerUnit], dgate[kPerUnit], dup[kPerUnit], h[kPerUnit];
      load_floats(before, unit, gate);
      load_floats(before, p.inter_units + unit, up);
      load_floats(p.q + at * kPerUnit, unit, q);
#pragma unroll
      for (int i = 0; i < kPerUnit; ++i) {
        const float active = device::swiglu(gate[i], 1.0f), part = device::sigmoid(gate[i]), dh = weight * q[i];
        dgate[i] = dh * up[i] * (part * (1 + gate[i] * (1 - part)));
        dup[i] = dh * active;
        h[i] = active * (up[i] * weight);  // as the forward's
        dot += q[i] * (active * up[i]);
      }
      dbefore[unit] = rounded<Element>(dgate);
      dbefore[p.inter_units + unit] = rounded<Element>(dup);
      inner[unit] = rounded<Element>(h);
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) dot += __shfl_xor_sync(~0u, dot, other);
    if (lane == 0) p.dots[row] = dot;
  }
}

// ---- launches ----

template <class Kernel>
const void* address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}
const RegisteredKernel kLoaded[] = {
    RegisteredKernel(address(&moe_number)),
    RegisteredKernel(address(&moe_scan)),
    RegisteredKernel(address(&moe_publish<0>)),
    RegisteredKernel(address(&moe_publish<1>)),
    RegisteredKernel(address(&moe_publish<2>)),
    RegisteredKernel(address(&moe_plan)),
    RegisteredKernel(address(&moe_count)),
    RegisteredKernel(address(&moe_list)),
    RegisteredKernel(address(&moe_expand<1>)),
    RegisteredKernel(address(&moe_expand<2>)),
    RegisteredKernel(address(&moe_return<__nv_bfloat16>)),
    RegisteredKernel(address(&moe_return<__half>)),
    RegisteredKernel(address(&moe_sum<__nv_bfloat16, false>)),
    RegisteredKernel(address(&moe_sum<__nv_bfloat16, true>)),
    RegisteredKernel(address(&moe_sum<__half, false>)),
    RegisteredKernel(address(&moe_sum<__half, true>)),
    RegisteredKernel(address(&moe_gate_gradients<__nv_bfloat16>)),
    RegisteredKernel(address(&moe_gate_gradients<__half>)),
};

/// Blocks of a grid whose warps take rows in turn.
unsigned blocks_for(int64_t rows, int sms) {
  constexpr int kBlocksPerSm = 4;
  const int64_t wanted = base::ceil_div(rows, int64_t{kWarps}), most = int64_t{sms} * kBlocksPerSm;
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

base::Status launch_plan(const LayerPod& p, const FlowPod& flow, int64_t* load, int64_t* dropped, cudaStream_t stream) {
  const auto shared = (static_cast<size_t>(local_experts(p)) + 1) * sizeof(int32_t);
  moe_plan<<<1, kPlanThreads, shared, stream>>>(p, flow, load, dropped);
  return cuda_status(cudaGetLastError(), "moe_plan");
}

template <class Element>
void launch_sum_of(const LayerPod& p, const TokensPod& call, unsigned blocks, cudaStream_t stream) {
  if (p.own_sums == nullptr) {
    moe_sum<Element, false><<<blocks, kThreads, 0, stream>>>(p, call);
  } else {
    moe_sum<Element, true><<<blocks, kThreads, 0, stream>>>(p, call);
  }
}

}  // namespace

base::Status launch_publish(const LayerPod& p, const TokensPod& call, cudaStream_t stream) {
  const auto blocks = static_cast<int32_t>(base::ceil_div(call.tokens * p.top_k, int64_t{kEntriesPerBlock}));
  const auto shared = static_cast<size_t>(p.num_experts) * sizeof(int32_t);
  if (blocks > 0) moe_number<<<static_cast<unsigned>(blocks), 32, shared, stream>>>(p, call);
  OVERLACE_TRY(cuda_status(cudaGetLastError(), "moe_number"));
  moe_scan<<<static_cast<unsigned>(base::ceil_div(p.num_experts, kThreads)), kThreads, 0, stream>>>(
      p, blocks, call.tokens, call.capacity);
  OVERLACE_TRY(cuda_status(cudaGetLastError(), "moe_scan"));
  if (call.tokens == 0) return {};
  const auto blocks_of_tokens = static_cast<unsigned>(base::ceil_div(call.tokens, int64_t{kWarps}));
  if (!call.has_readers) {
    moe_publish<0><<<blocks_of_tokens, kThreads, 0, stream>>>(p, call);
  } else if (p.planes == 1) {
    moe_publish<1><<<blocks_of_tokens, kThreads, 0, stream>>>(p, call);
  } else {
    moe_publish<2><<<blocks_of_tokens, kThreads, 0, stream>>>(p, call);
  }
  return cuda_status(cudaGetLastError(), "moe_publish");
}

base::Status launch_lists(const LayerPod& p, const FlowPod& flow, int64_t* load, int64_t* dropped, int sms,
                          cudaStream_t stream) {
  int32_t width = 1;
  while (width < p.top_k) width *= 2;
  const unsigned blocks = blocks_for(base::ceil_div(p.max_tokens * width, int64_t{32}), sms);
  moe_count<<<blocks, kThreads, 0, stream>>>(p, flow, width);
  OVERLACE_TRY(cuda_status(cudaGetLastError(), "moe_count"));
  OVERLACE_TRY(launch_plan(p, flow, load, dropped, stream));
  moe_list<<<blocks, kThreads, 0, stream>>>(p, flow, width);
  return cuda_status(cudaGetLastError(), "moe_list");
}

base::Status launch_expand(const LayerPod& p, int64_t* load, int64_t* dropped, int sms, cudaStream_t stream) {
  OVERLACE_TRY(launch_plan(p, {}, load, dropped, stream));
  const unsigned blocks = blocks_for(p.max_tokens, sms);
  if (p.planes == 1) {
    moe_expand<1><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    moe_expand<2><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cuda_status(cudaGetLastError(), "moe_expand");
}

base::Status launch_gate_gradients(const GatePod& p, int sms, cudaStream_t stream) {
  const unsigned blocks = blocks_for(p.pool_rows, sms);
  if (p.dtype == DType::bf16) {
    moe_gate_gradients<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    moe_gate_gradients<__half><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cuda_status(cudaGetLastError(), "moe_gate_gradients");
}

base::Status launch_return(const LayerPod& p, int sms, cudaStream_t stream) {
  const unsigned blocks = blocks_for(p.max_tokens, sms);
  if (p.dtype == DType::bf16) {
    moe_return<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(p);
  } else {
    moe_return<__half><<<blocks, kThreads, 0, stream>>>(p);
  }
  return cuda_status(cudaGetLastError(), "moe_return");
}

base::Status launch_sum(const LayerPod& p, const TokensPod& call, int sms, cudaStream_t stream) {
  if (call.tokens == 0) return {};
  const unsigned blocks = blocks_for(call.tokens, sms);
  if (p.dtype == DType::bf16) {
    launch_sum_of<__nv_bfloat16>(p, call, blocks, stream);
  } else {
    launch_sum_of<__half>(p, call, blocks, stream);
  }
  return cuda_status(cudaGetLastError(), "moe_sum");
}

}  // namespace overlace::ops::moe
