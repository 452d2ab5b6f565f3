#include "cli/run/memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "overlace/error.h"
#include "src/base/file.h"
#include "src/exec/run.h"
#include "src/model/layer_stream.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Result;

constexpr uint64_t kSlack = uint64_t{64} << 20;  // collectives' staging, channels, alignment
constexpr double kGiB = 1024.0 * 1024 * 1024;

/// `auto` may take it, and it needs the most.
bool is_large(const spec::FamilyDef& family) {
  using enum spec::ClosedForm;
  const bool cuts_rows = family.form == all_shards || family.form == other_shards || family.form == per_shard;
  return family.has_degree && (cuts_rows || family.form == hosts);
}

/// Runs beside what is chosen, on the same channel.
bool is_measured(const spec::FamilyDef& family) {
  const bool is_baseline = family.name == spec::kLibrary || family.name == spec::kSerial;
  return is_baseline || family.purpose == spec::Purpose::comm || family.purpose == spec::Purpose::limit;
}

Result<uint64_t> site_bytes(const RunPlan& plan, const model::Site& site) {
  uint64_t always = 0, chosen = 0;
  const auto add = [&](const spec::Schedule& schedule, bool may_be_chosen) -> base::Status {
    const auto needs = exec::footprint(schedule, 0, plan.ranks);
    if (!needs.ok()) return needs.status();
    if (may_be_chosen) {
      chosen = std::max(chosen, needs->heap_bytes);
    } else {
      always += needs->heap_bytes;
    }
    return {};
  };
  const spec::Params options = {{"hosts", int64_t{plan.hosts}}};
  for (const spec::FamilyDef& family : spec::find_operator(site.op.op)->families)
    if (is_measured(family)) OVERLACE_TRY(add(spec::make_schedule(site.op, family.name, 1, options), false));
  const auto asked = plan.request.by_site.find(site.name);
  if (asked != plan.request.by_site.end()) {
    OVERLACE_TRY(add(asked->second, true));
    return always + chosen;
  }
  for (const spec::FamilyDef& family : spec::find_operator(site.op.op)->families)
    for (int degree : {1, 4})
      if (is_large(family)) OVERLACE_TRY(add(spec::make_schedule(site.op, family.name, degree, options), true));
  return always + chosen;
}

constexpr double kSlots = 2;

/// Where layers and residual streams lie; nothing where all fit.
std::optional<model::Placement> placement_of(const RunPlan& plan) {
  if (plan.problem.device_bytes == 0) return std::nullopt;
  const auto shard = model::make_shard(plan.config, plan.problem, 0, plan.ranks);
  const auto placement = shard.ok() ? model::place_layers(plan.config, plan.problem, *shard) : shard.status();
  if (!placement.ok() || placement->streamed() + placement->resting_bytes == 0) return std::nullopt;
  return *placement;
}

/// Layers of weights that a rank of CPU memory holds, its slots counted as layers.
double layers_in_memory(const RunPlan& plan) {
  const auto layers = static_cast<double>(plan.problem.layers);
  const auto placement = placement_of(plan);
  if (!placement || placement->streamed() == 0) return layers;
  // From disk there is a ring of what the files hold under the one of slots.
  return plan.problem.from_disk ? layers - static_cast<double>(placement->streamed()) + 2 * kSlots : layers + kSlots;
}

}  // namespace

Result<uint64_t> heap_bytes(const RunPlan& plan) {
  try {
    uint64_t bytes = kSlack;
    for (const model::Site& site : plan.sites) {
      const auto needs = site_bytes(plan, site);
      if (!needs.ok()) return needs.status();
      bytes += *needs + *needs / 8;
    }
    const uint64_t least = (plan.backend == Backend::cuda_peer ? uint64_t{1024} : uint64_t{256}) << 20;
    return std::max(bytes, least);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

double host_bytes(const RunPlan& plan, uint64_t heap) {
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double element = real(static_cast<int64_t>(dtype_bytes(plan.problem.dtype)));
  const double tokens = real(plan.problem.tokens), hidden = real(plan.config.hidden), ranks = plan.ranks;
  const double together = plan.problem.micro_batch > 0 ? real(plan.problem.micro_batch) : tokens;
  const double here = plan.ranks_here();
  double weights = 0, columns = 0;  // of one layer in the mean over all ranks; K and N of ag_gemm and gemm_rs
  const double layers = real(plan.problem.layers);
  for (const model::Site& site : plan.sites) {
    weights += real(site.op.n) * real(site.op.k) * ranks * real(site.layers) / layers;
    columns += (spec::gathers(site.op.op) ? real(site.op.n) : real(site.op.k)) * ranks;
  }
  const model::Experts& experts = plan.config.experts;
  const double with_experts = real(plan.config.expert_layers(plan.problem.layers));
  const double without_experts = weights;
  const double of_expert = 3 * hidden * real(experts.intermediate), of_shared = 3 * hidden * real(experts.shared);
  weights += (real(experts.count) * (of_expert + hidden) + of_shared * ranks) * with_experts / layers;
  double sums = 0, one_by_one = 0;  // columns that are fp32 in any dtype; what the oracle holds of a layer's experts
  if (with_experts > 0) {
    one_by_one = of_expert + of_shared + real(experts.count) * hidden;  // one of them, and the whole router
    columns += real(experts.per_token) * (real(experts.intermediate) + 2 * hidden);  // of a token's copies
    sums += real(experts.per_token) * (2 * real(experts.intermediate) + hidden);
  }
  if (with_experts > 0 && experts.shared > 0) {
    columns += real(experts.shared) + hidden;
    sums += 2 * real(experts.shared) + 2 * hidden;
  }
  const auto placement = placement_of(plan);
  const bool rests = placement && placement->resting_bytes > 0;  // the input and streams, two slots, what they lack
  const double streams = rests ? 2 * tokens + (kSlots + 1) * together : 3 * tokens;
  const double activations =
      (together * (columns + 3 * hidden) + streams * hidden) * element + together * sums * sizeof(float);
  const double states = tokens * hidden * sizeof(float) * (here + 3);  // every rank holds the input
  const double oracle = (tokens * (columns + sums + 4 * hidden) + without_experts + one_by_one) * sizeof(double);
  return (weights * layers_in_memory(plan) * element + activations) * here / ranks + states + oracle +
         real(static_cast<int64_t>(heap)) * here;
}

double streamed_host_bytes(const RunPlan& plan) {
  const auto placement = placement_of(plan);
  if (!placement) return 0;
  // From disk: a ring of what the files hold, and pinned slots that copies come from.
  const auto streamed = static_cast<double>(placement->streamed());
  const double layers = plan.problem.from_disk && streamed > 0 ? 2 * kSlots : streamed;
  const double bytes = layers * static_cast<double>(placement->layer_bytes);
  return (bytes + static_cast<double>(placement->resting_bytes)) * plan.ranks_here();
}

base::Status check_memory(const RunPlan& plan, const HostMemory& host) {
  const auto heap = heap_bytes(plan);
  if (!heap.ok()) return heap.status();
  if (plan.backend != Backend::cpu) {  // devices refuse on their own, with their numbers
    const double streamed = streamed_host_bytes(plan);
    if (streamed <= host.limit) return {};
    return base::error(Errc::out_of_memory,
                       "what streams to {} ranks takes {:.1f} GiB of host memory, the control group allows {:.1f} "
                       "GiB; wanted a larger --device-memory, fewer --layers, --weights disk or fewer --tokens",
                       plan.ranks_here(), streamed / kGiB, host.limit / kGiB);
  }
  const double needed = host_bytes(plan, *heap), available = std::min(host.physical, host.limit);
  if (needed <= available) return {};
  return base::error(Errc::out_of_memory,
                     "{} with {} layers, {} tokens, {} ranks takes about {:.1f} GiB, this host has {:.1f} GiB; wanted "
                     "fewer --layers or --tokens",
                     plan.config.name, plan.problem.layers, plan.problem.tokens, plan.ranks_here(), needed / kGiB,
                     available / kGiB);
}

HostMemory host_memory() {
  HostMemory out;
  out.physical = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  const auto limit = base::read_file("/sys/fs/cgroup/memory.max");
  int64_t bytes = 0;
  if (limit.ok() && std::from_chars(limit->data(), limit->data() + limit->size(), bytes).ec == std::errc() && bytes > 0)
    out.limit = static_cast<double>(bytes);
  return out;
}

}  // namespace overlace::cli
