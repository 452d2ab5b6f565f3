// How much of a test runs: a little with every commit, the whole weekly (.ci/run gnn-large).
#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace overlace::io {

/// The number that the environment variable says, `all` for "all", `otherwise` where it is not set.
inline int64_t test_size(const char* variable, int64_t otherwise, int64_t all = int64_t{1} << 40) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view digits(text);
  if (digits == "all") return all;
  int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  EXPECT_TRUE(code == std::errc() && end == digits.data() + digits.size() && value > 0)
      << variable << " is \"" << text << "\", wanted a number or all";
  return value;
}

}  // namespace overlace::io
