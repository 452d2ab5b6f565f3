// Whole files: read, and written completely or not at all.
#pragma once

#include <string>
#include <string_view>

#include "src/base/status.h"

namespace overlace::base {

/// Errc::io with the path and the system's reason.
Result<std::string> read_file(const std::string& path);

/// Whole file or none: a temporary file beside `path`, then a rename; on failure (Errc::io) the temporary file is
/// removed and an older file stays as it was. A path that is no regular file (a pipe, /dev/stdout) is written directly.
Status write_file(const std::string& path, std::string_view bytes);

}  // namespace overlace::base
