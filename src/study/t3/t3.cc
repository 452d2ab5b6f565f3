#include "src/study/t3/t3.h"

#include <algorithm>
#include <iterator>

#include "src/base/ceil_div_pod.h"
#include "src/study/t3/waves.h"

namespace overlace::study::t3 {
namespace {

constexpr std::string_view kConfigNames[kNumConfigs] = {"sequential",   "cu_split_8", "cu_split_16", "ideal_overlap",
                                                        "ideal_rs_nmc", "t3",         "t3_mca"};

/// All-reduce on few CUs against all of them (section 3 of the paper, measured there).
constexpr double kSlowOn8 = 1.41, kSlowOn16 = 1.07;

struct Model {
  std::string_view name;
  int64_t tokens, hidden;
};
constexpr Model kModels[] = {{"mega-gpt-2", 16384, 3072},
                             {"t-nlg", 8192, 4256},
                             {"gpt-3", 2048, 12288},
                             {"palm", 2048, 18432},
                             {"mt-nlg", 2048, 20480}};
/// K of a sub-layer, in hidden sizes over ranks.
struct Part {
  std::string_view name;
  int hidden;
};
constexpr Part kParts[] = {{"OP", 1}, {"FC-2", 4}, {"FC-1 backward", 4}, {"IP backward", 3}};

/// More of the memory's time than this spent by the GEMM's own accesses: communication is held back from `threshold`
/// pending accesses on (thresholds of the paper, section 4.5; the intensities are ours).
struct Intensity {
  double share;
  int threshold;
};
constexpr Intensity kIntensities[] = {{0.3, 5}, {0.15, 10}, {0.05, 30}};

struct Parts {
  const SubLayer& layer;
  const Machine& machine;
  const Options& options;

  double sent() const { return (layer.ranks - 1.0) / layer.ranks * layer.output_bytes(); }
  /// t - 1 steps of a ring; `accesses` of memory for each byte sent.
  double ring_us(double accesses) const {
    const double per_byte = std::max(1 / machine.link_GBps, accesses / machine.dram_GBps);
    return sent() * per_byte / 1e3 + (layer.ranks - 1) * machine.link_latency_us;
  }
  double reduce_scatter_us() const { return ring_us(3 * options.comm_cost); }
  double reduce_scatter_nmc_us() const { return ring_us((1 + options.update_cost) * options.comm_cost); }
  double all_gather_us() const { return ring_us(2 * options.comm_cost); }
  WavesInput waves() const {
    WavesInput input;
    input.layer = layer;
    input.machine = machine;
    input.options = options;
    input.cus = machine.cus;
    return input;
  }
  int threshold() const {
    const double flops =
        2.0 * static_cast<double>(layer.m) * static_cast<double>(layer.n) * static_cast<double>(layer.k);
    const double share =
        gemm_reads(layer, machine, !options.llc_bypass) / (machine.dram_GBps * 1e3) / (flops / (machine.tflops * 1e6));
    for (const Intensity& intensity : kIntensities)
      if (share >= intensity.share) return intensity.threshold;
    return kRoundRobin;
  }
};

base::Status check(const SubLayer& layer, const Machine& machine, const Options& options) {
  if (layer.m < 1 || layer.n < 1 || layer.k < 1 || layer.ranks < 2)
    return base::invalid_argument("t3: M {}, N {}, K {} on {} ranks, wanted at least 1 each and 2 ranks", layer.m,
                                  layer.n, layer.k, layer.ranks);
  const int64_t tiles = base::ceil_div(layer.m, kTile) * base::ceil_div(layer.n, kTile);
  if (tiles < layer.ranks)
    return base::invalid_argument("t3: {} tiles of 128 x 128 on {} ranks, wanted at least one each", tiles,
                                  layer.ranks);
  const double positive[] = {machine.clock_GHz, machine.tflops,      machine.llc_MB,    machine.dram_GBps,
                             machine.link_GBps, options.update_cost, options.comm_cost, options.starvation_share};
  const char* const names[] = {"clock_GHz", "tflops",      "llc_MB",    "dram_GBps",
                               "link_GBps", "update_cost", "comm_cost", "starvation_share"};
  for (size_t i = 0; i < std::size(positive); ++i)
    if (!(positive[i] > 0)) return base::invalid_argument("t3: {} is {}, wanted > 0", names[i], positive[i]);
  if (machine.cus < 17) return base::invalid_argument("t3: {} CUs, wanted at least 17", machine.cus);
  if (!(machine.link_latency_us >= 0) || options.trigger_cycles < 0 || options.starvation_share > 1)
    return base::invalid_argument(
        "t3: link_latency_us {}, trigger_cycles {}, starvation_share {}, wanted >= 0, >= 0, <= 1",
        machine.link_latency_us, options.trigger_cycles, options.starvation_share);
  if (options.tracker.sets < 1 || options.tracker.ways < 1 || options.quantum_bytes < 256)
    return base::invalid_argument("t3: tracker of {} sets and {} ways, quantum {} bytes, wanted >= 1, >= 1, >= 256",
                                  options.tracker.sets, options.tracker.ways, options.quantum_bytes);
  return {};
}

/// The slow-downs are those of whole all-reduces, with how they use memory in them: beside the GEMM their accesses cost
/// what the GEMM's do.
Result split(const Parts& parts, int cus, double slow) {
  WavesInput input = parts.waves();
  input.cus = parts.machine.cus - cus;
  input.beside = Beside::all_reduce;
  input.options.comm_cost = 1;
  const double link_us = 2 * parts.sent() / (parts.machine.link_GBps * 1e3);
  input.link_share = link_us / (slow * (parts.reduce_scatter_us() + parts.all_gather_us()));
  const WavesResult waves = run_waves(input);
  Result result;
  result.gemm_us = waves.gemm_us;
  result.total_us = waves.all_us;
  result.bytes = unfused_traffic(parts.layer, parts.machine);
  return result;
}

Result fused(const Parts& parts, int threshold) {
  WavesInput input = parts.waves();
  input.beside = Beside::fused_reduce_scatter;
  input.output_is_cached = !parts.options.llc_bypass;
  input.threshold = threshold;
  const WavesResult waves = run_waves(input);
  Result result;
  result.gemm_us = waves.gemm_us;
  result.rs_us = waves.all_us - waves.gemm_us;
  result.ag_us = parts.all_gather_us();
  result.total_us = waves.all_us + result.ag_us;
  result.bytes = waves.bytes;
  result.bytes.ag_rd = result.bytes.ag_wr = parts.sent();
  result.tracker_peak = waves.tracker_peak;
  result.tracker_overflows = waves.tracker_overflows;
  return result;
}

Result apart(const Parts& parts, Config config) {
  Result result;
  result.gemm_us = run_waves(parts.waves()).gemm_us;
  result.rs_us = config == Config::ideal_rs_nmc ? parts.reduce_scatter_nmc_us() : parts.reduce_scatter_us();
  result.ag_us = parts.all_gather_us();
  const double both =
      config == Config::sequential ? result.gemm_us + result.rs_us : std::max(result.gemm_us, result.rs_us);
  result.total_us = both + result.ag_us;
  result.bytes = config == Config::ideal_rs_nmc ? fused_traffic(parts.layer, parts.machine, parts.options)
                                                : unfused_traffic(parts.layer, parts.machine);
  return result;
}

}  // namespace

std::string_view config_name(Config config) { return kConfigNames[static_cast<int>(config)]; }

base::Result<Result> simulate(const SubLayer& layer, Config config, const Machine& machine, const Options& options) {
  OVERLACE_TRY(check(layer, machine, options));
  const Parts parts{layer, machine, options};
  switch (config) {
    case Config::cu_split_8:
      return split(parts, 8, kSlowOn8);
    case Config::cu_split_16:
      return split(parts, 16, kSlowOn16);
    case Config::t3:
      return fused(parts, kRoundRobin);
    case Config::t3_mca:
      return fused(parts, parts.threshold());
    default:
      return apart(parts, config);
  }
}

Machine machine_of(const spec::Machine& machine) {
  Machine out;
  out.cus = machine.sms;
  out.clock_GHz = 1.7;
  out.tflops = machine.gemm.sustained_TFLOPs.value;
  out.llc_MB = static_cast<double>(machine.memory.l2_bytes) * 1e-6;
  out.dram_GBps = machine.memory.hbm_GBps.value;
  out.link_GBps = machine.link.egress_GBps.value;
  out.link_latency_us = machine.latency.flag_us.value;
  return out;
}

base::Result<std::vector<SubLayer>> sub_layers(std::string_view model, int ranks) {
  std::string known;
  for (const Model& candidate : kModels) {
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
    if (candidate.name != model) continue;
    if (ranks < 2 || candidate.hidden % ranks != 0)
      return base::invalid_argument("t3: {} ranks for {}, wanted at least 2 and a divisor of {}", ranks, model,
                                    candidate.hidden);
    std::vector<SubLayer> layers;
    for (const Part& part : kParts)
      layers.push_back({std::string(model), std::string(part.name), candidate.tokens, candidate.hidden,
                        part.hidden * candidate.hidden / ranks, ranks});
    return layers;
  }
  return base::invalid_argument("t3: model is {}, wanted one of {}", model, known);
}

std::vector<SubLayer> main_sub_layers() {
  std::vector<SubLayer> layers;
  for (const char* model : {"mega-gpt-2", "t-nlg"})
    for (const int ranks : {8, 16}) {
      const std::vector<SubLayer> more = sub_layers(model, ranks).value();
      layers.insert(layers.end(), more.begin(), more.end());
    }
  return layers;
}

}  // namespace overlace::study::t3
