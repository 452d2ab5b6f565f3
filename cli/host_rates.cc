#include "cli/host_rates.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "cli/calibrate/file.h"
#include "cli/run/outputs.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/base/status.h"
#include "src/io/alignment.h"
#include "src/spec/machine.h"

namespace overlace::cli {
namespace {

using base::Json;

constexpr int64_t kCopyBytes = int64_t{64} << 20;
constexpr const char* kDiskCommand = "overlace gnn diskbench DIR --machine FILE";
constexpr const char* kLinkCommand = "overlace calibrate on its GPUs";

std::string origin_of(const spec::Machine& machine, spec::Source source) {
  return base::format("{}, machine {}", spec::name_of(source), machine.name);
}

std::string none_in(const spec::Machine& machine, std::string_view what, std::string_view command) {
  return base::format("machine {} has no figures of the {}, which {} measures", machine.name, what, command);
}

double copy_GBps(const spec::Curve& us, int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  return size / us.at(size) * 1e-3;
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// What the file has, or a machine without figures.
Json machine_file(const std::string& path) {
  if (is_there(path)) return Json::parse(base::read_file(path).value(), path).value();
  spec::Machine machine;
  machine.name = std::filesystem::path(path).stem().string();
  return Json::parse(spec::to_json(machine)).value();
}

}  // namespace

HostRate disk_rate(const spec::Machine& machine, int64_t request_bytes, double assumed_GBps) {
  const spec::Curve& read = machine.storage.read_GBps;
  if (read.empty()) return {assumed_GBps, "assumed: " + none_in(machine, "disk", kDiskCommand)};
  return {read.at(static_cast<double>(request_bytes)), origin_of(machine, read.source)};
}

HostRate link_rate(const spec::Machine& machine, double assumed_GBps) {
  const spec::Curve& us = machine.host.to_device_us;
  if (us.empty()) return {assumed_GBps, "assumed: " + none_in(machine, "host link", kLinkCommand)};
  return {copy_GBps(us, kCopyBytes), origin_of(machine, us.source)};
}

spec::Machine::Storage storage_of(const io::StorageFigures& figures) {
  const spec::Source source = figures.is_direct ? spec::Source::measured : spec::Source::prior;
  std::map<int64_t, double> read;
  spec::Machine::Storage out;
  for (const auto* list : {&figures.in_order, &figures.at_random})
    for (const io::StoragePoint& p : *list) {
      double& best = read[p.request_bytes];
      best = std::max(best, p.GBps());
      if (p.request_bytes == io::kPageBytes) out.read_kIOPS.value = std::max(out.read_kIOPS.value, p.kIOPS());
    }
  for (const auto& [bytes, GBps] : read) out.read_GBps.points.push_back({static_cast<double>(bytes), GBps});
  out.read_GBps.source = out.read_kIOPS.source = source;
  out.write_GBps = {figures.write.GBps(), source};
  out.start_us = {figures.start_us, source};
  return out;
}

void check_storage_file(const std::string& path) {
  if (!path.ends_with(".json"))
    base::invalid_argument("--machine is {}, wanted a file that ends in .json", path).or_throw();
  if (is_there(path)) (void)spec::find_machine(path);
  check_writable("--machine", path).or_throw();
}

void write_storage(const std::string& path, const spec::Machine::Storage& storage) {
  check_storage_file(path);
  const Json before = machine_file(path);
  spec::Machine machine = spec::machine_from_json(before.dump(), path);
  machine.storage = storage;
  Json after = Json::parse(spec::to_json(machine)).value();
  for (const auto& [key, value] : before.as_object())
    if (key.starts_with("x-")) after.set(key, value);
  base::write_file(path, machine_file_text(after)).or_throw();
}

std::string storage_text(const spec::Machine& machine) {
  const spec::Machine::Storage& s = machine.storage;
  if (s.read_GBps.empty()) return none_in(machine, "disk", kDiskCommand);
  std::string out = base::format("reads {:.3f} GB/s in requests of 1 MiB, {:.3f} in pages", s.read_GBps.at(1 << 20),
                                 s.read_GBps.at(io::kPageBytes));
  if (s.write_GBps.value > 0) out += base::format(", writes {:.3f}", s.write_GBps.value);
  return out + "; " + origin_of(machine, s.read_GBps.source);
}

std::string host_link_text(const spec::Machine& machine) {
  const spec::Curve& us = machine.host.to_device_us;
  if (us.empty()) return none_in(machine, "host link", kLinkCommand);
  return base::format("{:.1f} GB/s to a GPU; {}", copy_GBps(us, kCopyBytes), origin_of(machine, us.source));
}

}  // namespace overlace::cli
