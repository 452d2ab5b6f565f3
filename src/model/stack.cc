#include "src/model/stack.h"

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <span>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/runtime.h"
#include "overlace/team.h"
#include "src/base/half.h"
#include "src/exec/run.h"
#include "src/model/activation_stream.h"
#include "src/model/device.h"
#include "src/model/expert_block.h"
#include "src/model/layer_stream.h"
#include "src/model/layer_weights.h"
#include "src/model/rope.h"
#include "src/model/sharding.h"
#include "src/model/traced_device.h"
#include "src/model/weights.h"

namespace overlace::model {
namespace {

using base::Result;
using base::Status;

enum SiteIndex : size_t { kQkv, kOProj, kUp, kDown, kNumSites };

/// Activations of one micro-batch; what all share is overwritten by the next.
struct Activations {
  int64_t first_row = 0;                   // of mine
  TensorView x, down_out;                  // (its rows of mine, hidden): residual stream, and what it still lacks;
                                           // where streams rest x is a slot, and lacks nothing when it leaves
  TensorView norm1_out, norm2_out, o_out;  // (its rows of mine, hidden); of Part::moe norm2_out is the input
  TensorView qkv, heads_out;               // (its tokens, qkv columns), (its tokens, my heads * head_dim)
  TensorView up, activated;                // (its tokens, up columns), (its tokens, my intermediate)
};

std::string names_of(const std::vector<Site>& sites) {
  std::string out;
  for (const Site& site : sites) out += (out.empty() ? "" : ", ") + site.name;
  return out;
}

TensorView as_vector(const TensorView& row) {
  return row.defined() ? TensorView::contiguous(row.data, row.dtype, {row.dim(1)}) : TensorView();
}

/// The operator through its public face; its exceptions become statuses.
template <class Args>
Status run_operator(Channel& channel, const Args& args, const spec::Schedule& schedule) {
  try {
    ops::run(channel, args, schedule);
    return {};
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Result<std::unique_ptr<Device>> plain_device(Channel& channel) {
  if (channel.stream().kind == StreamRef::Kind::cpu) return make_cpu_device();
#ifdef OVERLACE_HAS_CUDA
  return make_cuda_device(channel);
#else
  return base::error(Errc::not_supported, "the channel's stream is CUDA, but this build has no CUDA");
#endif
}

Result<std::unique_ptr<Device>> make_device(Channel& channel) {
  auto device = plain_device(channel);
  if (!device.ok()) return device;
  const auto run_traced = [&channel](const char* name, const std::function<Status()>& work) {
    return exec::run_traced(channel, name, work);
  };
  return std::unique_ptr<Device>(std::make_unique<TracedDevice>(std::move(*device), run_traced));
}

class StackImpl final : public Stack {
 public:
  StackImpl(const ModelConfig& config, const Problem& problem, const Shard& shard, Channel& channel,
            std::unique_ptr<Device> device)
      : config_(config),
        problem_(problem),
        shard_(shard),
        channel_(channel),
        device_(std::move(device)),
        batches_(micro_batches(problem, shard.rank, shard.ranks)) {
    for (int64_t layer = 0; layer < problem.layers; ++layer) layouts_.emplace_back(config, shard, problem.dtype, layer);
  }
  ~StackImpl() override {
    const Status ignored = device_->synchronize();  // a destructor cannot report; queued work must not outlive memory
    static_cast<void>(ignored);
    stream_.reset();
    moving_.reset();
    for (void* block : blocks_) device_->free(block);
  }

  Status load(const std::vector<Site>& sites, const std::function<void()>& on_layer);
  Status forward(const float* input, const SiteSchedules& schedules, float* output) override;
  Status run_site(const std::string& name, const spec::Schedule& schedule, int iterations) override;
  Result<int64_t> run_experts(int iterations) override;
  Status run_layers(const SiteSchedules& schedules, int iterations) override;
  Status synchronize() override { return device_->synchronize(); }
  std::string attention_by() const override { return device_->attention_by(); }
  WeightStats weight_stats() const override;
  ActivationStats activation_stats() const override {
    return moving_ == nullptr ? ActivationStats() : moving_->stats();
  }
  const std::vector<int32_t>& expert_choices() const override { return choices_; }
  Result<std::vector<base::Span>> take_transfers() override;

 private:
  using Schedules = std::array<const spec::Schedule*, kNumSites>;

  /// In the problem's dtype where none is given.
  Status make(TensorView* view, int64_t rows, int64_t cols, const char* what, std::optional<DType> given = {});
  Status load_layer(Weights& weights, int64_t layer, const std::function<void()>& on_layer);
  Status make_activations();
  Status make_streams();
  Status set_input(const float* rows);
  Status make_rope_table();
  Result<Schedules> choose(const SiteSchedules& schedules) const;
  /// The weights of a layer, which a stream may have to bring first.
  Result<LayerWeights> acquire(int64_t layer);
  Status release(int64_t layer);
  Status one_layer(int64_t layer, const LayerWeights& w, const Schedules& schedules, const Activations& a);
  /// The block of experts, from norm2_out on. Returns the copies of tokens that my experts computed.
  Result<int64_t> experts(const LayerWeights& w, const Activations& a, const TensorView& out, int32_t* chosen);
  /// For Part::moe: x += what the block gives, which is x at first.
  Status experts_alone(int64_t layer, const LayerWeights& w, const Activations& a);
  int32_t* choices_of(int64_t layer, const Activations& a) {
    return choices_.data() + (layer * x_.dim(0) + a.first_row) * config_.experts.per_token;
  }
  Status one_micro_batch(int64_t layer, const LayerWeights& w, const Schedules& schedules, size_t batch);
  Status all_layers(const Schedules& schedules, const Schedules& of_last);
  Status site(SiteIndex index, const LayerWeights& w, const Activations& a, const spec::Schedule& schedule);
  Status site_operator(SiteIndex index, const LayerWeights& w, const Activations& a, const spec::Schedule& schedule);
  /// The last micro-batch may be smaller: schedules of the same families and degrees for it, else none.
  Status make_last(const Schedules& chosen, std::array<spec::Schedule, kNumSites>* made, Schedules* out) const;

  ModelConfig config_;
  Problem problem_;
  Shard shard_;
  Channel& channel_;
  std::unique_ptr<Device> device_;
  std::vector<void*> blocks_;
  std::vector<Site> sites_;
  std::vector<LayerLayout> layouts_;  // of each layer
  std::vector<MicroBatch> batches_;
  std::vector<Activations> activations_;  // of each micro-batch
  Placement placement_;
  std::vector<LayerWeights> layers_;          // the resident ones; others are undefined
  std::unique_ptr<LayerStream> stream_;       // none where all are resident
  std::unique_ptr<ActivationStream> moving_;  // none where residual streams lie on the device
  int64_t held_ = -1;                         // layer that run_site() uses and the next pass begins with
  LayerWeights held_weights_;
  int64_t passes_ = 0, made_bytes_ = 0;
  std::vector<int32_t> choices_;     // (layers, my rows, experts of a token)
  TensorView input_, x_, down_out_;  // (my rows, hidden); down_out_ is of the first micro-batch where streams rest
  TensorView cosine_, sine_;         // (sequence_length, head_dim / 2) fp32
};

Status StackImpl::make(TensorView* view, int64_t rows, int64_t cols, const char* what, std::optional<DType> given) {
  const DType dtype = given.value_or(problem_.dtype);
  const int64_t bytes = rows * cols * static_cast<int64_t>(dtype_bytes(dtype));
  auto block = device_->alloc(bytes, what);
  if (!block.ok()) return block.status();
  blocks_.push_back(*block);
  made_bytes_ += bytes;
  *view = TensorView::contiguous(*block, dtype, {rows, cols});
  return {};
}

Status StackImpl::load_layer(Weights& weights, int64_t layer, const std::function<void()>& on_layer) {
  layers_.emplace_back();
  if (!placement_.is_resident[static_cast<size_t>(layer)]) return {};
  const LayerLayout& layout = layouts_[static_cast<size_t>(layer)];
  auto block = device_->alloc(layout.bytes(), "weights");
  if (!block.ok()) return block.status();
  blocks_.push_back(*block);
  layers_.back() = layout.at(*block);
  const bool is_host = channel_.stream().kind == StreamRef::Kind::cpu;
  std::vector<char> host;
  for (const LayerLayout::Part& part : layout.parts()) {
    const TensorView view = layout.view_of(part, *block);
    if (weights.is_seeded()) {
      OVERLACE_TRY(device_->fill(weights.seeded(layer, part.weight, part.box), view));
      continue;
    }
    if (is_host) {  // the experts of a layer are most of its weights: not twice
      OVERLACE_TRY(weights.read(layer, part.weight, part.box, view.data));
      continue;
    }
    host.resize(static_cast<size_t>(view.numel()) * dtype_bytes(view.dtype));
    OVERLACE_TRY(weights.read(layer, part.weight, part.box, host.data()));
    OVERLACE_TRY(device_->upload(host.data(), view.data, static_cast<int64_t>(host.size())));
  }
  if (on_layer) on_layer();
  return {};
}

/// Residual streams: all beside each other with the input, or two slots that they pass through.
Status StackImpl::make_streams() {
  const MicroBatch &first = batches_.front(), &last = batches_.back();
  const int64_t rows = last.at + last.rows, hidden = config_.hidden;
  if (placement_.resting_bytes == 0) {
    for (TensorView* view : {&input_, &x_, &down_out_}) OVERLACE_TRY(make(view, rows, hidden, "hidden states"));
    return {};
  }
  TensorView slots;
  OVERLACE_TRY(make(&slots, kSlots * first.rows, hidden, "slots for hidden states"));
  OVERLACE_TRY(make(&down_out_, first.rows, hidden, "hidden states"));
  auto moving = ActivationStream::open(*device_, batches_, problem_.layers, slots);
  if (!moving.ok()) return moving.status();
  moving_ = std::move(*moving);
  OVERLACE_ASSERT(moving_->stats().resting_bytes == placement_.resting_bytes);
  return {};
}

Status StackImpl::make_activations() {
  const int64_t rows = batches_.back().at + batches_.back().rows, hidden = config_.hidden;
  const MicroBatch& first = batches_.front();  // the largest
  Activations all;
  OVERLACE_TRY(make_streams());
  for (TensorView* view : {&all.norm1_out, &all.norm2_out, &all.o_out})
    OVERLACE_TRY(make(view, config_.has_attention() ? first.rows : 0, hidden, "hidden states"));
  OVERLACE_TRY(make(&all.qkv, first.tokens, shard_.qkv_columns(config_), "qkv"));
  OVERLACE_TRY(make(&all.heads_out, first.tokens, shard_.heads * config_.head_dim, "attention"));
  choices_.assign(static_cast<size_t>(problem_.layers * rows * config_.experts.per_token), -1);
  OVERLACE_TRY(make(&all.up, first.tokens, shard_.up_columns(config_), "MLP"));
  OVERLACE_TRY(make(&all.activated, first.tokens, shard_.intermediate, "MLP"));
  for (const MicroBatch& batch : batches_) {
    Activations a;
    a.first_row = batch.at;
    if (moving_ == nullptr) a.x = x_.rows(batch.at, batch.rows);
    a.down_out = down_out_.rows(moving_ == nullptr ? batch.at : 0, batch.rows);
    if (config_.has_attention()) {
      for (TensorView Activations::*view : {&Activations::norm1_out, &Activations::norm2_out, &Activations::o_out})
        a.*view = (all.*view).rows(0, batch.rows);
    } else {
      a.norm2_out = input_.rows(batch.at, batch.rows);
    }
    for (TensorView Activations::*view :
         {&Activations::qkv, &Activations::heads_out, &Activations::up, &Activations::activated})
      a.*view = (all.*view).rows(0, batch.tokens);
    activations_.push_back(a);
  }
  // Sites are timed on normal data before the first forward; each tensor another.
  uint64_t serial = 0;
  for (TensorView* view : {&all.norm1_out, &all.heads_out, &all.norm2_out, &all.activated}) {
    SeededMatrix normal;
    normal.key = tensor_key(problem_.seed, (uint64_t{1} << 62) + serial++);
    normal.first_row = first.first_row;
    normal.first_col = shard_.rank * view->dim(1);
    OVERLACE_TRY(device_->fill(normal, *view));
  }
  std::vector<float> input(static_cast<size_t>(rows * hidden));
  for (const MicroBatch& batch : batches_)
    seeded_input(problem_.seed, batch.first_row, batch.rows, hidden, input.data() + batch.at * hidden);
  return set_input(input.data());
}

/// What each pass begins with.
Status StackImpl::set_input(const float* rows) {
  if (moving_ != nullptr) return moving_->set_input(rows);
  std::vector<char> rounded(static_cast<size_t>(input_.numel()) * dtype_bytes(input_.dtype));
  base::convert_from_float(rows, rounded.data(), input_.dtype, input_.numel());
  return device_->upload(rounded.data(), input_.data, static_cast<int64_t>(rounded.size()));
}

Status StackImpl::make_rope_table() {
  if (config_.positions != Positions::rope) return {};
  const std::vector<float> frequencies = rope_frequencies(config_);
  const int64_t length = problem_.sequence_length, half = config_.head_dim / 2;
  std::vector<float> cosine(static_cast<size_t>(length * half)), sine(cosine.size());
  for (int64_t p = 0; p < length; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = rope_angle(frequencies[static_cast<size_t>(i)], p);
      cosine[static_cast<size_t>(p * half + i)] = static_cast<float>(std::cos(angle));
      sine[static_cast<size_t>(p * half + i)] = static_cast<float>(std::sin(angle));
    }
  OVERLACE_TRY(make(&cosine_, length, half, "rope table", DType::fp32));
  OVERLACE_TRY(make(&sine_, length, half, "rope table", DType::fp32));
  const auto bytes = static_cast<int64_t>(cosine.size() * sizeof(float));
  OVERLACE_TRY(device_->upload(cosine.data(), cosine_.data, bytes));
  return device_->upload(sine.data(), sine_.data, bytes);
}

Status StackImpl::load(const std::vector<Site>& sites, const std::function<void()>& on_layer) {
  sites_ = sites;
  auto placement = place_layers(config_, problem_, shard_);
  if (!placement.ok()) return placement.status();
  placement_ = std::move(*placement);
  auto weights = Weights::open(config_, problem_);
  if (!weights.ok()) return weights.status();
  for (int64_t layer = 0; layer < problem_.layers; ++layer) OVERLACE_TRY(load_layer(*weights, layer, on_layer));
  OVERLACE_TRY(make_activations());
  OVERLACE_TRY(make_rope_table());
  OVERLACE_ASSERT(made_bytes_ == placement_.activation_bytes);
  if (placement_.streamed() == 0) return {};
  auto stream = LayerStream::open(config_, problem_, layouts_.front(), placement_, *device_,
                                  channel_.team().runtime().options().timeout_ms, on_layer);
  if (!stream.ok()) return stream.status();
  stream_ = std::move(*stream);
  return {};
}

Result<StackImpl::Schedules> StackImpl::choose(const SiteSchedules& schedules) const {
  Schedules chosen{};
  for (size_t i = 0; i < sites_.size(); ++i) {
    const auto found = schedules.find(sites_[i].name);
    if (found == schedules.end())
      return base::invalid_argument("schedules: none for site \"{}\", wanted one for each of {}", sites_[i].name,
                                    names_of(sites_));
    chosen[i] = &found->second;
  }
  return chosen;
}

Status StackImpl::site(SiteIndex index, const LayerWeights& w, const Activations& a, const spec::Schedule& schedule) {
  exec::set_trace_label(channel_, sites_[index].name);  // a task's name is the same at all sites
  Status status = site_operator(index, w, a, schedule);
  exec::set_trace_label(channel_, "");
  return status;
}

Status StackImpl::site_operator(SiteIndex index, const LayerWeights& w, const Activations& a,
                                const spec::Schedule& schedule) {
  const auto gather = [&](const TensorView& in, const TensorView& weight, const TensorView& bias, const TensorView& c) {
    ops::AgGemmArgs args;
    args.a_shard = in;             // (my rows, hidden)
    args.b = weight.transposed();  // (hidden, my columns)
    args.c = c;                    // (tokens, my columns)
    args.bias = as_vector(bias);
    return run_operator(channel_, args, schedule);
  };
  const auto scatter = [&](const TensorView& in, const TensorView& weight, const TensorView& bias,
                           const TensorView& out) {
    ops::GemmRsArgs args;
    args.a = in;                   // (tokens, my columns)
    args.b = weight.transposed();  // (my columns, hidden)
    args.out = out;                // (my rows, hidden)
    args.bias = as_vector(bias);
    return run_operator(channel_, args, schedule);
  };
  switch (index) {
    case kQkv:
      return gather(a.norm1_out, w.qkv, w.qkv_bias, a.qkv);
    case kOProj:
      return scatter(a.heads_out, w.o, w.o_bias, a.o_out);
    case kUp:
      return gather(a.norm2_out, w.up, w.up_bias, a.up);
    default:
      return scatter(a.activated, w.down, w.down_bias, a.down_out);
  }
}

Result<int64_t> StackImpl::experts(const LayerWeights& w, const Activations& a, const TensorView& out,
                                   int32_t* chosen) {
  exec::set_trace_label(channel_, "moe");
  auto load = run_expert_block(channel_, config_, shard_, w, {a.norm2_out, out, chosen});
  exec::set_trace_label(channel_, "");
  return load;
}

Status StackImpl::experts_alone(int64_t layer, const LayerWeights& w, const Activations& a) {
  const bool is_first = layer == 0;
  OVERLACE_TRY(experts(w, a, is_first ? a.x : a.down_out, choices_of(layer, a)).status());
  return is_first ? Status() : device_->add_norm({.x = a.x, .delta = a.down_out, .out = {}, .weight = {}, .bias = {}});
}

Status StackImpl::one_layer(int64_t layer, const LayerWeights& w, const Schedules& schedules, const Activations& a) {
  const bool is_whole = layer == 0 || moving_ != nullptr;
  const TensorView pending = is_whole ? TensorView() : a.down_out;  // what the residual stream still lacks
  AddNormArgs norm{
      a.x, pending, a.norm1_out, config_.norm, config_.norm_eps, as_vector(w.norm1), as_vector(w.norm1_bias)};
  OVERLACE_TRY(device_->add_norm(norm));
  OVERLACE_TRY(site(kQkv, w, a, *schedules[kQkv]));
  const HeadsView heads{a.qkv, shard_.heads, shard_.kv_heads, config_.head_dim, problem_.sequence_length};
  if (cosine_.defined() || w.q_norm.defined())
    OVERLACE_TRY(device_->rope({heads, cosine_, sine_, as_vector(w.q_norm), as_vector(w.k_norm), config_.norm_eps}));
  OVERLACE_TRY(device_->attention({heads, a.heads_out, config_.sliding_window}));
  OVERLACE_TRY(site(kOProj, w, a, *schedules[kOProj]));
  norm.delta = a.o_out;
  norm.out = a.norm2_out;
  norm.weight = as_vector(w.norm2);
  norm.bias = as_vector(w.norm2_bias);
  OVERLACE_TRY(device_->add_norm(norm));
  if (config_.has_experts(layer)) return experts(w, a, a.down_out, choices_of(layer, a)).status();
  OVERLACE_TRY(site(kUp, w, a, *schedules[kUp]));
  OVERLACE_TRY(device_->activation({config_.activation, a.up, a.activated}));
  return site(kDown, w, a, *schedules[kDown]);
}

Result<LayerWeights> StackImpl::acquire(int64_t layer) {
  if (placement_.is_resident[static_cast<size_t>(layer)]) return layers_[static_cast<size_t>(layer)];
  if (held_ == layer) {
    held_ = -1;
    return held_weights_;
  }
  Result<LayerWeights> weights = LayerWeights{};
  OVERLACE_TRY(exec::run_traced(channel_, "wait for weights", [&] {
    weights = stream_->acquire(layer);
    return weights.ok() ? Status() : weights.status();
  }));
  return weights;
}

Status StackImpl::release(int64_t layer) {
  return placement_.is_resident[static_cast<size_t>(layer)] ? Status() : stream_->release(layer);
}

/// Where streams rest: comes into a slot, and leaves it when nothing is pending any more, as it would be added later.
Status StackImpl::one_micro_batch(int64_t layer, const LayerWeights& w, const Schedules& schedules, size_t batch) {
  Activations a = activations_[batch];
  if (!config_.has_attention()) return experts_alone(layer, w, a);
  if (moving_ == nullptr) return one_layer(layer, w, schedules, a);
  OVERLACE_TRY(exec::run_traced(channel_, "wait for activations", [&] {
    auto slot = moving_->acquire(layer, batch);
    if (slot.ok()) a.x = *slot;
    return slot.status();
  }));
  OVERLACE_TRY(one_layer(layer, w, schedules, a));
  OVERLACE_TRY(device_->add_norm({.x = a.x, .delta = a.down_out, .out = {}, .weight = {}, .bias = {}}));
  return moving_->release();
}

Status StackImpl::all_layers(const Schedules& schedules, const Schedules& of_last) {
  const bool is_copied = config_.has_attention() && moving_ == nullptr;
  if (is_copied)
    OVERLACE_TRY(device_->copy(input_.data, x_.data, x_.numel() * static_cast<int64_t>(dtype_bytes(x_.dtype))));
  ++passes_;
  for (int64_t layer = 0; layer < problem_.layers; ++layer) {
    const auto weights = acquire(layer);
    if (!weights.ok()) return weights.status();
    for (size_t b = 0; b < batches_.size(); ++b)
      OVERLACE_TRY(one_micro_batch(layer, *weights, b + 1 == batches_.size() ? of_last : schedules, b));
    OVERLACE_TRY(release(layer));
  }
  if (!is_copied) return {};
  AddNormArgs last;
  last.x = x_;
  last.delta = down_out_;
  return device_->add_norm(last);
}

Status StackImpl::make_last(const Schedules& chosen, std::array<spec::Schedule, kNumSites>* made,
                            Schedules* out) const {
  *out = chosen;
  const int64_t tokens = batches_.back().tokens;
  if (tokens == batches_.front().tokens) return {};
  for (size_t i = 0; i < sites_.size(); ++i) {
    auto schedule = schedule_for_tokens(sites_[i].name, sites_[i].op, *chosen[i], tokens, problem_);
    if (!schedule.ok()) return schedule.status();
    (*made)[i] = std::move(*schedule);
    (*out)[i] = &(*made)[i];
  }
  return {};
}

Status StackImpl::forward(const float* input, const SiteSchedules& schedules, float* output) {
  const auto chosen = choose(schedules);
  if (!chosen.ok()) return chosen.status();
  OVERLACE_TRY(set_input(input));
  std::array<spec::Schedule, kNumSites> made;
  Schedules of_last;
  OVERLACE_TRY(make_last(*chosen, &made, &of_last));
  OVERLACE_TRY(all_layers(*chosen, of_last));
  if (moving_ != nullptr) return moving_->get_output(output);
  std::vector<char> host(static_cast<size_t>(x_.numel()) * dtype_bytes(x_.dtype));
  OVERLACE_TRY(device_->download(x_.data, host.data(), static_cast<int64_t>(host.size())));
  base::convert_to_float(host.data(), x_.dtype, output, x_.numel());
  return {};
}

Status StackImpl::run_site(const std::string& name, const spec::Schedule& schedule, int iterations) {
  size_t index = 0;
  while (index < sites_.size() && sites_[index].name != name) ++index;
  if (index == sites_.size()) return base::invalid_argument("site is \"{}\", wanted one of {}", name, names_of(sites_));
  const int64_t layer = sites_[index].first_layer;
  const auto weights = acquire(layer);
  if (!weights.ok()) return weights.status();
  if (stream_ != nullptr && !placement_.is_resident.front()) {  // layers that stream are alike; the next pass begins so
    held_ = 0;
    held_weights_ = *weights;
  }
  for (int i = 0; i < iterations; ++i)
    OVERLACE_TRY(site(static_cast<SiteIndex>(index), *weights, activations_.front(), schedule));
  return {};
}

Result<int64_t> StackImpl::run_experts(int iterations) {
  int64_t layer = 0;
  while (layer < problem_.layers && !config_.has_experts(layer)) ++layer;
  if (layer == problem_.layers)
    return base::invalid_argument("none of {} layers has experts, wanted one", problem_.layers);
  const auto weights = acquire(layer);
  if (!weights.ok()) return weights.status();
  const Activations& a = activations_.front();
  std::vector<int32_t> chosen(static_cast<size_t>(a.x.dim(0) * config_.experts.per_token));  // those of a pass stay
  Result<int64_t> load = int64_t{0};
  for (int i = 0; i < iterations; ++i) {
    load = experts(*weights, a, a.down_out, chosen.data());
    if (!load.ok()) break;
  }
  return load;
}

Status StackImpl::run_layers(const SiteSchedules& schedules, int iterations) {
  const auto chosen = choose(schedules);
  if (!chosen.ok()) return chosen.status();
  std::array<spec::Schedule, kNumSites> made;
  Schedules of_last;
  OVERLACE_TRY(make_last(*chosen, &made, &of_last));
  for (int i = 0; i < iterations; ++i) OVERLACE_TRY(all_layers(*chosen, of_last));
  return {};
}

WeightStats StackImpl::weight_stats() const {
  WeightStats stats;
  stats.streamed_layers = placement_.streamed();
  stats.resident_layers = problem_.layers - stats.streamed_layers;
  stats.layer_bytes = placement_.layer_bytes;
  stats.passes = passes_;
  if (stream_ != nullptr) stream_->add_to(&stats);
  return stats;
}

Result<std::vector<base::Span>> StackImpl::take_transfers() {
  Result<std::vector<base::Span>> out = std::vector<base::Span>();
  if (stream_ != nullptr) out = stream_->take_transfers();
  if (!out.ok() || moving_ == nullptr) return out;
  auto moves = moving_->take_transfers();
  if (!moves.ok()) return moves;
  out->insert(out->end(), std::make_move_iterator(moves->begin()), std::make_move_iterator(moves->end()));
  return out;
}

Status make_stack(const ModelConfig& config, const Problem& problem, Channel& channel,
                  const std::function<void()>& on_layer, std::unique_ptr<Stack>* out) {
  const int ranks = channel.team().size();
  const auto shard = make_shard(config, problem, channel.team().rank(), ranks);
  if (!shard.ok()) return shard.status();
  if (config.expert_layers(problem.layers) > 0 && channel.stream().kind != StreamRef::Kind::cpu)
    return base::error(Errc::not_supported, "{} has experts, which run on CPU ranks only, wanted --backend cpu",
                       config.name);
  const auto all_sites = sites(config, problem, ranks);
  if (!all_sites.ok()) return all_sites.status();
  auto device = make_device(channel);
  if (!device.ok()) return device.status();
  auto stack = std::make_unique<StackImpl>(config, problem, *shard, channel, std::move(*device));
  OVERLACE_TRY(stack->load(*all_sites, on_layer));
  *out = std::move(stack);
  return {};
}

/// The first rank's failure on all ranks: the others must not start what would wait for it.
Status agree_on_success(Team& team, Status mine) {
  constexpr size_t kMaxMessage = 4096;
  std::string text = mine.ok() ? "" : std::to_string(static_cast<int>(mine.code())) + " " + mine.message();
  text = text.substr(0, kMaxMessage);
  try {
    const auto all = team.exchange(std::as_bytes(std::span<const char>(text)));
    for (size_t r = 0; mine.ok() && r < all.size(); ++r) {
      if (all[r].empty()) continue;
      const std::string theirs(reinterpret_cast<const char*>(all[r].data()), all[r].size());
      const size_t blank = theirs.find(' ');
      return base::error(static_cast<Errc>(std::stoi(theirs)), "rank {}: {}", r, theirs.substr(blank + 1));
    }
  } catch (...) {
    return mine.ok() ? base::status_of_current_exception() : mine;
  }
  return mine;
}

}  // namespace

Result<std::unique_ptr<Stack>> Stack::create(const ModelConfig& config, const Problem& problem, Channel& channel,
                                             const std::function<void()>& on_layer) {
  std::unique_ptr<Stack> stack;
  Status mine;
  try {
    mine = make_stack(config, problem, channel, on_layer, &stack);
  } catch (...) {
    mine = base::status_of_current_exception();
  }
  OVERLACE_TRY(agree_on_success(channel.team(), std::move(mine)));
  return stack;
}

}  // namespace overlace::model
