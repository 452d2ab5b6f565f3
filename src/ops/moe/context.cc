// What calls of one layer share, on whatever backend.
#include "src/ops/moe/context.h"

#include <algorithm>
#include <utility>

#include "overlace/ops/moe.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/exec/agree.h"
#include "src/ops/moe/check.h"

#if !defined(OVERLACE_HAS_CUDA)  // no channel has a GPU
namespace overlace::ops::moe {
base::Status check_gpu_layer(Channel&, const MoeSpec&) {
  return base::error(Errc::not_supported, "moe_open: this build has no CUDA, wanted OVERLACE_CUDA=ON");
}
base::Result<std::unique_ptr<GpuLayer>> open_gpu_layer(Channel& channel, const MoeSpec& spec) {
  return check_gpu_layer(channel, spec);
}
}  // namespace overlace::ops::moe
#endif

namespace overlace::ops {

struct MoeContext::State {
  Channel* channel = nullptr;
  MoeSpec spec;
  MoeReport last;                        // CPU ranks
  std::unique_ptr<moe::GpuLayer> layer;  // GPUs
};

namespace {

base::Status check_spec(const Site& site, const MoeSpec& spec, int ranks) {
  const auto at_least = [&](const char* name, int64_t got, int64_t least) {
    return got >= least ? base::Status() : refuse(site, "{} is {}, wanted at least {}", name, got, least);
  };
  OVERLACE_TRY(at_least("max_tokens", spec.max_tokens, 1));
  OVERLACE_TRY(at_least("hidden", spec.hidden, 1));
  OVERLACE_TRY(at_least("inter", spec.inter, 1));
  OVERLACE_TRY(at_least("top_k", spec.top_k, 1));
  if (spec.top_k > moe::kMostChoices)
    return refuse(site, "top_k is {}, wanted at most {}", spec.top_k, moe::kMostChoices);
  moe::Placement placement;
  OVERLACE_TRY(moe::check_experts(site, spec.num_experts, spec.expert_begin, ranks, &placement));
  if (!moe::is_family(spec.family)) return refuse(site, "family is {}, wanted auto, serial or fused", spec.family);
  return {};
}

/// Collective.
base::Status agree_to_open(Channel& channel, const base::Status& mine, const MoeSpec& spec) {
  std::string begin;
  for (const int64_t first : spec.expert_begin) begin += base::format(" {}", first);
  const std::string text = base::format("max_tokens {} H {} I {} E {} top {} {} experts from{}{}, {}", spec.max_tokens,
                                        spec.hidden, spec.inter, spec.num_experts, spec.top_k, dtype_name(spec.dtype),
                                        begin, spec.gradients ? ", gradients" : "", spec.family);
  const exec::Agreement all = exec::agree_texts(channel.team(), mine, text);
  OVERLACE_TRY(all.status);
  return exec::agree_outcome(all, "the context of a moe layer", channel.team().name());
}

base::Status check_fits(const Site& site, const MoeSpec& spec, const MoeArgs& args) {
  const auto equal = [&](const char* what, int64_t got, int64_t wanted) {
    return got == wanted ? base::Status()
                         : refuse(site, "{} is {}, wanted {}, as the context was opened", what, got, wanted);
  };
  if (args.x.ndim == 2 && args.x.dim(0) > spec.max_tokens)
    return refuse(site, "x has {} rows, wanted at most the {} tokens of the context", args.x.dim(0), spec.max_tokens);
  if (args.x.ndim == 2) OVERLACE_TRY(equal("the number of columns of x", args.x.dim(1), spec.hidden));
  if (args.idx.ndim == 2) OVERLACE_TRY(equal("the number of columns of idx", args.idx.dim(1), spec.top_k));
  if (args.w2.ndim == 3) OVERLACE_TRY(equal("the last extent of w2", args.w2.dim(2), spec.inter));
  OVERLACE_TRY(equal("num_experts", args.num_experts, spec.num_experts));
  const std::vector<int64_t> begin =
      moe::begin_of(args.expert_begin, args.num_experts, static_cast<int>(spec.expert_begin.size()) - 1);
  for (size_t r = 0; r < std::max(begin.size(), spec.expert_begin.size()); ++r)
    if (r >= begin.size() || begin[r] != spec.expert_begin[r])
      return refuse(site, "expert_begin[{}] is {}, wanted {}, as the context was opened", r,
                    r < begin.size() ? base::format("{}", begin[r]) : "missing", spec.expert_begin[r]);
  return moe::check_dtype(site, {"x", args.x}, spec.dtype);
}

}  // namespace

MoeContext::MoeContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
MoeContext::MoeContext(MoeContext&&) noexcept = default;
MoeContext& MoeContext::operator=(MoeContext&&) noexcept = default;
MoeContext::~MoeContext() = default;

MoeContext MoeContext::open(Channel& channel, const MoeSpec& spec) {
  auto state = std::make_unique<State>();
  state->channel = &channel;
  state->spec = spec;
  const Site site = site_of(channel, "moe_open");
  base::Status mine = check_spec(site, spec, channel.team().size());
  if (mine.ok()) state->spec.expert_begin = moe::begin_of(spec.expert_begin, spec.num_experts, channel.team().size());
  if (mine.ok() && site.is_gpu) mine = moe::check_gpu_layer(channel, spec);
  agree_to_open(channel, mine, state->spec).or_throw();
  if (site.is_gpu) {
    base::Result<std::unique_ptr<moe::GpuLayer>> layer = moe::open_gpu_layer(channel, state->spec);
    // Blocks of the heap are at equal offsets only if all ranks take them.
    exec::agree_texts(channel.team(), layer.status(), "").status.or_throw();
    state->layer = std::move(layer).value();
    state->layer->take_heap();
  }
  return MoeContext(std::move(state));
}

const MoeSpec& MoeContext::spec() const { return state_->spec; }
size_t MoeContext::heap_bytes() const { return state_->layer == nullptr ? 0 : state_->layer->heap_bytes(); }
size_t MoeContext::device_bytes() const { return state_->layer == nullptr ? 0 : state_->layer->device_bytes(); }

MoeReport MoeContext::report() {
  if (state_->layer == nullptr) return state_->last;
  base::Result<MoeReport> report = state_->layer->report();
  report.status().or_throw();
  return std::move(report).value();
}

void run(MoeContext& context, const MoeArgs& args, const MoeCounts& counts) {
  MoeContext::State& state = *context.state_;
  const Site site = site_of(*state.channel, "moe");
  const base::Status fits = check_fits(site, state.spec, args);
  if (state.layer == nullptr) {
    // NOTE: ranks meet in the call, where a rank that cannot make it tells the others.
    state.last = moe::run_met(*state.channel, args, fits);
    if (counts.load != nullptr) std::copy(state.last.load.begin(), state.last.load.end(), counts.load);
    if (counts.dropped != nullptr) *counts.dropped = state.last.dropped;
    return;
  }
  fits.or_throw();
  moe::Placement placement;
  moe::Experts experts;
  moe::check_call(site, args, state.channel->team().size(), {"out", args.out}, &placement, &experts).or_throw();
  state.layer->run(args, counts).or_throw();
}

void run(MoeContext& context, const MoeGradArgs& args) {
  MoeContext::State& state = *context.state_;
  const Site site = site_of(*state.channel, "moe_grad");
  base::Status fits = check_fits(site, state.spec, args.layer);
  if (fits.ok() && !state.spec.gradients) fits = refuse(site, "the context was opened without gradients, wanted with");
  if (state.layer == nullptr) return moe::run_met(*state.channel, args, fits);
  fits.or_throw();
  moe::Placement placement;
  moe::Experts experts;
  moe::check_call(site, args.layer, state.channel->team().size(), {"dx", args.dx}, &placement, &experts).or_throw();
  moe::check_gradients(site, args, placement.local(site.rank)).or_throw();
  state.layer->run(args).or_throw();
}

}  // namespace overlace::ops
