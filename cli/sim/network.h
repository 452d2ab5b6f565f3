// Networks as words of the command line.
#pragma once

#include <string>
#include <vector>

#include "src/study/network/network.h"

namespace overlace::cli {

struct NetworkWords {
  std::string network = "all";  // all, torus, rail, a blueprint such as ring(8, 25), or FILE.json
  int gpus = 0;                 // 0: 128, or what the network has
  double link_GBps = 0;         // of a torus link or a NIC; 0: kTorusGBps, kNic
};

/// Links of tori of accelerators: 100 GB/s per direction (prior).
inline constexpr double kTorusGBps = 100;

/// One network, or torus and rail for `all`. Throws InvalidArgument with the option, IoError for a file.
std::vector<study::Network> networks_of(const NetworkWords& words);

}  // namespace overlace::cli
