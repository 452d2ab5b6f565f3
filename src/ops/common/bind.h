// From the arguments of a call to the problem that they pose, by the operator's table of arguments.
#pragma once

#include "overlace/ops/call.h"
#include "src/base/status.h"
#include "src/ops/common/check.h"

namespace overlace::ops {

/// M, N and K as the first argument has them whose shape names them; nothing is checked.
spec::OpSpec pose(const spec::OperatorDef& def, const CallArgs& args, int ranks);

/// Every precondition that this rank can see of the arguments that pose `op`; the first failure in the order of the
/// arguments is returned.
base::Status check_args(const Site& site, const spec::OperatorDef& def, const CallArgs& args, const spec::OpSpec& op);

}  // namespace overlace::ops
