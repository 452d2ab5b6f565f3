// A call of any operator by its value: what C and Python make their calls of, and how a program calls an operator that
// it added.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "overlace/channel.h"
#include "overlace/operator.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Arguments of a call. What each tensor must be stands in OperatorDef::args; fields, row offsets, splits,
/// activation, exchange and blocks as in spec::OpSpec.
struct CallArgs {
  std::vector<TensorView> tensors{};  // in the order of OperatorDef::args; undefined where an optional one is not given
  spec::Params fields{};
  std::vector<int64_t> row_offsets{};
  std::vector<int64_t> splits{};
  spec::Activation activation = spec::Activation::none;
  spec::Exchange exchange = spec::Exchange::rows;
  std::vector<int64_t> blocks{};
};

/// Tensors by name, in the order that CallArgs wants. Throws InvalidArgument if the operator has no argument of a name,
/// or if a name is given twice.
std::vector<TensorView> named_tensors(const spec::OperatorDef& op,
                                      const std::vector<std::pair<std::string_view, TensorView>>& tensors);

/// Collective; queued on the channel's stream (CPU ranks: done on return). Equal arguments, schedules and team sizes
/// give equal bits. Throws InvalidArgument (argument, got, wanted), PlanMismatch, Unsupported before anything moves.
void call(Channel& channel, const spec::OperatorDef& op, const CallArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team; whether they fit each other says call() alone.
spec::OpSpec op_spec(const Channel& channel, const spec::OperatorDef& op, const CallArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
