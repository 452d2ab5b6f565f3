#include "cli/sim_graph.h"

#include <vector>

#include "cli/run_outputs.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/sim/workload/dlrm.h"

namespace overlace::cli {
namespace {

using base::format;
using base::Json;

/// Gains that were published for such steps, in per cent (arXiv 2305.06942, and an earlier version of it).
constexpr double kPublished[] = {21, 10};

std::string place_of(double gain, double least, double most) {
  return gain < least ? "below" : gain > most ? "above" : "inside";
}

Json band_of(const std::string& network, const sim::DlrmMachine& machine, std::string* text) {
  const sim::DlrmBand band = sim::dlrm_band(machine).value();
  const double edges[] = {band.least_forward * 100, band.most_forward * 100, band.least * 100, band.most * 100};
  Json one = Json::object();
  one.set("network", network).set("all_to_all_GBps", machine.all_to_all_GBps);
  one.set("forward_least", edges[0]).set("forward_most", edges[1]).set("least", edges[2]).set("most", edges[3]);
  *text += format("{:<8} {:>10.1f}   {:>5.1f} to {:>5.1f} %   {:>5.1f} to {:>5.1f} %  ", network,
                  machine.all_to_all_GBps, edges[0], edges[1], edges[2], edges[3]);
  for (const double gain : kPublished)
    *text += format(" {} %: {} the first, {} the second.", gain, place_of(gain, edges[0], edges[1]),
                    place_of(gain, edges[2], edges[3]));
  *text += "\n";
  return one;
}

Json step_of(const std::string& network, const sim::DlrmMachine& machine, const GraphWords& words, std::string* text) {
  sim::DlrmModel model;
  if (words.tables != 0) model.tables = words.tables;
  if (words.local_batch != 0) model.local_batch = words.local_batch;
  const sim::DlrmTime time = sim::dlrm_step(model, machine).value();
  Json one = Json::object();
  one.set("network", network).set("tables", model.tables).set("local_batch", model.local_batch);
  one.set("gather_us", time.gather_us).set("all_to_all_us", time.all_to_all_us).set("mlp_us", time.mlp_us);
  one.set("all_reduce_us", time.all_reduce_us).set("unfused_us", time.unfused_us);
  one.set("forward_fused_us", time.forward_fused_us).set("fused_us", time.fused_us);
  *text +=
      format("{:<8} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f} {:>7.1f} %\n", network, time.gather_us,
             time.all_to_all_us, time.mlp_us, time.all_reduce_us, time.unfused_us, time.fused_us, time.gain() * 100);
  return one;
}

}  // namespace

int sim_graph(const GraphWords& words) {
  if (words.graph != "dlrm") throw_error(Errc::invalid_argument, format("graph is {}, wanted dlrm", words.graph));
  const bool is_band = words.tables == 0 && words.local_batch == 0;
  std::vector<std::string> networks = {words.network};
  if (words.network == "all") networks = {"torus", "ring", "rail"};
  std::string text = is_band ? format("{:<8} {:>10}   {:<18} {:<18} published gains\n", "network", "GB/s",
                                      "fused forward", "both ways")
                             : format("{:<8} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9}\n", "network", "gather us",
                                      "a2a us", "MLP us", "AR us", "unfused us", "fused us", "gain");
  Json list = Json::array();
  for (const std::string& network : networks) {
    sim::DlrmMachine machine;
    machine.all_to_all_GBps = sim::dlrm_all_to_all_GBps(network).value();
    list.push_back(is_band ? band_of(network, machine, &text) : step_of(network, machine, words, &text));
  }
  print(words.json == "-" ? list.dump(2) + "\n" : text).or_throw();
  if (!words.json.empty() && words.json != "-") base::write_file(words.json, list.dump(2) + "\n").or_throw();
  return 0;
}

}  // namespace overlace::cli
