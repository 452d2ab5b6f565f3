#include "cli/run/plan.h"

#include <algorithm>

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/run/schedules.h"
#include "src/base/half.h"
#include "src/model/layer_stream.h"
#include "src/model/npy.h"
#include "src/model/weights.h"
#include "src/runtime/backend.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

constexpr int64_t kMaxTokens = 1 << 24;  // 16 M rows: any larger number is a slip of the keyboard
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxRepetitions = 1000;

Status check_range(const char* option, const std::optional<int64_t>& value, int64_t low, int64_t high) {
  if (!value || (*value >= low && *value <= high)) return {};
  return base::invalid_argument("{} is {}, wanted {} to {}", option, *value, low, high);
}

Status check_ranges(const RunOptions& o) {
  OVERLACE_TRY(check_range("--ranks", o.ranks, 1, kMaxRanks));
  OVERLACE_TRY(check_range("--layers", o.layers, 1, kMaxLayers));
  OVERLACE_TRY(check_range("--tokens", o.tokens, 1, kMaxTokens));
  OVERLACE_TRY(check_range("--sequence-length", o.sequence_length, 1, kMaxTokens));
  OVERLACE_TRY(check_range("--micro-batch", o.micro_batch, 1, kMaxTokens));
  OVERLACE_TRY(check_range("--repeat", o.repeat, 1, kMaxRepetitions));
  if (o.config && o.checkpoint)
    return base::invalid_argument(
        "--config is {} and --checkpoint is {}, wanted one of them: a checkpoint brings its "
        "own config.json",
        *o.config, *o.checkpoint);
  return {};
}

Status check_outputs(const RunOptions& o) {
  OVERLACE_TRY(check_writable("--output", o.output));
  OVERLACE_TRY(check_writable("--json", o.json));
  OVERLACE_TRY(check_writable("--trace", o.trace));
  OVERLACE_TRY(check_writable("--report", o.report));
  if (o.output == "-" || o.trace == "-" || o.report == "-")
    return base::invalid_argument("- (stdout) is taken by --json only, wanted a file for --output, --trace, --report");
  const auto ends = [&](const char* ending) { return o.trace.ends_with(ending); };
  if (!o.trace.empty() && !ends(".json") && !ends(".pftrace") && !ends(".perfetto-trace") && !ends("/dev/full"))
    return base::invalid_argument(
        "--trace is {}, wanted a name ending in .json (Chrome), .pftrace or .perfetto-trace "
        "(Perfetto)",
        o.trace);
  return {};
}

Result<Backend> choose_backend(const RunOptions& o, const base::Env& env, const Surroundings& around) {
  const std::string& asked = o.backend != "auto" ? o.backend : env.backend;
  if (asked == "cpu") return Backend::cpu;
  if (asked == "cuda_peer") {
    if (around.gpus == 0)
      return base::error(Errc::not_supported, "--backend is cuda_peer, but there is no usable GPU: {}",
                         around.why_no_gpu);
    return Backend::cuda_peer;
  }
  if (asked != "auto") return base::invalid_argument("--backend is {}, wanted auto, cpu or cuda_peer", asked);
  return around.gpus > 0 && !o.link ? Backend::cuda_peer : Backend::cpu;
}

Result<int> choose_ranks(const RunOptions& o, Backend backend, const Surroundings& around) {
  if (around.started_ranks > 0) return around.started_ranks;
  if (backend == Backend::cuda_peer) {
    if (o.ranks && *o.ranks > around.gpus)
      return base::error(Errc::not_supported, "--ranks is {}, but this machine has {} usable GPU{}", *o.ranks,
                         around.gpus, around.gpus == 1 ? "" : "s");
    const int largest = around.gpus >= 4 ? 4 : around.gpus >= 2 ? 2 : 1;
    return o.ranks ? static_cast<int>(*o.ranks) : largest;
  }
  return o.ranks ? static_cast<int>(*o.ranks) : 2;
}

Result<LinkOptions> parse_link(const std::string& text) {
  try {
    return LinkOptions::parse(text);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Result<LinkOptions> choose_link(const RunOptions& o, const base::Env& env, const RunPlan& plan) {
  if (plan.backend == Backend::cuda_peer) {
    if (o.link && *o.link != "none")
      return base::error(Errc::not_supported,
                         "--link is {}, but links are emulated between CPU ranks only, wanted "
                         "--backend cpu",
                         *o.link);
    return LinkOptions{};
  }
  const bool has_network = plan.placement.hosts > 1 && !o.emulate_hosts;
  const std::string usual = has_network ? "none" : kDefaultLink + std::string(plan.hosts > 1 ? ",hosts" : "");
  const std::string text = o.link ? *o.link : !env.link.empty() ? env.link : usual;
  auto link = parse_link(text);
  if (link.ok() && plan.ranks == 1) return LinkOptions{};
  return link;
}

/// What a rank may use, and where the rest comes from.
Status choose_memory(const RunOptions& o, RunPlan* plan) {
  model::Problem& p = plan->problem;
  if (o.micro_batch) {
    if (*o.micro_batch % p.sequence_length != 0 || *o.micro_batch > p.tokens)
      return base::invalid_argument("--micro-batch is {}, wanted a multiple of the sequence length {} and at most {}",
                                    *o.micro_batch, p.sequence_length, p.tokens);
    p.micro_batch = *o.micro_batch;
  }
  if (o.weights && *o.weights != "host" && *o.weights != "disk")
    return base::invalid_argument("--weights is {}, wanted host or disk", *o.weights);
  if (o.weights && !o.device_memory)
    return base::invalid_argument(
        "--weights is {} without --device-memory, wanted both: without a limit nothing streams", *o.weights);
  if (!o.device_memory) return {};
  p.from_disk = o.weights == "disk";
  if (p.from_disk && p.checkpoint.empty())
    return base::invalid_argument("--weights is disk, but there is no --checkpoint, wanted one or --weights host");
  try {
    p.device_bytes = parse_size("--device-memory", *o.device_memory);
  } catch (...) {
    return base::status_of_current_exception();
  }
  const auto shard = model::make_shard(plan->config, p, 0, plan->ranks);  // no rank has more rows
  if (!shard.ok()) return shard.status();
  const auto placement = model::place_layers(plan->config, p, *shard);
  if (placement.ok()) return {};
  return base::error(placement.status().code(), "--device-memory is {}: {}", *o.device_memory,
                     placement.status().message());
}

/// Whether a schedule that is asked for by name is one over several hosts.
bool asks_for_hosts(std::string_view schedule) {
  const std::string_view name = schedule.substr(0, schedule.find(':'));
  const std::vector<const spec::OperatorDef*> all = spec::operators();
  return std::any_of(all.begin(), all.end(), [&](const spec::OperatorDef* op) {
    return spec::form_of(op->name, spec::without_suffix(op->name, name)) == spec::ClosedForm::hosts;
  });
}

/// Refuses a schedule over several hosts where these are such that schedules make no use of them.
Status check_hosts(const RunOptions& o, const RunPlan& plan) {
  if (plan.placement.is_regular || !asks_for_hosts(o.schedule)) return {};
  return base::invalid_argument(
      "--schedule is {}, but the {} ranks are on {} hosts of unequal size or not numbered host by host, wanted such "
      "hosts "
      "(mpirun --map-by slot) or another schedule",
      o.schedule, plan.ranks, plan.placement.hosts);
}

Status choose_hosts(const RunOptions& o, const Surroundings& around, RunPlan* plan) {
  plan->placement = around.placement;
  if (plan->placement.is_regular) plan->hosts = plan->placement.hosts;
  OVERLACE_TRY(check_hosts(o, *plan));
  if (!o.emulate_hosts) return {};
  OVERLACE_TRY(check_emulated_hosts(*o.emulate_hosts, plan->ranks));
  if (o.threads) return base::invalid_argument("--emulate-hosts and --threads: wanted one of both");
  plan->hosts = static_cast<int>(*o.emulate_hosts);
  return {};
}

Result<DType> choose_dtype(const RunOptions& o, Backend backend) {
  if (!o.dtype) return backend == Backend::cuda_peer ? DType::bf16 : DType::fp32;
  DType dtype = DType::fp32;
  const bool known = base::parse_dtype(o.dtype->c_str(), &dtype);
  if (!known || (dtype != DType::fp32 && dtype != DType::bf16 && dtype != DType::fp16))
    return base::invalid_argument("--dtype is {}, wanted fp32, bf16 or fp16", *o.dtype);
  return dtype;
}

Result<model::Part> choose_part(const RunOptions& o) {
  if (o.part == "all") return model::Part::all;
  if (o.part == "moe") return model::Part::moe;
  return base::invalid_argument("--part is {}, wanted all or moe", o.part);
}

Status choose_model(const RunOptions& o, RunPlan* plan) {
  const bool on_gpus = plan->backend == Backend::cuda_peer;
  const auto part = choose_part(o);
  if (!part.ok()) return part.status();
  const std::string name = o.config                    ? *o.config
                           : o.checkpoint              ? *o.checkpoint + "/config.json"
                           : *part == model::Part::moe ? "tiny-moe"
                           : on_gpus                   ? "Llama-3.1-8B"
                                                       : "tiny";
  auto config = model::load_config(name, *part);
  if (!config.ok()) return config.status();
  plan->config = std::move(*config);
  model::Problem& p = plan->problem;
  if (o.checkpoint) p.checkpoint = *o.checkpoint;
  const auto shipped = model::shipped_configs();
  const bool is_large = std::find(shipped.begin(), shipped.end(), name) != shipped.end() && !name.starts_with("tiny");
  p.layers = o.layers ? *o.layers : is_large ? 1 : plan->config.layers;
  if (o.checkpoint && p.layers > plan->config.layers)
    return base::invalid_argument("--layers is {}, but {} has {}{}", p.layers, *o.checkpoint, plan->config.layers,
                                  *part == model::Part::moe ? " with experts" : "");
  if (on_gpus && plan->config.expert_layers(p.layers) > 0)
    return base::error(Errc::not_supported, "--config is {}, whose experts run on CPU ranks only, wanted --backend cpu",
                       name);
  p.seed = o.seed;
  return {};
}

Status choose_size(const RunOptions& o, RunPlan* plan) {
  model::Problem& p = plan->problem;
  const bool on_gpus = plan->backend == Backend::cuda_peer;
  const int64_t default_tokens = on_gpus ? 8192 : 1024, default_length = on_gpus ? 4096 : 256;
  if (!o.input.empty()) {
    const auto matrix = model::read_npy(o.input);
    if (!matrix.ok()) return matrix.status();
    if (matrix->cols != plan->config.hidden)
      return base::invalid_argument("--input: {} has {} columns, wanted the model's hidden size {}", o.input,
                                    matrix->cols, plan->config.hidden);
    if (o.tokens && *o.tokens != matrix->rows)
      return base::invalid_argument("--tokens is {}, but --input {} has {} rows", *o.tokens, o.input, matrix->rows);
    if (matrix->rows < 1 || matrix->rows > kMaxTokens)
      return base::invalid_argument("--input: {} has {} rows, wanted 1 to {}", o.input, matrix->rows, kMaxTokens);
    p.tokens = matrix->rows;
  } else {
    p.tokens = o.tokens ? *o.tokens
               : o.sequence_length
                   ? std::max(*o.sequence_length, default_tokens / *o.sequence_length * *o.sequence_length)
                   : default_tokens;
  }
  p.sequence_length = o.sequence_length ? *o.sequence_length : o.input.empty() && !o.tokens ? default_length : p.tokens;
  if (p.tokens % p.sequence_length != 0)
    return base::invalid_argument("--tokens is {} and --sequence-length is {}, wanted a multiple of the latter",
                                  p.tokens, p.sequence_length);
  return {};
}

}  // namespace

Status check_emulated_hosts(int64_t hosts, int64_t ranks) {
  if (hosts >= 2 && hosts <= ranks && ranks % hosts == 0) return {};
  return base::invalid_argument("--emulate-hosts is {}, wanted a divisor of the {} ranks that is at least 2", hosts,
                                ranks);
}

Surroundings look_around(const base::Env& env) {
  Surroundings out;
  out.gpus = runtime::cuda_device_count(&out.why_no_gpu);
  out.started_ranks = std::max(env.world_size, 0);
  out.rank = std::max(env.rank, 0);
  return out;
}

Result<RunPlan> make_plan(const RunOptions& o, const base::Env& env, const Surroundings& around) {
  OVERLACE_TRY(check_ranges(o));
  if (around.rank == 0) OVERLACE_TRY(check_outputs(o));  // who writes them
  RunPlan plan;
  const auto backend = choose_backend(o, env, around);
  if (!backend.ok()) return backend.status();
  plan.backend = *backend;
  const auto ranks = choose_ranks(o, plan.backend, around);
  if (!ranks.ok()) return ranks.status();
  plan.ranks = *ranks;
  OVERLACE_TRY(choose_hosts(o, around, &plan));
  const auto link = choose_link(o, env, plan);
  if (!link.ok()) return link.status();
  plan.link = *link;
  const auto dtype = choose_dtype(o, plan.backend);
  if (!dtype.ok()) return dtype.status();
  plan.problem.dtype = *dtype;
  OVERLACE_TRY(choose_model(o, &plan));
  OVERLACE_TRY(choose_size(o, &plan));
  OVERLACE_TRY(choose_memory(o, &plan));
  auto sites = model::sites(plan.config, plan.problem, plan.ranks);
  if (!sites.ok()) return sites.status();
  plan.sites = std::move(*sites);
  auto request = request_schedules(o.schedule, plan);
  if (!request.ok()) return request.status();
  plan.request = std::move(*request);
  if (o.repeat) plan.repetitions = static_cast<int>(*o.repeat);
  const auto weights = model::Weights::open(plan.config, plan.problem);
  if (!weights.ok()) return weights.status();
  return plan;
}

Result<std::vector<float>> read_input(const RunOptions& options, const RunPlan& plan) {
  if (!options.input.empty()) {
    auto matrix = model::read_npy(options.input);
    if (!matrix.ok()) return matrix.status();
    if (matrix->rows != plan.problem.tokens || matrix->cols != plan.config.hidden)
      return base::error(Errc::stale, "--input: {} is {} x {} now, it was {} x {}", options.input, matrix->rows,
                         matrix->cols, plan.problem.tokens, plan.config.hidden);
    return std::move(matrix->values);
  }
  std::vector<float> values(static_cast<size_t>(plan.problem.tokens * plan.config.hidden));
  model::seeded_input(plan.problem.seed, 0, plan.problem.tokens, plan.config.hidden, values.data());
  return values;
}

}  // namespace overlace::cli
