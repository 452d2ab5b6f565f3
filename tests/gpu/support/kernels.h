// Kernels of the GPU tests, behind plain functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/handle_pod.h"

namespace overlace::test {

/// Byte i of the pattern of `seed`.
inline uint8_t pattern_byte(uint32_t seed, uint64_t i) {
  const uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  return static_cast<uint8_t>(x >> 37);
}
void launch_fill(cudaStream_t stream, void* data, uint64_t bytes, uint32_t seed);
/// *wrong (device memory) += bytes that differ from the pattern.
void launch_compare(cudaStream_t stream, const void* data, uint64_t bytes, uint32_t seed, uint64_t* wrong);

/// Fills 2 `pairs` SMs, pairs of neighbours, for all kernels that want much shared memory, until *word (which the host
/// maps) is `until`, at most for `most_ms`.
cudaError_t launch_hold(cudaStream_t stream, int pairs, const uint32_t* word, uint32_t until, int64_t most_ms);

enum class Put { thread, warp, cta, tma };
/// One block of 256 threads: put, fence where needed, signal_add.
void launch_put_signal(cudaStream_t stream, const ChannelPod& channel, Put how, int peer, uint64_t dst_offset,
                       const void* src, uint64_t bytes, uint32_t id);
/// One thread: *code = wait_ge(sender, id, ticket + delta); consumes on success.
void launch_wait(cudaStream_t stream, const ChannelPod& channel, int sender, uint32_t id, uint32_t delta,
                 int32_t* code);

/// One warp: `rounds` rounds in which each rank signals all others, waits for all and consumes. *code: first failure.
enum class Round { signal_add, signal_add_all, barrier_block, post };
void launch_rounds(cudaStream_t stream, const ChannelPod& channel, Round how, uint32_t id, uint32_t rounds,
                   int32_t* code);
/// `blocks` blocks, each adds `adds` ones to the slot of `peer`.
void launch_many_adds(cudaStream_t stream, const ChannelPod& channel, int peer, uint32_t id, uint32_t blocks,
                      uint32_t adds);
/// All blocks meet `rounds` times in barrier_grid; in between each adds to every cell of `cells` (one per block) what
/// it must find there. *wrong: cells that were behind or ahead.
void launch_grid_rounds(cudaStream_t stream, const ChannelPod& channel, uint32_t blocks, uint32_t rounds,
                        uint32_t* counter, uint32_t* cells, uint32_t* wrong, int32_t* code);

/// Message passing in a ring, one block of 128 threads per rank: data to the next rank, then a flag; the next rank
/// checks every byte and gives credit. The broken ones leave out what makes it right: their count must not stay zero.
enum class Litmus {
  stores_signal,       // stores, CTA barrier, signal_add
  stores_word,         // stores, CTA barrier, put_word_release; wait_word
  word_carries_value,  // put_word; wait_word_relaxed
  bulk_fence_signal,   // bulk store, fence, signal_add
  bulk_async_wait,     // as before, read by wait_ge_async
  broken_signal_first,
  broken_word_first,
  broken_no_credit,
};
struct LitmusArgs {
  ChannelPod channel;
  uint64_t data_offset = 0;  // of kLitmusBytes, in every heap
  uint64_t word_offset = 0;  // of 8 bytes
  uint32_t signal = 0, credit = 0;
  uint32_t rounds = 0;
  Litmus kind = Litmus::stores_signal;
  uint32_t* wrong = nullptr;  // device memory
  int32_t* code = nullptr;    // device memory
};
inline constexpr uint32_t kLitmusBytes = 16 * 1024;
void launch_litmus(cudaStream_t stream, const LitmusArgs& args);

/// All kernels of this unit, loaded on the current device: loading one beside a spinning kernel can wedge.
cudaError_t load_kernels();

}  // namespace overlace::test
