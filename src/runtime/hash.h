// FNV-1a, for comparing what ranks did; not for keys an enemy chooses.
#pragma once

#include <cstdint>
#include <string_view>

namespace overlace::runtime {

inline constexpr uint64_t kHashSeed = 0xcbf29ce484222325ull;

inline uint64_t hash_text(std::string_view text, uint64_t hash = kHashSeed) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

inline uint64_t hash_word(uint64_t word, uint64_t hash = kHashSeed) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ ((word >> (8 * i)) & 0xff)) * 0x100000001b3ull;
  return hash;
}

}  // namespace overlace::runtime
