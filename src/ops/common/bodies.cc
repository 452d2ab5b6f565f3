#include "src/ops/common/bodies.h"

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/ops/fused/cpu.h"
#include "src/ops/reduce/bodies.h"
#if defined(OVERLACE_HAS_CUDA)
#include "src/ops/embedding_a2a/pool.h"
#include "src/ops/fused/fused.h"
#endif

namespace overlace::ops {

const exec::Bodies& bodies(const Channel& channel) {
  static const exec::Bodies cpu = {
      .by_kind = {{spec::Kind::reduce, reduce_on_cpu}, {spec::Kind::tiles, fused::tiles_on_cpu}}};
#if defined(OVERLACE_HAS_CUDA)
  static const exec::Bodies gpu = {.by_kind = {{spec::Kind::reduce, reduce_on_gpu}},
                                   .kernel = {fused::prepare_fused, fused::launch_fused, fused::copy_rows_out,
                                              fused::keeps_memory, fused::is_loaded, fused::counted}};
  if (channel.team().runtime().backend() == Backend::cuda_peer) return gpu;
#else
  (void)channel;
#endif
  return cpu;
}

base::Status check_computes(const Channel& channel, const spec::OperatorDef& def) {
  if (channel.team().runtime().backend() != Backend::cuda_peer || def.compute == nullptr || def.pools_on_gpus)
    return {};
  return base::error(Errc::not_supported, "{}: the operator computes on CPU ranks only, wanted backend cpu; rank {}",
                     def.name, channel.team().rank());
}

base::Result<exec::Bodies> bodies_of([[maybe_unused]] Channel& channel, const spec::OperatorDef& def,
                                     std::span<const TensorView> tensors) {
#if defined(OVERLACE_HAS_CUDA)
  if (channel.team().runtime().backend() == Backend::cuda_peer) {
    OVERLACE_TRY(prepare_pool(channel));
    return exec::Bodies{.by_kind = {{spec::Kind::pool, pool_on_gpu(channel, tensors)}}};
  }
#endif
  const auto compute = [&def, tensors](const exec::BodyContext& context) -> base::Status {
    try {
      def.compute(
          {context.schedule, context.task, context.reads, context.writes, context.rank, context.first_row, tensors});
    } catch (...) {
      return base::status_of_current_exception();
    }
    return {};
  };
  return exec::Bodies{.by_kind = {{spec::Kind::reduce, compute}, {spec::Kind::pool, compute}}};
}

}  // namespace overlace::ops
