#include "overlace/ops/call.h"
#include "overlace/ops/gemm_ar_norm.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const GemmArNormArgs& args) {
  return {.tensors = {args.a, args.b, args.residual, args.norm_weight, args.out, args.normed, args.bias},
          .fields = {{"eps", args.eps}}};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const GemmArNormArgs& args) {
  return op_spec(channel, spec::kGemmArNorm, in_order(args));
}

void run(Channel& channel, const GemmArNormArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kGemmArNorm, in_order(args), schedule);
}

}  // namespace overlace::ops
