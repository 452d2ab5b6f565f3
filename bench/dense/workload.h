// The dense operators as a bench workload: inputs, calls and checks of one case on one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/common/data.h"
#include "bench/common/gpu.h"
#include "overlace/channel.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::bench {

struct Case {
  std::string name, op;
  int64_t m = 0, n = 0, k = 0;  // M of the team; N and K as one rank sees them
  DType dtype = DType::bf16;
};

/// The cases of set `set` in cases.json, in file order; `filter`: only names that contain it (empty: all).
base::Result<std::vector<Case>> load_cases(const std::string& path, const std::string& set, const std::string& filter);

/// Operands of one case, in as many sets as it takes to touch twice the L2 between two uses.
class Workload {
 public:
  /// normal(0, 1) activations, weights scaled by 1 / sqrt(K of the whole sum).
  static base::Result<Workload> create(const Case& c, Channel& channel, Gpu& gpu, uint64_t seed);
  spec::OpSpec op() const;
  /// Queues one call on operand set `iteration % sets`.
  base::Status enqueue(const spec::Schedule& schedule, int iteration);
  /// Fills the output of set 0 with NaN, runs once, compares sampled elements with fp64.
  base::Result<Check> verify(const spec::Schedule& schedule);
  /// Keeps the last verified output as the one that `difference` compares with.
  base::Status keep_reference();
  base::Result<Difference> difference();
  int sets() const { return static_cast<int>(out_.size()); }
  int64_t bytes_rotated() const { return bytes_rotated_; }

 private:
  Workload(const Case& c, Channel& channel, Gpu& gpu, uint64_t seed)
      : case_(c), channel_(&channel), gpu_(&gpu), seed_(seed) {}
  base::Status fill();
  int64_t first_row() const;  // of my output
  Normal left(int rank, int64_t row) const;
  Normal right(int rank) const;

  Case case_;
  Channel* channel_;
  Gpu* gpu_;
  uint64_t seed_;
  std::vector<TensorView> a_, b_, out_;
  TensorView reference_;
  int64_t bytes_rotated_ = 0;
};

}  // namespace overlace::bench
