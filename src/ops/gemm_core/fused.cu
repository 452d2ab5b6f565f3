#pragma nv_diag_suppress 1679  // nvcc loses the push of overlace/schedule.h, and warns of its pop
#include <algorithm>
#include <memory>
#include <string>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/ops/gemm_core/choose.h"
#include "src/ops/gemm_core/copy_rows.cuh"
#include "src/ops/gemm_core/fused.h"
#include "src/ops/gemm_core/gather_launch.cuh"
#include "src/ops/gemm_core/gather_one_shot_launch.cuh"
#include "src/ops/gemm_core/host.cuh"
#include "src/ops/gemm_core/one_shot_launch.cuh"
#include "src/ops/gemm_core/scatter_launch.cuh"
#include "src/runtime/backend.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
#include "src/runtime/residency.h"
#include "src/runtime/state.h"
#include "src/spec/operators.h"

namespace overlace::ops::gemm_core {
namespace {

/// What a kernel counts on the device, for all programs that share its words. NOTE: `error` is never read: its pipeline
/// waits longer than the thread that waits for a peer, and that one aborts the runtime.
struct Counts {
  runtime::cuda_peer::LocalMemory memory;
  InboxPod inbox{};
  CountersPod counters{};
  uint32_t* error = nullptr;
  uint32_t *places = nullptr, *calls = nullptr;  // one_shot; of ag_gemm `calls` are claims
  ItemLists lists;                               // others
  runtime::Residency::Lease lease;
};

/// 1 where there is none: check_family finds what else is missing.
int64_t number(const spec::Schedule& schedule, std::string_view name) {
  const auto found = schedule.params.find(name);
  const auto* value = found == schedule.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
  return value == nullptr ? 1 : *value;
}
bool is(const spec::Schedule& schedule, std::string_view name, const spec::Param& value) {
  const auto found = schedule.params.find(name);
  return found != schedule.params.end() && found->second == value;
}

bool is_gather(const spec::Schedule& schedule) { return spec::gathers(schedule.op); }
bool is_one_shot(const spec::Schedule& schedule) { return is(schedule, "transport", std::string("one_shot")); }
std::string_view family_name(const spec::Schedule& schedule) {
  using enum spec::ClosedForm;
  const auto form = is_one_shot(schedule) ? small_m_kernel : is_gather(schedule) ? slab_kernel : tile_kernel;
  const spec::FamilyDef* family = spec::find_family(schedule.op, form);
  return family == nullptr ? "" : family->name;
}
const char* inbox_name(const spec::Schedule& schedule) { return is_gather(schedule) ? "X" : "S"; }
/// Words of the inbox tell by themselves that they have come.
bool has_telling_words(const spec::Schedule& schedule) { return is_one_shot(schedule) && !is_gather(schedule); }

/// SMs that calls of this channel may fill.
int sms_of(const Channel& channel) {
  return runtime::sms_of(channel.options().sm_budget, channel.team().state().runtime->backend->sm_room());
}

/// Of the channel's GPU.
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

runtime::Residency::Tenant tenant_of(const exec::KernelContext& context) {
  const RuntimeState* const runtime = context.channel.team().state().runtime;
  return {reinterpret_cast<uintptr_t>(runtime), context.channel.pod().channel_id, sms_of(context.channel),
          runtime->backend->sm_room()};
}

/// Whether CTAs of the next call may be set up while this one runs. Not where ranks or other channels, of whatever
/// runtime, share the GPU: they would take the SMs of a peer that this call waits for.
bool starts_early(const Gpu& gpu, const runtime::Residency::Tenant& tenant) {
  return tenant.room == gpu.sms && gpu.residency->is_alone(tenant);
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
               bytes = (cells + 31) / 32 * 32 + (kCounts + 2) * kCounterPitch;
  const auto calls = static_cast<size_t>(one_shot_counts(instance.spec, clusters)) * sizeof(uint32_t);
  base::Result<runtime::cuda_peer::LocalMemory> memory =
      runtime::cuda_peer::LocalMemory::filled(0, bytes + calls, "counts of a kernel");
  if (!memory.ok()) return memory.status();
  counts->memory = std::move(*memory);
  if (has_telling_words(context.schedule)) OVERLACE_TRY(clear_inbox(context));
  counts->inbox = {.offset = context.memory.at(inbox_name(context.schedule)),
                   .pitch = context.pitch,
                   .cells = counts->memory.as<uint64_t>(),
                   .buffers = static_cast<uint32_t>(context.copies),
                   .ranks = ranks,
                   .data_id = context.ids.at("arrived"),
                   .credit_id = is_one_shot(context.schedule) ? 0 : context.ids.at("credit")};
  char* const end = counts->memory.as<char>() + bytes;
  counts->counters = {.words = end - (kCounts + 2) * kCounterPitch, .count = kCounts, .number = 0};
  counts->places = reinterpret_cast<uint32_t*>(end - 2 * kCounterPitch);
  counts->error = reinterpret_cast<uint32_t*>(end - kCounterPitch);
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

/// Clusters of a grid. `all`: that the channel's SMs hold at once; `now`: of them those that leave room for others.
struct Clusters {
  int all = 0, now = 0;
};
base::Result<Clusters> clusters_of(const exec::KernelContext& context, const Gpu& gpu, const Instance& instance) {
  const auto most = count_clusters(instance.kernel, instance.spec, instance.name);
  if (!most.ok()) return most.status();
  const auto clusters = [&](int sms) { return std::clamp(sms / instance.spec.cluster(), 1, *most); };
  return Clusters{clusters(sms_of(context.channel)), clusters(gpu.residency->most_sms(tenant_of(context)))};
}

/// Rows as a tensor map wants them. Of an empty one nothing is read or written, but the map wants an address.
struct Rows {
  void* data;
  int64_t pitch;
};
Rows rows_of(const TensorView& t, const TensorView& in_its_place) {
  if (t.numel() == 0) return {in_its_place.data, t.dim(1)};
  return {t.data, t.dim(0) == 1 ? t.dim(1) : t.stride(0)};
}

void fill_sizes(const exec::KernelContext& context, Clusters clusters, int64_t k, FusedArgs* args,
                ExchangeState* state) {
  auto& counts = *static_cast<Counts*>(context.state->get());
  args->row_offsets = context.schedule.tables.at("off");
  args->n = number(context.schedule, "N");
  args->k = k;
  args->most_clusters = clusters.all;
  args->grid_clusters = clusters.now;
  args->error = counts.error;
  state->channel = &context.channel.pod();
  state->inbox = &counts.inbox;
  state->counters = &counts.counters;
  state->lists = &counts.lists;
  state->first_id = context.ids.at("arrived");
}

/// What both operators take: all but their first operand.
void fill(const exec::KernelContext& context, Clusters clusters, const TensorView& a, const TensorView& c,
          const TensorView& in_place_of_c, FusedArgs* args, ExchangeState* state) {
  const TensorView& b = context.bindings->find("B")->second;
  const Rows weights = rows_of(b, b), to = rows_of(c, in_place_of_c);
  fill_sizes(context, clusters, a.dim(1), args, state);
  args->b = weights.data;
  args->c = to.data;
  args->ldb = weights.pitch;
  args->ldc = to.pitch;
}

const void* bias_of(const exec::KernelContext& context) {
  const auto found = context.bindings->find("bias");
  return found == context.bindings->end() ? nullptr : found->second.data;
}

base::Status launch_gather_of(const exec::KernelContext& context, const Instance& instance, Clusters clusters,
                              bool early, cudaStream_t stream) {
  const TensorView &shard = context.bindings->find("A")->second, &c = context.bindings->find("C")->second;
  const Rows from = rows_of(shard, c);
  GatherArgs args;
  fill(context, clusters, shard, c, c, &args, &args.state);
  args.shard = from.data;
  args.lda = from.pitch;
  args.pieces = static_cast<int>(number(context.schedule, "q"));
  args.bias = bias_of(context);
  args.is_gated = spec::activation_of(context.schedule.params) == spec::Activation::swiglu;
  const auto prepared = prepare_gather(instance, args);
  if (!prepared.ok()) return prepared.status();
  return launch_gather(*prepared, early, stream);
}

base::Status launch_one_shot_gather_of(const exec::KernelContext& context, const Instance& instance, Clusters clusters,
                                       bool early, cudaStream_t stream) {
  const TensorView &shard = context.bindings->find("A")->second, &c = context.bindings->find("C")->second;
  const Rows from = rows_of(shard, c);
  OneShotGatherArgs args;
  fill(context, clusters, shard, c, c, &args, &args.state);
  args.shard = from.data;
  args.lda = from.pitch;
  args.bias = bias_of(context);
  args.claims = static_cast<Counts*>(context.state->get())->calls;
  const auto prepared = prepare_one_shot_gather(instance, args);
  if (!prepared.ok()) return prepared.status();
  return launch_one_shot_gather(*prepared, early, stream);
}

void set_groups(const exec::KernelContext& context, ScatterArgs* args) {
  args->groups = static_cast<int>(number(context.schedule, "groups"));
  if (spec::returns_to_all(context.schedule.op)) {
    args->sums_travel = true;
    args->sums_offset = context.memory.at("Z");
    args->ready_id = context.ids.at("ready");
  }
}

base::Status launch_scatter_of(const exec::KernelContext& context, const Instance& instance, Clusters clusters,
                               bool early, cudaStream_t stream) {
  const TensorView &a = context.bindings->find("A")->second, &y = context.bindings->find("Y")->second;
  const Rows from = rows_of(a, a);
  ScatterArgs args;
  fill(context, clusters, a, y, a, &args, &args.state);
  args.a = from.data;
  args.lda = from.pitch;
  args.bias = bias_of(context);
  set_groups(context, &args);
  const auto prepared = prepare_scatter(instance, args);
  if (!prepared.ok()) return prepared.status();
  return launch_scatter(*prepared, early, stream);
}

/// The list that a call's kernel draws from.
base::Status prepare_items(const exec::KernelContext& context, const Instance& instance, Clusters clusters) {
  if (is_gather(context.schedule)) {
    GatherArgs args;
    fill_sizes(context, clusters, number(context.schedule, "K"), &args, &args.state);
    return prepare_gather_items(instance, args);
  }
  ScatterArgs args;
  fill_sizes(context, clusters, number(context.schedule, "K"), &args, &args.state);
  set_groups(context, &args);
  return prepare_scatter_items(instance, args);
}

base::Status launch_one_shot_of(const exec::KernelContext& context, const Instance& instance, Clusters clusters,
                                bool early, cudaStream_t stream) {
  const auto& counts = *static_cast<const Counts*>(context.state->get());
  const TensorView &a = context.bindings->find("A")->second, &b = context.bindings->find("B")->second;
  const TensorView& y = context.bindings->find("Y")->second;
  const Rows tokens = rows_of(a, a), weights = rows_of(b, b), to = rows_of(y, a);
  OneShotArgs args;
  args.a = tokens.data;
  args.b = weights.data;
  args.c = to.data;
  args.bias = bias_of(context);
  if (spec::stays_with_owner(context.schedule.op)) args.row_offsets = context.schedule.tables.at("off");
  args.m = a.dim(0);
  args.n = y.dim(1);
  args.k = a.dim(1);
  args.lda = tokens.pitch;
  args.ldb = weights.pitch;
  args.ldc = to.pitch;
  args.most_clusters = clusters.all;
  args.grid_clusters = clusters.now;
  args.error = counts.error;
  args.state = {&context.channel.pod(), counts.inbox.offset, counts.inbox.pitch, counts.calls, counts.places};
  const auto prepared = prepare_one_shot(instance, args);
  if (!prepared.ok()) return prepared.status();
  return launch_one_shot(*prepared, early, stream);
}

/// The kernel does what make_schedule says of its family, whatever the tasks say.
base::Status check_family(const spec::Schedule& schedule) {
  spec::OpSpec op;
  op.op = schedule.op;
  op.m = number(schedule, "M");
  op.n = number(schedule, "N");
  op.k = number(schedule, "K");
  op.ranks = static_cast<int>(number(schedule, "G"));
  op.dtype = op.out_dtype = is(schedule, "dtype", std::string("bf16")) ? DType::bf16 : DType::fp16;
  op.b_layout = is(schedule, "b_layout", std::string("nk")) ? spec::BLayout::nk : spec::BLayout::kn;
  op.bias = is(schedule, "bias", true);
  op.activation = spec::activation_of(schedule.params);
  op.row_offsets = schedule.tables.at("off");
  for (const spec::FieldDef& field : spec::find_operator(schedule.op)->fields)
    if (const auto value = schedule.params.find(field.name); value != schedule.params.end()) op.fields.insert(*value);
  const bool is_slot = !is_gather(schedule) && !is_one_shot(schedule);
  const auto degree = static_cast<int>(number(schedule, is_slot ? "groups" : "q"));
  spec::Params options;
  options["ce_queues"] = number(schedule, "ce_queues");
  if (is_slot) options["align_n"] = number(schedule, "tile_n");
  const spec::Schedule wanted = spec::make_schedule(op, family_name(schedule), degree, options);
  if (wanted == schedule) return {};
  return base::error(Errc::bad_schedule,
                     "schedule {}: its kernel is compiled for the tasks of make_schedule(\"{}\", {})", schedule.family,
                     family_name(schedule), degree);
}

}  // namespace

bool keeps_memory(const spec::Schedule& schedule) { return has_telling_words(schedule); }

bool is_loaded(const Channel& channel, const spec::Schedule& schedule) {
  const auto instance = instance_of(channel, schedule);
  return instance.ok() && has_counted_clusters((*instance)->kernel);
}

base::Status prepare_fused(const exec::KernelContext& context) {
  const auto instance = instance_of(context.channel, context.schedule);
  if (!instance.ok()) return instance.status();
  OVERLACE_TRY(check_family(context.schedule));
  const auto gpu = gpu_of(context);
  if (!gpu.ok()) return gpu.status();
  const auto clusters = clusters_of(context, *gpu, **instance);  // loads the kernel, too
  if (!clusters.ok()) return clusters.status();
  OVERLACE_TRY(make_counts(context, *gpu, **instance, clusters->all));
  return is_one_shot(context.schedule) || number(context.schedule, "M") == 0
             ? base::Status()
             : prepare_items(context, **instance, *clusters);
}

base::Status launch_fused(const exec::KernelContext& context) {
  if (number(context.schedule, "M") == 0) return {};
  const auto instance = instance_of(context.channel, context.schedule);
  if (!instance.ok()) return instance.status();
  const auto gpu = gpu_of(context);
  if (!gpu.ok()) return gpu.status();
  const auto clusters = clusters_of(context, *gpu, **instance);
  if (!clusters.ok()) return clusters.status();
  const bool early = starts_early(*gpu, tenant_of(context));
  auto* const stream = static_cast<cudaStream_t>(context.channel.stream().cuda_stream);
  const auto launch = is_gather(context.schedule)
                          ? (is_one_shot(context.schedule) ? launch_one_shot_gather_of : launch_gather_of)
                          : (is_one_shot(context.schedule) ? launch_one_shot_of : launch_scatter_of);
  return launch(context, **instance, *clusters, early, stream);
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

}  // namespace overlace::ops::gemm_core
