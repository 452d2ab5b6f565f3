#include "src/ops/ag_wgrad/impl.h"
#include "src/ops/common/call.h"

namespace overlace::ops {

base::Status run_status(Channel& channel, const AgWgradArgs& args, const spec::Schedule& schedule) {
  return run_args(channel, "ag_wgrad", args, {{args.a_shard, args.b, args.c}, args.a}, schedule);
}

void run(Channel& channel, const AgWgradArgs& args, const spec::Schedule& schedule) {
  run_status(channel, args, schedule).or_throw();
}

}  // namespace overlace::ops
