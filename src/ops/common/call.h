// What a call of every operator does between its own validation and exec::run.
#pragma once

#include <vector>

#include "overlace/operator.h"
#include "src/exec/run.h"

namespace overlace::ops {

/// Arguments of a call: `tensors` in the order of OperatorDef::args, undefined where a call has none; `gathered`: of a
/// call that returns the gathered rows too.
struct CallArgs {
  std::vector<TensorView> tensors;
  TensorView gathered = {};
};

/// Checks that the schedule was made for this problem and that this rank can run it, then runs it. `valid`: what the
/// operator's own checks said; where that is no success, `op` is not looked at, and the peers are told.
base::Status run_call(Channel& channel, const spec::OperatorDef& def, const base::Status& valid, const spec::OpSpec& op,
                      const CallArgs& args, const spec::Schedule& schedule);

/// The same of typed arguments.
template <class Args>
base::Status run_args(Channel& channel, std::string_view op, const Args& args, const CallArgs& call,
                      const spec::Schedule& schedule) {
  const base::Status valid = validate(channel, args);
  return run_call(channel, *spec::find_operator(op), valid, valid.ok() ? op_spec(channel, args) : spec::OpSpec{}, call,
                  schedule);
}

}  // namespace overlace::ops
