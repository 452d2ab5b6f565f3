#include "src/ops/ag_gemm/impl.h"
#include "src/ops/common/call.h"

namespace overlace::ops {

base::Status run_status(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule) {
  return run_args(channel, "ag_gemm", args, {{args.a_shard, args.b, args.c, args.bias}, args.a}, schedule);
}

void run(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule) {
  run_status(channel, args, schedule).or_throw();
}

}  // namespace overlace::ops
