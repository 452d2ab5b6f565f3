#include "src/ops/common/call.h"
#include "src/ops/gemm_rs/impl.h"

namespace overlace::ops {

base::Status run_status(Channel& channel, const GemmRsArgs& args, const spec::Schedule& schedule) {
  return run_args(channel, "gemm_rs", args, {{args.a, args.b, args.out, args.bias}}, schedule);
}

void run(Channel& channel, const GemmRsArgs& args, const spec::Schedule& schedule) {
  run_status(channel, args, schedule).or_throw();
}

}  // namespace overlace::ops
