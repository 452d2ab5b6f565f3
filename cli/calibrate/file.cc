#include "cli/calibrate/file.h"

#include <algorithm>
#include <cstdlib>

#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/base/statistics.h"
#include "src/spec/fusable.h"

namespace overlace::cli {
namespace {

using base::Json;

Json number(double value, int digits) {
  return Json(std::strtod(base::format("{:.{}g}", value, digits).c_str(), nullptr));
}

Json residuals_json(const std::vector<Residual>& residuals) {
  Json out = Json::object();
  for (const Residual& one : residuals) {
    Json entry = Json::object();
    entry.set("points", one.points).set("held_out", one.held_out);
    if (one.points > 0) entry.set("fit_p50", number(one.fit_p50, 3));
    if (one.held_out > 0)
      entry.set("held_out_p50", number(one.held_out_p50, 3)).set("held_out_max", number(one.held_out_max, 3));
    if (one.spread > 0) entry.set("spread", number(one.spread, 2));
    out.set(one.probe, std::move(entry));
  }
  return out;
}

/// By probe: [bytes, or M, N, K of a GEMM, or the schedule of an operator; items of a call; us of a call; us of the
/// fitted machine or null; whether it was held out; how far apart the quartiles of the samples are, of their median;
/// sums of the lead that is in both times]. First of links: ranks and bytes; of stores: CTAs and bytes; of duty: share
/// of the time, SM clock and power (0: unknown).
Json points_json(const std::vector<Point>& points, const Fit& fit) {
  Json out = Json::object();
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    Json what = number(p.bytes, 12);
    if (p.probe == Probe::gemm) what = Json::array({p.gemm.m, p.gemm.n, p.gemm.k});
    if (p.probe == Probe::operators) what = Json(p.op.to_string() + " " + plan::to_string(p.candidate));
    if (p.probe == Probe::link) what = Json::array({p.from, p.to, number(p.bytes, 12)});
    if (is_push(p.probe)) what = Json::array({p.ctas, number(p.bytes, 12)});
    if (p.probe == Probe::duty) what = Json::array({number(p.share, 3), number(p.sm_mhz, 5), number(p.watts, 4)});
    const auto& us = fit.predicted_us[i];
    const double apart = base::percentile(p.samples_us, 75) - base::percentile(p.samples_us, 25);
    Json row = Json::array({std::move(what), p.count, number(p.us(), 5), us ? number(*us, 5) : Json(), p.is_held_out,
                            number(apart / base::median(p.samples_us), 2), p.lead});
    if (out.find(name_of(p.probe)) == nullptr) out.set(name_of(p.probe), Json::array());
    for (auto& [key, list] : out.as_object())
      if (key == name_of(p.probe)) list.push_back(row);
  }
  return out;
}

/// By rank: active links to switches, elsewhere, and to each rank.
Json links_json(const std::vector<RankLinks>& links) {
  Json out = Json::array();
  for (const RankLinks& one : links) {
    Json to = Json::array();
    for (const int count : one.to_ranks) to.push_back(count);
    Json entry = Json::object();
    entry.set("switches", one.to_switches).set("elsewhere", one.elsewhere).set("ranks", std::move(to));
    out.push_back(std::move(entry));
  }
  return out;
}

/// `value` with its members a line each, as deep as `levels` says.
void write(const Json& value, int levels, int indent, std::string* out) {
  const bool is_deep = levels > 0 && ((value.is_object() && !value.as_object().empty()) ||
                                      (value.is_array() && !value.as_array().empty()));
  if (!is_deep) {
    *out += value.dump();
    return;
  }
  const std::string line = ",\n" + std::string(static_cast<size_t>(indent) + 1, ' ');
  *out += value.is_object() ? "{" : "[";
  bool is_first = true;
  const auto begin = [&] {
    *out += is_first && indent == 0 ? "" : is_first ? line.substr(1) : line;
    is_first = false;
  };
  if (value.is_object()) {
    for (const auto& [key, member] : value.as_object()) {
      begin();
      *out += Json(key).dump() + ": ";
      write(member, levels - 1, indent + 1, out);
    }
  } else {
    for (const Json& member : value.as_array()) {
      begin();
      write(member, levels - 1, indent + 1, out);
    }
  }
  *out += value.is_object() ? "}" : "]";
}

}  // namespace

base::Status describe_gpu(const runtime::CudaDevice& gpu, spec::Machine* machine) {
  if (gpu.compute_capability <= 0)
    return base::error(Errc::not_supported, "GPU 0: CUDA says compute capability {}, wanted that of a GPU, as 90",
                       gpu.compute_capability);
  machine->sms = gpu.sms;
  machine->compute_capability = gpu.compute_capability;
  if (!spec::has_fused_kernels(*machine)) machine->transport.tma_GBps = {};
  machine->memory.l2_bytes = gpu.l2_bytes;
  machine->cuda = base::format("{}.{}", gpu.version / 1000, gpu.version % 1000 / 10);
  return {};
}

double load_average() {
  double last_minute = 0;
  return ::getloadavg(&last_minute, 1) == 1 ? last_minute : 0;
}

double core_mhz() {
  const base::Result<std::string> info = base::read_file("/proc/cpuinfo");
  if (!info.ok()) return 0;
  const std::string &text = *info, key = "cpu MHz";
  double sum = 0, cores = 0;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    const size_t colon = text.find(':', at);
    if (colon == std::string::npos) break;
    sum += std::strtod(text.c_str() + colon + 1, nullptr);
    ++cores;
  }
  return cores > 0 ? sum / cores : 0;
}

std::string machine_text(const Fit& fit, const std::vector<Point>& points, const Circumstances& around) {
  Json machine = Json::parse(spec::to_json(fit.machine), "machine").value();
  Json notes = Json::object();
  size_t samples = 0;
  for (const Point& p : points) samples = std::max(samples, p.samples_us.size());
  notes.set("when", around.when).set("seconds", number(around.seconds, 3));
  notes.set("load", Json::array({number(around.load_before, 3), number(around.load_after, 3)}));
  if (around.core_mhz > 0) notes.set("core_mhz", number(around.core_mhz, 5));
  notes.set("dtype", around.dtype).set("gemm", around.gemm).set("samples", static_cast<int64_t>(samples));
  notes.set("time", fit.machine.is_gpu ? "median of the slowest rank" : "minimum of the slowest rank");
  notes.set("residuals", residuals_json(fit.residuals)).set("points", points_json(points, fit));
  if (!around.links.empty()) notes.set("links", links_json(around.links));
  machine.set("x-calibration", std::move(notes));
  return machine_file_text(machine);
}

std::string machine_file_text(const Json& machine) {
  std::string out;
  write(machine, 2, 0, &out);
  return out + "\n";
}

}  // namespace overlace::cli
