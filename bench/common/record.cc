#include "bench/common/record.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "bench/common/device.h"
#include "src/base/statistics.h"

namespace overlace::bench {

using base::Json;

Json time_json(const std::vector<double>& samples_us) {
  Json all = Json::array();
  for (const double one : samples_us) all.push_back(one);
  Json time = Json::object();
  time.set("median", base::median(samples_us)).set("p10", base::percentile(samples_us, 10));
  time.set("p90", base::percentile(samples_us, 90));
  time.set("min", *std::min_element(samples_us.begin(), samples_us.end()));
  return time.set("samples", all);
}

Json new_record(const RecordHead& head, const std::string& workload, Json shape, const std::string& competitor) {
  Json record = Json::object();
  record.set("schema", "overlace.bench/1").set("run", head.run.id).set("date", utc_now()).set("git", head.run.git);
  record.set("command", head.run.command).set("machine", head.machine).set("workload", workload);
  return record.set("case", std::move(shape)).set("competitor", competitor);
}

base::Status append_records(const RunFacts& run, const std::vector<Json>& records) {
  if (run.out.empty()) return {};
  std::string text;
  for (const Json& record : records) {
    std::string line = record.dump();
    uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
    for (const char c : line) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    line.pop_back();
    text += line + base::format(",\"id\":\"{:016x}\"}}\n", hash);
  }
  std::ofstream out(run.out, std::ios::app);
  out << text << std::flush;
  return out ? base::Status() : base::error(Errc::io, "--out: {} cannot be written", run.out);
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

int usable_cores() {
  cpu_set_t allowed;
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

std::string kernel_name() {
  struct utsname name {};
  return ::uname(&name) == 0 ? std::string(name.sysname) + " " + name.release : "unknown";
}

Json machine_json(Device& device, int ranks) {
  Json machine = Json::object();
  if (device.is_gpu()) {
    const DeviceInfo gpu = device.describe();
    const std::string gpus = base::format("{} x {}", ranks, gpu.name);
    machine.set("name", gpus).set("gpus", gpus).set("driver", gpu.driver).set("cuda", gpu.cuda);
    machine.set("l2_bytes", gpu.l2_bytes).set("power_limit_w", gpu.power_limit_w);
    machine.set("cpu", cpu_name());
  } else {
    machine.set("name", base::format("{}, {} cores", cpu_name(), usable_cores())).set("cpu", cpu_name());
    machine.set("cores", usable_cores());
    double load = 0;
    if (::getloadavg(&load, 1) == 1) machine.set("load", load);
  }
  return machine.set("kernel", kernel_name());
}

}  // namespace overlace::bench
