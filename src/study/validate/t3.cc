// V7: T3 (arXiv 2401.16677). Two constants are fitted to its speed-ups: a fit, not a prediction.
#include "src/study/t3/t3.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "src/study/gemm/minimize.h"
#include "src/study/t3/summary.h"
#include "src/study/validate/figures.h"

namespace overlace::study {
namespace {

/// What would be seen if memory were free: every configuration is the ideal overlap, no traffic is saved.
double baseline_of(const std::string& figure, const t3::Summary& summary) {
  if (figure.ends_with("_geomean") && !figure.starts_with("ideal")) return summary.ideal.geomean;
  if (figure.ends_with("_max") && !figure.starts_with("ideal")) return summary.ideal.most;
  return kNone;
}

/// A ring's reduce-scatter is a line in the bytes; how far a measured library is from any such line.
void ring_against_nccl(const std::string& golden, Rows* rows) {
  const Golden table = load(golden, "nccl/reduce_scatter_h200x4.csv");
  std::vector<double> bytes, us;
  for (size_t i = 0; i < table.rows(); ++i) {
    bytes.push_back(table.number(i, "bytes"));
    us.push_back(table.number(i, "us"));
  }
  const Line line = fit_line(bytes, us);
  t3::Machine machine;
  machine.link_latency_us = line.floor / 3;
  machine.link_GBps = 0.75 / line.slope / 1e3;
  machine.dram_GBps = 4800;
  t3::Options options;
  options.comm_cost = 1;
  Errors errors, baseline;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const t3::SubLayer layer = {"", "", 1024, static_cast<int64_t>(bytes[i] / 2048), 64, 4};
    errors.add(t3::simulate(layer, t3::Config::sequential, machine, options)->rs_us, us[i]);
    baseline.add(0.75 * bytes[i] / 450e3, us[i]);
  }
  rows->push_back({"V7", "NCCL's reduce-scatter as T3's ring, link fitted to it, 16 to 256 MiB: largest error", "%",
                   kNone, errors.largest, 0, 10, baseline.largest});
}

}  // namespace

void validate_t3(const std::string& golden, Rows* rows) {
  const Golden table = load(golden, "t3/figures.csv");
  const t3::Summary summary = t3::summarize(t3::Machine{}, t3::Options{}).value();
  const std::map<std::string, double> ours = t3::figures(summary);
  for (size_t i = 0; i < table.rows(); ++i) {
    const std::string& figure = table.text(i, "figure");
    const auto found = ours.find(figure);
    if (found == ours.end()) throw_error(Errc::corrupt, "t3/figures.csv: no figure " + figure);
    std::string name = figure.substr(0, figure.find("_percent"));
    const char* const unit = name.size() < figure.size() ? "%" : "";
    std::replace(name.begin(), name.end(), '_', ' ');
    rows->push_back({"V7", "T3: " + name, unit, table.number(i, "published"), found->second, table.number(i, "least"),
                     table.number(i, "most"), baseline_of(figure, summary), table.integer(i, "must") == 1});
  }
  ring_against_nccl(golden, rows);
}

}  // namespace overlace::study
