// The layer on GPUs: memory of a context, and the kernels of a call in their order.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <vector>

#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/nvtx.h"
#include "src/gemm_core/host.cuh"
#include "src/ops/common/check.h"
#include "src/ops/fused/grouped_launch.cuh"
#include "src/ops/fused/wgrad_launch.cuh"
#include "src/ops/moe/context.h"
#include "src/ops/moe/cuda/kernels.h"
#include "src/ops/moe/cuda/layout.h"
#include "src/ops/moe/cuda/moe_launch.cuh"
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

/// From how many products on (multiplications of a rank's copies) `auto` takes one kernel; between 4e10, where it was
/// slower, and 2e11, where it was faster: docs/design/moe.md.
constexpr double kLeastProducts = 1.5e11, kProductsOfRow = 3;  // gate, up, down

/// The products of a call, ready to be queued; on a rank without experts, or where nobody wants one, it has no
/// instance.
struct Products {
  PreparedMoe layer{};
  std::array<core::PreparedGrouped, 3> grouped{};
  std::array<core::PreparedWgrad, kWgrads> wgrad{};
};

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
    pod_.row_units = static_cast<int32_t>(spec.hidden / kPerRowUnit);
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
    for (const ProductKind& kind : {kUp, kDown}) OVERLACE_TRY(load(instance_of(spec_.dtype, kind)));
    OVERLACE_TRY(load(layer_instance(spec_.dtype)));
    return spec_.gradients ? open_gradients() : base::Status();
  }

  void take_heap() override {
    constexpr size_t kAlign = 256;
    heap_ = channel_.team().runtime().heap().alloc(layout_.heap_bytes, kAlign, "moe layer");
    const TeamPod& team = channel_.pod().team;
    for (int r = 0; r < team.size; ++r) pod_.heap[r] = team.heap[r] + heap_.offset;
    pod_.tokens = layout_.tokens;
    pod_.counts = layout_.counts;
    pod_.entries = layout_.entries;
    pod_.sums = layout_.sums;
    pod_.dweights = layout_.dweights;
    pod_.hist = local<int32_t>(layout_.hist);
    pod_.slots = local<int32_t>(layout_.slots);
    pod_.first = local<int64_t>(layout_.first);
    pod_.load = local<int32_t>(layout_.load);
    pod_.groups = local<core::RowGroup>(layout_.groups);
    for (int product = 0; product < kProducts; ++product) {
      pod_.items[product] = local<uint4>(layout_.items[product]);
      pod_.columns[product] = layout_.columns[product];
    }
    for (int plane = 0; plane < kMostPlanes; ++plane) {
      pod_.rows[plane] = layout_.rows[plane];
      pod_.pools[plane] = local<uint4>(layout_.pools[plane]);
    }
    pod_.planes = 1;
    pod_.results = pod_.pools[0];
    pod_.num_items = local<int32_t>(layout_.num_items);
    pod_.row_weights = local<float>(layout_.row_weights);
    pod_.pool_rows = layout_.pool_rows;
    control_ = local<Control>(layout_.control);
    pod_.account = &control_->account;
    take_flow();
  }

  base::Status run(const MoeArgs& args, const MoeCounts& counts) override {
    OVERLACE_TRY(check("moe", args, {{"out", args.out}}));
    const DeviceGuard guard(channel_.team().runtime().device());
    Products products;  // before anything is queued
    if (local_experts(pod_) > 0 && is_fused(args.x.dim(0))) {
      OVERLACE_TRY(prepare_layer(args, &products.layer));
    } else if (local_experts(pod_) > 0) {
      OVERLACE_TRY(prepare(args.w1, kUp, kInter, pod_.pools[0], hidden(), 0, &products.grouped[0]));
      OVERLACE_TRY(prepare(args.w2, kDown, kHidden, hidden(), pod_.results, 1, &products.grouped[1]));
    }
    return call("moe", [&] { return queue(args, counts, products); });
  }

  base::Status run(const MoeGradArgs& args) override {
    OVERLACE_TRY(
        check("moe_grad", args.layer, {{"dy", args.dy}, {"dx", args.dx}, {"dw1", args.dw1}, {"dw2", args.dw2}}));
    const DeviceGuard guard(channel_.team().runtime().device());
    Products products;
    if (local_experts(pod_) > 0) OVERLACE_TRY(prepare_gradients(args, &products));
    return call("moe_grad", [&] { return queue(args, products); });
  }

  base::Result<MoeReport> report() override {
    const DeviceGuard guard(channel_.team().runtime().device());
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"));
    OVERLACE_TRY(backend().drain(channel_.stream()));  // whether its kernels stood still
    Control control{};
    OVERLACE_TRY(runtime::cuda_peer::download(&control, control_, sizeof control));
    const Account& account = control.account;
    const Site site = site_of(channel_, "moe");
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
  /// Both give the same bits and meet the peers in the same way, so each rank may take what its own tokens want.
  bool is_fused(int64_t tokens) const {
    if (spec_.family != "auto") return spec_.family == "fused";
    return static_cast<double>(tokens * spec_.top_k) * kProductsOfRow * static_cast<double>(spec_.hidden) *
               static_cast<double>(spec_.inter) >=
           kLeastProducts;
  }
  void take_flow() {
    flow_ = {.entries = local<Entry>(layout_.choices),
             .incoming = local<RowPlace>(layout_.incoming),
             .outgoing = local<RowPlace>(layout_.outgoing),
             .next_in = local<int32_t>(layout_.next_in),
             .next_out = local<int32_t>(layout_.next_out),
             .num_rows = local<int32_t>(layout_.num_rows),
             .items = local<uint4>(layout_.flow_items),
             .num_items = pod_.num_items,
             .up = 0,
             .down = 0,
             .lag = 0,
             .first_rows = local<int32_t>(layout_.first_rows),
             .last_rows = local<int32_t>(layout_.last_rows),
             .arrived = local<uint32_t>(layout_.arrived),
             .ended = local<uint32_t>(layout_.ended),
             .hidden = local<uint32_t>(layout_.hidden_done),
             .drawn_in = local<uint32_t>(layout_.drawn_in),
             .drawn_out = local<uint32_t>(layout_.drawn_out)};
  }
  template <class T>
  T* local(uint64_t offset) const {
    return reinterpret_cast<T*>(memory_.as<char>() + offset);
  }
  cudaStream_t stream() const { return static_cast<cudaStream_t>(channel_.stream().cuda_stream); }
  int sms() const {
    return runtime::sms_of(channel_.options().sm_budget, channel_.team().state().runtime->backend->sm_room());
  }

  /// What this backend wants beyond what the layer wants everywhere.
  base::Status check(const char* op, const MoeArgs& args, std::initializer_list<Named> more) const {
    const Site site = site_of(channel_, op);
    if (!args.gated || args.activation != "silu")
      return base::error(Errc::not_supported, "{}: {}{} experts on GPUs, wanted experts gated by silu; rank {}",
                         site.op, args.gated ? "gated " : "", args.activation, site.rank);
    std::vector<Named> all{{"x", args.x}, {"w1", args.w1}, {"w2", args.w2}};
    all.insert(all.end(), more);
    for (const Named& t : all) {
      if (!t.view.defined() || t.view.numel() == 0) continue;
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
  runtime::BackendState& backend() const { return *channel_.team().state().runtime->backend; }

  TokensPod tokens_of(const MoeArgs& args, const TensorView& out) const {
    TokensPod call{};
    call.rows[0] = static_cast<const uint4*>(args.x.data);
    call.row_pitches[0] = pitch_of(args.x) / kPerRowUnit;
    call.idx = static_cast<const int32_t*>(args.idx.data);
    call.idx_pitch = pitch_of(args.idx);
    call.weights = static_cast<const float*>(args.weights.data);
    call.weights_pitch = pitch_of(args.weights);
    call.tokens = args.x.dim(0);
    call.capacity = capacity_of(args.capacity_factor, call.tokens, spec_.top_k, spec_.num_experts);
    call.has_readers = true;
    call.out = out.data;
    call.out_pitch = pitch_of(out);
    call.is_out_fp32 = out.dtype == DType::fp32 ? 1 : 0;
    return call;
  }
  TokensPod tokens_of(const MoeGradArgs& args) const {
    TokensPod call = tokens_of(args.layer, args.dx);
    call.rows[1] = static_cast<const uint4*>(args.dy.data);
    call.row_pitches[1] = pitch_of(args.dy) / kPerRowUnit;
    if (args.dweights.defined()) {
      call.dweights = static_cast<float*>(args.dweights.data);
      call.dweights_pitch = pitch_of(args.dweights);
    }
    return call;
  }

  void* hidden() const { return local<void>(layout_.hidden); }
  static int64_t matrix_pitch_of(const TensorView& t) { return t.dim(0) <= 1 ? t.dim(1) * pitch_of(t) : t.stride(0); }
  int clusters_of(const core::Instance& instance) const { return std::max(1, sms() / instance.spec.cluster()); }
  base::Status load(const core::Instance& one) const {
    return core::count_clusters(one.kernel, one.spec, one.name).status();
  }

  /// Rows of the pool times `weights`; `items`: the list with as many columns as the result has.
  base::Status prepare(const TensorView& weights, const ProductKind& kind, Product items, const void* from, void* to,
                       int number, core::PreparedGrouped* out) const {
    const core::Instance& instance = instance_of(spec_.dtype, kind);
    const bool is_k_major = kind.b_major == core::BMajor::k;
    core::GroupedArgs g;
    g.a = from;
    g.c = to;
    g.b = weights.data;
    g.m = layout_.pool_rows;
    g.n = g.ldc = is_k_major ? weights.dim(1) / kind.halves : weights.dim(2);
    g.k = g.lda = is_k_major ? weights.dim(2) : weights.dim(1);
    g.matrices = weights.dim(0);
    g.ldb = pitch_of(weights);
    g.matrix_pitch = matrix_pitch_of(weights);
    g.items = pod_.items[items];
    g.num_items = pod_.num_items + items;
    g.counter = &control_->counters[number].drawn;
    g.row_weights = pod_.row_weights;
    g.error = backend().pipeline_word();
    g.timeout_ns = runtime::pipeline_timeout_ns(channel_.pod().team.timeout_ns);
    g.most_clusters = clusters_of(instance);
    base::Result<core::PreparedGrouped> prepared = core::prepare_grouped(instance, g);
    if (!prepared.ok()) return prepared.status();
    *out = *prepared;
    return {};
  }
  base::Status prepare_layer(const MoeArgs& args, PreparedMoe* out) {
    const core::Instance& instance = layer_instance(spec_.dtype);
    LayerPod pod = pod_;
    pod.own_sums = local<float>(layout_.own_sums);
    MoeLayerArgs g;
    g.w1 = args.w1.data;
    g.w2 = args.w2.data;
    g.hidden = hidden();
    g.inter = spec_.inter;
    g.w1_pitch = pitch_of(args.w1);
    g.w1_matrix_pitch = matrix_pitch_of(args.w1);
    g.w2_pitch = pitch_of(args.w2);
    g.w2_matrix_pitch = matrix_pitch_of(args.w2);
    g.counter = &control_->counters[0].drawn;
    g.error = backend().pipeline_word();
    g.timeout_ns = runtime::pipeline_timeout_ns(channel_.pod().team.timeout_ns);
    g.most_clusters = clusters_of(instance);
    base::Result<PreparedMoe> prepared = prepare_moe(instance, g, pod, flow_);
    if (!prepared.ok()) return prepared.status();
    *out = *prepared;
    return {};
  }
  /// a^T b of each expert's rows, into the gradient of w1 (0) or w2 (1).
  base::Status prepare(int weight, const void* a, const void* b, const TensorView& to, int number,
                       core::PreparedWgrad* out) const {
    if (!to.defined()) return {};
    const core::Instance& instance = wgrad_instance(spec_.dtype);
    core::WgradArgs g;
    g.a = a;
    g.b = b;
    g.c = to.data;
    g.m = g.lda = to.dim(1);
    g.n = g.ldb = to.dim(2);
    g.k = layout_.pool_rows;
    g.matrices = to.dim(0);
    g.ldc = pitch_of(to);
    g.matrix_pitch = matrix_pitch_of(to);
    g.groups = pod_.groups;
    g.items = local<uint4>(layout_.wgrad_items[weight]);
    g.counter = &control_->counters[number].drawn;
    g.error = backend().pipeline_word();
    g.timeout_ns = runtime::pipeline_timeout_ns(channel_.pod().team.timeout_ns);
    g.most_clusters = clusters_of(instance);
    base::Result<core::PreparedWgrad> prepared = core::prepare_wgrad(instance, g);
    if (!prepared.ok()) return prepared.status();
    *out = *prepared;
    return {};
  }
  base::Status prepare_gradients(const MoeGradArgs& args, Products* out) const {
    const TensorView &w1 = args.layer.w1, &w2 = args.layer.w2;
    uint4 *const x = pod_.pools[0], *const dy = pod_.pools[1];
    void *const before = local<void>(layout_.before), *const q = local<void>(layout_.q),
                *const dbefore = local<void>(layout_.dbefore);
    OVERLACE_TRY(prepare(w1, kAgain, kWide, x, before, 0, &out->grouped[0]));
    OVERLACE_TRY(prepare(w2, kOfInner, kInter, dy, q, 1, &out->grouped[1]));
    OVERLACE_TRY(prepare(w1, kOfRows, kHidden, dbefore, dy, 2, &out->grouped[2]));  // when dy has been read
    OVERLACE_TRY(prepare(0, dbefore, x, args.dw1, 3, &out->wgrad[0]));
    return prepare(1, dy, hidden(), args.dw2, 4, &out->wgrad[1]);
  }
  base::Status open_gradients() {
    for (const ProductKind& kind : {kAgain, kOfInner, kOfRows}) OVERLACE_TRY(load(instance_of(spec_.dtype, kind)));
    const core::Instance& instance = wgrad_instance(spec_.dtype);
    OVERLACE_TRY(load(instance));
    for (int weight = 0; weight < kWgrads; ++weight) {
      const WeightExtents e = extents_of(spec_, weight);
      const std::vector<uint4> items = core::wgrad_items(instance.spec, e.rows, e.columns, local_experts(pod_));
      OVERLACE_TRY(runtime::cuda_peer::upload(local<void>(layout_.wgrad_items[weight]), items.data(),
                                              items.size() * sizeof(uint4)));
    }
    return {};
  }

  base::Status meet() {
    if (pod_.size == 1) return {};
    return runtime::cuda_peer::launch_barrier(stream(), channel_.pod().team, channel_.pod().barrier_id);
  }

  /// `queued` puts a call on the stream.
  template <class Queue>
  base::Status call(const char* name, Queue queued) {
    const base::NvtxRange range("operator", [name] { return name; });
    OVERLACE_TRY(runtime::begin_call(channel_, [name] { return std::string(name); }));
    const base::Status status = queued();
    // What is queued cannot be taken back, and the peers wait for the rest.
    if (!status.ok()) channel_.team().runtime().abort(status.code(), status.message());
    const base::Status ended = runtime::end_call(channel_);
    return status.ok() ? ended : status;
  }
  /// This rank's tokens to where all ranks find them, and those of all ranks are there.
  base::Status queue_publish(const LayerPod& pod, const TokensPod& call) {
    OVERLACE_TRY(cuda_status(cudaMemsetAsync(control_, 0, layout_.zeroed_bytes, stream()), "cudaMemsetAsync"));
    OVERLACE_TRY(launch_publish(pod, call, stream()));
    return meet();
  }
  /// Tokens to the pools.
  base::Status queue_dispatch(const LayerPod& pod, const TokensPod& call, const MoeCounts& counts) {
    OVERLACE_TRY(queue_publish(pod, call));
    return launch_expand(pod, counts.load, counts.dropped, sms(), stream());
  }
  base::Status queue_product(const core::PreparedGrouped& product) {
    return product.instance == nullptr ? base::Status() : core::launch_grouped(product, stream());
  }
  base::Status queue_product(const core::PreparedWgrad& product) {
    return product.instance == nullptr ? base::Status() : core::launch_wgrad(product, stream());
  }

  base::Status queue(const MoeArgs& args, const MoeCounts& counts, const Products& products) {
    const TokensPod call = tokens_of(args, args.out);
    if (products.layer.instance != nullptr) return queue_layer(call, counts, products.layer);
    OVERLACE_TRY(queue_dispatch(pod_, call, counts));
    OVERLACE_TRY(queue_product(products.grouped[0]));
    OVERLACE_TRY(queue_product(products.grouped[1]));
    if (pod_.size > 1) OVERLACE_TRY(launch_return(pod_, sms(), stream()));
    OVERLACE_TRY(meet());
    return launch_sum(pod_, call, sms(), stream());
  }

  base::Status queue_layer(TokensPod call, const MoeCounts& counts, const PreparedMoe& layer) {
    const LayerPod& pod = layer.params.layer;
    call.has_readers = pod.size > 1;
    OVERLACE_TRY(queue_publish(pod, call));
    OVERLACE_TRY(launch_lists(pod, layer.params.flow, counts.load, counts.dropped, sms(), stream()));
    OVERLACE_TRY(launch_moe(layer, call, stream()));
    if (pod.size == 1) return {};
    OVERLACE_TRY(meet());
    return launch_sum(pod, call, sms(), stream());
  }

  /// Gradients of rows take the place of those of results, when all have read these, and are on their way while dw1 is
  /// computed.
  base::Status queue(const MoeGradArgs& args, const Products& products) {
    const TokensPod call = tokens_of(args);
    LayerPod pod = pod_;
    pod.planes = kMostPlanes;
    pod.results = pod.pools[1];
    pod.dots = local<float>(layout_.dots);
    OVERLACE_TRY(queue_dispatch(pod, call, {}));
    OVERLACE_TRY(queue_product(products.grouped[0]));
    OVERLACE_TRY(queue_product(products.grouped[1]));
    if (local_experts(pod) > 0) OVERLACE_TRY(launch_gate_gradients(gate_of(pod), sms(), stream()));
    OVERLACE_TRY(queue_product(products.wgrad[1]));
    OVERLACE_TRY(queue_product(products.grouped[2]));
    if (pod.size > 1) OVERLACE_TRY(launch_return(pod, sms(), stream()));
    OVERLACE_TRY(queue_product(products.wgrad[0]));
    OVERLACE_TRY(meet());
    return launch_sum(pod, call, sms(), stream());
  }
  GatePod gate_of(const LayerPod& pod) const {
    return {.before = local<float>(layout_.before),
            .q = local<float>(layout_.q),
            .row_weights = pod.row_weights,
            .dbefore = local<void>(layout_.dbefore),
            .inner = hidden(),
            .dots = pod.dots,
            .inter_units = static_cast<int32_t>(spec_.inter / kPerRowUnit),
            .num_items = pod.num_items + kInter,
            .columns = pod.columns[kInter],
            .pool_rows = pod.pool_rows,
            .dtype = spec_.dtype};
  }

  Channel& channel_;
  MoeSpec spec_;
  Layout layout_;
  LayerPod pod_{};
  FlowPod flow_{};
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
    if (columns % kPerRowUnit != 0 || columns > kMostColumns)
      return refuse(site, "{} is {}, wanted a multiple of {}, at most {}", name, columns, kPerRowUnit, kMostColumns);
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
