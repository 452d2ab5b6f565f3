// What a call of every operator does: arguments to a problem, checks, and exec::run.
#pragma once

#include "overlace/operator.h"
#include "overlace/ops/call.h"
#include "src/base/status.h"

namespace overlace::ops {

/// The problem that a call poses, and why it cannot be made, as far as its arguments say.
struct Posed {
  spec::OpSpec op;
  base::Status status;
  bool fits = true;  // shapes, dtypes and options do: if the status is no success, the memory of a tensor is wrong
};
Posed pose_checked(const Channel& channel, const spec::OperatorDef& def, const CallArgs& args);

/// Checks that the schedule was made for this problem and that this rank can run it, then runs it. Where `posed` is no
/// success, the peers are told.
base::Status run_posed(Channel& channel, const spec::OperatorDef& def, const CallArgs& args, const Posed& posed,
                       const spec::Schedule& schedule);

/// The Status twin of call().
base::Status call_status(Channel& channel, const spec::OperatorDef& def, const CallArgs& args,
                         const spec::Schedule& schedule);

}  // namespace overlace::ops
