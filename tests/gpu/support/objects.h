// Kernels of the tests of inboxes, counters and adopted memory, behind plain functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/handle_pod.h"
#include "tests/gpu/support/kernels.h"

namespace overlace::test {

/// One block of 128 threads per rank: `rounds` epochs. all_to_all: each rank to each other. one_way: even ranks to the
/// next odd one, which is slow now and then. Without credit the writer does not wait: one_way must then show damage.
enum class InboxPattern { all_to_all, one_way, one_way_without_credit };
struct InboxArgs {
  ChannelPod channel;
  InboxPod inbox;
  InboxPattern pattern = InboxPattern::all_to_all;
  uint32_t rounds = 0;
  uint32_t part_bytes = 0;    // of a buffer, per sender; a multiple of 4
  uint32_t* wrong = nullptr;  // device memory: words that were not those of the epoch
  int32_t* code = nullptr;    // device memory: first failure
};
void launch_inbox(cudaStream_t stream, const InboxArgs& args);

/// `blocks` blocks write a word each and arrive at counter 0; the last to arrive adds all words up into *sum.
void launch_last_arriver(cudaStream_t stream, const CountersPod& counters, uint32_t blocks, uint32_t* words,
                         uint64_t* sum);
/// Block 0 waits for counter 1 to reach `blocks` - 1, then adds up the words that the others wrote before they counted.
void launch_counted_tiles(cudaStream_t stream, const TeamPod& team, const CountersPod& counters, uint32_t blocks,
                          uint32_t* words, uint64_t* sum, int32_t* code);
/// One thread: waits for counter `index`.
void launch_counter_wait(cudaStream_t stream, const TeamPod& team, const CountersPod& counters, uint32_t index,
                         uint64_t value, int32_t* code);
/// One block fills `bytes` with the pattern of `seed`, then counts counter `index` up for streams.
void launch_fill_and_count(cudaStream_t stream, uint8_t* data, uint32_t bytes, uint32_t seed,
                           const CountersPod& counters, uint32_t index);

/// One block of 256 threads: put into adopted memory, fence where needed, signal_add.
void launch_region_put(cudaStream_t stream, const ChannelPod& channel, const RegionPod& region, Put how, int peer,
                       uint64_t dst_offset, const void* src, uint64_t bytes, uint32_t id);

/// Loads all of them on the current device: loading one beside a spinning kernel can wedge.
cudaError_t load_object_kernels();

}  // namespace overlace::test
