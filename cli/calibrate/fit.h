// From what calibration timed to the numbers of a machine. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/calibrate/probe_schedules.h"
#include "overlace/machine.h"
#include "overlace/plan.h"
#include "src/base/status.h"

namespace overlace::cli {

/// What a point tells of the machine.
enum class Probe {
  lead,    // GPUs: large sums, which others stand behind
  call,    // CPU ranks: a call that does next to nothing
  chain,   // many of the same after each other: launches
  reduce,  // by bytes
  gemm,    // by shape
  pair,    // copies from one rank to another, by bytes
  ring,    // all ranks at once, each to the next
  all,     // all ranks at once, each to all others; bytes to one of them
  local,   // inside the rank
  rows,    // of rows that lie apart
  fork,    // a call of one copy: what begin and end of its lane cost
  post,    // with a signal behind each
  link,    // from one rank to another, every pair: no fit sees them
  signal,  // chain with signals
  wait,    // chain behind signals that have come
  flag,    // two ranks in turn
  event,   // two lanes in turn
  barrier,
  all_gather,  // by bytes
  reduce_scatter,
  all_reduce,
  all_to_all,
  gemm_in,     // GEMMs while another rank copies here
  reduce_in,   // sums while another rank copies here
  gemm_out,    // GEMMs and copies of one rank, the GEMMs longer
  copy_out,    // the same, the copies longer
  host_call,   // time to queue: the call
  host_chain,  // ... the chain
  host_copies,
  host_collective,
  store,     // SMs store to the next rank, by CTAs
  tma,       // the same by TMA
  memory,    // SMs copy inside the rank, by CTAs
  duty,      // GEMMs for a share of the time, by that share
  skew,      // of ranks behind a barrier
  operators  // whole operators: no fit sees them
};
const char* name_of(Probe probe);
/// SMs store and nothing else, without a schedule; CPU ranks: the rank's core.
inline bool is_push(Probe probe) { return probe == Probe::store || probe == Probe::tma || probe == Probe::memory; }

struct Point {
  Probe probe = Probe::call;
  double bytes = 0;              // of one item
  int count = 1;                 // items of a call, one after the other
  int64_t rows = 1;              // of a copy
  spec::GemmWork gemm = {};      // of an item
  int from = 0, to = 1;          // of a link
  int ctas = 0;                  // that store `bytes` together, all ranks at once
  double share = 0;              // of the time that GEMMs take
  double sm_mhz = 0, watts = 0;  // of the first rank meanwhile; 0: nobody says
  int copies = 0;                // of `bytes`, beside `count` items of other work
  double work_bytes = 0;         // of such an item where it is a sum
  bool has_barrier = false;      // one behind all items
  int lead = 0;                  // items of the point of `lead` that is in front of all items; 0: none
  bool is_held_out = false;      // no fit sees it
  spec::Schedule schedule = {};
  spec::OpSpec op = {};  // of operators
  plan::Candidate candidate = {};
  std::vector<double> samples_us = {};  // of a call, the slowest rank's
  double percentile = 0;                // of the samples that counts
  double us() const;
};

/// A third of a sweep, never its ends.
void hold_out(std::vector<Point>* sweep);

/// How far the fitted machine, simulated, is from what was timed: |predicted / measured - 1|, without the lead.
struct Residual {
  std::string probe;
  int points = 0, held_out = 0;
  double fit_p50 = 0, held_out_p50 = 0, held_out_max = 0;
  double spread = 0;  // standard error of a median of the samples, of what was timed without the lead; of minima 0
};

struct Fit {
  spec::Machine machine;
  std::vector<Residual> residuals;                       // of probes that have points
  std::vector<std::optional<double>> predicted_us = {};  // by point
};

/// What was not measured is taken from `other`, as priors; name, limits and texts too. invalid_argument with the
/// probe where there are fewer than three samples of a point, a sample is not a positive time, a point takes no longer
/// than its lead, or a sweep that is needed (gemm, pair, reduce) has fewer than four points; not_supported where times
/// do not grow with sizes.
base::Result<Fit> fit_points(const std::vector<Point>& points, const spec::Machine& other);

/// All sources of a machine set to `prior`.
spec::Machine as_priors(spec::Machine machine);

/// Refuses the first probe whose held-out median is above `most` (0.05: five percent); of probes that hold none out the
/// fitted one, above `most` and 30 %: they have a point or two each, and share numbers with others. Twice the spread of
/// a probe is allowed in any case, up to 20 %: nothing can be predicted better than it is known.
base::Status check_residuals(const std::vector<Residual>& residuals, double most);

}  // namespace overlace::cli
