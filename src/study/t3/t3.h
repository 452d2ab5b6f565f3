// GEMM, reduce-scatter and all-gather of one tensor-parallel sub-layer on GPUs with T3's hardware (arXiv 2401.16677):
// stores that are redirected to a neighbour, a tracker that triggers DMA, updates near memory, and arbitration of
// memory between computation and communication. One GPU of a symmetric ring is simulated; what it sends, it receives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/machine.h"
#include "src/base/status.h"
#include "src/study/t3/tracker.h"

namespace overlace::study::t3 {

/// Published machine (section 5 of the paper) and what is reached of it (docs/design/simulator_models.md).
struct Machine {
  int cus = 80;
  double clock_GHz = 1.4;
  double tflops = 110;  // reached by a whole wave; 80 CUs have 114.7
  double llc_MB = 16;
  double dram_GBps = 850;  // of 1000
  double link_GBps = 130;  // both directions of a ring, of 150
  double link_latency_us = 0.5;
};

/// What T3's hardware would find on a GPU that is described by a machine file; a rate that the file does not have is 0
/// and refused by simulate().
Machine machine_of(const spec::Machine& machine);

struct SubLayer {
  std::string model, name;
  int64_t m = 0, n = 0, k = 0;  // of one rank: its K
  int ranks = 1;
  double output_bytes() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n); }
};

enum class Config { sequential, cu_split_8, cu_split_16, ideal_overlap, ideal_rs_nmc, t3, t3_mca };
inline constexpr int kNumConfigs = 7;
std::string_view config_name(Config config);

struct Options {
  // The two constants that are fitted to the published speed-ups. Everything else is the machine.
  double update_cost = 1;  // memory time of an op-and-store, in plain accesses
  double comm_cost = 2.6;  // memory time of communication's accesses, in the GEMM's

  /// Every rank reaches every other: tiles go to their owner at once, which counts one update of each rank.
  bool direct_rs = false;
  bool llc_bypass = true;         // output tiles are not cached (uncached memory near which the updates are made)
  double starvation_share = 0.1;  // memory accesses that communication gets at least (ours)
  int trigger_cycles = 20;        // of the DMA table (ours)
  /// Tiles that find no entry are counted by the wave that they belong to: its DMA starts when all of it is complete.
  TrackerOptions tracker;
  int64_t quantum_bytes = 32 << 10;
};

/// DRAM traffic of one GPU.
struct Traffic {
  double gemm_rd = 0, gemm_wr = 0, rs_rd = 0, rs_wr = 0, ag_rd = 0, ag_wr = 0;
  double total() const { return gemm_rd + gemm_wr + rs_rd + rs_wr + ag_rd + ag_wr; }
};

struct Result {
  double gemm_us = 0;  // end of the last wave
  double rs_us = 0;    // reduce-scatter alone; under t3 and t3_mca: from the GEMM's end to its own
  double ag_us = 0;
  double total_us = 0;
  Traffic bytes;
  int64_t tracker_peak = 0;       // entries
  int64_t tracker_overflows = 0;  // tiles that found no entry
};

/// Errc::invalid_argument names the size, constant or machine figure that makes no sense.
base::Result<Result> simulate(const SubLayer& layer, Config config, const Machine& machine, const Options& options);

/// DRAM traffic in closed form (reads of the GEMM from the retention curve of the last-level cache).
Traffic unfused_traffic(const SubLayer& layer, const Machine& machine);
Traffic fused_traffic(const SubLayer& layer, const Machine& machine, const Options& options);

/// OP, FC-2, FC-1 backward, IP backward of a model at `ranks`. Models: mega-gpt-2, t-nlg, gpt-3, palm, mt-nlg.
base::Result<std::vector<SubLayer>> sub_layers(std::string_view model, int ranks);
/// mega-gpt-2 and t-nlg at 8 and 16 ranks: the sixteen sub-layers of the paper's main figures.
std::vector<SubLayer> main_sub_layers();

}  // namespace overlace::study::t3
