#include "cli/plan/offload.h"

#include <algorithm>
#include <utility>

#include "cli/host_rates.h"
#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "overlace/machine.h"
#include "src/base/format.h"
#include "src/base/half.h"
#include "src/base/status.h"

namespace overlace::cli {
namespace {

using base::Json;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kHostGbps = 55, kDiskGbps = 1.7;
constexpr int64_t kDiskRequest = int64_t{1} << 20;
constexpr int64_t kMaxTokens = 1 << 24, kMaxOffloadRanks = 1024;

int64_t checked(const char* option, int64_t value, int64_t high) {
  if (value < 1 || value > high) base::invalid_argument("{} is {}, wanted 1 to {}", option, value, high).or_throw();
  return value;
}

double checked_rate(const char* option, double value, double factor) {
  if (!(value > 0) || value > 1e9) base::invalid_argument("{} is {}, wanted more than 0", option, value).or_throw();
  return value * factor;
}

model::Problem problem_of(const PlanOffloadWords& words, const model::ModelConfig& config) {
  model::Problem problem;
  problem.layers = checked("--layers", words.layers.value_or(config.layers), config.layers);
  problem.tokens = checked("--tokens", words.tokens.value_or(16384), kMaxTokens);
  problem.sequence_length = checked(
      "--sequence-length", words.sequence_length.value_or(std::min<int64_t>(problem.tokens, 4096)), problem.tokens);
  if (problem.tokens % problem.sequence_length != 0)
    base::invalid_argument("--tokens is {} and --sequence-length is {}, wanted a multiple of the latter",
                           problem.tokens, problem.sequence_length)
        .or_throw();
  const bool is_known = base::parse_dtype(words.dtype.c_str(), &problem.dtype);
  if (!is_known || (problem.dtype != DType::fp32 && problem.dtype != DType::bf16 && problem.dtype != DType::fp16))
    base::invalid_argument("--dtype is {}, wanted fp32, bf16 or fp16", words.dtype).or_throw();
  if (words.device_memory.empty())
    base::invalid_argument("--device-memory is missing, wanted bytes of a rank such as 16GiB").or_throw();
  problem.device_bytes = parse_size("--device-memory", words.device_memory);
  return problem;
}

std::string gib(int64_t bytes) { return base::format("{:.2f} GiB", static_cast<double>(bytes) / kGiB); }

}  // namespace

std::string offload_text(const PlannedOffload& planned) {
  const auto& [config, problem, ranks, rates, host_origin, disk_origin, plan] = planned;
  std::string out = base::format("{}  {} layers, {} tokens in sequences of {}, {}; {} rank{} of {} each\n", config.name,
                                 problem.layers, problem.tokens, problem.sequence_length, dtype_name(problem.dtype),
                                 ranks, ranks == 1 ? "" : "s", gib(problem.device_bytes));
  out += base::format("a prediction: {:.0f} TFLOP/s\n", rates.flops_per_s * 1e-12);
  out += base::format("from the host    {:.1f} GB/s ({})\n", rates.host_bytes_per_s * 1e-9, host_origin);
  out += base::format("from disk        {:.2f} GB/s ({})\n\n", rates.disk_bytes_per_s * 1e-9, disk_origin);
  out += base::format("layer of a rank  {}, activations {}\n", gib(plan.layer_bytes), gib(plan.activation_bytes));
  if (plan.resting_bytes > 0)
    out += base::format("activations      {} of a rank rest in host memory\n", gib(plan.resting_bytes));
  out += base::format("micro-batch      {} tokens\n", plan.micro_batch);
  out += base::format("resident         {} layers\n", plan.resident);
  out += base::format("host memory      {} layers, {} of all ranks\n", plan.host,
                      gib(plan.host * plan.layer_bytes * ranks));
  out += base::format("disk             {} layers\n", plan.disk);
  out += base::format("a pass           compute {:.4g} ms, host link {:.4g} ms, disk {:.4g} ms: {:.4g} ms\n",
                      1e3 * plan.compute_s, 1e3 * plan.host_s, 1e3 * plan.disk_s, 1e3 * plan.total_s());
  if (plan.host + plan.disk + plan.resting_bytes == 0) return out + "everything fits: nothing streams\n";
  if (!plan.hiding_tokens) return out + plan.binds() + " binds; activations are hidden by no number of tokens\n";
  return out + base::format("{} binds; what streams is hidden from {} tokens on\n", plan.binds(), *plan.hiding_tokens);
}

Json offload_json(const PlannedOffload& planned) {
  const auto& [config, problem, ranks, rates, host_origin, disk_origin, plan] = planned;
  return Json(Json::Object{{"model", config.name},
                           {"layers", problem.layers},
                           {"tokens", problem.tokens},
                           {"sequence_length", problem.sequence_length},
                           {"dtype", dtype_name(problem.dtype)},
                           {"ranks", static_cast<int64_t>(ranks)},
                           {"device_bytes", problem.device_bytes},
                           {"flops_per_s", rates.flops_per_s},
                           {"host_bytes_per_s", rates.host_bytes_per_s},
                           {"host_origin", host_origin},
                           {"disk_bytes_per_s", rates.disk_bytes_per_s},
                           {"disk_origin", disk_origin},
                           {"micro_batch", plan.micro_batch},
                           {"layer_bytes", plan.layer_bytes},
                           {"activation_bytes", plan.activation_bytes},
                           {"resting_bytes", plan.resting_bytes},
                           {"resident_layers", plan.resident},
                           {"host_layers", plan.host},
                           {"disk_layers", plan.disk},
                           {"compute_s", plan.compute_s},
                           {"host_s", plan.host_s},
                           {"disk_s", plan.disk_s},
                           {"total_s", plan.total_s()},
                           {"binds", plan.binds()},
                           {"hiding_tokens", plan.hiding_tokens ? Json(*plan.hiding_tokens) : Json()}});
}

PlannedOffload planned_offload(const PlanOffloadWords& words) {
  const auto loaded = model::load_config(words.config);
  loaded.status().or_throw();
  PlannedOffload out{*loaded, problem_of(words, *loaded), 1, {}, {}, {}, {}};
  out.ranks = static_cast<int>(checked("--ranks", words.ranks, kMaxOffloadRanks));
  const spec::Machine machine = spec::find_machine(words.machine);
  const double tflops = words.tflops != 0 ? words.tflops : machine.gemm.sustained_TFLOPs.value;
  out.rates.flops_per_s = checked_rate("--tflops", tflops, 1e12);
  const auto rate = [](const char* option, const std::optional<double>& told, HostRate said, std::string* origin) {
    *origin = told ? "told" : std::move(said.origin);
    return checked_rate(option, told.value_or(said.GBps), 1e9);
  };
  out.rates.host_bytes_per_s = rate("--host-gbps", words.host_gbps, link_rate(machine, kHostGbps), &out.host_origin);
  out.rates.disk_bytes_per_s =
      rate("--disk-gbps", words.disk_gbps, disk_rate(machine, kDiskRequest, kDiskGbps), &out.disk_origin);
  const int64_t host_bytes = parse_size("--host-memory", words.host_memory, true);
  const auto plan = model::plan_offload(*loaded, out.problem, out.ranks, host_bytes, out.rates);
  if (!plan.ok())
    base::error(plan.status().code(), "--device-memory is {}: {}", words.device_memory, plan.status().message())
        .or_throw();
  out.plan = *plan;
  out.problem.micro_batch = plan->micro_batch;
  return out;
}

int plan_offload(const PlanOffloadWords& words) {
  const PlannedOffload planned = planned_offload(words);
  write_result(with_schema("plan_offload", offload_json(planned)), offload_text(planned), words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
