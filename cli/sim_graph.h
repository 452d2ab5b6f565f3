// `overlace sim graph`: whole steps over many hosts.
#pragma once

#include <string>

namespace overlace::cli {

struct GraphWords {
  std::string graph;  // dlrm
  std::string network = "all", json;
  int tables = 0, local_batch = 0;  // 0: the band over 1 to 8 and 256 to 4096
};

int sim_graph(const GraphWords& words);

}  // namespace overlace::cli
