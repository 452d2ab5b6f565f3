// What copy engines and streams do towards peers: puts, posts of an epoch, writes and waits of 64-bit words.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "src/base/status.h"

namespace overlace::runtime::cuda_peer {

/// What streams of this device can do.
struct StreamCaps {
  bool write_value = false;  // cuStreamWriteValue64
  bool wait_value = false;   // cuStreamWaitValue64; off where CUDA_DEVICE_MAX_CONNECTIONS=1 (waits can deadlock there)
  bool wait_flush = false;   // a wait may order the remote writes before the awaited one
};

/// Never fails: what cannot be asked for is off.
StreamCaps query_stream_caps(int device);

base::Result<bool> is_capturing(cudaStream_t stream);

/// Copies of a stream run in its order. Capturable.
base::Status stream_put(void* dst, const void* src, size_t bytes, cudaStream_t stream);
/// `rows` rows of `row_bytes`, pitches in bytes.
base::Status stream_put_2d(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t row_bytes,
                           size_t rows, cudaStream_t stream);
/// Signal of a slot with one writer: an 8-byte copy of the epoch cell, after the copies queued before it. Only where
/// the opening self-test proved that order (kCapCopyThenFlag). Capturable: the value is read when it runs.
base::Status stream_post(uint64_t* slot, const uint64_t* epoch_cell, cudaStream_t stream);
/// Signal of a slot with one writer by value, after all earlier work of the stream. Error `capture` in a capture, where
/// the value would be frozen; `not_supported` without StreamCaps::write_value.
base::Status stream_write(uint64_t* slot, uint64_t value, const StreamCaps& caps, cudaStream_t stream);
/// Holds the stream until int64(*word - value) >= 0. A word that a peer writes needs wait_flush, else not_supported:
/// use launch_wait. In a capture only words of this device (local counters that the schedule resets).
/// NOTE: the stream cannot see deadlines or aborts by itself; CudaPeerState::guard_stream_wait adds them.
base::Status stream_wait(const uint64_t* word, uint64_t value, bool written_by_peer, const StreamCaps& caps,
                         cudaStream_t stream);
/// Zeroes `bytes` of local counters in stream order.
base::Status stream_reset(void* counters, size_t bytes, cudaStream_t stream);

}  // namespace overlace::runtime::cuda_peer
