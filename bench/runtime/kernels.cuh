// Kernels of the runtime bench: ours, on device handles, and plain ones on bare pointers, which are the probe beside
// them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlace/handle_pod.h"
#include "src/runtime/backend/cuda_peer/pushes.h"

namespace overlace::bench {

using runtime::cuda_peer::kBulkBytes;

/// Element i of what rank `from` sends: bf16 pairs, sign and all, never zero.
void launch_values(cudaStream_t stream, uint32_t* data, uint64_t words, uint32_t from);
/// *wrong += words that differ; where `period` is not 0, word i must be that of i % period.
void launch_check(cudaStream_t stream, const uint32_t* data, uint64_t words, uint64_t period, uint32_t from,
                  uint64_t* wrong);
/// Every bf16 of the pattern (by period) once more at its place: *wrong += words that are not twice the pattern.
void launch_check_twice(cudaStream_t stream, const uint32_t* data, uint64_t words, uint64_t period, uint32_t from,
                        uint64_t* wrong);

// ---- ours; stores and bulk copies are runtime::cuda_peer::launch_push ----
/// Rank pairs (0, 1), (2, 3) bounce a signal `rounds` times; with bytes a put_signal of one CTA carries them.
void launch_bounce(cudaStream_t stream, const ChannelPod& channel, uint32_t id, uint64_t offset, const void* src,
                   uint32_t bytes, uint32_t rounds, int32_t* code);
/// One warp: `rounds` barriers of all ranks.
void launch_barriers(cudaStream_t stream, const ChannelPod& channel, uint32_t id, uint32_t rounds, int32_t* code);
/// Releases local counter 1, 2, .. and waits each time for the peer's answer (slot of id `ack`).
void launch_release(cudaStream_t stream, const ChannelPod& channel, uint64_t* counter, int peer, uint32_t ack,
                    uint32_t rounds, int32_t* code);
/// The peer: waits for the flag (slot of id `flag`), answers.
void launch_answer(cudaStream_t stream, const ChannelPod& channel, int peer, uint32_t flag, uint32_t ack,
                   uint32_t rounds, int32_t* code);

// ---- plain ----
struct PlainPeers {
  char* base[8];
};
void launch_plain_store(cudaStream_t stream, int ctas, int peers, int rank, int ranks, const PlainPeers& to,
                        uint64_t peer_stride, const void* src, uint64_t bytes);
void launch_plain_bulk(cudaStream_t stream, bool add, int ctas, int rank, void* dst, uint64_t bytes);
void launch_plain_bounce(cudaStream_t stream, uint64_t* mine, uint64_t* theirs, void* data, const void* src,
                         uint32_t bytes, bool first, uint32_t rounds);
void launch_plain_barriers(cudaStream_t stream, const PlainPeers& words, int rank, int ranks, uint32_t rounds);

cudaError_t load_runtime_kernels();

}  // namespace overlace::bench
