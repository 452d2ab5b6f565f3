// Version of the command line and the library.
#pragma once

namespace overlace::cli {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace overlace::cli
