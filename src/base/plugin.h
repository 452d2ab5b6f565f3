// Where shared objects lie that are opened at run time.
#pragma once

#include <string>
#include <vector>

namespace overlace::base {

/// Beside the program or the shared object that holds this code, and one level up: tests and benches are built below
/// the library's folder, programs are installed beside lib.
std::vector<std::string> plugin_directories();

}  // namespace overlace::base
