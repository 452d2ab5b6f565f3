// Version of the command line: the library's, and the commit that was built.
#pragma once

#include <string>

#include "src/base/version.h"

namespace overlace::cli {

using base::kVersion;

/// "9b9a7870d1f2", with "-dirty" where files were changed; "" of what was not built in a checkout.
const char* commit();  // cmake/overlace_commit.cmake writes it

/// "overlace 0.1.0 (9b9a7870d1f2)"
inline std::string version_text() {
  const std::string built = commit();
  return std::string("overlace ") + kVersion + (built.empty() ? "" : " (" + built + ")");
}

}  // namespace overlace::cli
