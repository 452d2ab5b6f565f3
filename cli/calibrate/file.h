// The machine file that calibration writes: the machine, and under "x-calibration" what it comes from.
#pragma once

#include <string>
#include <vector>

#include "cli/calibrate/fit.h"
#include "cli/calibrate/links.h"
#include "overlace/machine.h"
#include "src/base/json.h"
#include "src/base/status.h"
#include "src/runtime/backend.h"

namespace overlace::cli {

/// How it was around the measurement.
struct Circumstances {
  std::string when;  // UTC
  double seconds = 0;
  double load_before = 0, load_after = 0;  // of the last minute; 0: the system does not say
  double core_mhz = 0;                     // mean of the cores right behind it; 0: the same
  std::string dtype = {}, gemm = {};       // of the GEMMs, and who computed them
  std::vector<RankLinks> links = {};       // by rank; empty on CPU ranks
};
/// What stands in the file of a GPU without measuring. Unsupported where CUDA did not say its compute capability, with
/// which the file could not be read.
base::Status describe_gpu(const runtime::CudaDevice& gpu, spec::Machine* machine);
double load_average();
double core_mhz();

/// One key of the second level a line, as the shipped files.
std::string machine_text(const Fit& fit, const std::vector<Point>& points, const Circumstances& around);

/// A machine as JSON, with a line for each member of its parts.
std::string machine_file_text(const base::Json& machine);

}  // namespace overlace::cli
