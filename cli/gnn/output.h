// What the commands of `overlace gnn` print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/json.h"

namespace overlace::cli {

/// Where a result goes: to stdout as text, or as data to a file or stdout ("-"). The exit code.
int finish(const base::Json& json, const std::string& text, const std::string& target);
std::string line(std::string_view key, std::string_view value);
std::string gigabytes(int64_t bytes);

}  // namespace overlace::cli
