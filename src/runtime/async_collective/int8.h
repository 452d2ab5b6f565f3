// Sums of fp32 that travel as int8 with a scale for each 256 values.
#pragma once

#include <cstddef>

#include "overlace/async_collective.h"
#include "overlace/net_engine.h"
#include "src/base/ceil_div_pod.h"

namespace overlace::runtime {

/// Bytes of `count` values: blocks of a scale (fp32) and up to 256 values of a byte.
constexpr size_t int8_bytes(size_t count) { return count + base::ceil_div(count, kInt8Block) * sizeof(float); }

/// Writes int8_bytes(count) to `packed`, and what these leave out of `values` to `left`: a value is what is unpacked
/// plus what is left, exactly. A block with a value that is not finite, or of 2^127 and more, unpacks as NaN and leaves
/// nothing.
void pack_int8(const float* values, float* left, size_t count, char* packed);
void unpack_int8(const char* packed, size_t count, float* values);

/// In place: `data` becomes the sum over the ranks of data + residual, less what rounding to int8 leaves out, with the
/// same bits on all ranks; `residual` becomes this rank's part of what was left out. Over all ranks the sum of data and
/// residuals stays as it was, but for rounding of fp32. One rank alone: nothing is rounded. Moves int8_bytes where
/// NetEngine::all_reduce moves 4 bytes an element.
void all_reduce_int8(NetEngine& net, int rank, int size, float* data, float* residual, size_t count);

}  // namespace overlace::runtime
