// Version of the library and the command line; CMakeLists.txt has the same.
#pragma once

namespace overlace::base {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace overlace::base
