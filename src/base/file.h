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

/// Writes as write_file(); file and name lie on the disk on return: a power cut leaves the old file or the new.
Status write_file_durably(const std::string& path, std::string_view bytes);
/// What was created, renamed or removed in a folder lies on the disk when this returns.
Status sync_directory(const std::string& path);

}  // namespace overlace::base
