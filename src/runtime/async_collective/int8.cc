#include "src/runtime/async_collective/int8.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/ceil_div_pod.h"

namespace overlace {

size_t wire_bytes(const Bucket& bucket) {
  return bucket.residual == nullptr ? bucket.count * dtype_bytes(bucket.dtype) : runtime::int8_bytes(bucket.count);
}

namespace runtime {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu, kTooLarge = 0x7f000000u;  // bits of 2^127
// Added to a number below 2^22 it leaves the nearest integer in the low bits, ties to even.
constexpr float kRounder = 12582912.0f;

size_t length_of_block(size_t begin, size_t count) { return std::min(kInt8Block, count - begin); }

char* block_at(char* packed, size_t begin) { return packed + begin + begin / kInt8Block * sizeof(float); }
const char* block_at(const char* packed, size_t begin) { return packed + begin + begin / kInt8Block * sizeof(float); }

/// Values of magnitude 127 * scale at most become numbers from -127 to 127. It has 16 significant bits, so that a
/// number times the scale is exact. NaN: one is not finite. 0: all are so small that they are left out whole.
float scale_of(const float* values, size_t count) {
  uint32_t largest = 0;  // magnitudes of floats are ordered as their bits
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & kMagnitude);
  if (largest >= kTooLarge) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t scale = (std::bit_cast<uint32_t>(std::bit_cast<float>(largest) / 127) + 0xff) & ~0xffu;
  return std::bit_cast<float>(scale) < std::numeric_limits<float>::min() ? 0 : std::bit_cast<float>(scale);
}

void pack_block(const float* values, float* left, size_t count, char* packed) {
  const float scale = scale_of(values, count);
  std::memcpy(packed, &scale, sizeof scale);
  auto* const numbers = reinterpret_cast<int8_t*>(packed + sizeof scale);
  if (!(scale > 0)) {
    std::memset(numbers, 0, count);
    if (scale == 0)
      std::copy_n(values, count, left);
    else
      std::fill_n(left, count, 0.0f);
    return;
  }
  const float inverse = 1 / scale;
  for (size_t i = 0; i < count; ++i) {
    const float number = values[i] * inverse + kRounder - kRounder;
    numbers[i] = static_cast<int8_t>(number);
    left[i] = values[i] - number * scale;
  }
}

void unpack_block(const char* packed, size_t count, float* values) {
  float scale = 0;
  std::memcpy(&scale, packed, sizeof scale);
  const auto* const numbers = reinterpret_cast<const int8_t*>(packed + sizeof scale);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(numbers[i]) * scale;
}

}  // namespace

void pack_int8(const float* values, float* left, size_t count, char* packed) {
  for (size_t begin = 0; begin < count; begin += kInt8Block)
    pack_block(values + begin, left + begin, length_of_block(begin, count), block_at(packed, begin));
}

void unpack_int8(const char* packed, size_t count, float* values) {
  for (size_t begin = 0; begin < count; begin += kInt8Block)
    unpack_block(block_at(packed, begin), length_of_block(begin, count), values + begin);
}

void all_reduce_int8(NetEngine& net, int rank, int size, float* data, float* residual, size_t count) {
  if (size == 1 || count == 0) return;
  const size_t n = static_cast<size_t>(size), own = static_cast<size_t>(rank), part = base::ceil_div(count, n);
  const size_t bytes = int8_bytes(part);
  const auto begin_of = [&](size_t peer) { return std::min(count, peer * part); };
  const auto length_of = [&](size_t peer) { return begin_of(peer + 1) - begin_of(peer); };
  std::vector<char> sent(n * bytes), came(n * bytes);
  for (size_t i = 0; i < count; ++i) data[i] += residual[i];
  for (size_t peer = 0; peer < n; ++peer)  // each rank sums a part; nothing is rounded of what it adds itself
    if (peer != own)
      pack_int8(data + begin_of(peer), residual + begin_of(peer), length_of(peer), sent.data() + peer * bytes);
  net.all_to_all(sent.data(), came.data(), bytes, DType::u8, StreamRef::cpu());

  float* const mine = data + begin_of(own);
  for (size_t begin = 0; begin < length_of(own); begin += kInt8Block) {
    const size_t length = length_of_block(begin, length_of(own));
    float sum[kInt8Block] = {}, one[kInt8Block];
    for (size_t peer = 0; peer < n; ++peer) {
      const float* values = mine + begin;
      if (peer != own) {
        unpack_block(block_at(came.data() + peer * bytes, begin), length, one);
        values = one;
      }
      for (size_t i = 0; i < length; ++i) sum[i] += values[i];
    }
    std::copy_n(sum, length, mine + begin);
  }
  // What rounding the sum leaves out is added to this rank's next contribution.
  pack_int8(mine, residual + begin_of(own), length_of(own), sent.data());
  net.all_gather(sent.data(), came.data(), bytes, DType::u8, StreamRef::cpu());
  for (size_t peer = 0; peer < n; ++peer)
    unpack_int8(came.data() + peer * bytes, length_of(peer), data + begin_of(peer));
}

}  // namespace runtime
}  // namespace overlace
