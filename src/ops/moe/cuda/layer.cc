// The layer on GPUs: memory of a context, and the kernels of a call in their order.
#include <algorithm>
#include <array>
#include <span>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/ceil_div_pod.h"
#include "src/base/nvtx.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/common/check.h"
#include "src/ops/fused/grouped_launch.cuh"
#include "src/ops/moe/context.h"
#include "src/ops/moe/cuda/kernels.h"
#include "src/ops/moe/route.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
#include "src/runtime/backend/cuda_peer/nodes.h"
#include "src/runtime/residency.h"
#include "src/runtime/state.h"
#include "src/spec/fusable.h"

namespace overlace::ops::moe {
namespace {

namespace core = fused;
using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::DeviceGuard;
using runtime::cuda_peer::LocalMemory;

constexpr int64_t kPerUnit = 8;  // elements of 16 bytes
constexpr size_t kAlign = 256;

int64_t up(int64_t bytes) { return base::round_up(bytes, static_cast<int64_t>(kAlign)); }

/// Offsets of parts of one block, each aligned.
class Parts {
 public:
  uint64_t add(int64_t bytes) {
    const auto at = static_cast<uint64_t>(end_);
    end_ += up(std::max<int64_t>(bytes, 1));
    return at;
  }
  size_t bytes() const { return static_cast<size_t>(end_); }

 private:
  int64_t end_ = 0;
};

/// Zeros before each call.
struct Control {
  Account account;
  alignas(kCounterPitch) uint32_t error;  // of the products' pipelines
  struct alignas(kCounterPitch) {
    uint32_t drawn;
  } counters[2];
};

/// Parts of the heap's block, and of memory of this device alone.
struct Layout {
  uint64_t tokens, counts, entries, rows, sums;
  size_t heap_bytes;
  uint64_t hist, slots, first, load, items[2], num_items, row_weights, pool, hidden, control;
  size_t device_bytes;
  int64_t pool_rows;
  int32_t columns[2];
};

const core::Instance& instance_of(DType dtype, int halves) {
  for (const core::Instance& one : core::instances(core::Kernel::grouped))
    if (one.spec.dtype == dtype && one.spec.halves == halves) return one;
  OVERLACE_ASSERT(false);  // both dtypes have both
  return core::instances(core::Kernel::grouped)[0];
}

Layout layout_of(const MoeSpec& spec, const Placement& placement, int rank) {
  const int64_t ranks = placement.ranks(), local = placement.local(rank), choices = spec.max_tokens * spec.top_k;
  const int64_t row_bytes = spec.hidden * 2;
  Layout out{};
  Parts heap;
  out.tokens = heap.add(sizeof(int64_t));
  out.counts = heap.add(spec.num_experts * 4);
  out.entries = heap.add(choices * static_cast<int64_t>(sizeof(Entry)));
  out.rows = heap.add(spec.max_tokens * row_bytes);
  out.sums = heap.add(ranks * spec.max_tokens * row_bytes);
  out.heap_bytes = heap.bytes();
  out.pool_rows = base::round_up(std::max<int64_t>(ranks * choices + (kPoolTile - 1) * local, 1), int64_t{kPoolTile});
  const int64_t extents[] = {spec.inter, spec.hidden};
  Parts device;
  out.hist = device.add(base::ceil_div(choices, int64_t{kEntriesPerBlock}) * spec.num_experts * 4);
  out.slots = device.add(choices * 4);
  out.first = device.add(ranks * local * 8);
  out.load = device.add(local * 4);
  for (int product = 0; product < 2; ++product) {
    const core::ConfigSpec& s = instance_of(spec.dtype, 2 - product).spec;
    const int64_t columns = int64_t{s.tile_n} * s.cluster_n / s.halves;
    out.columns[product] = static_cast<int32_t>(base::ceil_div(extents[product], columns));
    out.items[product] = device.add((out.pool_rows / kPoolTile * out.columns[product] + 1) * 16);
  }
  out.num_items = device.add(8);
  out.row_weights = device.add(out.pool_rows * 4);
  out.pool = device.add(out.pool_rows * row_bytes);
  out.hidden = device.add(out.pool_rows * spec.inter * 2);
  out.control = device.add(sizeof(Control));
  out.device_bytes = device.bytes();
  return out;
}

class Layer final : public GpuLayer {
 public:
  Layer(Channel& channel, const MoeSpec& spec, const Placement& placement)
      : channel_(channel), spec_(spec), layout_(layout_of(spec, placement, channel.team().rank())) {
    const TeamPod& team = channel.pod().team;
    pod_.rank = team.rank;
    pod_.size = team.size;
    for (size_t r = 0; r < placement.begin.size(); ++r) pod_.begin[r] = static_cast<int32_t>(placement.begin[r]);
    pod_.max_tokens = spec.max_tokens;
    pod_.num_experts = static_cast<int32_t>(spec.num_experts);
    pod_.top_k = spec.top_k;
    pod_.row_units = static_cast<int32_t>(spec.hidden / kPerUnit);
    pod_.dtype = spec.dtype;
  }
  ~Layer() override {
    RuntimeState& state = *channel_.team().state().runtime;
    if (state.is_forked()) {
      memory_.release();  // the parent's
      return;
    }
    const DeviceGuard guard(state.backend->device());
    (void)cudaStreamSynchronize(stream());  // calls use what is given back
    try {
      if (heap_ && !state.is_closed) state.heap.free(heap_);
    } catch (const std::exception&) {  // an abort, behind which nobody asks for memory
    }
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  base::Status open() {
    const DeviceGuard guard(channel_.team().runtime().device());
    base::Result<LocalMemory> memory = LocalMemory::filled(0, layout_.device_bytes, "a moe layer");
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    for (int halves = 1; halves <= 2; ++halves) {
      const core::Instance& one = instance_of(spec_.dtype, halves);
      const base::Result<int> clusters = core::count_clusters(one.kernel, one.spec, one.name);  // loads it
      if (!clusters.ok()) return clusters.status();
    }
    return {};
  }

  void take_heap() override {
    heap_ = channel_.team().runtime().heap().alloc(layout_.heap_bytes, kAlign, "moe layer");
    const TeamPod& team = channel_.pod().team;
    for (int r = 0; r < team.size; ++r) pod_.heap[r] = team.heap[r] + heap_.offset;
    pod_.tokens = layout_.tokens;
    pod_.counts = layout_.counts;
    pod_.entries = layout_.entries;
    pod_.rows = layout_.rows;
    pod_.sums = layout_.sums;
    pod_.hist = local<int32_t>(layout_.hist);
    pod_.slots = local<int32_t>(layout_.slots);
    pod_.first = local<int64_t>(layout_.first);
    pod_.load = local<int32_t>(layout_.load);
    for (int product = 0; product < 2; ++product) {
      pod_.items[product] = local<uint4>(layout_.items[product]);
      pod_.columns[product] = layout_.columns[product];
    }
    pod_.num_items = local<int32_t>(layout_.num_items);
    pod_.row_weights = local<float>(layout_.row_weights);
    pod_.pool = local<uint4>(layout_.pool);
    pod_.pool_rows = layout_.pool_rows;
    control_ = local<Control>(layout_.control);
    pod_.account = &control_->account;
  }

  base::Status run(const MoeArgs& args, const MoeCounts& counts) override {
    OVERLACE_TRY(check(args));
    const DeviceGuard guard(channel_.team().runtime().device());
    std::array<core::PreparedGrouped, 2> products{};  // before anything is queued
    for (int product = 0; product < 2 && local_experts(pod_) > 0; ++product) {
      const base::Result<core::PreparedGrouped> prepared = prepare(product, args);
      if (!prepared.ok()) return prepared.status();
      products[static_cast<size_t>(product)] = *prepared;
    }
    const base::NvtxRange range("operator", [] { return "moe"; });
    OVERLACE_TRY(runtime::begin_call(channel_, [] { return std::string("moe"); }));
    const base::Status status = queue(args, counts, products);
    // What is queued cannot be taken back, and the peers wait for the rest.
    if (!status.ok()) channel_.team().runtime().abort(status.code(), status.message());
    const base::Status ended = runtime::end_call(channel_);
    return status.ok() ? ended : status;
  }

  base::Result<MoeReport> report() override {
    const DeviceGuard guard(channel_.team().runtime().device());
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"));
    Control control{};
    OVERLACE_TRY(runtime::cuda_peer::download(&control, control_, sizeof control));
    const Account& account = control.account;
    const Site site = site_of(channel_, "moe");
    if (control.error != 0)
      return base::error(Errc::timeout, "{}: a stage of a product has not come after {} ms, wanted at once; rank {}",
                         site.op, product_timeout_ns() / 1000000, site.rank);
    if (account.bad_token != 0)
      return refuse(site, "idx[{}, {}] is {}, wanted -1 to {}", account.bad_token - 1, account.bad_choice - 1,
                    account.bad_expert, spec_.num_experts - 1);
    std::vector<int32_t> load(static_cast<size_t>(local_experts(pod_)));
    if (!load.empty()) OVERLACE_TRY(runtime::cuda_peer::download(load.data(), pod_.load, load.size() * 4));
    return MoeReport{.load = {load.begin(), load.end()}, .dropped = account.dropped};
  }

  size_t heap_bytes() const override { return layout_.heap_bytes; }
  size_t device_bytes() const override { return layout_.device_bytes; }

 private:
  template <class T>
  T* local(uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.as<char>() + offset);
  }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(channel_.stream().cuda_stream); }
  int sms() const {
    return runtime::sms_of(channel_.options().sm_budget, channel_.team().state().runtime->backend->sm_room());
  }

  /// What this backend wants beyond what the layer wants everywhere.
  base::Status check(const MoeArgs& args) const {
    const Site site = site_of(channel_, "moe");
    if (!args.gated || args.activation != "silu")
      return base::error(Errc::not_supported, "{}: {}{} experts on GPUs, wanted experts gated by silu; rank {}",
                         site.op, args.gated ? "gated " : "", args.activation, site.rank);
    for (const Named& t : {Named{"x", args.x}, {"w1", args.w1}, {"w2", args.w2}, {"out", args.out}}) {
      if (t.view.numel() == 0) continue;
      const auto address = reinterpret_cast<uintptr_t>(t.view.data);
      if (address % 16 != 0)
        return refuse(site, "{} {} is at {}, wanted a multiple of 16 bytes", t.name, t.view.shape(), address);
      const auto unit = static_cast<int64_t>(16 / dtype_bytes(t.view.dtype));
      for (int d = 0; d + 1 < t.view.ndim; ++d)
        if (t.view.dim(d) > 1 && t.view.stride(d) % unit != 0)
          return refuse(site, "{} {} has stride {} in dimension {}, wanted a multiple of {}", t.name, t.view.shape(),
                        t.view.stride(d), d, unit);
      if (t.view.ndim == 3 && t.view.dim(0) > 1 && t.view.stride(0) < t.view.dim(1) * pitch_of(t.view))
        return refuse(site, "{} {} has experts {} elements apart, wanted at least {}: none inside another", t.name,
                      t.view.shape(), t.view.stride(0), t.view.dim(1) * pitch_of(t.view));
    }
    return {};
  }
  /// Elements from a row to the next.
  static int64_t pitch_of(const TensorView& t) {
    return t.dim(t.ndim - 2) <= 1 ? t.dim(t.ndim - 1) : t.stride(t.ndim - 2);
  }
  uint64_t product_timeout_ns() const { return 2 * channel_.pod().team.timeout_ns + 2000000000; }

  TokensPod tokens_of(const MoeArgs& args) const {
    TokensPod call{};
    call.x = static_cast<const uint4*>(args.x.data);
    call.x_pitch = pitch_of(args.x) / kPerUnit;
    call.idx = static_cast<const int32_t*>(args.idx.data);
    call.idx_pitch = pitch_of(args.idx);
    call.weights = static_cast<const float*>(args.weights.data);
    call.weights_pitch = pitch_of(args.weights);
    call.tokens = args.x.dim(0);
    call.capacity = capacity_of(args.capacity_factor, call.tokens, spec_.top_k, spec_.num_experts);
    call.out = args.out.data;
    call.out_pitch = pitch_of(args.out);
    call.is_out_fp32 = args.out.dtype == DType::fp32 ? 1 : 0;
    return call;
  }

  /// 0: x times gate and up; 1: that times down.
  base::Result<core::PreparedGrouped> prepare(int product, const MoeArgs& args) const {
    const core::Instance& instance = instance_of(spec_.dtype, 2 - product);
    const TensorView& b = product == 0 ? args.w1 : args.w2;
    core::GroupedArgs g;
    g.a = product == 0 ? static_cast<const void*>(pod_.pool) : local<void>(layout_.hidden);
    g.c = product == 0 ? local<void>(layout_.hidden) : static_cast<void*>(pod_.pool);
    g.b = b.data;
    g.m = layout_.pool_rows;
    g.n = product == 0 ? spec_.inter : spec_.hidden;
    g.k = g.lda = product == 0 ? spec_.hidden : spec_.inter;
    g.ldc = g.n;
    g.matrices = b.dim(0);
    g.ldb = pitch_of(b);
    g.matrix_pitch = b.dim(0) <= 1 ? b.dim(1) * g.ldb : b.stride(0);
    g.items = pod_.items[product];
    g.num_items = pod_.num_items + product;
    g.counter = &control_->counters[product].drawn;
    g.row_weights = pod_.row_weights;
    g.error = &control_->error;
    g.timeout_ns = product_timeout_ns();
    g.most_clusters = std::max(1, sms() / instance.spec.cluster());
    return core::prepare_grouped(instance, g);
  }

  base::Status meet() {
    if (pod_.size == 1) return {};
    return runtime::cuda_peer::launch_barrier(stream(), channel_.pod().team, channel_.pod().barrier_id);
  }

  base::Status queue(const MoeArgs& args, const MoeCounts& counts, std::span<const core::PreparedGrouped, 2> products) {
    const TokensPod call = tokens_of(args);
    OVERLACE_TRY(cuda_status(cudaMemsetAsync(control_, 0, sizeof(Control), stream()), "cudaMemsetAsync"));
    OVERLACE_TRY(launch_publish(pod_, call, stream()));
    OVERLACE_TRY(meet());
    OVERLACE_TRY(launch_expand(pod_, counts.load, counts.dropped, sms(), stream()));
    for (const core::PreparedGrouped& product : products)
      if (product.instance != nullptr) OVERLACE_TRY(core::launch_grouped(product, stream()));
    if (pod_.size > 1) OVERLACE_TRY(launch_return(pod_, sms(), stream()));
    OVERLACE_TRY(meet());
    return launch_sum(pod_, call, sms(), stream());
  }

  Channel& channel_;
  MoeSpec spec_;
  Layout layout_;
  LayerPod pod_{};
  Control* control_ = nullptr;
  LocalMemory memory_;
  SymBuffer heap_;
};

}  // namespace

base::Status check_gpu_layer(Channel& channel, const MoeSpec& spec) {
  const Site site = site_of(channel, "moe_open");
  OVERLACE_TRY(channel.team().state().runtime->check_no_capture("moe_open"));
  const TeamPod& team = channel.pod().team;
  if (team.size > kPodPeers)
    return base::error(Errc::not_supported, "{}: a team of {} ranks, wanted at most {} on GPUs; rank {}", site.op,
                       team.size, kPodPeers, site.rank);
  for (int r = 0; r < team.size; ++r)
    if (team.heap[r] == nullptr)
      return base::error(Errc::not_supported,
                         "{}: loads and stores do not reach rank {} of the team, wanted GPUs that do; rank {}", site.op,
                         r, site.rank);
  const Runtime& runtime = channel.team().runtime();
  const int capability = runtime.caps(channel.team().world_rank(site.rank)).compute_capability;
  if (capability != spec::kFusedCapability)
    return base::error(Errc::not_supported, "{}: the GPU has capability {}, wanted {}; rank {}", site.op,
                       spec::capability_text(capability), spec::capability_text(spec::kFusedCapability), site.rank);
  if (spec.dtype != DType::bf16 && spec.dtype != DType::fp16)
    return refuse(site, "dtype is {}, wanted bf16 or fp16 on GPUs", dtype_name(spec.dtype));
  constexpr int64_t kMostColumns = 1 << 20;
  for (const auto& [name, columns] : {std::pair{"hidden", spec.hidden}, std::pair{"inter", spec.inter}})
    if (columns % kPerUnit != 0 || columns > kMostColumns)
      return refuse(site, "{} is {}, wanted a multiple of {}, at most {}", name, columns, kPerUnit, kMostColumns);
  constexpr int64_t kMostChoicesOfAll = int64_t{1} << 30;  // rows of the pool are numbered by 32 bits
  if (spec.max_tokens > kMostChoicesOfAll / spec.top_k / team.size)
    return refuse(site, "max_tokens is {}, wanted at most {} of {} choices on {} ranks", spec.max_tokens,
                  kMostChoicesOfAll / spec.top_k / team.size, spec.top_k, team.size);
  return {};
}

base::Result<std::unique_ptr<GpuLayer>> open_gpu_layer(Channel& channel, const MoeSpec& spec) {
  const Placement placement = spec.expert_begin.empty() ? Placement::even(spec.num_experts, channel.team().size())
                                                        : Placement{spec.expert_begin};
  auto layer = std::make_unique<Layer>(channel, spec, placement);
  OVERLACE_TRY(layer->open());
  return std::unique_ptr<GpuLayer>(std::move(layer));
}

}  // namespace overlace::ops::moe
