#include "src/model/sharding.h"

#include <algorithm>

#include "src/spec/families/families.h"
#include "src/spec/operators.h"

namespace overlace::model {
namespace {

using base::invalid_argument;
using base::Result;
using base::Status;

constexpr int64_t kMaxTokens = int64_t{1} << 31;

Status check_problem(const ModelConfig& config, const Problem& problem) {
  if (problem.layers < 1 || problem.layers > config.layers)
    return invalid_argument("layers is {}, wanted 1 to {}, the layers {}of {}", problem.layers, config.layers,
                            config.has_attention() ? "" : "with experts ", config.name);
  if (problem.tokens < 1 || problem.tokens > kMaxTokens)
    return invalid_argument("tokens is {}, wanted 1 to {}", problem.tokens, kMaxTokens);
  if (problem.sequence_length < 1 || problem.tokens % problem.sequence_length != 0)
    return invalid_argument("sequence_length is {}, wanted a divisor of tokens {}", problem.sequence_length,
                            problem.tokens);
  if (problem.micro_batch < 0 || problem.micro_batch % problem.sequence_length != 0)
    return invalid_argument("micro_batch is {}, wanted 0 or a multiple of sequence_length {}", problem.micro_batch,
                            problem.sequence_length);
  if (problem.device_bytes < 0) return invalid_argument("device_bytes is {}, wanted 0 or more", problem.device_bytes);
  if (config.expert_layers(problem.layers) > 0 && problem.device_bytes > 0)
    return base::error(Errc::not_supported, "device_bytes is {}, wanted 0: {} has experts, and those do not stream",
                       problem.device_bytes, config.name);
  if (problem.from_disk && problem.checkpoint.empty())
    return invalid_argument("weights stream from disk, but there is no checkpoint, wanted one or host memory");
  if (problem.dtype != DType::fp32 && problem.dtype != DType::bf16 && problem.dtype != DType::fp16)
    return base::error(Errc::not_supported, "dtype is {}, supported: fp32, bf16, fp16", dtype_name(problem.dtype));
  return {};
}

/// Equally, or KV heads replicated.
Status share_heads(const ModelConfig& config, Shard* shard) {
  const int ranks = shard->ranks;
  if (config.heads % ranks != 0)
    return invalid_argument("{} has {} attention heads, which {} ranks cannot share equally", config.name, config.heads,
                            ranks);
  if (config.kv_heads % ranks != 0 && ranks % config.kv_heads != 0)
    return invalid_argument("{} has {} KV heads, which {} ranks can neither share equally nor replicate equally",
                            config.name, config.kv_heads, ranks);
  shard->heads = config.heads / ranks;
  shard->first_head = shard->heads * shard->rank;
  shard->kv_heads = std::max<int64_t>(config.kv_heads / ranks, 1);
  shard->first_kv_head = shard->first_head / (config.heads / config.kv_heads);
  return {};
}

}  // namespace

std::pair<int64_t, int64_t> token_rows(int64_t tokens, int rank, int ranks) {
  const int64_t each = tokens / ranks, more = tokens % ranks;  // the first `more` ranks get one more
  return {each * rank + std::min<int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

Result<Shard> make_shard(const ModelConfig& config, const Problem& problem, int rank, int ranks) {
  OVERLACE_TRY(check_problem(config, problem));
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return invalid_argument("rank is {} of {} ranks, wanted 0 <= rank < ranks", rank, ranks);
  Shard shard;
  shard.rank = rank;
  shard.ranks = ranks;
  if (config.has_attention()) OVERLACE_TRY(share_heads(config, &shard));
  const bool has_dense = config.expert_layers(problem.layers) < problem.layers;
  if (has_dense && config.intermediate % ranks != 0)
    return invalid_argument("{} has intermediate size {}, which {} ranks cannot share equally", config.name,
                            config.intermediate, ranks);
  std::tie(shard.first_row, shard.rows) = token_rows(problem.tokens, rank, ranks);
  shard.intermediate = has_dense ? config.intermediate / ranks : 0;
  shard.first_intermediate = shard.intermediate * rank;
  shard.first_expert = config.experts.count * rank / ranks;
  shard.experts = config.experts.count * (rank + 1) / ranks - shard.first_expert;
  return shard;
}

WeightBox shard_box(const ModelConfig& config, const Shard& shard, Weight weight) {
  WeightBox box = weight_shape(config, weight);
  const int64_t d = config.head_dim;
  switch (weight) {
    case Weight::q:
      return {shard.first_head * d, shard.heads * d, 0, box.cols};
    case Weight::q_bias:
      return {0, 1, shard.first_head * d, shard.heads * d};
    case Weight::k:
    case Weight::v:
      return {shard.first_kv_head * d, shard.kv_heads * d, 0, box.cols};
    case Weight::k_bias:
    case Weight::v_bias:
      return {0, 1, shard.first_kv_head * d, shard.kv_heads * d};
    case Weight::o:
      return {0, box.rows, shard.first_head * d, shard.heads * d};
    case Weight::gate:
    case Weight::up:
      return {shard.first_intermediate, shard.intermediate, 0, box.cols};
    case Weight::gate_bias:
    case Weight::up_bias:
      return {0, 1, shard.first_intermediate, shard.intermediate};
    case Weight::down:
      return {0, box.rows, shard.first_intermediate, shard.intermediate};
    case Weight::expert_up:
    case Weight::expert_down: {
      const int64_t rows = box.rows / config.experts.count;  // of one
      return {shard.first_expert * rows, shard.experts * rows, 0, box.cols};
    }
    default:
      return box;
  }
}

Result<std::vector<Site>> sites(const ModelConfig& config, const Problem& problem, int ranks) {
  const Result<Shard> made = make_shard(config, problem, 0, ranks);
  if (!made.ok()) return made.status();
  if (!config.has_attention()) return std::vector<Site>{};
  const Shard& shard = made.value();
  spec::OpSpec base_spec;
  base_spec.m = problem.micro_batch > 0 ? std::min(problem.micro_batch, problem.tokens) : problem.tokens;
  base_spec.ranks = ranks;
  base_spec.dtype = base_spec.out_dtype = problem.dtype;
  const int64_t dense = problem.layers - config.expert_layers(problem.layers);
  int64_t first_dense = 0;
  while (dense > 0 && config.has_experts(first_dense)) ++first_dense;
  const auto site = [&](const char* name, const spec::OperatorDef& op, int64_t n, int64_t k, bool bias) {
    Site s{name, base_spec, 0, problem.layers};
    s.op.op = op.name;
    s.op.n = n;
    s.op.k = k;
    s.op.bias = bias;
    return s;
  };
  const bool gated = config.gated();
  std::vector<Site> out = {
      site("qkv", spec::kAgGemm, shard.qkv_columns(config), config.hidden, config.qkv_bias),
      site("o_proj", spec::kGemmRs, config.hidden, shard.heads * config.head_dim, config.o_bias),
  };
  if (dense == 0) return out;
  out.push_back(
      site(gated ? "gate_up" : "fc1", spec::kAgGemm, shard.up_columns(config), config.hidden, config.mlp_bias));
  out.push_back(site(gated ? "down" : "fc2", spec::kGemmRs, config.hidden, shard.intermediate, config.mlp_bias));
  for (size_t i = 2; i < out.size(); ++i) {
    out[i].first_layer = first_dense;
    out[i].layers = dense;
  }
  return out;
}

Result<spec::Schedule> schedule_for_tokens(const std::string& site, spec::OpSpec op, const spec::Schedule& given,
                                           int64_t tokens, const Problem& problem) {
  const auto number = [&](const char* name) {
    const auto found = given.params.find(name);
    const int64_t* value = found == given.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
    return value == nullptr ? int64_t{1} : *value;
  };
  const std::string family(spec::without_suffix(given.op, given.family));
  try {
    const spec::Params options = {{"hosts", number("hosts")}};
    const auto degree = static_cast<int>(number("q"));
    if (spec::make_schedule(op, family, degree, options) != given)
      return invalid_argument(
          "micro_batch is {}, which leaves {} of {} tokens, and site \"{}\" has a schedule of its own; wanted a "
          "divisor",
          op.m, tokens, problem.tokens, site);
    op.m = tokens;
    return spec::make_schedule(op, family, degree, options);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

}  // namespace overlace::model
