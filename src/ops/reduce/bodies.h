// The bodies that the dense operators bring for `reduce` tasks.
#pragma once

#include "src/exec/run.h"

namespace overlace::ops {

/// Sum of the sources in region and box order, in fp32 (fp64 for fp64), plus the bias once (last region where the task
/// has parameter "bias"), then the activation that parameter "activation" names, rounded once. With parameter "norm"
/// each rounded row x is then normalized into the second region that the task writes: x / sqrt(mean of x^2 + eps) *
/// weight in fp32 (fp64 for fp64), rounded once; the weight is the last region that it reads, "eps" a parameter of the
/// schedule.
base::Status reduce_on_cpu(const exec::BodyContext& context);
/// With CUDA only.
base::Status reduce_on_gpu(const exec::BodyContext& context);

/// Sources and bias of a reduce task; bad_schedule with the task where its regions are not of that form.
struct ReduceOperands {
  std::vector<TensorView> sources;
  TensorView bias;                                       // undefined: none
  TensorView dst;                                        // undefined: nothing to do
  spec::Activation activation = spec::Activation::none;  // swiglu: dst has half the columns of the sources
  TensorView weight{}, normed{};                         // undefined: no norm
  double eps = 0;
};
base::Result<ReduceOperands> reduce_operands(const exec::BodyContext& context);
/// The sum itself; dst is defined.
void sum_on_cpu(const ReduceOperands& operands);

}  // namespace overlace::ops
