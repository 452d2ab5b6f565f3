#include <utility>

#include "overlace/ops/moe.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/nvtx.h"
#include "src/ops/common/check.h"
#include "src/ops/moe/check.h"
#include "src/ops/moe/context.h"
#include "src/ops/moe/exchange.h"
#include "src/ops/moe/experts.h"
#include "src/ops/moe/route.h"
#include "src/runtime/state.h"

namespace overlace::ops {
namespace {

using moe::Placement;
using moe::Routes;

/// A call as this rank sees it, or why it refuses it.
struct Posed {
  base::Status status{};
  Placement placement{};
  moe::Experts experts{};
  Routes routes{};
  std::string words{};  // what must be equal on all ranks
};

/// Rows without gaps.
template <class T>
std::vector<T> values_of(const TensorView& t) {
  std::vector<T> out;
  for (int64_t i = 0; i < t.dim(0); ++i) {
    const T* const row = static_cast<const T*>(t.data) + i * t.stride(0);
    out.insert(out.end(), row, row + t.dim(1));
  }
  return out;
}

base::Status check_team(const Site& site, Team& team) {
  if (site.is_gpu)
    return base::error(Errc::not_supported,
                       "{}: it computes on CPU ranks only, wanted backend cpu, or a MoeContext; rank {}", site.op,
                       site.rank);
  if (team.size() > 1 && team.net() == nullptr)
    return base::error(Errc::not_supported,
                       "{}: team \"{}\" has no collectives engine; wanted: RuntimeOptions::net_engine auto or mpi",
                       site.op, team.name());
  return {};
}

/// `result`: what is written, with a row for each token.
base::Status pose(Channel& channel, const Site& site, const MoeArgs& args, const Named& result, Posed* out) {
  OVERLACE_TRY(check_team(site, channel.team()));
  OVERLACE_TRY(moe::check_call(site, args, channel.team().size(), result, &out->placement, &out->experts));
  base::Result<Routes> routes = moe::make_routes({.top_k = static_cast<int>(args.idx.dim(1)),
                                                  .experts = values_of<int32_t>(args.idx),
                                                  .weights = values_of<float>(args.weights)},
                                                 out->placement, args.capacity_factor);
  if (!routes.ok()) return refuse(site, "{}", routes.status().message());
  out->routes = std::move(routes).value();
  out->words = moe::words_of(args, out->placement);
  return {};
}

base::Status pose_grad(Channel& channel, const MoeGradArgs& args, Posed* out) {
  const Site site = site_of(channel, "moe_grad");
  OVERLACE_TRY(pose(channel, site, args.layer, {"dx", args.dx}, out));
  OVERLACE_TRY(moe::check_gradients(site, args, out->placement.local(site.rank)));
  out->words = "gradient of " + out->words;
  return {};
}

base::Status run_grad_agreed(Channel& channel, const Posed& call, moe::Traffic traffic, const MoeGradArgs& args) {
  base::Result<moe::Dispatched> there =
      moe::dispatch(channel, call.placement, call.routes, std::move(traffic), args.layer.x);
  if (!there.ok()) return there.status();
  base::Result<moe::Rows> dy = moe::dispatch_more(channel, call.routes, *there, args.dy);
  if (!dy.ok()) return dy.status();
  base::Result<moe::RowGrads> grads =
      moe::run_experts_grad(call.experts, there->pool, there->x.view(), dy->view(), there->weights,
                            {.dw1 = args.dw1, .dw2 = args.dw2, .db1 = args.db1, .db2 = args.db2});
  if (!grads.ok()) return grads.status();
  OVERLACE_TRY(moe::return_numbers(channel, call.placement, call.routes, *there, grads->dweights, args.dweights));
  return moe::combine(channel, call.routes, *there, std::move(grads->dx), args.dx);
}

base::Status run_agreed(Channel& channel, const Posed& call, moe::Traffic traffic, const MoeArgs& args,
                        std::vector<int64_t>* load) {
  base::Result<moe::Dispatched> there = moe::dispatch(channel, call.placement, call.routes, std::move(traffic), args.x);
  if (!there.ok()) return there.status();
  base::Result<moe::Rows> y = moe::run_experts(call.experts, there->pool, there->x.view(), there->weights);
  if (!y.ok()) return y.status();
  *load = there->pool.load;
  return moe::combine(channel, call.routes, *there, std::move(y).value(), args.out);
}

/// What is behind the ranks' meeting: `rest` of a call that all of them can make.
template <class Rest>
void run_rest(Channel& channel, const char* name, const Posed& call, Rest rest) {
  const base::NvtxRange range("operator", [name] { return name; });
  runtime::begin_call(channel, [name] { return std::string(name); }).or_throw();
  base::Result<moe::Traffic> traffic = moe::meet(channel, call.status, call.words, call.routes);
  traffic.status().or_throw();
  base::Status status;
  try {
    status = rest(std::move(traffic).value());
  } catch (...) {
    status = base::status_of_current_exception();
  }
  // The peers are in the call: they must not wait for the rest of it.
  if (!status.ok()) channel.team().runtime().abort(status.code(), status.message());
  const base::Status ended = runtime::end_call(channel);
  status.or_throw();
  ended.or_throw();
}

}  // namespace

MoeReport moe::run_met(Channel& channel, const MoeArgs& args, const base::Status& mine) {
  Posed call;
  call.status = mine.ok() ? pose(channel, site_of(channel, "moe"), args, {"out", args.out}, &call) : mine;
  MoeReport report;
  run_rest(channel, "moe", call,
           [&](moe::Traffic traffic) { return run_agreed(channel, call, std::move(traffic), args, &report.load); });
  report.dropped = call.routes.dropped;
  return report;
}

void moe::run_met(Channel& channel, const MoeGradArgs& args, const base::Status& mine) {
  Posed call;
  call.status = mine.ok() ? pose_grad(channel, args, &call) : mine;
  run_rest(channel, "moe_grad", call,
           [&](moe::Traffic traffic) { return run_grad_agreed(channel, call, std::move(traffic), args); });
}

MoeReport run(Channel& channel, const MoeArgs& args) { return moe::run_met(channel, args, {}); }
void run(Channel& channel, const MoeGradArgs& args) { moe::run_met(channel, args, {}); }

}  // namespace overlace::ops
