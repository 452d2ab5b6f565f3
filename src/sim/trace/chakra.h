// Chakra execution traces (mlcommons/chakra, schema version 0.0.4): one file of protocol buffers per rank. Tasks are
// nodes that depend on each other; a signal between ranks is a send node and a receive node with one tag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"
#include "src/base/trace.h"

namespace overlace::sim {

/// By rank, as many as the trace has. Chakra's times are whole microseconds; attributes of our own (`duration_ns`,
/// `start_ns`, `lane`, `category`) keep what that loses.
std::vector<std::string> to_chakra(const base::Trace& trace);

/// The files of ranks 0, 1, ... as one timeline. Nodes without our attributes: computation is on lane "compute", all
/// else on "comm"; where no node of a file says when it began, each begins when its lane is free and what it depends on
/// has ended. Errc::corrupt with `source` and the node: what is no such file, dependences that are unknown or circular.
base::Result<base::Trace> from_chakra(const std::vector<std::string>& files, std::string_view source);

}  // namespace overlace::sim
