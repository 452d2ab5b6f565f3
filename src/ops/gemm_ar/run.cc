#include "overlace/ops/call.h"
#include "overlace/ops/gemm_ar.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const GemmArArgs& args) {
  return {.tensors = {args.a, args.b, args.out, args.bias, args.a_scale, args.b_scale}};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const GemmArArgs& args) {
  return op_spec(channel, spec::kGemmAr, in_order(args));
}

void run(Channel& channel, const GemmArArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kGemmAr, in_order(args), schedule);
}

}  // namespace overlace::ops
