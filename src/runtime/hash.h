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

/// One step in place of eight, for tables of this process: its bits are spread less well.
inline uint64_t mix_word(uint64_t word, uint64_t hash) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

}  // namespace overlace::runtime
