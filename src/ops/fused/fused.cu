#pragma nv_diag_suppress 1679  // nvcc loses the push of overlace/schedule.h, and warns of its pop
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/ceil_div_pod.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/fused/choose.h"
#include "src/ops/fused/copy_rows.cuh"
#include "src/ops/fused/fused.h"
#include "src/ops/fused/gather_launch.cuh"
#include "src/ops/fused/gather_one_shot_launch.cuh"
#include "src/ops/fused/one_shot_launch.cuh"
#include "src/ops/fused/scatter_launch.cuh"
#include "src/runtime/backend.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
#include "src/runtime/hash.h"
#include "src/runtime/residency.h"
#include "src/runtime/state.h"
#include "src/spec/items.h"
#include "src/spec/kernel_parts.h"
#include "src/spec/operators.h"

namespace overlace::ops::fused {
namespace {

/// What a kernel counts on the device, for all programs that share its words.
struct Counts {
  runtime::cuda_peer::LocalMemory memory;
  InboxPod inbox{};
  CountersPod counters{};
  uint32_t *places = nullptr, *calls = nullptr;  // one_shot; of ag_gemm `calls` are claims
  ItemLists lists;                               // others
  runtime::Residency::Lease lease;
};

/// 1 where there is none: check_kernel finds what else is missing.
int64_t number(const spec::Schedule& schedule, std::string_view name) {
  const auto found = schedule.params.find(name);
  const auto* value = found == schedule.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return value == nullptr ? 1 : *value;
}
bool is_gather(const spec::Schedule& schedule) { return spec::gathers(schedule.op); }
const char* inbox_name(const spec::Schedule& schedule) { return is_gather(schedule) ? "X" : "S"; }
/// Words of the inbox tell by themselves that they have come.
bool has_telling_words(const spec::Schedule& schedule) {
  return spec::takes_one_shot(schedule) && !is_gather(schedule);
}

/// What a launch is prepared for, besides its schedule: where the operands lie, and how large a grid may be now.
struct Operands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int clusters = 0;
  bool operator==(const Operands&) const = default;
};
using PreparedLaunch = std::variant<PreparedGather, PreparedOneShotGather, PreparedScatter, PreparedOneShot>;

/// What does not change between the calls of a schedule.
struct Launcher {
  const Instance* instance = nullptr;
  runtime::Residency* residency = nullptr;
  runtime::Residency::Tenant tenant{};
  int gpu_sms = 0, all_clusters = 0;
  uint64_t number = 0;  // of all of this process
};

/// Launches of a channel that are ready, each in the one place that it may have: 24 MB at most.
class ReadyLaunches {
 public:
  struct Place {
    uint64_t launcher = 0;  // none
    Operands at;
    std::unique_ptr<PreparedLaunch> launch;
    bool holds(const Launcher& by, const Operands& operands) const { return launcher == by.number && at == operands; }
  };
  Place& place_of(const Launcher& by, const Operands& at) {
    uint64_t hash = by.number;
    for (const void* address : {at.a, at.b, at.bias, static_cast<const void*>(at.c)})
      hash = runtime::mix_word(reinterpret_cast<uintptr_t>(address), hash);
    for (const int64_t number : {at.lda, at.ldb, at.ldc, static_cast<int64_t>(at.clusters)})
      hash = runtime::mix_word(static_cast<uint64_t>(number), hash);
    return places_[hash % kPlaces];
  }

 private:
  static constexpr size_t kPlaces = 4096;
  std::vector<Place> places_ = std::vector<Place>(kPlaces);
};

/// SMs that calls of this channel may fill.
int sms_of(const Channel& channel) {
  return runtime::sms_of(channel.options().sm_budget, channel.team().state().runtime->backend->sm_room());
}

/// The GPU of the channel.
struct Gpu {
  int sms = 0;
  runtime::Residency* residency = nullptr;
};
base::Result<Gpu> gpu_of(const exec::KernelContext& context) {
  const int device = context.channel.team().runtime().device();
  Gpu gpu;
  OVERLACE_TRY(
      cuda_status(cudaDeviceGetAttribute(&gpu.sms, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute"));
  gpu.residency = &runtime::Residency::of_device(device, gpu.sms);
  return gpu;
}

/// Where a kernel says that its own pipeline stood still; the runtime reads it.
uint32_t* pipeline_word(const exec::KernelContext& context) {
  return context.channel.team().state().runtime->backend->pipeline_word();
}

runtime::Residency::Tenant tenant_of(const exec::KernelContext& context) {
  const RuntimeState* const runtime = context.channel.team().state().runtime;
  return {reinterpret_cast<uintptr_t>(runtime), context.channel.pod().channel_id, sms_of(context.channel),
          runtime->backend->sm_room()};
}

/// Whether CTAs of the next call may be set up while this one runs. Not where ranks or other channels, of whatever
/// runtime, share the GPU: they would take the SMs of a peer that this call waits for. Nor where sums follow the
/// kernel.
bool uses_pdl(const Launcher& launcher, const spec::Schedule& schedule) {
  return !spec::is_tracked(schedule) && launcher.tenant.room == launcher.gpu_sms &&
         launcher.residency->is_alone(launcher.tenant);
}

/// All words of the inbox say that they have not come: before any rank's first call.
base::Status clear_inbox(const exec::KernelContext& context) {
  const TeamPod& team = context.channel.pod().team;
  char* const inbox = team.heap[team.rank] + context.memory.at(inbox_name(context.schedule));
  static_assert(kNotCome == ~0u);
  const size_t bytes = context.pitch * static_cast<size_t>(context.copies);
  return runtime::cuda_peer::fill(inbox, 0xff, bytes);
}

base::Status make_counts(const exec::KernelContext& context, const Gpu& gpu, const Instance& instance, int clusters) {
  if (*context.state != nullptr) return {};
  auto counts = std::make_shared<Counts>();
  counts->lease = gpu.residency->take(tenant_of(context));
  const auto ranks = static_cast<uint32_t>(context.channel.team().size());
  const size_t cells = inbox_cells(ranks) * sizeof(uint64_t),
               bytes = (cells + 31) / 32 * 32 + (kCounts + 1) * kCounterPitch;
  const auto calls = static_cast<size_t>(one_shot_counts(instance.spec, clusters)) * sizeof(uint32_t);
  base::Result<runtime::cuda_peer::LocalMemory> memory =
      runtime::cuda_peer::LocalMemory::filled(0, bytes + calls, "counts of a kernel");
  if (!memory.ok()) return memory.status();
  counts->memory = std::move(*memory);
  if (has_telling_words(context.schedule)) OVERLACE_TRY(clear_inbox(context));
  const bool has_credit = !spec::takes_one_shot(context.schedule) && !spec::is_tracked(context.schedule);
  counts->inbox = {.offset = context.memory.at(inbox_name(context.schedule)),
                   .pitch = context.pitch,
                   .cells = counts->memory.as<uint64_t>(),
                   .buffers = static_cast<uint32_t>(context.copies),
                   .ranks = ranks,
                   .data_id = context.ids.at("arrived"),
                   .credit_id = has_credit ? context.ids.at("credit") : 0};
  char* const end = counts->memory.as<char>() + bytes;
  counts->counters = {.words = end - (kCounts + 1) * kCounterPitch, .count = kCounts, .number = 0};
  counts->places = reinterpret_cast<uint32_t*>(end - kCounterPitch);
  counts->calls = reinterpret_cast<uint32_t*>(end);
  *context.state = std::move(counts);
  return {};
}

base::Result<const Instance*> instance_of(const Channel& channel, const spec::Schedule& schedule) {
  const auto chosen = choose_instance(schedule, sms_of(channel));
  if (!chosen.ok()) return chosen.status();
  const Instance* found = find_instance((*chosen)->kernel, (*chosen)->name);
  OVERLACE_ASSERT(found != nullptr);  // both are rows of instances.def
  return found;
}

/// Clusters of a grid on so many SMs, of `most` that run at once.
int clusters_on(int sms, const Instance& instance, int most) {
  return std::clamp(sms / instance.spec.cluster(), 1, most);
}

/// Loads the kernel, too.
base::Status make_launcher(const exec::KernelContext& context, const Gpu& gpu, const Instance& instance) {
  const auto most = count_clusters(instance.kernel, instance.spec, instance.name);
  if (!most.ok()) return most.status();
  static std::atomic<uint64_t> made = 0;
  auto launcher = std::make_shared<Launcher>();
  launcher->instance = &instance;
  launcher->residency = gpu.residency;
  launcher->tenant = tenant_of(context);
  launcher->gpu_sms = gpu.sms;
  launcher->all_clusters = clusters_on(sms_of(context.channel), instance, *most);
  launcher->number = ++made;
  *context.of_schedule = std::move(launcher);
  if (*context.of_channel == nullptr) *context.of_channel = std::make_shared<ReadyLaunches>();
  return {};
}

/// Clusters that leave room for other runtimes, and what the caller keeps free; the channel's SMs hold `all_clusters`.
int clusters_now(const exec::KernelContext& context, const Launcher& launcher) {
  const int most = launcher.residency->most_sms(launcher.tenant), limit = context.channel.sm_limit();
  return clusters_on(limit == 0 ? most : std::min(most, limit), *launcher.instance, launcher.all_clusters);
}

/// Rows as a tensor map wants them. Nothing is read or written of an empty one, but the map wants an address.
struct Rows {
  void* data;
  int64_t pitch;
};
Rows rows_of(const TensorView& t, const TensorView& in_its_place) {
  if (t.numel() == 0) return {in_its_place.data, t.dim(1)};
  return {t.data, t.dim(0) == 1 ? t.dim(1) : t.stride(0)};
}

const TensorView& operand(const exec::KernelContext& context, std::string_view name) {
  return context.bindings->find(name)->second;
}
/// The name of the output.
const char* result_name(const spec::Schedule& schedule) { return is_gather(schedule) ? "C" : "Y"; }

Operands operands_of(const exec::KernelContext& context, int clusters) {
  const TensorView &a = operand(context, "A"), &b = operand(context, "B"),
                   &c = operand(context, result_name(context.schedule));
  const Rows from = rows_of(a, is_gather(context.schedule) ? c : a), weights = rows_of(b, b),
             to = rows_of(c, is_gather(context.schedule) ? c : a);
  const auto bias = context.bindings->find("bias");
  return {.a = from.data,
          .b = weights.data,
          .bias = bias == context.bindings->end() ? nullptr : bias->second.data,
          .c = to.data,
          .lda = from.pitch,
          .ldb = weights.pitch,
          .ldc = to.pitch,
          .clusters = clusters};
}

void fill_sizes(const exec::KernelContext& context, const Launcher& launcher, int64_t k, FusedArgs* args,
                ExchangeState* state) {
  auto& counts = *static_cast<Counts*>(context.state->get());
  args->row_offsets = context.schedule.tables.at("off");
  args->n = number(context.schedule, "N");
  args->k = k;
  args->most_clusters = launcher.all_clusters;
  args->error = pipeline_word(context);
  state->channel = &context.channel.pod();
  state->inbox = &counts.inbox;
  state->counters = &counts.counters;
  state->lists = &counts.lists;
  state->first_id = context.ids.at("arrived");
}

/// What operators take whose items are listed: all but their first operand.
void fill(const exec::KernelContext& context, const Launcher& launcher, const Operands& at, FusedArgs* args,
          ExchangeState* state) {
  fill_sizes(context, launcher, operand(context, "A").dim(1), args, state);
  args->grid_clusters = at.clusters;
  args->b = at.b;
  args->c = at.c;
  args->lda = at.lda;
  args->ldb = at.ldb;
  args->ldc = at.ldc;
}

base::Result<PreparedGather> prepare_gather_of(const exec::KernelContext& context, const Launcher& launcher,
                                               const Operands& at) {
  GatherArgs args;
  fill(context, launcher, at, &args, &args.state);
  args.shard = at.a;
  args.pieces = static_cast<int>(number(context.schedule, "q"));
  args.bias = at.bias;
  args.is_gated = spec::activation_of(context.schedule.params) == spec::Activation::swiglu;
  return prepare_gather(*launcher.instance, args);
}

base::Result<PreparedOneShotGather> prepare_one_shot_gather_of(const exec::KernelContext& context,
                                                               const Launcher& launcher, const Operands& at) {
  OneShotGatherArgs args;
  fill(context, launcher, at, &args, &args.state);
  args.shard = at.a;
  args.bias = at.bias;
  args.claims = static_cast<Counts*>(context.state->get())->calls;
  return prepare_one_shot_gather(*launcher.instance, args);
}

/// Counters of its chunks; the results stay in local memory, from where copies take them.
void set_counters(const exec::KernelContext& context, ScatterArgs* args) {
  args->done = context.counters;
  args->done.words += size_t{context.ids.at("done")} * kCounterPitch;
  args->c = context.local.at("P");
  args->ldc = args->n;
  args->bias = nullptr;  // of the sums
}

void set_groups(const exec::KernelContext& context, ScatterArgs* args) {
  args->groups = static_cast<int>(number(context.schedule, "groups"));
  if (spec::is_tracked(context.schedule)) return set_counters(context, args);
  if (spec::returns_to_all(context.schedule.op)) {
    args->sums_travel = true;
    args->sums_offset = context.memory.at("Z");
    args->ready_id = context.ids.at("ready");
  }
}

base::Result<PreparedScatter> prepare_scatter_of(const exec::KernelContext& context, const Launcher& launcher,
                                                 const Operands& at) {
  ScatterArgs args;
  fill(context, launcher, at, &args, &args.state);
  args.a = at.a;
  args.bias = at.bias;
  set_groups(context, &args);
  return prepare_scatter(*launcher.instance, args);
}

/// The list that a call's kernel draws from.
base::Status prepare_items(const exec::KernelContext& context, const Launcher& launcher) {
  if (is_gather(context.schedule)) {
    GatherArgs args;
    fill_sizes(context, launcher, number(context.schedule, "K"), &args, &args.state);
    args.grid_clusters = clusters_now(context, launcher);
    return prepare_gather_items(*launcher.instance, args);
  }
  ScatterArgs args;
  fill_sizes(context, launcher, number(context.schedule, "K"), &args, &args.state);
  args.grid_clusters = clusters_now(context, launcher);
  set_groups(context, &args);
  return prepare_scatter_items(*launcher.instance, args);
}

base::Result<PreparedOneShot> prepare_one_shot_of(const exec::KernelContext& context, const Launcher& launcher,
                                                  const Operands& at) {
  const auto& counts = *static_cast<const Counts*>(context.state->get());
  const TensorView &a = operand(context, "A"), &y = operand(context, "Y");
  OneShotArgs args;
  args.a = at.a;
  args.b = at.b;
  args.c = at.c;
  args.bias = at.bias;
  if (spec::stays_with_owner(context.schedule.op)) args.row_offsets = context.schedule.tables.at("off");
  args.m = a.dim(0);
  args.n = y.dim(1);
  args.k = a.dim(1);
  args.lda = at.lda;
  args.ldb = at.ldb;
  args.ldc = at.ldc;
  args.most_clusters = launcher.all_clusters;
  args.grid_clusters = at.clusters;
  args.error = pipeline_word(context);
  args.state = {&context.channel.pod(), counts.inbox.offset, counts.inbox.pitch, counts.calls, counts.places};
  return prepare_one_shot(*launcher.instance, args);
}

template <class Prepared>
base::Result<PreparedLaunch> any(base::Result<Prepared> prepared) {
  if (!prepared.ok()) return prepared.status();
  return PreparedLaunch(std::move(*prepared));
}
base::Result<PreparedLaunch> prepare_launch(const exec::KernelContext& context, const Launcher& launcher,
                                            const Operands& at) {
  const bool is_small = spec::takes_one_shot(context.schedule);
  if (is_gather(context.schedule))
    return is_small ? any(prepare_one_shot_gather_of(context, launcher, at))
                    : any(prepare_gather_of(context, launcher, at));
  return is_small ? any(prepare_one_shot_of(context, launcher, at)) : any(prepare_scatter_of(context, launcher, at));
}

base::Status launch_prepared(const PreparedGather& x, bool early, cudaStream_t stream) {
  return launch_gather(x, early, stream);
}
base::Status launch_prepared(const PreparedOneShotGather& x, bool early, cudaStream_t stream) {
  return launch_one_shot_gather(x, early, stream);
}
base::Status launch_prepared(const PreparedScatter& x, bool early, cudaStream_t stream) {
  return launch_scatter(x, early, stream);
}
base::Status launch_prepared(const PreparedOneShot& x, bool early, cudaStream_t stream) {
  return launch_one_shot(x, early, stream);
}

}  // namespace

uint64_t counted(const exec::KernelContext& context, std::string_view, int64_t slot) {
  const ConfigSpec& s = static_cast<const Launcher*>(context.of_schedule->get())->instance->spec;
  const std::vector<int64_t>& off = context.schedule.tables.at("off");
  const int size = context.channel.team().size(), rank = context.channel.team().rank();
  const int64_t cols = base::ceil_div(number(context.schedule, "N"), int64_t{s.tile_n} * s.cluster_n);
  const TileOrder order = make_tile_order(TileOrderKind::own_last, rank, size, off.data(), s.tile_m * s.cluster_m,
                                          static_cast<int32_t>(cols));
  const TileGroups groups = spec::chunk_groups(order, number(context.schedule, "groups"));
  const int peers = size - 1, chunk = static_cast<int>(slot) / peers;  // as counter_of_chunk has it
  const int owner = (rank + static_cast<int>(slot) % peers + 1) % size;
  const int32_t rows = order.first_tile[owner + 1] - order.first_tile[owner];
  const int32_t tiles = std::max(tiles_of_group(groups, rows, chunk), 0);  // an owner of fewer rows has fewer chunks
  return static_cast<uint64_t>(tiles) * static_cast<uint64_t>(s.cluster() * kConsumerGroups);
}

bool keeps_memory(const spec::Schedule& schedule) { return has_telling_words(schedule); }

bool is_loaded(const Channel& channel, const spec::Schedule& schedule) {
  const auto instance = instance_of(channel, schedule);
  return instance.ok() && has_counted_clusters((*instance)->kernel);
}

base::Status prepare_fused(const exec::KernelContext& context) {
  const auto instance = instance_of(context.channel, context.schedule);
  if (!instance.ok()) return instance.status();
  OVERLACE_TRY(spec::check_kernel(context.schedule, context.expansion));
  const auto gpu = gpu_of(context);
  if (!gpu.ok()) return gpu.status();
  OVERLACE_TRY(make_launcher(context, *gpu, **instance));
  const auto& launcher = *static_cast<const Launcher*>(context.of_schedule->get());
  OVERLACE_TRY(make_counts(context, *gpu, **instance, launcher.all_clusters));
  return spec::takes_one_shot(context.schedule) || number(context.schedule, "M") == 0
             ? base::Status()
             : prepare_items(context, launcher);
}

base::Status launch_fused(const exec::KernelContext& context) {
  if (number(context.schedule, "M") == 0) return {};
  const auto& launcher = *static_cast<const Launcher*>(context.of_schedule->get());
  const Operands at = operands_of(context, clusters_now(context, launcher));
  ReadyLaunches::Place& place = static_cast<ReadyLaunches*>(context.of_channel->get())->place_of(launcher, at);
  if (!place.holds(launcher, at)) {
    auto prepared = prepare_launch(context, launcher, at);
    if (!prepared.ok()) return prepared.status();
    place = {launcher.number, at, std::make_unique<PreparedLaunch>(std::move(*prepared))};
  }
  auto* const stream = static_cast<cudaStream_t>(context.channel.stream().cuda_stream);
  const bool is_early = uses_pdl(launcher, context.schedule);
  return std::visit([&](const auto& prepared) { return launch_prepared(prepared, is_early, stream); }, *place.launch);
}

base::Status copy_rows_out(const exec::KernelContext& context, const TensorView& from, const TensorView& to) {
  if (to.numel() == 0) return {};
  constexpr int64_t kUnit = 8;  // elements
  const auto& counts = *static_cast<const Counts*>(context.state->get());
  const RowsOfCall rows{counts.inbox,
                        static_cast<const char*>(from.data),
                        static_cast<uint4*>(to.data),
                        to.dim(0),
                        to.dim(1) / kUnit,
                        (to.dim(0) == 1 ? to.dim(1) : to.stride(0)) / kUnit};
  auto* const stream = static_cast<cudaStream_t>(context.channel.stream().cuda_stream);
  return launch_copy_rows(rows, sms_of(context.channel), stream);
}

}  // namespace overlace::ops::fused
