#include "src/model/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include "src/base/json.h"
#include "src/model/shipped.h"

namespace overlace::model {
namespace {

using base::invalid_argument;
using base::Json;
using base::Result;
using base::Status;

constexpr int64_t kMaxHidden = int64_t{1} << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxIntermediate = int64_t{1} << 22;
constexpr int64_t kMaxExperts = 8192;
constexpr int64_t kMaxChoices = 32;
constexpr int64_t kMaxPosition = int64_t{1} << 40;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxShownBytes = 64;
constexpr int64_t kMaxSharedExperts = 1024;
constexpr std::string_view kModelTypes =
    "llama, qwen2, qwen3, mistral, mixtral, qwen2_moe, qwen3_moe, deepseek_v3, gpt2, gpt3";

std::string shown(const Json& value) {
  std::string text = value.dump();
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

/// Typed access to an object's keys. The first failure is kept; later calls are harmless.
class Keys {
 public:
  Keys(const Json& object, std::string source, std::string prefix = "")
      : object_(&object), source_(std::move(source)), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }
  const std::string& source() const { return source_; }
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  const Json* value(std::string_view key) const {
    const Json* found = object_->find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  bool is_null(std::string_view key) const {
    const Json* found = object_->find(key);
    return found != nullptr && found->is_null();
  }

  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void fail_value(std::string_view key, std::string_view wanted) {
    const Json* got = object_->find(key);
    fail(got == nullptr ? invalid_argument("{}: key \"{}\" is missing, wanted {}", source_, name(key), wanted)
                        : invalid_argument("{}: key \"{}\" is {}, wanted {}", source_, name(key), shown(*got), wanted));
  }

  int64_t integer(std::string_view key, int64_t max, std::optional<int64_t> absent = {}, int64_t min = 1) {
    const Json* v = value(key);
    if (v == nullptr && absent) return *absent;
    if (v != nullptr && v->is_int() && v->as_int() >= min && v->as_int() <= max) return v->as_int();
    fail_value(key, base::format("an integer from {} to {}", min, max));
    return 1;
  }
  double positive(std::string_view key, std::optional<double> absent = {}) {
    const Json* v = value(key);
    if (v == nullptr && absent) return *absent;
    if (v != nullptr && v->is_number() && v->as_double() > 0 && std::isfinite(v->as_double())) return v->as_double();
    fail_value(key, "a positive number");
    return 1;
  }
  bool boolean(std::string_view key, bool absent) {
    const Json* v = value(key);
    if (v == nullptr) return absent;
    if (v->is_bool()) return v->as_bool();
    fail_value(key, "true or false");
    return absent;
  }
  std::string text(std::string_view key, std::string_view absent) {
    const Json* v = value(key);
    if (v == nullptr) return std::string(absent);
    if (v->is_string()) return v->as_string();
    fail_value(key, "a string");
    return std::string(absent);
  }
  /// not_supported unless the key is absent or has that value.
  void only(std::string_view key, bool supported) {
    if (boolean(key, supported) != supported) unsupported(key, supported ? "true" : "false");
  }
  void only_text(std::string_view key, std::string_view supported) {
    if (text(key, supported) != supported) unsupported(key, supported);
  }
  void unsupported(std::string_view key, std::string_view can) {
    const Json* got = object_->find(key);
    fail(base::error(Errc::not_supported, "{}: key \"{}\" is {}; supported: {}", source_, name(key),
                     got == nullptr ? "missing" : shown(*got), can));
  }

 private:
  const Json* object_;
  std::string source_, prefix_;
  Status status_;
};

std::optional<RopeScaling::Kind> scaling_kind(std::string_view type) {
  if (type == "default") return RopeScaling::Kind::none;
  if (type == "linear") return RopeScaling::Kind::linear;
  if (type == "llama3") return RopeScaling::Kind::llama3;
  return {};
}

void parse_scaling(Keys& keys, RopeScaling& scaling) {
  const bool old_key = keys.value("rope_type") == nullptr && keys.value("type") != nullptr;
  const std::string_view key = old_key ? "type" : "rope_type";
  const auto kind = scaling_kind(keys.text(key, "default"));
  if (!kind) return keys.unsupported(key, "default, linear, llama3");
  scaling.kind = *kind;
  if (*kind == RopeScaling::Kind::none) return;
  scaling.factor = keys.positive("factor");
  if (scaling.factor < 1) keys.fail_value("factor", "a number >= 1");
  if (*kind != RopeScaling::Kind::llama3) return;
  scaling.low_freq_factor = keys.positive("low_freq_factor");
  scaling.high_freq_factor = keys.positive("high_freq_factor");
  scaling.original_max_position = keys.integer("original_max_position_embeddings", kMaxPosition);
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    keys.fail_value("high_freq_factor", base::format("more than low_freq_factor {}", scaling.low_freq_factor));
}

/// `rope_theta` and `rope_scaling` of old files, `rope_parameters` with both inside of new ones.
void parse_rope(Keys& keys, ModelConfig& config) {
  config.rope_theta = keys.positive("rope_theta", config.rope_theta);
  if (keys.value("partial_rotary_factor") != nullptr && keys.positive("partial_rotary_factor") != 1)
    keys.unsupported("partial_rotary_factor", "1");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* inner = keys.value(key);
    if (inner == nullptr) continue;
    if (!inner->is_object()) return keys.fail_value(key, "an object or null");
    for (const auto& [name, value] : inner->as_object())
      if (value.is_object()) return keys.unsupported(key, "one object for all layers");
    Keys inside(*inner, keys.source(), keys.name(key) + ".");
    const double theta = inside.positive("rope_theta", config.rope_theta);
    if (theta != config.rope_theta && keys.value("rope_theta") != nullptr)
      inside.fail_value("rope_theta", base::format("{} as key \"rope_theta\" says", config.rope_theta));
    config.rope_theta = theta;
    if (inside.value("partial_rotary_factor") != nullptr && inside.positive("partial_rotary_factor") != 1)
      inside.unsupported("partial_rotary_factor", "1");
    const RopeScaling before = config.rope_scaling;
    parse_scaling(inside, config.rope_scaling);
    keys.fail(inside.status());
    if (before.kind != RopeScaling::Kind::none && before.kind != config.rope_scaling.kind)
      keys.fail(invalid_argument("{}: keys \"rope_scaling\" and \"rope_parameters\" differ, wanted one of them",
                                 keys.source()));
  }
}

/// `layer_types` must agree with one kind of attention for all layers.
void parse_window(Keys& keys, bool window_by_default, ModelConfig& config) {
  // A window that is not used may be any number, 0 too.
  const bool is_used = keys.boolean("use_sliding_window", window_by_default);
  int64_t window = is_used ? keys.integer("sliding_window", kMaxPosition, 0) : 0;
  const Json* types = keys.value("layer_types");
  if (types != nullptr) {
    if (!types->is_array()) return keys.fail_value("layer_types", "an array of strings");
    std::set<std::string> kinds;
    for (const Json& type : types->as_array()) {
      if (!type.is_string()) return keys.fail_value("layer_types", "an array of strings");
      kinds.insert(type.as_string());
    }
    const auto count = static_cast<int64_t>(types->as_array().size());
    if (count != config.layers)
      return keys.fail(invalid_argument("{}: key \"layer_types\" has {} entries, wanted num_hidden_layers = {}",
                                        keys.source(), count, config.layers));
    if (kinds.size() > 1) return keys.unsupported("layer_types", "the same type for all layers");
    if (*kinds.begin() == "full_attention") {
      window = 0;
    } else if (*kinds.begin() != "sliding_attention") {
      return keys.unsupported("layer_types", "full_attention, sliding_attention");
    } else if (window == 0) {
      return keys.fail_value("sliding_window", "the window of layer_types' sliding_attention");
    }
  } else if (window != 0 && config.model_type.starts_with("qwen")) {
    // Without layer_types the window starts at layer max_window_layers: two kinds of layers.
    return keys.unsupported("use_sliding_window", "false, or layer_types with one type for all layers");
  }
  config.sliding_window = window;
}

/// What types with Llama's keys differ in.
struct LlamaLike {
  std::string_view type;
  enum class Window { none, by_default, if_asked } window = Window::none;
  enum class Experts { none, mixtral, qwen, deepseek } experts = Experts::none;
  bool attention_bias = false;  // key that gives q, k, v and o biases
  bool qkv_bias = false;        // there are, unless a key says otherwise
  bool mlp_bias = false;        // key
  bool qk_norm = false;
  bool shared_expert = false;
  bool latent_attention = false;  // which there is none of here
  // What transformers takes where the key is missing.
  int64_t kv_heads = 0;  // 0: as many as heads
  double norm_eps = 1e-6, rope_theta = 10000;
};

constexpr LlamaLike kLlamaLike[] = {
    {.type = "llama", .attention_bias = true, .mlp_bias = true},
    {.type = "qwen2", .window = LlamaLike::Window::if_asked, .qkv_bias = true},
    {.type = "qwen3", .window = LlamaLike::Window::if_asked, .attention_bias = true, .qk_norm = true},
    {.type = "mistral", .window = LlamaLike::Window::by_default},
    {.type = "mixtral",
     .window = LlamaLike::Window::by_default,
     .experts = LlamaLike::Experts::mixtral,
     .kv_heads = 8,
     .norm_eps = 1e-5,
     .rope_theta = 1e6},
    {.type = "qwen2_moe",
     .window = LlamaLike::Window::if_asked,
     .experts = LlamaLike::Experts::qwen,
     .qkv_bias = true,
     .shared_expert = true,
     .kv_heads = 16},
    {.type = "qwen3_moe",
     .window = LlamaLike::Window::if_asked,
     .experts = LlamaLike::Experts::qwen,
     .attention_bias = true,
     .qk_norm = true,
     .kv_heads = 4},
    {.type = "deepseek_v3", .experts = LlamaLike::Experts::deepseek, .latent_attention = true},
};

/// Every decoder_sparse_step-th layer has experts, but for those of mlp_only_layers, which may name layers that are not
/// there.
void parse_sparse_layers(Keys& keys, ModelConfig& config) {
  std::vector<bool>& has = config.experts.layers;
  const int64_t step = keys.integer("decoder_sparse_step", kMaxLayers, 1);
  for (int64_t layer = 0; layer < config.layers; ++layer) has[static_cast<size_t>(layer)] = (layer + 1) % step == 0;
  const Json* dense = keys.value("mlp_only_layers");
  if (dense == nullptr) return;
  constexpr std::string_view kWanted = "an array of layers' numbers";
  if (!dense->is_array()) return keys.fail_value("mlp_only_layers", kWanted);
  for (const Json& layer : dense->as_array()) {
    if (!layer.is_int()) return keys.fail_value("mlp_only_layers", kWanted);
    if (layer.as_int() < 0 || layer.as_int() >= config.layers) continue;
    has[static_cast<size_t>(layer.as_int())] = false;
  }
}

/// Mixtral: every layer has experts, and intermediate_size is that of one. Qwen: it is that of the other layers, of all
/// where there are 0 experts.
void parse_experts(Keys& keys, const LlamaLike& like, ModelConfig& config) {
  Experts& experts = config.experts;
  const bool is_qwen = like.experts == LlamaLike::Experts::qwen;
  const bool is_local =
      !is_qwen || (keys.value("num_experts") == nullptr && keys.value("num_local_experts") != nullptr);
  const char* count = is_local ? "num_local_experts" : "num_experts";
  if (const Json* number = keys.value(count); is_qwen && number != nullptr && number->is_int() && number->as_int() == 0)
    return;
  experts.count = keys.integer(count, kMaxExperts);
  if (is_qwen && keys.integer("num_local_experts", kMaxExperts, experts.count) != experts.count)
    keys.fail_value("num_local_experts", base::format("num_experts {}", experts.count));
  experts.per_token = keys.integer("num_experts_per_tok", kMaxChoices);
  if (experts.per_token > experts.count)
    keys.fail_value("num_experts_per_tok", base::format("at most {} {}", count, experts.count));
  experts.layers.assign(static_cast<size_t>(config.layers), true);
  if (is_qwen) {
    experts.intermediate = keys.integer("moe_intermediate_size", kMaxIntermediate);
    experts.renormalize = keys.boolean("norm_topk_prob", false);
    parse_sparse_layers(keys, config);
  } else {
    experts.intermediate = config.intermediate;
    keys.only("norm_topk_prob", true);
    if (keys.value("moe_intermediate_size") != nullptr)
      keys.unsupported("moe_intermediate_size", "none: intermediate_size is that of an expert");
  }
  if (like.shared_expert) experts.shared = keys.integer("shared_expert_intermediate_size", kMaxIntermediate);
  for (const char* key : {"n_shared_experts", "first_k_dense_replace"})
    if (keys.value(key) != nullptr) keys.unsupported(key, base::format("none with model_type {}", config.model_type));
  if (std::count(experts.layers.begin(), experts.layers.end(), false) == 0) config.intermediate = 0;
}

/// The first layers are dense. A missing key is as transformers takes it.
void parse_deepseek_experts(Keys& keys, ModelConfig& config) {
  Experts& experts = config.experts;
  for (const char* key : {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                          "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace"})
    if (keys.is_null(key)) return keys.fail_value(key, "a value, or no such key");
  experts.count = keys.integer("n_routed_experts", kMaxExperts, 256);
  experts.per_token = keys.integer("num_experts_per_tok", kMaxChoices, 8);
  experts.intermediate = keys.integer("moe_intermediate_size", kMaxIntermediate, 2048);
  experts.shared = experts.intermediate * keys.integer("n_shared_experts", kMaxSharedExperts, 1, 0);
  experts.is_shared_gated = false;
  experts.scores = Scores::sigmoid;
  experts.has_bias = true;
  experts.groups = keys.integer("n_group", kMaxExperts, 8);
  experts.kept_groups = keys.integer("topk_group", kMaxExperts, 4);
  experts.renormalize = keys.boolean("norm_topk_prob", true);
  experts.scale = keys.positive("routed_scaling_factor", 2.5);
  const int64_t first = keys.integer("first_k_dense_replace", kMaxLayers, 3, 0);
  for (int64_t layer = 0; layer < config.layers; ++layer) experts.layers.push_back(layer >= first);
  keys.only_text("scoring_func", "sigmoid");
  keys.only_text("topk_method", "noaux_tc");
  if (keys.integer("moe_layer_freq", kMaxLayers, 1) != 1) keys.unsupported("moe_layer_freq", "1");
  if (experts.count % experts.groups != 0)
    return keys.fail_value("n_group", base::format("a divisor of n_routed_experts {}", experts.count));
  if (experts.kept_groups > experts.groups)
    return keys.fail_value("topk_group", base::format("at most n_group {}", experts.groups));
  const int64_t eligible = experts.count / experts.groups * experts.kept_groups;
  if (experts.per_token > eligible)
    keys.fail_value("num_experts_per_tok",
                    base::format("at most {}, the experts of topk_group {} groups", eligible, experts.kept_groups));
}

/// Refuses experts in types whose layers are dense.
void refuse_experts(Keys& keys) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (keys.value(key) != nullptr)
      keys.unsupported(key, "none with this model_type; mixtral, qwen2_moe, qwen3_moe, deepseek_v3 have experts");
}

/// Attention and the norms around it.
void parse_attention(Keys& keys, const LlamaLike& like, ModelConfig& config) {
  if (like.latent_attention)
    return keys.unsupported("kv_lora_rank", base::format("model_type {} with `overlace run --part moe` alone, its "
                                                         "router and experts",
                                                         like.type));
  config.heads = keys.integer("num_attention_heads", kMaxHeads);
  const bool takes_default = like.kv_heads > 0 && !keys.is_null("num_key_value_heads");
  config.kv_heads = keys.integer("num_key_value_heads", kMaxHeads, takes_default ? like.kv_heads : config.heads);
  config.norm_eps = keys.positive("rms_norm_eps", like.norm_eps);
  config.rope_theta = like.rope_theta;
  if (const Json* v = keys.value("head_dim"); v != nullptr) {
    config.head_dim = keys.integer("head_dim", kMaxHeadDim);
  } else {
    if (config.hidden % config.heads != 0)
      keys.fail(invalid_argument("{}: key \"hidden_size\" is {}, wanted a multiple of num_attention_heads {}",
                                 keys.source(), config.hidden, config.heads));
    config.head_dim = config.hidden / config.heads;
  }
  config.o_bias = like.attention_bias && keys.boolean("attention_bias", false);
  config.qkv_bias = config.o_bias || (like.qkv_bias && keys.boolean("qkv_bias", true));
  config.qk_norm = like.qk_norm;
  if (like.window != LlamaLike::Window::none) parse_window(keys, like.window == LlamaLike::Window::by_default, config);
  parse_rope(keys, config);
  if (config.head_dim % 2 != 0)
    keys.fail(invalid_argument("{}: the head dimension is {}, wanted an even number for RoPE", keys.source(),
                               config.head_dim));
}

void parse_llama_like(Keys& keys, const LlamaLike& like, ModelConfig& config) {
  config.hidden = keys.integer("hidden_size", kMaxHidden);
  config.layers = keys.integer("num_hidden_layers", kMaxLayers);
  const bool is_deepseek = like.experts == LlamaLike::Experts::deepseek;
  config.intermediate =
      keys.integer("intermediate_size", kMaxIntermediate, is_deepseek ? std::optional<int64_t>(18432) : std::nullopt);
  const std::string activation = keys.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") keys.unsupported("hidden_act", "silu");
  config.mlp_bias = like.mlp_bias && keys.boolean("mlp_bias", false);
  if (config.has_attention()) parse_attention(keys, like, config);
  if (like.experts == LlamaLike::Experts::none) {
    refuse_experts(keys);
  } else if (is_deepseek) {
    parse_deepseek_experts(keys, config);
  } else {
    parse_experts(keys, like, config);
  }
}

void parse_gpt2(Keys& keys, ModelConfig& config) {
  config.hidden = keys.integer("n_embd", kMaxHidden);
  config.layers = keys.integer("n_layer", kMaxLayers);
  config.heads = config.kv_heads = keys.integer("n_head", kMaxHeads);
  config.intermediate = keys.integer("n_inner", kMaxIntermediate, 4 * config.hidden);
  config.norm = Norm::layer;
  config.norm_eps = keys.positive("layer_norm_epsilon", 1e-5);
  config.positions = Positions::none;
  config.qkv_bias = config.o_bias = config.mlp_bias = config.conv1d_weights = true;
  if (config.hidden % config.heads != 0)
    keys.fail(invalid_argument("{}: key \"n_embd\" is {}, wanted a multiple of n_head {}", keys.source(), config.hidden,
                               config.heads));
  config.head_dim = config.hidden / config.heads;
  const std::string activation = keys.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    config.activation = Activation::gelu_tanh;
  } else if (activation == "gelu") {
    config.activation = Activation::gelu_erf;
  } else if (activation == "relu") {
    config.activation = Activation::relu;
  } else {
    keys.unsupported("activation_function", "gelu_new, gelu_pytorch_tanh, gelu, relu");
  }
  keys.only("scale_attn_weights", true);
  keys.only("scale_attn_by_inverse_layer_idx", false);
  keys.only("add_cross_attention", false);
}

/// For Part::moe: the layers with experts are all there are.
Status keep_experts(ModelConfig* config) {
  for (int64_t layer = 0; layer < config->layers; ++layer)
    if (config->has_experts(layer)) config->numbers.push_back(layer);
  if (config->numbers.empty())
    return invalid_argument("{}: --part is moe, but no layer has experts, wanted all, or a model with experts",
                            config->name);
  config->layers = static_cast<int64_t>(config->numbers.size());
  config->experts.layers.assign(config->numbers.size(), true);
  config->intermediate = 0;
  config->positions = Positions::none;
  return {};
}

Status check_heads(const ModelConfig& config, std::string_view source) {
  if (config.heads % config.kv_heads != 0)
    return invalid_argument("{}: key \"num_attention_heads\" is {}, wanted a multiple of num_key_value_heads {}",
                            source, config.heads, config.kv_heads);
  if (config.head_dim > kMaxHeadDim)
    return invalid_argument("{}: the head dimension is {}, wanted at most {}", source, config.head_dim, kMaxHeadDim);
  return {};
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return base::error(Errc::io, "{}: cannot be opened, wanted a readable config.json", path);
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad()) return base::error(Errc::io, "{}: read error after {} bytes", path, text.size());
  if (text.size() > kMaxConfigBytes)
    return base::error(Errc::corrupt, "{}: more than {} bytes, wanted a config.json", path, kMaxConfigBytes);
  return text;
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view json, std::string_view source, Part part) {
  Result<Json> parsed = Json::parse(json, source);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_object())
    return base::error(Errc::corrupt, "{}: the document is {}, wanted an object", source, parsed->type_name());
  Keys keys(*parsed, std::string(source));
  ModelConfig config;
  config.name = source;
  config.part = part;
  config.model_type = keys.text("model_type", "");
  if (config.model_type.empty()) keys.fail_value("model_type", "one of " + std::string(kModelTypes));
  if (keys.value("quantization_config") != nullptr) keys.unsupported("quantization_config", "none");
  if (!keys.status().ok()) return keys.status();
  const std::string& type = config.model_type;
  const auto* const like =
      std::find_if(std::begin(kLlamaLike), std::end(kLlamaLike), [&](const LlamaLike& l) { return l.type == type; });
  if (like != std::end(kLlamaLike)) {
    parse_llama_like(keys, *like, config);
  } else if (type == "gpt2" || type == "gpt3") {
    parse_gpt2(keys, config);
  } else {
    keys.unsupported("model_type", kModelTypes);
  }
  if (!keys.status().ok()) return keys.status();
  OVERLACE_TRY(config.has_attention() ? check_heads(config, source) : keep_experts(&config));
  return config;
}

std::vector<std::string> shipped_configs() {
  std::vector<std::string> names;
  for (const ShippedConfig& shipped : shipped_config_data()) names.emplace_back(shipped.name);
  return names;
}

Result<ModelConfig> load_config(const std::string& name_or_path, Part part) {
  std::string names;
  for (const ShippedConfig& shipped : shipped_config_data()) {
    if (shipped.name == name_or_path) return parse_config(shipped.json, shipped.name, part);
    names += (names.empty() ? "" : ", ") + std::string(shipped.name);
  }
  struct stat info {};
  if (::stat(name_or_path.c_str(), &info) != 0) {
    const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
    return base::error(is_path ? Errc::io : Errc::invalid_argument,
                       "config \"{}\": no such file and no shipped name, wanted a config.json or one of {}",
                       name_or_path, names);
  }
  const std::string path = S_ISDIR(info.st_mode) ? name_or_path + "/config.json" : name_or_path;
  Result<std::string> text = read_text(path);
  if (!text.ok()) return text.status();
  return parse_config(*text, path, part);
}

}  // namespace overlace::model
