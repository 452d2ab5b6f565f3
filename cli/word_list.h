// Lists on the command line: values between commas.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace overlace::cli {

std::vector<std::string> words_of(const std::string& list);

/// Whole numbers of 1 to `most`. Throws InvalidArgument with the option.
std::vector<int64_t> numbers_of(const char* option, const std::string& list,
                                int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace overlace::cli
