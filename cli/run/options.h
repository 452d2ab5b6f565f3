// What the command line of `overlace run` said; nothing is checked yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace overlace::cli {

struct RunOptions {
  std::optional<int64_t> ranks, layers, tokens, sequence_length, repeat, emulate_hosts, micro_batch;
  std::optional<std::string> config, checkpoint, dtype, link, device_memory, weights;
  std::string schedule = "auto", backend = "auto", part = "all";
  uint64_t seed = 0;
  std::string input, output, json, trace, report;  // files; empty: not asked for
  bool quiet = false, threads = false;
  std::vector<std::string> program;  // after "--"; empty: the main job
  int error_fd = -1;                 // ranks of the launcher report failures there
};

}  // namespace overlace::cli
