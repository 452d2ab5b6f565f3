#include <algorithm>
#include <cstdio>

#include "bench/common/record.h"
#include "bench/runtime/table.h"
#include "overlace/error.h"
#include "src/base/json.h"
#include "src/base/statistics.h"

namespace overlace::bench {
namespace {

using base::Json;

/// GB/s of a row of bytes, else the time itself.
double figure(const Row& row, double us) { return row.bytes > 0 ? row.bytes / us * 1e-3 : us; }

bool is_reached(const Row& row, double us) { return row.bytes > 0 ? figure(row, us) >= row.target : us <= row.target; }

void print(const Row& row) {
  const char* unit = row.bytes > 0 ? "GB/s" : "us";
  if (row.ours_us.empty()) {
    std::printf("%-18s %-52s %10s  %s\n", row.name.c_str(), row.what.c_str(), row.is_verified ? "-" : "WRONG",
                row.note.c_str());
    return;
  }
  const double ours = base::median(row.ours_us);
  const auto at = [&](double percent) { return figure(row, base::percentile(row.ours_us, percent)); };
  std::printf("%-18s %-52s %10.2f %9.2f..%-9.2f", row.name.c_str(), row.what.c_str(), figure(row, ours),
              std::min(at(10), at(90)), std::max(at(10), at(90)));
  if (row.plain_us.empty()) {
    std::printf(" %10s %7s", "-", "-");
  } else {
    const double plain = base::median(row.plain_us);
    std::printf(" %10.2f %6.1f%%", figure(row, plain), 100 * (row.bytes > 0 ? plain / ours : ours / plain));
  }
  std::printf(" %-4s", unit);
  if (row.target > 0)
    std::printf("  %s %.4g %s", row.bytes > 0 ? ">=" : "<=", row.target, is_reached(row, ours) ? "yes" : "NO");
  std::printf("%s%s\n", row.note.empty() ? "" : "  ", row.note.c_str());
}

Json clocks_of(const std::vector<std::unique_ptr<Gpu>>& gpus, bool* attested) {
  Json rows = Json::array();
  *attested = !gpus.empty();
  for (const std::unique_ptr<Gpu>& gpu : gpus) {
    const ClockSample sample = gpu->clocks();
    *attested &= sample.ok;
    Json one = Json::object();
    one.set("sm_mhz", sample.sm_mhz).set("memory_mhz", sample.memory_mhz).set("watts", sample.watts);
    one.set("celsius", sample.celsius).set("throttle", sample.throttle);
    rows.push_back(one);
  }
  return rows;
}

const char* status_of(const Row& row, bool is_missing) {
  return !row.is_verified ? "wrong" : is_missing ? "unsupported" : "ok";
}

}  // namespace

int report(const Options& options, const std::vector<Row>& rows, const std::vector<std::unique_ptr<Gpu>>& gpus,
           int devices, const std::string& nccl_version) {
  const DeviceInfo info = gpus.empty() ? DeviceInfo{} : gpus[0]->describe();
  std::printf("runtime   %d ranks on %d x %s, driver %s, CUDA %s   median of %d, worst rank, all GPUs at once\n",
              options.ranks, devices, info.name.c_str(), info.driver.c_str(), info.cuda.c_str(), options.repetitions);
  std::printf("%-18s %-52s %10s %9s..%-9s %10s %7s\n", "", "", "overlace", "p10", "p90", "plain", "of it");
  int wrong = 0;
  for (const Row& row : rows) {
    print(row);
    wrong += row.is_verified ? 0 : 1;
  }
  if (gpus.empty()) return wrong;
  bool attested = false;
  const Json clocks = clocks_of(gpus, &attested);
  RecordHead head{options.run, machine_json(*gpus[0], devices)};
  head.machine.set("nccl", nccl_version);
  Json method = Json::object();
  method.set("repetitions", options.repetitions).set("n", 1).set("worst_rank", true).set("alternating", true);
  Json flags = Json::array();
  if (!attested) flags.push_back("unattested");
  if (options.ranks > devices) flags.push_back("shared_device");
  std::vector<Json> records;
  for (const Row& row : rows) {
    for (const bool is_ours : {true, false}) {
      const std::vector<double>& samples = is_ours ? row.ours_us : row.plain_us;
      if (samples.empty() && !is_ours) continue;
      Json shape = Json::object();
      shape.set("name", row.name).set("what", row.what);
      Json verify = Json::object();
      verify.set("ok", row.is_verified).set("wrong_words", row.wrong).set("oracle", "every word, by rank and index");
      Json record = new_record(head, "runtime", std::move(shape), is_ours ? "overlace" : "plain");
      record.set("team", options.ranks).set("launch", "stream");
      record.set("data", "bf16 pairs of magnitude 0.5 to 2, mixed signs, by rank and index").set("method", method);
      record.set("bytes", row.bytes).set("target", row.target).set("clocks", clocks).set("flags", flags);
      record.set("status", status_of(row, samples.empty() && !options.verify_only));
      if (!row.note.empty()) record.set("reason", row.note);
      if (is_ours) record.set("verify", verify);
      if (!samples.empty()) record.set("time_us", time_json(samples));
      records.push_back(std::move(record));
    }
  }
  append_records(options.run, records).or_throw();
  return wrong;
}

}  // namespace overlace::bench
