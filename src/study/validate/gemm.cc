// V1, V2, V5: fits to measured kernels and collectives.
#include <algorithm>
#include <cmath>
#include <map>

#include "overlace/error.h"
#include "src/study/network/curve.h"
#include "src/study/validate/figures.h"

namespace overlace::study {

std::vector<GemmPoint> gemm_points(const Golden& table) {
  std::vector<GemmPoint> points;
  for (size_t i = 0; i < table.rows(); ++i)
    points.push_back(
        {{table.integer(i, "m"), table.integer(i, "n"), table.integer(i, "k")}, table.number(i, "ms") * 1e3});
  return points;
}

namespace {

/// Peak rates: the longer of operations and bytes.
double peak_us(const GemmShape& shape, const GemmMachine& machine) {
  const double m = static_cast<double>(shape.m), n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
  return std::max(2 * m * n * k / (machine.tflops * 1e6), 2 * (m * k + n * k + m * n) / (machine.hbm_GBps * 1e3));
}

void held_out_gemm(const std::string& name, const GemmMachine& machine, const Golden& table, double most_mean,
                   Rows* rows) {
  const std::vector<GemmPoint> all = gemm_points(table);
  if (all.size() < 12)
    throw_error(Errc::corrupt, "validate: the table of GEMMs of " + name + " has fewer than 12 rows");
  std::vector<GemmPoint> seen, held_out;
  for (size_t i = 0; i < all.size(); ++i) (i % (all.size() / 2) % 2 == 0 ? seen : held_out).push_back(all[i]);
  const GemmConstants constants = fit_gemm(machine, seen).value();
  Errors errors, baseline;
  for (const GemmPoint& point : held_out) {
    errors.add(best_gemm_time(point.shape, machine, constants)->time_us(), point.time_us);
    baseline.add(peak_us(point.shape, machine), point.time_us);
  }
  rows->push_back({"V1", "GEMM " + name + ", held-out points: mean error", "%", kNone, errors.mean(), 0, most_mean,
                   baseline.mean()});
  rows->push_back(
      {"V1", "GEMM " + name + ", held-out points: largest error", "%", kNone, errors.largest, 0, 15, baseline.largest});
}

}  // namespace

void validate_gemm(const std::string& golden, Rows* rows) {
  held_out_gemm("A100", kA100, load(golden, "llmcompass/gemm_a100.csv"), 5, rows);
  held_out_gemm("MI210", kMi210, load(golden, "llmcompass/gemm_mi210.csv"), 6, rows);
}

void validate_all_reduce(const std::string& golden, Rows* rows) {
  // First sizes of what looks like one protocol: NCCL changes protocol and channels with the size.
  const std::vector<double> starts = {0, 2048, 131072, 1048576, 16777216};
  constexpr double kAlphaUs = 85, kBusGBps = 230, kPeakGBps = 300;
  const Golden table = load(golden, "llmcompass/all_reduce_a100x4.csv");
  std::vector<double> bytes, us;
  for (size_t i = 0; i < table.rows(); ++i) {
    bytes.push_back(table.number(i, "bytes"));
    us.push_back(table.number(i, "us"));
  }
  const ProtocolCurve curve = fit_protocols(bytes, us, starts);
  Errors errors, large, peak, large_peak;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double moved = 1.5 * bytes[i];  // 2 (n - 1) / n
    errors.add(curve.us(bytes[i]), us[i]);
    peak.add(moved / (kPeakGBps * 1e3), us[i]);
    if (bytes[i] < starts.back()) continue;
    large.add(kAlphaUs + moved / (kBusGBps * 1e3), us[i]);
    large_peak.add(moved / (kPeakGBps * 1e3), us[i]);
  }
  rows->push_back({"V2", "all-reduce 4x A100, five protocol lines: largest error", "%", kNone, errors.largest, 0, 10,
                   peak.largest});
  rows->push_back({"V2", "all-reduce from 16 MiB, 85 us + bytes / 230 GB/s: mean error", "%", kNone, large.mean(), 0, 2,
                   large_peak.mean()});
}

void validate_sm_copy(const std::string& golden, Rows* rows) {
  const Golden table = load(golden, "atlahs/sm_copy_gh200.csv");
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> primitives;
  for (size_t i = 0; i < table.rows(); ++i) {
    auto& [bytes, ns] = primitives[table.text(i, "primitive")];
    bytes.push_back(table.number(i, "bytes"));
    ns.push_back(table.number(i, "ns"));
  }
  for (const auto& [name, points] : primitives) {
    const auto& [bytes, ns] = points;
    if (bytes.size() < 2) throw_error(Errc::corrupt, "validate: " + name + " has fewer than two sizes");
    const Line line = fit_line(bytes, ns);
    const double largest_rate = bytes.back() / ns.back();
    Errors errors, baseline;
    for (size_t i = 0; i < bytes.size(); ++i) {
      errors.add(line.at(bytes[i]), ns[i]);
      baseline.add(bytes[i] / largest_rate, ns[i]);
    }
    rows->push_back({"V5", "SM copy GH200, " + name + ": largest error of a line", "%", kNone, errors.largest, 0, 10,
                     baseline.largest});
  }
}

}  // namespace overlace::study
