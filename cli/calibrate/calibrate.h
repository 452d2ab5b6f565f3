// `overlace calibrate`: measures the machine it runs on and writes a machine file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace overlace::cli {

struct CalibrateWords {
  int64_t ranks = 0;  // 0: the GPUs, else 2 CPU ranks
  std::string name = "here";
  std::string out;  // empty: NAME.json, unless that is the name of a shipped machine
  std::string backend = "auto", dtype;
  std::string disk, disk_size = "1GiB";  // disk: a directory on it; empty: the file has no figures of one
  std::optional<double> minutes;         // none: 1, on GPUs 2
  double max_residual = 0;               // percent; 0: 5 on GPUs, 20 on CPU ranks
};

/// Exit code. Nothing is written where check_residuals() refuses the fit.
int calibrate(const CalibrateWords& words);

}  // namespace overlace::cli
