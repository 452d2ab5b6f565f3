#include "src/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace overlace::base {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

/// table[k][b]: what byte b does to the sum k bytes later.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b) tables[k][b] = (tables[k - 1][b] >> 8) ^ tables[0][tables[k - 1][b] & 0xff];
  return tables;
}
constexpr auto kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t crc) {
  uint64_t sum = ~crc;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    sum = _mm_crc32_u64(sum, word);
  }
  auto rest = static_cast<uint32_t>(sum);
  for (; i < bytes.size(); ++i) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(bytes[i]));
  return ~rest;
}
#endif

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc) {
  uint32_t sum = ~crc;
  size_t i = 0;
  const auto at = [&](size_t k) { return static_cast<uint32_t>(bytes[i + k]); };
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint32_t low = sum ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
    sum = kTables[7][low & 0xff] ^ kTables[6][(low >> 8) & 0xff] ^ kTables[5][(low >> 16) & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][at(4)] ^ kTables[2][at(5)] ^ kTables[1][at(6)] ^ kTables[0][at(7)];
  }
  for (; i < bytes.size(); ++i) sum = (sum >> 8) ^ kTables[0][(sum ^ at(0)) & 0xff];
  return ~sum;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return by_instruction(bytes, crc);
#endif
  return crc32c_by_table(bytes, crc);
}

}  // namespace overlace::base
