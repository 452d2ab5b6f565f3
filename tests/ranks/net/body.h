// What the ranks of tests/ranks/net share.
#pragma once

#include <map>
#include <string>

#include "overlace/runtime.h"

namespace overlace::test {

/// NAME=VALUE words of the command line.
std::map<std::string, std::string>& parameters();
/// Adds `text`, as a whole, to the file that parameter `log` names. What mpirun passes on of its ranks' output may be
/// lost when a rank is ended, and lines of several ranks may run into each other there.
void print_to_log(const std::string& text);

/// CPU ranks with the network engine that the environment names, a small heap and a deadline of `timeout_ms`.
inline RuntimeOptions net_options(int64_t timeout_ms = 20000) {
  RuntimeOptions options = RuntimeOptions::from_environment();
  options.backend = Backend::cpu;
  options.heap_bytes = size_t{8} << 20;
  options.num_signal_ids = 512;
  options.timeout_ms = timeout_ms;
  return options;
}

}  // namespace overlace::test
