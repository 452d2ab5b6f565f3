// The sixteen sub-layers of T3's main figures in a few numbers.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/study/t3/t3.h"

namespace overlace::study::t3 {

struct Speedup {
  double geomean = 1, most = 1;  // over sequential
};

struct Summary {
  Speedup ideal, t3, t3_mca;
  // CU split: GEMM beside the whole all-reduce, 8 ranks.
  double split_ideal = 1, split_8 = 1, split_16 = 1;
  double traffic_geomean = 1, traffic_least = 1;  // fused over unfused
  double rs_reads = 1, writes = 1;                // unfused over fused; fused over unfused
  double gemm_reads_most = 1;                     // unfused over fused
  double op_short = 0, fc_short = 0;              // of the ideal: OP at most, the largest FC at 8 ranks; t3 without MCA
};

base::Result<Summary> summarize(const Machine& machine, const Options& options);
/// By the names of tests/golden/t3/figures.csv.
std::map<std::string, double> figures(const Summary& summary);

/// How far T3's geomean moves over update_cost and comm_cost of {1, 1.5, 2} and memory of {700, 850} GB/s.
struct Sensitivity {
  double update_cost, comm_cost, dram_GBps;
  Summary summary;
};
base::Result<std::vector<Sensitivity>> sensitivity();

}  // namespace overlace::study::t3
