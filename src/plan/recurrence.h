// Tier 1 of the planner: what a family takes at a degree, from a recurrence over its steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "overlace/operator.h"
#include "overlace/plan.h"
#include "src/spec/cost_model.h"
#include "src/spec/costs.h"
#include "src/spec/machine.h"

namespace overlace::plan {

/// Closed form of the schedules of src/spec/families on one rank, all ranks alike (pipeline recurrence of FiCCO-like
/// schedules: a step starts when the one before it is done and its rows are there). Two passes: the first, without
/// contention, says for how long GEMMs and transfers run beside each other; the second slows them by that share.
/// All shards count as long as the longest.
class Recurrence {
 public:
  /// Keeps references.
  Recurrence(const spec::OpSpec& op, const spec::Machine& machine);

  /// us; none for a family without a closed form, or a degree that the shape cannot be cut into.
  std::optional<double> us(const Candidate& candidate) const;
  /// Time of the results' activation by one task, or nothing.
  double activation_us() const { return activation_us_ > 0 ? machine_.latency.launch_us.value + activation_us_ : 0; }
  /// Time of the norm of all results behind the sums, or nothing.
  double norm_us() const { return norm_us_; }
  /// Empty where us() has none. "ideal" is the longer of GEMM and transfer.
  spec::Waterfall waterfall(const Candidate& candidate) const;

 private:
  /// What is taken into account.
  struct With {
    double gemm = 1, copy = 1;  // slowed by each other
    bool latencies = true, host = true;
  };
  /// A family at a degree: `steps` products that each wait for a transfer (gather) or start one (scatter).
  struct Steps {
    int steps = 0, chunks = 0;  // products; parts of a shard
    double own = 0, each = 0;   // us of the own shard's product (0: it is in the others), and of a step's
    double wide = 0;            // us of adding to a wide sum, per step that does
    double convert = 0;         // us of converting it at the end
    int activations = 0;        // tasks that make the results' activation, one behind each product
    int copies = 0;             // of one step
    double copy = 0;            // us of one
    double reduce = 0;          // us of one chunk's sum
  };

  spec::ClosedForm form_of(const Candidate& candidate) const;
  /// The time of us() up to the sums.
  std::optional<double> sums_us(const Candidate& candidate) const;
  std::optional<Steps> steps_of(const Candidate& candidate) const;
  double us_with(const Candidate& candidate, const Steps& steps, const With& with) const;
  std::optional<double> library_us(const With& with) const;
  double gather_us(const Steps& steps, const With& with) const;
  double scatter_us(const Steps& steps, const With& with) const;
  double grouped_us(const Steps& steps, const With& with) const;
  double k_slab_us(int slabs, const With& with) const;
  double tma_slot_us(int groups, const With& with) const;
  double bands_us(int bands, const With& with) const;
  double tracked_us(int degree, const With& with) const;
  int chunks_of(int degree) const;
  /// Nothing where the machine has no rate of stores to peers.
  std::optional<double> one_shot_us() const;
  With slowed(const Candidate& candidate) const;
  double host_us(int kernels, int copies, int collectives) const;
  /// Until the copies start that wait for a task or for the call to begin.
  double triggered_us() const;
  spec::GemmCost fused_product(spec::ClosedForm form) const;
  double store_us(spec::ClosedForm form) const;
  double own_waves(const spec::GemmCost& product) const;
  double compute_us(const spec::GemmCost& whole, const With& with) const;
  double product_us(int64_t rows, int64_t batch, int64_t n, int64_t k) const;
  /// The product of so many rows of all that travel.
  double part_us(int64_t rows, int64_t batch) const;
  void add_wide_sums(Steps* steps) const;

  const spec::OpSpec& op_;
  const spec::Machine& machine_;
  bool is_gather_, sums_rows_, is_reduced_twice_, exchanges_;  // of the operator's flow
  int peers_;
  int64_t rows_, shard_;          // of one rank's product, and what of them goes to one peer
  double element_, row_bytes_;    // bytes; of a row that travels
  double gemm_us_, transfer_us_;  // the whole, undivided
  double norm_us_ = 0;            // with its launch
  double activation_us_ = 0;      // of all results, by tasks behind the products, besides their launches
};

}  // namespace overlace::plan
