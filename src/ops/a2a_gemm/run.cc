#include "overlace/ops/a2a_gemm.h"
#include "overlace/ops/call.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const A2aGemmArgs& args) {
  return {.tensors = {args.a_shard, args.b, args.c, args.bias, args.a},
          .splits = args.splits,
          .exchange = args.exchange,
          .blocks = args.blocks};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const A2aGemmArgs& args) {
  return op_spec(channel, spec::kA2aGemm, in_order(args));
}

void run(Channel& channel, const A2aGemmArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kA2aGemm, in_order(args), schedule);
}

}  // namespace overlace::ops
