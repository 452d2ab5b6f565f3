// Arrows of traces: each rank knows one end of a signal's way.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/trace.h"
#include "src/spec/expand.h"

namespace overlace::exec {

/// Halves carry "name@call" until join_arrows. `call`: the same on all ranks.
base::Arrow sent_half(const std::string& word, uint64_t call, int from, const std::string& lane, int64_t ns, int to);
base::Arrow seen_half(const std::string& word, uint64_t call, int from, int to, const std::string& lane, int64_t ns);

}  // namespace overlace::exec
