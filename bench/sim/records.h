// Measured records of dense operators beside what the simulator says of the same schedules.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "overlace/sim.h"
#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::bench {

/// One (operator, schedule, shape, team, launch), all measurements of it.
struct Measured {
  spec::OpSpec op;
  bool is_replayed = false;  // from a captured graph: its host queues nothing
  std::string family;        // as make_schedule takes it
  int degree = 1;
  int64_t tile_cols = 0;  // of a family whose schedule has the tile; 0: those that make_schedule takes by itself
  std::vector<double> us;
  double spread = 0;  // half of what lies between the 10th and 90th percentile of a run, of its median; the widest run
  bool is_host_bound = false;
  bool is_held_out = false;  // its shape: no fit may see it
  double predicted_us = 0;
  std::optional<double> recurrence_us = {};  // the planner's other model; none: it does not know the family
  std::string problem;                       // why there is no prediction
  double measured_us() const;
  double error() const { return predicted_us / measured_us() - 1; }
};

/// What rows share that are measured against each other.
using Problem = std::tuple<std::string, int, int64_t, int64_t, int64_t, spec::Activation, bool>;
Problem problem_of(const Measured& m);

/// Lines of bench/results/*.jsonl, bench_fused's *.json, and what `overlace tune` measured (machine/*.plans.jsonl);
/// those without a time, and kinds of records that are no dense operators, are left out. A third of the shapes, chosen
/// by their digest, is held out.
base::Result<std::vector<Measured>> read_records(const std::vector<std::string>& files);

/// Predicts replayed graphs without the host's time, a tile that the planner would not take by the simulator alone.
void predict(std::vector<Measured>& list, const spec::Machine& machine, int calls);

/// Median, p90 and largest |error|, Kendall's tau of the order of schedules of one case; for a part of the list.
struct Score {
  size_t n = 0, pairs = 0;
  double median = 0, p90 = 0, max = 0, bias = 0, tau = 0;
};
Score score(const std::vector<const Measured*>& list);
std::string report(const std::vector<Measured>& list);
base::Json as_json(const std::vector<Measured>& list);

}  // namespace overlace::bench
