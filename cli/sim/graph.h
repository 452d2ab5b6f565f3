// `overlace sim graph`: whole steps over many hosts.
#pragma once

#include <string>

#include "cli/sim/network.h"
#include "src/study/workload/co2.h"
#include "src/study/workload/moe.h"
#include "src/study/workload/transformer.h"

namespace overlace::cli {

struct DlrmWords {
  std::string network = "all", machine, json;  // without a machine nothing is simulated
  int tables = 0, local_batch = 0;             // 0: the band over 1 to 8 and 256 to 4096
};

/// What the graphs on any network have in common.
struct GraphWords {
  NetworkWords network;
  std::string machine = "h200x4", json, trace;
};
struct TransformerWords : GraphWords {
  study::TransformerModel model;
  study::TransformerRun run;
  int chunks = 4;        // of the overlapped row
  double straggler = 1;  // one replica is so many times as slow
};
struct MoeWords : GraphWords {
  study::MoeModel model;
  study::MoeRun run;
  int chunks = 4;
  std::string counts, expert_begin;  // FILE.json; numbers between commas
};
struct Co2Words : GraphWords {
  study::Co2Run run;
  std::string rule = "all";
};

/// Each: one row per network and way of communicating; exit code.
int sim_graph_dlrm(const DlrmWords& words);
int sim_graph_transformer(const TransformerWords& words);
int sim_graph_moe(const MoeWords& words);
int sim_graph_co2(const Co2Words& words);

}  // namespace overlace::cli
