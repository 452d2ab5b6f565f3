#include "src/model/stack.h"

#include <array>
#include <cmath>
#include <functional>
#include <span>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/team.h"
#include "src/base/half.h"
#include "src/exec/run.h"
#include "src/model/device.h"
#include "src/model/rope.h"
#include "src/model/sharding.h"
#include "src/model/traced_device.h"
#include "src/model/weights.h"

namespace overlace::model {
namespace {

using base::Result;
using base::Status;

enum SiteIndex : size_t { kQkv, kOProj, kUp, kDown, kNumSites };

/// A layer's weights on the device; undefined where the model has none.
struct LayerWeights {
  TensorView norm1, norm1_bias, norm2, norm2_bias;  // (1, hidden)
  TensorView qkv, qkv_bias;                         // (qkv columns, hidden), (1, qkv columns)
  TensorView q_norm, k_norm;                        // (1, head_dim)
  TensorView o, o_bias;                             // (hidden, my heads), (1, hidden)
  TensorView up, up_bias;                           // (up columns, hidden): gate rows, then up rows
  TensorView down, down_bias;                       // (hidden, my intermediate), (1, hidden)
};

TensorView as_vector(const TensorView& row) {
  if (!row.defined()) return {};
  return TensorView::contiguous(row.data, row.dtype, {row.dim(1)});
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
      : config_(config), problem_(problem), shard_(shard), channel_(channel), device_(std::move(device)) {}
  ~StackImpl() override {
    const Status ignored = device_->synchronize();  // a destructor cannot report; queued work must not outlive memory
    static_cast<void>(ignored);
    for (void* block : blocks_) device_->free(block);
  }

  Status load(const std::vector<Site>& sites);
  Status forward(const float* input, const SiteSchedules& schedules, float* output) override;
  Status run_site(const std::string& name, const spec::Schedule& schedule, int iterations) override;
  Status run_layers(const SiteSchedules& schedules, int iterations) override;
  Status synchronize() override { return device_->synchronize(); }

 private:
  using Schedules = std::array<const spec::Schedule*, kNumSites>;

  Status make(TensorView* view, int64_t rows, int64_t cols, const char* what, DType dtype);
  Status make(TensorView* view, int64_t rows, int64_t cols, const char* what) {
    return make(view, rows, cols, what, problem_.dtype);
  }
  Status load_parts(Weights& weights, int64_t layer, std::initializer_list<Weight> parts, TensorView* out);
  Status load_layer(Weights& weights, int64_t layer);
  Status make_activations();
  Status make_rope_table();
  Result<Schedules> pick(const SiteSchedules& schedules) const;
  Status one_layer(const LayerWeights& w, const Schedules& schedules, TensorView* pending);
  Status all_layers(const Schedules& schedules);
  Status site(SiteIndex index, const LayerWeights& w, const spec::Schedule& schedule);
  Status site_operator(SiteIndex index, const LayerWeights& w, const spec::Schedule& schedule);

  ModelConfig config_;
  Problem problem_;
  Shard shard_;
  Channel& channel_;
  std::unique_ptr<Device> device_;
  std::vector<void*> blocks_;
  std::vector<std::string> site_names_;
  std::vector<LayerWeights> layers_;
  TensorView input_, x_;              // (my rows, hidden): resident input, residual stream
  TensorView norm1_out_, norm2_out_;  // (my rows, hidden)
  TensorView qkv_, heads_out_;        // (tokens, qkv columns), (tokens, my heads * head_dim)
  TensorView up_, activated_;         // (tokens, up columns), (tokens, my intermediate)
  TensorView o_out_, down_out_;       // (my rows, hidden)
  TensorView cosine_, sine_;          // (sequence_length, head_dim / 2) fp32
};

Status StackImpl::make(TensorView* view, int64_t rows, int64_t cols, const char* what, DType dtype) {
  auto block = device_->alloc(rows * cols * static_cast<int64_t>(dtype_bytes(dtype)), what);
  if (!block.ok()) return block.status();
  blocks_.push_back(*block);
  *view = TensorView::contiguous(*block, dtype, {rows, cols});
  return {};
}

/// The parts one below the other (vectors: one beside the other) in one tensor.
Status StackImpl::load_parts(Weights& weights, int64_t layer, std::initializer_list<Weight> parts, TensorView* out) {
  int64_t rows = 0, cols = 0;
  bool is_row = true;
  for (Weight part : parts) {
    if (!has_weight(config_, part)) continue;
    const WeightBox box = shard_box(config_, shard_, part);
    is_row = !is_matrix(part);
    rows = is_row ? 1 : rows + box.rows;
    cols = is_row ? cols + box.cols : box.cols;
  }
  if (cols == 0) return {};
  OVERLACE_TRY(make(out, rows, cols, "weights"));
  const auto element = static_cast<int64_t>(dtype_bytes(problem_.dtype));
  std::vector<char> host;
  auto* place = static_cast<char*>(out->data);
  for (Weight part : parts) {
    if (!has_weight(config_, part)) continue;
    const WeightBox box = shard_box(config_, shard_, part);
    const int64_t bytes = box.rows * box.cols * element;
    if (weights.is_seeded()) {
      OVERLACE_TRY(device_->fill(weights.seeded(layer, part, box),
                                 TensorView::contiguous(place, problem_.dtype, {box.rows, box.cols})));
    } else {
      host.resize(static_cast<size_t>(bytes));
      OVERLACE_TRY(weights.read(layer, part, box, host.data()));
      OVERLACE_TRY(device_->upload(host.data(), place, bytes));
    }
    place += bytes;
  }
  return {};
}

Status StackImpl::load_layer(Weights& weights, int64_t layer) {
  LayerWeights w;
  const auto load = [&](std::initializer_list<Weight> parts, TensorView* out) {
    return load_parts(weights, layer, parts, out);
  };
  OVERLACE_TRY(load({Weight::norm1}, &w.norm1));
  OVERLACE_TRY(load({Weight::norm1_bias}, &w.norm1_bias));
  OVERLACE_TRY(load({Weight::q, Weight::k, Weight::v}, &w.qkv));
  OVERLACE_TRY(load({Weight::q_bias, Weight::k_bias, Weight::v_bias}, &w.qkv_bias));
  OVERLACE_TRY(load({Weight::q_norm}, &w.q_norm));
  OVERLACE_TRY(load({Weight::k_norm}, &w.k_norm));
  OVERLACE_TRY(load({Weight::o}, &w.o));
  OVERLACE_TRY(load({Weight::o_bias}, &w.o_bias));
  OVERLACE_TRY(load({Weight::norm2}, &w.norm2));
  OVERLACE_TRY(load({Weight::norm2_bias}, &w.norm2_bias));
  OVERLACE_TRY(load({Weight::gate, Weight::up}, &w.up));
  OVERLACE_TRY(load({Weight::gate_bias, Weight::up_bias}, &w.up_bias));
  OVERLACE_TRY(load({Weight::down}, &w.down));
  OVERLACE_TRY(load({Weight::down_bias}, &w.down_bias));
  layers_.push_back(w);
  return {};
}

Status StackImpl::make_activations() {
  const int64_t rows = shard_.rows, tokens = problem_.tokens, hidden = config_.hidden;
  for (TensorView* view : {&input_, &x_, &norm1_out_, &norm2_out_, &o_out_, &down_out_})
    OVERLACE_TRY(make(view, rows, hidden, "hidden states"));
  OVERLACE_TRY(make(&qkv_, tokens, shard_.qkv_columns(config_), "qkv"));
  OVERLACE_TRY(make(&heads_out_, tokens, shard_.heads * config_.head_dim, "attention"));
  OVERLACE_TRY(make(&up_, tokens, shard_.up_columns(config_), "MLP"));
  OVERLACE_TRY(make(&activated_, tokens, shard_.intermediate, "MLP"));
  // Sites are timed on normal data before the first forward; each tensor another.
  uint64_t serial = 0;
  for (TensorView* view : {&norm1_out_, &heads_out_, &norm2_out_, &activated_}) {
    SeededMatrix normal;
    normal.key = tensor_key(problem_.seed, (uint64_t{1} << 62) + serial++);
    normal.first_row = shard_.first_row;
    normal.first_col = shard_.rank * view->dim(1);
    OVERLACE_TRY(device_->fill(normal, *view));
  }
  std::vector<float> input(static_cast<size_t>(rows * hidden));
  seeded_input(problem_.seed, shard_.first_row, rows, hidden, input.data());
  std::vector<char> rounded(input.size() * dtype_bytes(problem_.dtype));
  base::convert_from_float(input.data(), rounded.data(), problem_.dtype, rows * hidden);
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

Status StackImpl::load(const std::vector<Site>& sites) {
  for (const Site& s : sites) site_names_.push_back(s.name);
  auto weights = Weights::open(config_, problem_);
  if (!weights.ok()) return weights.status();
  for (int64_t layer = 0; layer < problem_.layers; ++layer) OVERLACE_TRY(load_layer(*weights, layer));
  OVERLACE_TRY(make_activations());
  return make_rope_table();
}

Result<StackImpl::Schedules> StackImpl::pick(const SiteSchedules& schedules) const {
  Schedules picked{};
  for (size_t i = 0; i < kNumSites; ++i) {
    const auto found = schedules.find(site_names_[i]);
    if (found == schedules.end())
      return base::invalid_argument("schedules: none for site \"{}\", wanted one for each of {}, {}, {}, {}",
                                    site_names_[i], site_names_[0], site_names_[1], site_names_[2], site_names_[3]);
    picked[i] = &found->second;
  }
  return picked;
}

Status StackImpl::site(SiteIndex index, const LayerWeights& w, const spec::Schedule& schedule) {
  exec::set_trace_label(channel_, site_names_[index]);  // a task's name is the same at all sites
  Status status = site_operator(index, w, schedule);
  exec::set_trace_label(channel_, "");
  return status;
}

Status StackImpl::site_operator(SiteIndex index, const LayerWeights& w, const spec::Schedule& schedule) {
  const auto gather = [&](const TensorView& a, const TensorView& weight, const TensorView& bias, const TensorView& c) {
    ops::AgGemmArgs args;
    args.a_shard = a;              // (my rows, hidden)
    args.b = weight.transposed();  // (hidden, my columns)
    args.c = c;                    // (tokens, my columns)
    args.bias = as_vector(bias);
    return run_operator(channel_, args, schedule);
  };
  const auto scatter = [&](const TensorView& a, const TensorView& weight, const TensorView& bias,
                           const TensorView& out) {
    ops::GemmRsArgs args;
    args.a = a;                    // (tokens, my columns)
    args.b = weight.transposed();  // (my columns, hidden)
    args.out = out;                // (my rows, hidden)
    args.bias = as_vector(bias);
    return run_operator(channel_, args, schedule);
  };
  switch (index) {
    case kQkv:
      return gather(norm1_out_, w.qkv, w.qkv_bias, qkv_);
    case kOProj:
      return scatter(heads_out_, w.o, w.o_bias, o_out_);
    case kUp:
      return gather(norm2_out_, w.up, w.up_bias, up_);
    default:
      return scatter(activated_, w.down, w.down_bias, down_out_);
  }
}

/// `pending`: what the residual stream still lacks, added with the next norm.
Status StackImpl::one_layer(const LayerWeights& w, const Schedules& schedules, TensorView* pending) {
  AddNormArgs norm{
      x_, *pending, norm1_out_, config_.norm, config_.norm_eps, as_vector(w.norm1), as_vector(w.norm1_bias)};
  OVERLACE_TRY(device_->add_norm(norm));
  OVERLACE_TRY(site(kQkv, w, *schedules[kQkv]));
  const HeadsView heads{qkv_, shard_.heads, shard_.kv_heads, config_.head_dim, problem_.sequence_length};
  if (cosine_.defined() || w.q_norm.defined())
    OVERLACE_TRY(device_->rope({heads, cosine_, sine_, as_vector(w.q_norm), as_vector(w.k_norm), config_.norm_eps}));
  OVERLACE_TRY(device_->attention({heads, heads_out_, config_.sliding_window}));
  OVERLACE_TRY(site(kOProj, w, *schedules[kOProj]));
  norm.delta = o_out_;
  norm.out = norm2_out_;
  norm.weight = as_vector(w.norm2);
  norm.bias = as_vector(w.norm2_bias);
  OVERLACE_TRY(device_->add_norm(norm));
  OVERLACE_TRY(site(kUp, w, *schedules[kUp]));
  OVERLACE_TRY(device_->activation({config_.activation, up_, activated_}));
  OVERLACE_TRY(site(kDown, w, *schedules[kDown]));
  *pending = down_out_;
  return {};
}

Status StackImpl::all_layers(const Schedules& schedules) {
  OVERLACE_TRY(device_->copy(input_.data, x_.data, x_.numel() * static_cast<int64_t>(dtype_bytes(x_.dtype))));
  TensorView pending;
  for (const LayerWeights& w : layers_) OVERLACE_TRY(one_layer(w, schedules, &pending));
  AddNormArgs last;
  last.x = x_;
  last.delta = pending;
  return device_->add_norm(last);
}

Status StackImpl::forward(const float* input, const SiteSchedules& schedules, float* output) {
  const auto picked = pick(schedules);
  if (!picked.ok()) return picked.status();
  const int64_t n = x_.numel(), bytes = n * static_cast<int64_t>(dtype_bytes(x_.dtype));
  std::vector<char> host(static_cast<size_t>(bytes));
  base::convert_from_float(input, host.data(), x_.dtype, n);
  OVERLACE_TRY(device_->upload(host.data(), input_.data, bytes));
  OVERLACE_TRY(all_layers(*picked));
  OVERLACE_TRY(device_->download(x_.data, host.data(), bytes));
  base::convert_to_float(host.data(), x_.dtype, output, n);
  return {};
}

Status StackImpl::run_site(const std::string& name, const spec::Schedule& schedule, int iterations) {
  size_t index = 0;
  while (index < kNumSites && site_names_[index] != name) ++index;
  if (index == kNumSites)
    return base::invalid_argument("site is \"{}\", wanted {}, {}, {} or {}", name, site_names_[0], site_names_[1],
                                  site_names_[2], site_names_[3]);
  for (int i = 0; i < iterations; ++i) OVERLACE_TRY(site(static_cast<SiteIndex>(index), layers_.front(), schedule));
  return {};
}

Status StackImpl::run_layers(const SiteSchedules& schedules, int iterations) {
  const auto picked = pick(schedules);
  if (!picked.ok()) return picked.status();
  for (int i = 0; i < iterations; ++i) OVERLACE_TRY(all_layers(*picked));
  return {};
}

Status make_stack(const ModelConfig& config, const Problem& problem, Channel& channel, std::unique_ptr<Stack>* out) {
  const int ranks = channel.team().size();
  const auto shard = make_shard(config, problem, channel.team().rank(), ranks);
  if (!shard.ok()) return shard.status();
  const auto all_sites = sites(config, problem, ranks);
  if (!all_sites.ok()) return all_sites.status();
  auto device = make_device(channel);
  if (!device.ok()) return device.status();
  auto stack = std::make_unique<StackImpl>(config, problem, *shard, channel, std::move(*device));
  OVERLACE_TRY(stack->load(*all_sites));
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

Result<std::unique_ptr<Stack>> Stack::create(const ModelConfig& config, const Problem& problem, Channel& channel) {
  std::unique_ptr<Stack> stack;
  Status mine;
  try {
    mine = make_stack(config, problem, channel, &stack);
  } catch (...) {
    mine = base::status_of_current_exception();
  }
  OVERLACE_TRY(agree_on_success(channel.team(), std::move(mine)));
  return stack;
}

}  // namespace overlace::model
