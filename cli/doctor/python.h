// What `overlace doctor --python PROGRAM` asks an interpreter: its torch, and which operators overlace loads there.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/json.h"

namespace overlace::cli {

/// {"program", "version", "torch", "overlace", "operators", "why"}: versions are null where an import fails, and "why"
/// says why. Not_supported where the program cannot be started or is no interpreter; timeout after `timeout_ms`. The
/// program is killed at the end with whatever it has started in its process group.
base::Result<base::Json> ask_python(const std::string& program, int64_t timeout_ms);

}  // namespace overlace::cli
