#include "overlace/ops/call.h"
#include "overlace/ops/embedding_a2a.h"
#include "src/spec/families/families.h"

namespace overlace::ops {
namespace {

CallArgs in_order(const EmbeddingA2aArgs& args) {
  return {
      .tensors = {args.weights, args.indices, args.offsets, args.per_sample_weights, args.out},
      .fields = {{"batch", args.batch}, {"bounds", args.bounds}, {"mode", args.mode}, {"placement", args.placement}},
      .row_offsets = args.row_offsets};
}

}  // namespace

spec::OpSpec op_spec(const Channel& channel, const EmbeddingA2aArgs& args) {
  return op_spec(channel, spec::kEmbeddingA2a, in_order(args));
}

void run(Channel& channel, const EmbeddingA2aArgs& args, const spec::Schedule& schedule) {
  call(channel, spec::kEmbeddingA2a, in_order(args), schedule);
}

}  // namespace overlace::ops
