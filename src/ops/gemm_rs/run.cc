#include "overlace/ops/call.h"
#include "overlace/ops/gemm_rs.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const GemmRsArgs& args) {
  return {.tensors = {args.a, args.b, args.out, args.bias, args.a_scale, args.b_scale},
          .row_offsets = args.row_offsets};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const GemmRsArgs& args) {
  return op_spec(channel, spec::kGemmRs, in_order(args));
}

void run(Channel& channel, const GemmRsArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kGemmRs, in_order(args), schedule);
}

}  // namespace overlace::ops
