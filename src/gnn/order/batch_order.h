// The sequence of batches in a training epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "overlace/gnn.h"
#include "src/base/status.h"

namespace overlace::gnn {

const char* name_of(BatchOrder order);

/// What `auto` stands for: segments long enough to fill the CPU cache often, where there are at least four of them.
OrderChoice automatic_order(int64_t num_batches, int64_t cpu_rows, int64_t rows_per_batch);

/// How batches lie in segments, where sampled epoch e has the batches [e, e + 1) * epoch_batches. No segment of the
/// order `segments` reaches into another sampled epoch; the other orders have one segment, all batches.
class Segments {
 public:
  /// Precondition: epoch_batches divides num_batches, or is 0: then there is one sampled epoch.
  Segments(OrderChoice choice, int64_t num_batches, int64_t epoch_batches = 0);
  int64_t count() const { return epochs_ * per_epoch_; }
  int64_t of(int64_t batch) const { return batch / stride_ * per_epoch_ + batch % stride_ / length_; }
  int64_t begin(int64_t segment) const { return segment / per_epoch_ * stride_ + segment % per_epoch_ * length_; }
  int64_t end(int64_t segment) const {
    return segment % per_epoch_ + 1 == per_epoch_ ? (segment / per_epoch_ + 1) * stride_ : begin(segment) + length_;
  }

 private:
  int64_t stride_, length_, epochs_, per_epoch_;
};

/// Batches of a training epoch in their sequence, a function of its arguments alone. Training epoch n takes those of
/// sampled epoch n mod num_batches / epoch_batches.
std::vector<int64_t> epoch_sequence(OrderChoice choice, int64_t num_batches, uint64_t seed, uint64_t training_epoch,
                                    int64_t epoch_batches = 0);

}  // namespace overlace::gnn
