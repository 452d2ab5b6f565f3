#include "cli/plan/co2.h"

#include <algorithm>

#include "cli/run/outputs.h"
#include "overlace/error.h"
#include "overlace/plan.h"
#include "overlace/runtime.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/study/workload/co2.h"
#include "src/train/co2/timing.h"

namespace overlace::cli {
namespace {

using base::Json;

constexpr int64_t kMostRanks = 1 << 20;

/// What takes how long to exchange what a rank has of the model.
struct Exchange {
  std::string over;
  int64_t groups = 1;
  double all_reduce_us = 0;
};

[[noreturn]] void refuse(const std::string& text) { throw_error(Errc::invalid_argument, text); }

void check_number(const char* option, double value, double least, double most) {
  if (!(value >= least && value <= most)) refuse(base::format("{} is {}, wanted {} to {}", option, value, least, most));
}

void check(const Co2PlanWords& words) {
  check_number("--parameters", words.parameters, 1, 1e15);
  check_number("--step-ms", words.step_ms, 1e-3, 1e6);
  check_number("--wire-bytes", words.wire_bytes, 0.125, 8);
  check_number("--shards", static_cast<double>(words.shards), 1, kMostRanks);
  check_number("--tau", static_cast<double>(words.tau), 0, 1e9);
  const int sources =
      (words.link.empty() ? 0 : 1) + (words.network.network.empty() ? 0 : 1) + (words.machine.empty() ? 0 : 1);
  if (sources != 1) refuse(base::format("{} of --link, --network and --machine are given, wanted one", sources));
  if (words.groups != 0 && words.link.empty())
    refuse("--groups is given without --link, wanted: groups follow from the network or the machine and --shards");
  if (!words.link.empty() && words.groups != 0)
    check_number("--groups", static_cast<double>(words.groups), 1, kMostRanks);
}

Exchange over_link(const Co2PlanWords& words, double bytes) {
  const LinkOptions link = LinkOptions::parse(words.link);
  if (!link.enabled || !(link.bytes_per_s > 0))
    refuse(base::format("--link is {}, wanted such as 1GB/s,50us", words.link));
  const int64_t groups = words.groups == 0 ? 2 : words.groups;
  const train::GroupLinks links = {static_cast<int>(groups), link.bytes_per_s / 1e6, link.latency_s * 1e6};
  return {link.to_string(), groups, train::all_reduce_us(links, bytes)};
}

Exchange over_network(const Co2PlanWords& words) {
  const std::vector<study::Network> networks = networks_of(words.network);
  if (networks.size() != 1) refuse(base::format("--network is {}, wanted one network", words.network.network));
  study::Co2Run run;
  run.per_group = static_cast<int>(words.shards);
  run.parameters = words.parameters;
  run.wire_bytes = words.wire_bytes;
  run.step_us = words.step_ms * 1e3;
  run.pass_us = 0;
  run.period = 1;
  run.rounds = 2;
  const study::Co2Time time = study::co2_training(run, spec::find_machine("h200x4"), networks[0]).value();
  return {networks[0].name + ", " + time.algorithm, time.groups, time.all_reduce_us};
}

Exchange over_machine(const Co2PlanWords& words, double bytes) {
  const spec::Machine machine = spec::find_machine(words.machine);
  if (words.shards != 1)
    refuse(base::format("--shards is {} with --machine, wanted 1: its all-reduce was measured over all of its ranks",
                        words.shards));
  const spec::Curve& curve = machine.collectives.all_reduce_us;
  if (curve.empty())
    throw_error(Errc::not_supported,
                base::format("machine {} has no times of collectives.all_reduce_us, wanted: one that was calibrated",
                             machine.name));
  return {base::format("{}, all-reduce {}", machine.name,
                       curve.source == spec::Source::measured ? "measured" : "from a prior"),
          machine.ranks, curve.at(bytes)};
}

}  // namespace

int plan_co2(const Co2PlanWords& words) {
  check(words);
  const double bytes = words.parameters / static_cast<double>(words.shards) * words.wire_bytes;
  const double step_us = words.step_ms * 1e3;
  const Exchange exchange = !words.link.empty()      ? over_link(words, bytes)
                            : !words.machine.empty() ? over_machine(words, bytes)
                                                     : over_network(words);
  const train::TauPlan plan = train::plan_tau(step_us, exchange.all_reduce_us);
  std::vector<int64_t> taus(plan.taus.begin(), plan.taus.end());
  if (words.tau > 0) taus.push_back(words.tau);
  std::sort(taus.begin(), taus.end());
  taus.erase(std::unique(taus.begin(), taus.end()), taus.end());
  std::string text =
      base::format("{} groups of {}, {:.1f} MB a rank over {}\nall-reduce {:.3f} ms, step {:.3f} ms\n", exchange.groups,
                   words.shards, bytes / 1e6, exchange.over, exchange.all_reduce_us / 1e3, words.step_ms);
  text += base::format("  {:>8}  {:>10}  {:>10}\n", "tau", "round ms", "exposed");
  Json rows = Json::array();
  for (const int64_t tau : taus) {
    const double exposed = train::exposed_share(tau, step_us, exchange.all_reduce_us);
    const double round_us = train::co2_round(tau, step_us, exchange.all_reduce_us, 0).us;
    text += base::format("{} {:>8}  {:>10.3f}  {:>8.1f} %\n", tau == plan.tau_min ? '>' : ' ', tau, round_us / 1e3,
                         exposed * 100);
    Json row = Json::object();
    row.set("tau", tau).set("round_us", round_us).set("exposed", exposed);
    rows.push_back(std::move(row));
  }
  text += "> the shortest round that hides the exchange with a tenth to spare; predicted, not measured\n";
  Json out = Json::object();
  out.set("over", exchange.over).set("groups", exchange.groups);
  out.set("shards", words.shards).set("bytes", bytes).set("all_reduce_us", exchange.all_reduce_us);
  out.set("step_us", step_us).set("tau_min", plan.tau_min).set("taus", std::move(rows));
  write_result(with_schema("plan_co2", std::move(out)), text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
