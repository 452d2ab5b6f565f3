#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/call.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const AgGemmArgs& args) {
  return {.tensors = {args.a_shard, args.b, args.c, args.bias, args.a, args.a_scale, args.b_scale},
          .row_offsets = args.row_offsets,
          .activation = args.activation};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const AgGemmArgs& args) {
  return op_spec(channel, spec::kAgGemm, in_order(args));
}

void run(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kAgGemm, in_order(args), schedule);
}

}  // namespace overlace::ops
