#include "cli/sim/t3.h"

#include <vector>

#include "cli/run/outputs.h"
#include "src/base/json.h"
#include "src/study/t3/summary.h"

namespace overlace::cli {
namespace {

using base::Json;
namespace t3 = study::t3;

constexpr double kMost = 1e6;  // GB/s and costs

std::vector<t3::Config> configs_of(const std::string& name) {
  std::vector<t3::Config> found;
  std::string known = "all";
  for (int i = 0; i < t3::kNumConfigs; ++i) {
    const auto config = static_cast<t3::Config>(i);
    known += ", " + std::string(t3::config_name(config));
    if (name == "all" || name == t3::config_name(config)) found.push_back(config);
  }
  if (found.empty()) throw_error(Errc::invalid_argument, base::format("--config is {}, wanted {}", name, known));
  return found;
}

Json result_json(const t3::SubLayer& layer, t3::Config config, const t3::Result& result, double speedup) {
  const t3::Traffic& b = result.bytes;
  Json bytes = Json::object();
  bytes.set("gemm_rd", b.gemm_rd).set("gemm_wr", b.gemm_wr).set("rs_rd", b.rs_rd).set("rs_wr", b.rs_wr);
  bytes.set("ag_rd", b.ag_rd).set("ag_wr", b.ag_wr);
  Json one = Json::object();
  one.set("model", layer.model).set("layer", layer.name).set("tp", layer.ranks);
  one.set("m", layer.m).set("n", layer.n).set("k", layer.k).set("config", t3::config_name(config));
  one.set("total_us", result.total_us).set("gemm_us", result.gemm_us).set("rs_us", result.rs_us);
  one.set("ag_us", result.ag_us).set("speedup", speedup).set("dram_bytes", std::move(bytes));
  one.set("tracker_peak", result.tracker_peak).set("tracker_overflows", result.tracker_overflows);
  return one;
}

double positive(const char* option, const std::optional<double>& given, double otherwise) {
  if (given && !(*given > 0 && *given <= kMost))
    throw_error(Errc::invalid_argument,
                base::format("{} is {}, wanted more than 0, at most {}", option, *given, kMost));
  return given.value_or(otherwise);
}

int over_grid(const T3Words& words) {
  std::string text = base::format("{:>11} {:>9} {:>9}  {:>14} {:>14} {:>14}   (geomean/largest over sequential)\n",
                                  "update_cost", "comm_cost", "DRAM GB/s", "ideal", "t3", "t3_mca");
  Json list = Json::array();
  const auto pair = [](const t3::Speedup& s) { return base::format("{:.3f}/{:.3f}", s.geomean, s.most); };
  const std::vector<t3::Sensitivity> grid = t3::sensitivity().value();
  for (const t3::Sensitivity& point : grid) {
    const t3::Summary& s = point.summary;
    text += base::format("{:>11} {:>9} {:>9}  {:>14} {:>14} {:>14}\n", point.update_cost, point.comm_cost,
                         point.dram_GBps, pair(s.ideal), pair(s.t3), pair(s.t3_mca));
    Json one = Json::object();
    one.set("update_cost", point.update_cost).set("comm_cost", point.comm_cost).set("dram_GBps", point.dram_GBps);
    for (const auto& [name, value] : t3::figures(s)) one.set(name, value);
    list.push_back(std::move(one));
  }
  write_result(with_schema("sim_t3_sensitivity", std::move(list)), text, words.json).or_throw();
  return 0;
}

}  // namespace

int sim_t3(const T3Words& words) {
  if (words.is_sensitivity) return over_grid(words);
  if (!(words.share >= 0 && words.share <= 1))
    throw_error(Errc::invalid_argument, base::format("--share is {}, wanted 0 to 1", words.share));
  t3::Machine machine;
  if (!words.machine.empty()) machine = t3::machine_of(spec::find_machine(words.machine));
  t3::Options options;
  options.direct_rs = words.is_direct;
  machine.dram_GBps = positive("--dram", words.dram_GBps, machine.dram_GBps);
  machine.link_GBps = positive("--link", words.link_GBps, machine.link_GBps);
  options.update_cost = positive("--update-cost", words.update_cost, options.update_cost);
  options.comm_cost = positive("--comm-cost", words.comm_cost, options.comm_cost);
  const std::vector<t3::Config> configs = configs_of(words.config);
  std::string text =
      base::format("{} at {} ranks; update_cost {} and comm_cost {} are fitted to the paper: not a prediction\n",
                   words.model, words.tp, options.update_cost, options.comm_cost);
  text += base::format("{:<14} {:<14} {:>10} {:>9} {:>9} {:>9} {:>8} {:>9}\n", "sub-layer", "configuration", "total us",
                       "GEMM us", "RS us", "AG us", "speed-up", "DRAM MB");
  Json list = Json::array();
  double serial_sum = 0;
  std::vector<double> sums(configs.size(), 0);
  const std::vector<t3::SubLayer> layers = t3::sub_layers(words.model, words.tp).value();
  for (const t3::SubLayer& layer : layers) {
    const double serial_us = t3::simulate(layer, t3::Config::sequential, machine, options).value().total_us;
    serial_sum += serial_us;
    for (size_t i = 0; i < configs.size(); ++i) {
      const t3::Config config = configs[i];
      const t3::Result result = t3::simulate(layer, config, machine, options).value();
      const double speedup = serial_us / result.total_us;
      text += base::format("{:<14} {:<14} {:>10.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>8.3f} {:>9.1f}\n", layer.name,
                           t3::config_name(config), result.total_us, result.gemm_us, result.rs_us, result.ag_us,
                           speedup, result.bytes.total() * 1e-6);
      sums[i] += result.total_us;
      list.push_back(result_json(layer, config, result, speedup));
    }
  }
  for (size_t i = 0; i < configs.size() && words.share > 0; ++i)
    text += base::format("end to end, {} of an iteration: {:<14} {:.3f}\n", words.share, t3::config_name(configs[i]),
                         1 / (1 - words.share + words.share * sums[i] / serial_sum));
  write_result(with_schema("sim_t3", std::move(list)), text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
