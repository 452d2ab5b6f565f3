// Batches of other traces, as a trace: several sampled epochs in a row, or the share of one rank.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

/// Refers to the traces, which must outlive it.
class TraceSelection final : public InputTrace {
 public:
  /// All batches of the first trace, then of the second, and so on: one cycle for levels where training epoch n takes
  /// trace n mod E. invalid_argument: no trace, or traces of different graphs' sizes.
  static base::Result<TraceSelection> joined(const std::vector<const InputTrace*>& traces);
  /// Batches b with b mod num_ranks = rank. Where the last ranks would have one less, they take the first batches of
  /// the trace once more, so that all ranks do as many steps. invalid_argument: a rank outside [0, num_ranks).
  static base::Result<TraceSelection> of_rank(const InputTrace& trace, int rank, int num_ranks);

  /// Where a batch of this trace is from: the trace and its number there.
  std::pair<const InputTrace*, int64_t> source(int64_t batch) const { return sources_[static_cast<size_t>(batch)]; }

  int64_t num_vertices() const override { return num_vertices_; }
  int64_t num_batches() const override { return static_cast<int64_t>(sources_.size()); }
  std::span<const uint32_t> inputs(int64_t batch) const override {
    return source(batch).first->inputs(source(batch).second);
  }
  BatchView batch(int64_t batch) const override { return source(batch).first->batch(source(batch).second); }

 private:
  explicit TraceSelection(int64_t num_vertices) : num_vertices_(num_vertices) {}
  int64_t num_vertices_;
  std::vector<std::pair<const InputTrace*, int64_t>> sources_;
};

}  // namespace overlace::gnn
