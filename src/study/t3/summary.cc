#include "src/study/t3/summary.h"

#include <algorithm>
#include <cmath>

namespace overlace::study::t3 {
namespace {

class Geomean {
 public:
  void add(double value) {
    logs_ += std::log(value);
    most_ = std::max(most_, value);
    least_ = count_ == 0 ? value : std::min(least_, value);
    ++count_;
  }
  double mean() const { return std::exp(logs_ / count_); }
  double most() const { return most_; }
  double least() const { return least_; }

 private:
  double logs_ = 0, most_ = 0, least_ = 0;
  int count_ = 0;
};

}  // namespace

base::Result<Summary> summarize(const Machine& machine, const Options& options) {
  Geomean ideal, t3, mca, split_ideal, split_8, split_16, traffic, rs_reads, writes, gemm_reads;
  Summary summary;
  for (const SubLayer& layer : main_sub_layers()) {
    Result results[kNumConfigs];
    for (int i = 0; i < kNumConfigs; ++i) {
      const base::Result<Result> result = simulate(layer, static_cast<Config>(i), machine, options);
      if (!result.ok()) return result.status();
      results[i] = *result;
    }
    const auto of = [&](Config config) -> const Result& { return results[static_cast<int>(config)]; };
    const Result& serial = of(Config::sequential);
    const auto speedup = [&](Config config) { return serial.total_us / of(config).total_us; };
    ideal.add(speedup(Config::ideal_overlap));
    t3.add(speedup(Config::t3));
    mca.add(speedup(Config::t3_mca));
    if (layer.ranks == 8) {
      split_ideal.add(serial.total_us / std::max(serial.gemm_us, serial.rs_us + serial.ag_us));
      split_8.add(speedup(Config::cu_split_8));
      split_16.add(speedup(Config::cu_split_16));
    }
    const Traffic before = serial.bytes, after = of(Config::t3).bytes;
    traffic.add(after.total() / before.total());
    rs_reads.add(before.rs_rd / after.rs_rd);
    writes.add((after.gemm_wr + after.rs_wr) / (before.gemm_wr + before.rs_wr));
    gemm_reads.add(before.gemm_rd / after.gemm_rd);
    const double missing = 1 - speedup(Config::t3) / speedup(Config::ideal_overlap);
    if (layer.name == "OP") summary.op_short = std::max(summary.op_short, missing);
    if (layer.name.starts_with("FC") && layer.ranks == 8) summary.fc_short = std::max(summary.fc_short, missing);
  }
  summary.ideal = {ideal.mean(), ideal.most()};
  summary.t3 = {t3.mean(), t3.most()};
  summary.t3_mca = {mca.mean(), mca.most()};
  summary.split_ideal = split_ideal.mean();
  summary.split_8 = split_8.mean();
  summary.split_16 = split_16.mean();
  summary.traffic_geomean = traffic.mean();
  summary.traffic_least = traffic.least();
  summary.rs_reads = rs_reads.mean();
  summary.writes = writes.mean();
  summary.gemm_reads_most = gemm_reads.most();
  return summary;
}

std::map<std::string, double> figures(const Summary& s) {
  return {{"ideal_geomean", s.ideal.geomean},
          {"ideal_max", s.ideal.most},
          {"t3_geomean", s.t3.geomean},
          {"t3_max", s.t3.most},
          {"t3_mca_geomean", s.t3_mca.geomean},
          {"t3_mca_max", s.t3_mca.most},
          {"cu_split_ideal", s.split_ideal},
          {"cu_split_8", s.split_8},
          {"cu_split_16", s.split_16},
          {"traffic_geomean_percent", (s.traffic_geomean - 1) * 100},
          {"traffic_max_percent", (s.traffic_least - 1) * 100},
          {"rs_reads_ratio", s.rs_reads},
          {"writes_percent", (s.writes - 1) * 100},
          {"gemm_reads_max_ratio", s.gemm_reads_most},
          {"op_short_of_ideal_percent", s.op_short * 100},
          {"fc_short_of_ideal_percent", s.fc_short * 100}};
}

base::Result<std::vector<Sensitivity>> sensitivity() {
  std::vector<Sensitivity> all;
  for (const double dram : {700.0, 850.0})
    for (const double update : {1.0, 1.5, 2.0})
      for (const double comm : {1.0, 1.5, 2.0}) {
        Machine machine;
        machine.dram_GBps = dram;
        Options options;
        options.update_cost = update;
        options.comm_cost = comm;
        const base::Result<Summary> summary = summarize(machine, options);
        if (!summary.ok()) return summary.status();
        all.push_back({update, comm, dram, *summary});
      }
  return all;
}

}  // namespace overlace::study::t3
