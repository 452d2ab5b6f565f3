// What ranks of one job know and nobody else: drawn at random, or given by the user. Compared in constant time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace overlace::runtime {

using Secret = std::array<std::byte, 32>;

inline constexpr size_t kMinSecret = 16, kMaxSecret = 128;  // characters of OVERLACE_SECRET

/// Fills `out` from the kernel's generator. bootstrap if the kernel refuses.
base::Status draw_random(std::span<std::byte> out);
/// 64 random hexadecimal digits. Throws PeerLost (bootstrap) if the kernel gives none.
std::string random_token();

/// Takes the same time wherever the two differ; how long they are is no secret.
bool is_equal_secret(std::span<const std::byte> given, std::span<const std::byte> wanted);
bool is_equal_secret(std::string_view given, std::string_view wanted);

/// Checks OVERLACE_SECRET: invalid_argument unless it is long enough to be one. The words never show it.
base::Status check_secret(std::string_view text);

}  // namespace overlace::runtime
