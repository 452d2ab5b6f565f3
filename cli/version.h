// Version of the command line: the library's.
#pragma once

#include "src/base/version.h"

namespace overlace::cli {

using base::kVersion;

}  // namespace overlace::cli
