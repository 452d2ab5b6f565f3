#include "overlace/ops/call.h"
#include "overlace/ops/gemm_a2a.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const GemmA2aArgs& args) {
  return {.tensors = {args.a, args.b, args.out, args.bias},
          .splits = args.splits,
          .exchange = args.exchange,
          .blocks = args.blocks};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const GemmA2aArgs& args) {
  return op_spec(channel, spec::kGemmA2a, in_order(args));
}

void run(Channel& channel, const GemmA2aArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kGemmA2a, in_order(args), schedule);
}

}  // namespace overlace::ops
