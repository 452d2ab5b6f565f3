// A call of any operator by its value. C and Python call operators so, and so does a program that added one.
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

/// The arguments of a call. OperatorDef::args says what each tensor must be; fields, row offsets, splits, activation,
/// exchange and blocks are those of spec::OpSpec.
struct CallArgs {
  std::vector<TensorView> tensors{};  // in the order of OperatorDef::args; undefined where an optional one is not given
  spec::Params fields{};
  std::vector<int64_t> row_offsets{};
  std::vector<int64_t> splits{};
  spec::Activation activation = spec::Activation::none;
  spec::Exchange exchange = spec::Exchange::rows;
  std::vector<int64_t> blocks{};
};

/// Returns tensors, given by name, in the order that CallArgs wants. Throws InvalidArgument if the operator has no
/// argument of a name, or if a name is given twice.
std::vector<TensorView> named_tensors(const spec::OperatorDef& op,
                                      const std::vector<std::pair<std::string_view, TensorView>>& tensors);

/// Runs the operator. Collective; the call is queued on the channel's stream, and on CPU ranks it is complete on
/// return. Calls with equal inputs, schedules and team sizes give equal bits. Throws InvalidArgument (argument, value
/// got, value wanted), PlanMismatch or Unsupported before anything moves.
void call(Channel& channel, const spec::OperatorDef& op, const CallArgs& args, const spec::Schedule& schedule);
/// Returns the problem that these arguments pose to this team. It does not check whether they fit each other; call()
/// does.
spec::OpSpec op_spec(const Channel& channel, const spec::OperatorDef& op, const CallArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
