// What a call of every operator does: arguments to a problem, checks, and exec::run.
#pragma once

#include <memory>

#include "overlace/operator.h"
#include "overlace/ops/call.h"
#include "src/base/status.h"
#include "src/ops/common/problems.h"

namespace overlace::ops {

/// The problem that a call poses, and why it cannot be made, as far as its arguments say.
struct Posed {
  std::shared_ptr<const Problem> problem;
  base::Status status;
  bool fits = true;  // shapes, dtypes and options do: if the status is no success, the memory of a tensor is wrong
};
Posed pose_checked(Channel& channel, const spec::OperatorDef& def, const CallArgs& args);

/// Checks that the schedule was made for this problem and that this rank can run it, then runs it. Where `posed` is no
/// success, the peers are told. `serial`: as in exec::known_program.
base::Status run_posed(Channel& channel, const CallArgs& args, const Posed& posed, const spec::Schedule& schedule,
                       uint64_t serial = 0);

/// The Status twin of call().
base::Status call_status(Channel& channel, const spec::OperatorDef& def, const CallArgs& args,
                         const spec::Schedule& schedule);

}  // namespace overlace::ops
