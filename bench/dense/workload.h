// The dense operators as a bench workload: inputs, calls and checks of one case on one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/common/device.h"
#include "overlace/channel.h"
#include "overlace/ops/call.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::bench {

struct Case {
  std::string name, op;
  int64_t m = 0, n = 0, k = 0;  // M of the team; N and K as one rank sees them
  DType dtype = DType::bf16;
  spec::Activation activation = spec::Activation::none;

  int64_t columns() const { return activation == spec::Activation::swiglu ? n / 2 : n; }  // of the result
};

/// Which cases of cases.json to run, in file order.
struct Selection {
  std::string path, set;
  std::string filter;            // only those of which "op name" contains it
  std::vector<std::string> ops;  // only these; empty: all
};
base::Result<std::vector<Case>> load_cases(const Selection& selection);

/// Operands of one case, in as many sets as it takes to touch twice the L2 between two uses.
class Workload {
 public:
  /// normal(0, 1) activations, weights scaled by 1 / sqrt(K of the whole sum); `data` has the seed.
  static base::Result<Workload> create(const Case& c, Channel& channel, Device& device, const Normal& data);
  spec::OpSpec op() const;
  /// Queues one call on operand set `iteration % sets`.
  base::Status enqueue(const spec::Schedule& schedule, int iteration);
  /// Fills the output of set 0 with NaN, runs `call`, which works on that set, compares sampled elements with fp64.
  base::Result<Check> verify(const std::function<base::Status()>& call);
  /// The output of set `iteration % sets`; where it is does not change, since graphs hold its address.
  const TensorView& output(int iteration) const { return out_[static_cast<size_t>(iteration) % out_.size()]; }
  /// Copies the last verified output to where `difference` compares with it.
  base::Status keep_reference();
  base::Result<Difference> difference();
  /// Changes one element of the output of set `iteration % sets`, of the norm where there is one.
  base::Status damage(int iteration);
  /// Why my operands must not be timed; empty if they may.
  base::Result<std::string> refusal();
  int sets() const { return static_cast<int>(out_.size()); }
  int64_t bytes_rotated() const { return bytes_rotated_; }
  /// That a rank must send: shards of A, or partial sums to their owners, and those of gemm_ar back.
  double bytes_sent() const;
  double flops() const;  // of one rank's GEMM

 private:
  Workload(const Case& c, Channel& channel, Device& device, const Normal& data)
      : case_(c), channel_(&channel), device_(&device), data_(data) {}
  base::Status fill();
  ops::CallArgs args_of(size_t set) const;
  int64_t first_row() const;  // of my output, of gemm_a2a of my rows
  /// gemm_a2a: block by block, whose rows come from other ranks.
  base::Result<Check> check_blocks(const TensorView& out);
  /// Drawn rows of the norm of set 0 against fp64, of the sums that the call gave.
  base::Result<Check> check_norm();
  Normal left(int rank, int64_t row) const;
  Normal right(int rank) const;
  Normal residual() const { return Normal{data_.seed, 2000, 1.0, 0, 0, data_.is_ramp}; }  // the same on all ranks

  Case case_;
  Channel* channel_;
  Device* device_;
  Normal data_;
  /// Tensors of an operator that normalizes its sums.
  struct Norm {
    TensorView residual, weight, out;
  };

  std::vector<TensorView> a_, b_, out_;
  std::vector<Norm> norms_;          // one per set, or none
  std::vector<ops::CallArgs> args_;  // one per set
  TensorView reference_, norm_reference_;
  std::vector<int64_t> splits_;  // gemm_a2a
  int64_t bytes_rotated_ = 0;
};

}  // namespace overlace::bench
