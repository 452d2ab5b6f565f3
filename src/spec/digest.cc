#include "src/spec/digest.h"

#include <string>
#include <string_view>

#include "src/spec/expand.h"

namespace overlace::spec {

std::string hash128(std::string_view bytes) {
  __extension__ using Wide = unsigned __int128;
  // FNV-1a with its published 128-bit basis and prime (2^88 + 2^8 + 0x3b).
  Wide hash = (Wide{0x6c62272e07bb0142} << 64) | 0x62b821756295c58d;
  constexpr Wide kPrime = (Wide{1} << 88) | 0x13b;
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  std::string out;
  for (int shift = 124; shift >= 0; shift -= 4) out += "0123456789abcdef"[static_cast<size_t>(hash >> shift) & 15];
  return out;
}

std::string digest(const Schedule& schedule) { return hash128(schedule.to_json()); }

}  // namespace overlace::spec
