// Options of the programs in Python that commands hand over to, as their own parsers have them.
#pragma once

#include <string_view>

namespace overlace::cli {

/// "COMMAND:" begins a program; then a line "  NAMES TYPE DESCRIPTION" each, which deeper lines go on. TYPE is flag,
/// INT, FLOAT or TEXT; TEXT... is any number of them. The name of an argument has no dashes.
extern const std::string_view kPythonOptions;

}  // namespace overlace::cli
