// The mixture-of-experts layer of the C API.
#include "overlace/ops/moe.h"

#include <algorithm>
#include <utility>

#include "overlace/capi_moe.h"
#include "overlace/team.h"
#include "src/capi/convert.h"
#include "src/capi/handles.h"
#include "src/ops/moe/check.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

struct Read {
  const char* name;
  const ovl_tensor& from;
  TensorView* to;
};
base::Status read_all(std::string_view call, std::initializer_list<Read> tensors) {
  for (const Read& tensor : tensors) {
    base::Result<TensorView> view = view_of({call, tensor.name}, tensor.from);
    if (!view.ok()) return view.status();
    *tensor.to = *view;
  }
  return {};
}

base::Status check_flag(std::string_view call, std::string_view name, int32_t value) {
  if (value == 0 || value == 1) return {};
  return base::invalid_argument("{}: {} is {}, wanted 0 or 1", call, name, value);
}

base::Status read_layer(std::string_view call, const ovl_moe* from, int ranks, ops::MoeArgs* to) {
  OVERLACE_TRY(check_struct({call, "layer"}, from));
  OVERLACE_TRY(check_flag(call, "layer.gated", from->gated));
  if (from->family != nullptr && !ops::moe::is_family(from->family))
    return base::invalid_argument("{}: layer.family is {}, wanted auto, serial or fused", call, from->family);
  OVERLACE_TRY(read_all(call, {{"layer.x", from->x, &to->x},
                               {"layer.idx", from->idx, &to->idx},
                               {"layer.weights", from->weights, &to->weights},
                               {"layer.w1", from->w1, &to->w1},
                               {"layer.w2", from->w2, &to->w2},
                               {"layer.b1", from->b1, &to->b1},
                               {"layer.b2", from->b2, &to->b2},
                               {"layer.out", from->out, &to->out}}));
  to->num_experts = from->num_experts;
  if (from->activation != nullptr) to->activation = from->activation;
  to->gated = from->gated == 1;
  to->capacity_factor = from->capacity_factor;
  to->expert_begin = offsets_of(from->expert_begin, ranks);
  return {};
}

/// That of the channel for calls of this size. Collective where there is none yet.
ops::MoeContext& context_for(ChannelObject& object, const ops::MoeArgs& args, const ovl_moe& layer, bool gradients) {
  const auto extent = [](const TensorView& t, int ndim, int dim) { return t.ndim == ndim ? t.dim(dim) : 0; };
  const ops::MoeSpec spec{
      .max_tokens = layer.max_tokens,
      .hidden = extent(args.x, 2, 1),
      .inter = extent(args.w2, 3, 2),
      .num_experts = args.num_experts,
      .top_k = static_cast<int>(extent(args.idx, 2, 1)),
      .dtype = args.x.dtype,
      .expert_begin = ops::moe::begin_of(args.expert_begin, args.num_experts, object.channel->team().size()),
      .gradients = gradients,
      .family = layer.family == nullptr ? "auto" : layer.family};
  const auto known = std::find_if(object.moe_contexts.begin(), object.moe_contexts.end(),
                                  [&](const ops::MoeContext& one) { return one.spec() == spec; });
  if (known != object.moe_contexts.end()) return *known;
  return object.moe_contexts.emplace_back(ops::MoeContext::open(*object.channel, spec));
}

}  // namespace

int ovl_moe_run(ovl_channel* channel, const ovl_moe* layer, int64_t* load, int64_t* dropped) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(enter({"ovl_moe_run", "channel"}, channel, &entry, &object));
    ops::MoeArgs args;
    OVERLACE_TRY(read_layer("ovl_moe_run", layer, object->channel->team().size(), &args));
    if (object->owner->runtime->backend() == Backend::cuda_peer) {
      ops::run(context_for(*object, args, *layer, /*gradients=*/false), args, {.load = load, .dropped = dropped});
      return {};
    }
    const ops::MoeReport report = ops::run(*object->channel, args);
    if (load != nullptr) std::copy(report.load.begin(), report.load.end(), load);
    if (dropped != nullptr) *dropped = report.dropped;
    return {};
  });
}

int ovl_moe_run_grad(ovl_channel* channel, const ovl_moe* layer, const ovl_moe_grad* grad) {
  return guarded([&]() -> base::Status {
    Entry entry;
    std::shared_ptr<ChannelObject> object;
    OVERLACE_TRY(enter({"ovl_moe_run_grad", "channel"}, channel, &entry, &object));
    ops::MoeGradArgs args;
    OVERLACE_TRY(read_layer("ovl_moe_run_grad", layer, object->channel->team().size(), &args.layer));
    OVERLACE_TRY(check_struct({"ovl_moe_run_grad", "grad"}, grad));
    OVERLACE_TRY(read_all("ovl_moe_run_grad", {{"grad.dy", grad->dy, &args.dy},
                                               {"grad.dx", grad->dx, &args.dx},
                                               {"grad.dweights", grad->dweights, &args.dweights},
                                               {"grad.dw1", grad->dw1, &args.dw1},
                                               {"grad.dw2", grad->dw2, &args.dw2},
                                               {"grad.db1", grad->db1, &args.db1},
                                               {"grad.db2", grad->db2, &args.db2}}));
    if (object->owner->runtime->backend() == Backend::cuda_peer) {
      ops::run(context_for(*object, args.layer, *layer, /*gradients=*/true), args);
    } else {
      ops::run(*object->channel, args);
    }
    return {};
  });
}

int ovl_moe_choose_experts(const ovl_moe_router* router, int64_t* nan_tokens) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_moe_choose_experts";
    OVERLACE_TRY(check_struct({kCall, "router"}, router));
    OVERLACE_TRY(check_flag(kCall, "router.renormalize", router->renormalize));
    ops::MoeRouterArgs args;
    OVERLACE_TRY(read_all(kCall, {{"router.x", router->x, &args.x},
                                  {"router.w_gate", router->w_gate, &args.w_gate},
                                  {"router.bias", router->bias, &args.bias},
                                  {"router.idx", router->idx, &args.idx},
                                  {"router.weights", router->weights, &args.weights}}));
    if (router->score != nullptr) args.score = router->score;
    args.renormalize = router->renormalize == 1;
    args.num_groups = router->num_groups == 0 ? 1 : router->num_groups;
    args.kept_groups = router->kept_groups == 0 ? 1 : router->kept_groups;
    args.route_scale = router->route_scale == 0 ? 1 : router->route_scale;
    const int64_t found = ops::choose_experts(args);
    if (nan_tokens != nullptr) *nan_tokens = found;
    return {};
  });
}
