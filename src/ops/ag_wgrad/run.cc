#include "overlace/ops/ag_wgrad.h"
#include "overlace/ops/call.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const AgWgradArgs& args) {
  return {.tensors = {args.a_shard, args.b, args.c, args.a}, .row_offsets = args.row_offsets};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const AgWgradArgs& args) {
  return op_spec(channel, spec::kAgWgrad, in_order(args));
}

void run(Channel& channel, const AgWgradArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kAgWgrad, in_order(args), schedule);
}

}  // namespace overlace::ops
