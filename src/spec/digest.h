// The hash behind schedule digests. Not cryptographic: it finds mistakes, not attacks.
#pragma once

#include <string>
#include <string_view>

namespace overlace::spec {

/// FNV-1a, 128 bits, as 32 hex digits.
std::string hash128(std::string_view bytes);

}  // namespace overlace::spec
