// Lists on the command line, values between commas, and tables on the terminal.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace overlace::cli {

std::vector<std::string> words_of(const std::string& list);

/// Whole numbers of `least` to `most`. Throws InvalidArgument with the option.
std::vector<int64_t> numbers_of(const char* option, const std::string& list,
                                int64_t most = std::numeric_limits<int64_t>::max(), int64_t least = 1);

/// Rows of equal length, a line each; the first `left` columns are aligned to the left, the others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows, size_t left);

}  // namespace overlace::cli
