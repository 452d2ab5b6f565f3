#include "cli/sim/graph.h"

#include <vector>

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/trace/trace.h"
#include "cli/word_list.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/study/workload/dlrm.h"

namespace overlace::cli {
namespace {

using base::Json;

/// Gains that were published for such steps, in per cent (arXiv 2305.06942, and an earlier version of it).
constexpr double kPublished[] = {21, 10};

std::string place_of(double gain, double least, double most) {
  return gain < least ? "below" : gain > most ? "above" : "inside";
}

Json band_of(const std::string& network, const study::DlrmMachine& machine, std::string* text) {
  const study::DlrmBand band = study::dlrm_band(machine).value();
  const double edges[] = {band.least_forward * 100, band.most_forward * 100, band.least * 100, band.most * 100};
  Json one = Json::object();
  one.set("network", network).set("all_to_all_GBps", machine.all_to_all_GBps);
  one.set("forward_least", edges[0]).set("forward_most", edges[1]).set("least", edges[2]).set("most", edges[3]);
  *text += base::format("{:<8} {:>10.1f}   {:>5.1f} to {:>5.1f} %   {:>5.1f} to {:>5.1f} %  ", network,
                        machine.all_to_all_GBps, edges[0], edges[1], edges[2], edges[3]);
  for (const double gain : kPublished)
    *text += base::format(" {} %: {} the first, {} the second.", gain, place_of(gain, edges[0], edges[1]),
                          place_of(gain, edges[2], edges[3]));
  *text += "\n";
  return one;
}

/// A row for assumed rates and, with a machine, one for simulated schedules.
void add_steps(const std::string& network, const study::DlrmMachine& rates, const DlrmWords& words, Json* list,
               std::string* text) {
  study::DlrmModel model;
  if (words.tables != 0) model.tables = words.tables;
  if (words.local_batch != 0) model.local_batch = words.local_batch;
  const auto add = [&](const char* exchange, const study::DlrmExchange& forward) {
    const study::DlrmTime time = study::dlrm_step(model, rates, forward).value();
    Json one = Json::object();
    one.set("network", network).set("exchange", exchange);
    one.set("tables", model.tables).set("local_batch", model.local_batch);
    one.set("gather_us", time.gather_us).set("all_to_all_us", time.all_to_all_us).set("mlp_us", time.mlp_us);
    one.set("all_reduce_us", time.all_reduce_us).set("unfused_us", time.unfused_us);
    one.set("forward_fused_us", time.forward_fused_us).set("fused_us", time.fused_us);
    list->push_back(std::move(one));
    *text +=
        base::format("{:<8} {:<9} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>7.1f} % {:>7.1f} %\n",
                     network, exchange, time.gather_us, time.all_to_all_us, time.mlp_us, time.all_reduce_us,
                     time.unfused_us, time.fused_us, time.forward_gain() * 100, time.gain() * 100);
  };
  add("assumed", study::dlrm_assumed(model, rates).value());
  if (!words.machine.empty())
    add("simulated", study::dlrm_simulated(model, rates, spec::find_machine(words.machine)).value());
}

/// A timeline is of the last network's overlapped row; it is written where it is complete.
class Timeline {
 public:
  Timeline(const GraphWords& words, std::string_view way) : path_(way == "overlapped" ? words.trace : "") {
    if (!words.trace.empty()) check_timeline_name(words.trace).or_throw();
  }
  base::Trace* wanted() { return path_.empty() ? nullptr : &trace_; }
  void write() const {
    if (!path_.empty()) write_timeline(trace_, path_).or_throw();
  }

 private:
  std::string path_;
  base::Trace trace_;
};

Json transformer_json(const study::Network& network, std::string_view way, const study::TransformerTime& time) {
  Json one = Json::object();
  one.set("network", network.name).set("gpus", network.ranks).set("replicas", time.replicas).set("transfers", way);
  one.set("step_us", time.step_us).set("bound_us", time.bound_us).set("compute_us", time.compute_us);
  one.set("bubble_us", time.bubble_us).set("optimizer_us", time.optimizer_us);
  one.set("layer_forward_us", time.layer.forward_us).set("layer_backward_us", time.layer.backward_us);
  one.set("layer_exposed_us", time.layer.exposed_us()).set("gradient_us", time.gradient_us);
  one.set("gradient_exposed_us", time.gradient_exposed_us).set("tokens_per_s", time.tokens_per_s());
  one.set("TFLOPs_per_gpu", time.TFLOPs());
  return one;
}

/// What the options say of the choices and places of experts.
study::MoeRun moe_run_of(const MoeWords& words, const study::Network& network) {
  study::MoeRun run = words.run;
  const int group = study::moe_group(run, network).value();
  study::check_moe_sizes(words.model, run, group).or_throw();
  if (!words.expert_begin.empty()) run.begin = numbers_of("--expert-begin", words.expert_begin, words.model.experts, 0);
  if (words.counts.empty()) return run;
  base::Result<std::string> text = base::read_file(words.counts);
  text.status().or_throw();
  base::Result<Json> json = Json::parse(*text, words.counts);
  json.status().or_throw();
  if (!run.begin.empty() && json->find("expert_begin") != nullptr)
    throw_error(Errc::invalid_argument,
                base::format("--expert-begin is {} and {} has expert_begin, wanted at most one of them",
                             words.expert_begin, words.counts));
  study::read_moe_counts(*json, group, words.model.experts, words.counts, &run).or_throw();
  return run;
}

Json moe_json(const study::Network& network, std::string_view way, const study::MoeRun& run,
              const study::MoeTime& time) {
  Json one = Json::object();
  one.set("network", network.name).set("gpus", network.ranks).set("transfers", way);
  one.set("layer_us", time.layer_us).set("bound_us", time.bound_us).set("serial_us", time.serial_us);
  one.set("compute_us", time.compute_us).set("shared_us", time.shared_us);
  one.set("dispatch_us", time.dispatch_us).set("combine_us", time.combine_us);
  one.set("exposed_us", time.exposed_us()).set("imbalance", time.imbalance);
  one.set("row_per_copy", run.is_row_per_copy).set("sent_bytes", time.sent_bytes).set("copy_bytes", time.copy_bytes);
  one.set("algorithm", time.algorithm);
  return one;
}

std::vector<study::OuterRule> rules_of(const std::string& name) {
  std::vector<study::OuterRule> found;
  std::string known = "all";
  for (size_t i = 0; i < std::size(study::kOuterRules); ++i) {
    known += ", " + std::string(study::kOuterRules[i]);
    if (name == "all" || name == study::kOuterRules[i]) found.push_back(static_cast<study::OuterRule>(i));
  }
  if (found.empty()) throw_error(Errc::invalid_argument, base::format("--rule is {}, wanted {}", name, known));
  return found;
}

}  // namespace

int sim_graph_dlrm(const DlrmWords& words) {
  const bool is_band = words.tables == 0 && words.local_batch == 0;
  if (is_band && !words.machine.empty())
    throw_error(Errc::invalid_argument,
                base::format("--machine is {}, wanted: with --tables or --local-batch, which say what is simulated",
                             words.machine));
  std::vector<std::string> networks = {words.network};
  if (words.network == "all") networks = {"torus", "ring", "rail"};
  std::string text = is_band ? base::format("{:<8} {:>10}   {:<18} {:<18} published gains\n", "network", "GB/s",
                                            "fused forward", "both ways")
                             : base::format("{:<8} {:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9}\n",
                                            "network", "exchange", "gather us", "a2a us", "MLP us", "AR us",
                                            "unfused us", "fused us", "forward", "gain");
  Json list = Json::array();
  for (const std::string& network : networks) {
    study::DlrmMachine machine;
    machine.all_to_all_GBps = study::dlrm_all_to_all_GBps(network).value();
    if (is_band)
      list.push_back(band_of(network, machine, &text));
    else
      add_steps(network, machine, words, &list, &text);
  }
  if (!words.machine.empty()) text += machine_line(spec::find_machine(words.machine)) + "\n";
  const char* schema = is_band ? "sim_graph_dlrm_bands" : "sim_graph_dlrm";
  write_result(with_schema(schema, std::move(list)), text, words.json).or_throw();
  return 0;
}

int sim_graph_transformer(const TransformerWords& words) {
  const spec::Machine machine = spec::find_machine(words.machine);
  if (words.chunks < 2)
    throw_error(Errc::invalid_argument, base::format("--chunks is {}, wanted at least 2", words.chunks));
  std::string text =
      base::format("{:<35} {:<11} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8} {:>10} {:>8}\n", "network", "transfers",
                   "step ms", "bound ms", "bubble ms", "layer us", "exposed", "grads ms", "TFLOP/s", "gain");
  Json list = Json::array();
  for (const study::Network& network : networks_of(words.network)) {
    double whole_us = 0;
    for (const char* way : {"whole", "overlapped", "free"}) {
      study::TransformerRun run = words.run;
      run.chunks = way == std::string("overlapped") ? words.chunks : 1;
      run.is_ideal = way == std::string("free");
      run.overlaps_gradients = words.run.overlaps_gradients && run.chunks > 1;
      const int64_t ranks = int64_t{run.tensor} * run.pipeline;
      if (words.straggler != 1 && ranks > 0 && network.ranks >= ranks) {
        run.slower.assign(static_cast<size_t>(network.ranks / ranks), 1);
        run.slower[0] = words.straggler;
      }
      Timeline timeline(words, way);
      const study::TransformerTime time =
          study::transformer_step(words.model, run, machine, network, timeline.wanted()).value();
      timeline.write();
      if (whole_us == 0) whole_us = time.step_us;
      text += base::format("{:<35} {:<11} {:>9.1f} {:>9.1f} {:>9.1f} {:>10.1f} {:>9.1f} {:>8.1f} {:>10.1f} {:>7.2f}x\n",
                           network.name, way, time.step_us * 1e-3, time.bound_us * 1e-3, time.bubble_us * 1e-3,
                           time.layer.forward_us + time.layer.backward_us, time.layer.exposed_us(),
                           time.gradient_exposed_us * 1e-3, time.TFLOPs(), whole_us / time.step_us);
      list.push_back(transformer_json(network, way, time));
    }
  }
  text += base::format(
      "layer, exposed: of one layer and micro-batch, us; grads: gradients' all-reduces that nothing hides\n{}\n",
      machine_line(machine));
  write_result(with_schema("sim_graph_transformer", std::move(list)), text, words.json).or_throw();
  return 0;
}

int sim_graph_moe(const MoeWords& words) {
  const spec::Machine machine = spec::find_machine(words.machine);
  if (words.chunks < 2)
    throw_error(Errc::invalid_argument, base::format("--chunks is {}, wanted at least 2", words.chunks));
  std::string text =
      base::format("{:<35} {:<11} {:>9} {:>9} {:>10} {:>11} {:>10} {:>9} {:>9} {:>8} {:>9} {:>7} {:<6}\n", "network",
                   "transfers", "layer us", "bound us", "compute us", "dispatch us", "combine us", "exposed",
                   "imbalance", "sent MB", "copies MB", "gain", "way");
  Json list = Json::array();
  for (const study::Network& network : networks_of(words.network)) {
    double whole_us = 0;
    study::MoeRun run = moe_run_of(words, network);
    for (const char* way : {"whole", "overlapped", "free"}) {
      run.chunks = way == std::string("overlapped") ? words.chunks : 1;
      run.is_ideal = way == std::string("free");
      Timeline timeline(words, way);
      const study::MoeTime time = study::moe_layer(words.model, run, machine, network, timeline.wanted()).value();
      timeline.write();
      if (whole_us == 0) whole_us = time.layer_us;
      text += base::format(
          "{:<35} {:<11} {:>9.1f} {:>9.1f} {:>10.1f} {:>11.1f} {:>10.1f} {:>9.1f} {:>9.2f} {:>8.1f} {:>9.1f} {:>6.2f}x "
          "{:<6}\n",
          network.name, way, time.layer_us, time.bound_us, time.compute_us, time.dispatch_us, time.combine_us,
          time.exposed_us(), time.imbalance, time.sent_bytes * 1e-6, time.copy_bytes * 1e-6, whole_us / time.layer_us,
          time.algorithm);
      list.push_back(moe_json(network, way, run, time));
    }
  }
  text += base::format(
      "sent: by a rank to others in dispatch, mean, a row {}; copies: with a row for each expert of a token\n{}\n",
      words.run.is_row_per_copy ? "for each expert of a token" : "to each rank that has an expert of a token",
      machine_line(machine));
  write_result(with_schema("sim_graph_moe", std::move(list)), text, words.json).or_throw();
  return 0;
}

int sim_graph_co2(const Co2Words& words) {
  const spec::Machine machine = spec::find_machine(words.machine);
  std::string text =
      base::format("{:<35} {:<10} {:>6} {:>11} {:>11} {:>13} {:>10} {:>11}  {}\n", "network", "rule", "groups",
                   "round ms", "exposed ms", "all-reduce ms", "update ms", "efficiency", "algorithm");
  Json list = Json::array();
  const std::vector<study::OuterRule> rules = rules_of(words.rule);
  for (const study::Network& network : networks_of(words.network)) {
    for (const study::OuterRule rule : rules) {
      study::Co2Run run = words.run;
      run.rule = rule;
      const std::string_view name = study::kOuterRules[static_cast<size_t>(rule)];
      Timeline timeline(words, "overlapped");
      const study::Co2Time time = study::co2_training(run, machine, network, timeline.wanted()).value();
      timeline.write();
      text += base::format("{:<35} {:<10} {:>6} {:>11.2f} {:>11.2f} {:>13.2f} {:>10.2f} {:>9.1f} %  {}\n", network.name,
                           name, time.groups, time.round_us * 1e-3, time.exposed_us() * 1e-3, time.all_reduce_us * 1e-3,
                           time.pass_us * 1e-3, time.efficiency * 100, time.algorithm);
      Json one = Json::object();
      one.set("network", network.name).set("gpus", network.ranks).set("groups", time.groups).set("rule", name);
      one.set("round_us", time.round_us).set("exposed_us", time.exposed_us()).set("compute_us", time.compute_us);
      one.set("all_reduce_us", time.all_reduce_us).set("update_us", time.pass_us).set("bound_us", time.bound_us);
      one.set("efficiency", time.efficiency).set("algorithm", time.algorithm);
      list.push_back(std::move(one));
    }
  }
  text += "efficiency: steps per second over those of a group that exchanges nothing\n" + machine_line(machine) + "\n";
  write_result(with_schema("sim_graph_co2", std::move(list)), text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
