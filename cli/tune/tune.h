// `overlace tune`: measures the planner's best schedules where it matters, and keeps the winners for `auto`.
#pragma once

#include <string>
#include <vector>

#include "overlace/tune.h"
#include "src/base/json.h"

namespace overlace::cli {

struct TuneWords {
  std::string config, tokens;       // sites of a model at so many tokens: "1,64,4096"
  std::vector<std::string> shapes;  // OP:MxNxK
  std::string backend = "auto", machine, dtype, cache, json;
  int ranks = 0;       // 0: the GPUs, else 2 CPU ranks
  double seconds = 0;  // 0: until all is measured
  bool quiet = false;
};

/// Exit code.
int tune(const TuneWords& words);

/// What is asked for. Equal problems of several sites or token counts are one.
struct TuneProblem {
  spec::OpSpec op;
  std::string name;  // "qkv, gate_up"; empty: from --shape
};
/// Throws InvalidArgument with the option where there is none, or one that no schedule fits.
std::vector<TuneProblem> problems_of(const TuneWords& words, int ranks, DType dtype);

/// What a run of the command gives.
struct TuneReport {
  std::string machine, origin, cache;
  double seconds = 0;
  TuneResult result;
  std::vector<TuneProblem> problems;  // all that were asked for
};
std::string tune_text(const TuneReport& report);
base::Json tune_json(const TuneReport& report);

}  // namespace overlace::cli
