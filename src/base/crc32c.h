// CRC-32C (Castagnoli) of bytes: what files of overlace are checked with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace overlace::base {

/// Goes on from `crc`, that of the bytes before: crc32c(b, crc32c(a)) is that of a and b together. Takes the
/// processor's instruction where there is one.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// crc32c() by table, for any processor.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace overlace::base
