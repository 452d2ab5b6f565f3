// Dispatch and combine on GPUs: what each kernel reads and writes, and in which order they run on a stream. Counts stay
// on the device.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cstdint>

#include "overlace/dtype_pod.h"
#include "overlace/handle_pod.h"
#include "src/base/status.h"
#include "src/gemm_core/params.cuh"

namespace overlace::ops::moe {

inline constexpr int kPoolTile = 128;          // rows: experts begin at multiples of it
inline constexpr int64_t kPerRowUnit = 8;      // elements of 16 bytes, of a row
inline constexpr int kEntriesPerBlock = 1024;  // choices that one warp numbers

/// One choice of a token, as all ranks read it. `slot`: which of the source's copies for that expert it is, in the
/// order (token, choice).
struct alignas(16) Entry {
  int32_t expert;  // -1: no copy
  int32_t slot;
  float weight;
  int32_t unused;
};

/// What a call did, in device memory; zeros before it.
struct alignas(16) Account {
  int32_t dropped;                // copies of this rank's tokens beyond the capacity
  int32_t bad_token, bad_choice;  // 1 + those of one choice of an expert that does not exist; 0: none
  int32_t bad_expert;
};

/// What travels of a token: x, and for gradients dy behind it.
inline constexpr int kMostPlanes = 2;
/// Lists of tiles: as many columns as I, H and, for gradients, 2 I have.
enum Product : int { kInter, kHidden, kWide, kProducts };

/// Where things lie. In every rank's heap, at equal offsets, written by that rank: the number of its tokens, its copies
/// for each expert, its choices and its rows; and written by peers: sums of its tokens, by the rank that computed them,
/// and gradients of its choices' weights.
struct LayerPod {
  int32_t rank, size;
  char* heap[kPodPeers];
  uint64_t tokens, counts, entries, rows[kMostPlanes], sums, dweights;  // offsets
  int32_t planes;                                                       // 1, gradients 2
  int64_t max_tokens;
  int32_t num_experts, top_k;
  int32_t row_units;             // of 16 bytes
  int32_t begin[kPodPeers + 1];  // experts of rank r: [begin[r], begin[r + 1])
  DType dtype;                   // bf16 | fp16, of rows, pool and sums
  // This rank alone has what follows.
  int32_t* hist;                // (blocks, E): copies for an expert before this block of choices
  int32_t* slots;               // (max_tokens, k)
  int64_t* first;               // (R, E_loc): row of the pool of the first copy from a rank
  int32_t* load;                // (E_loc)
  gemm_core::RowGroup* groups;  // (E_loc): rows of the pool
  uint4* items[kProducts];
  int32_t* num_items;          // (kProducts)
  int32_t columns[kProducts];  // tiles of a cluster in a row of the products; 0: there is no such product
  float* row_weights;          // (P)
  uint4* pools[kMostPlanes];   // (P, H): rows that come in
  uint4* results;              // (P, H): what the experts made of them, one of pools
  float* dots;                 // (P): gradients of the rows' weights; or null
  float* own_sums;             // (max_tokens, H): sums of this rank's copies of its own tokens; or null
  int64_t pool_rows;           // P, a multiple of kPoolTile
  Account* account;
};
constexpr int32_t local_experts(const LayerPod& p) { return p.begin[p.rank + 1] - p.begin[p.rank]; }

/// The tokens of a call.
struct TokensPod {
  const uint4* rows[kMostPlanes];
  int64_t row_pitches[kMostPlanes];  // in units of 16 bytes
  const int32_t* idx;
  int64_t idx_pitch;
  const float* weights;
  int64_t weights_pitch;
  int64_t tokens, capacity;
  bool has_readers;  // of rows, on other ranks
  void* out;
  int64_t out_pitch;  // in elements
  int32_t is_out_fp32;
  float* dweights;  // or null
  int64_t dweights_pitch;
};

/// A token that this rank has copies of, and an expert of this rank.
struct alignas(16) RowPlace {
  int32_t source, token, expert, unused;
};

/// What the layer in one kernel has besides: rows come in by the first expert of this rank that needs them, and go back
/// by the last one. Where there is one rank all its tokens are rows, else those that have copies here.
struct FlowPod {
  Entry* entries;                 // (R, max_tokens, k): the choices of all ranks
  RowPlace *incoming, *outgoing;  // (R max_tokens) each
  int32_t *next_in, *next_out;    // (E_loc): places of the next row while the lists are written
  int32_t* num_rows;
  uint4* items;  // of both products, shards from E_loc on are the second's, and one behind the last that is none
  int32_t* num_items;
  int32_t up, down, lag;  // of ItemOrder
  // Zeros before a call:
  int32_t *first_rows, *last_rows;  // (E_loc): rows whose first, whose last expert it is
  uint32_t* arrived;                // (E_loc): of first_rows, those that are in the pool
  uint32_t* ended;                  // (E_loc): tiles of the second product that are stored, of CTAs and warpgroups
  uint32_t* hidden;                 // (P / kPoolTile): the same of the first product, by tiles of rows
  uint32_t *drawn_in, *drawn_out;   // rows
};

/// Rows of the pool between the products of the gradients.
struct GatePod {
  const float* before;       // (P, 2 I): gates, then what they are for
  const float* q;            // (P, I): dy w2
  const float* row_weights;  // (P)
  void* dbefore;             // (P, 2 I)
  void* inner;               // (P, I): the hidden layer, with the weight of its row
  float* dots;               // (P): <q, hidden layer without it>
  int32_t inter_units;       // of 16 bytes
  const int32_t* num_items;  // tiles of kPoolTile rows, `columns` times each
  int32_t columns;
  int64_t pool_rows;
  DType dtype;  // bf16 | fp16, of dbefore and inner
};

/// Numbers the copies and publishes this rank's tokens in its heap. Then the ranks meet.
base::Status launch_publish(const LayerPod& layer, const TokensPod& call, cudaStream_t stream);
/// From the counts of all ranks to the pool: its rows, their weights and the items of the products. `load` (E_loc) and
/// `dropped` are for the caller, or null.
base::Status launch_expand(const LayerPod& layer, int64_t* load, int64_t* dropped, int sms, cudaStream_t stream);
/// From the counts and choices of all ranks to lists of items and rows for the layer in one kernel.
base::Status launch_lists(const LayerPod& layer, const FlowPod& flow, int64_t* load, int64_t* dropped, int sms,
                          cudaStream_t stream);
/// What gradients need of each row: with g, u of `before`, dg = w q u silu'(g), du = w q silu(g), w silu(g) u, rounded
/// once each, and <q, silu(g) u> in an order that depends on I alone.
base::Status launch_gate_gradients(const GatePod& p, int sms, cudaStream_t stream);
/// Sums of the copies of peers' tokens, to the peers. Then the ranks meet.
base::Status launch_return(const LayerPod& layer, int sms, cudaStream_t stream);
/// The result: own copies, or LayerPod::own_sums, and what peers summed, in rank order.
base::Status launch_sum(const LayerPod& layer, const TokensPod& call, int sms, cudaStream_t stream);

}  // namespace overlace::ops::moe
