#include "src/context/machine.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/env.h"
#include "src/base/format.h"
#include "src/base/log.h"
#include "src/spec/fusable.h"
#include "src/spec/machine.h"

namespace overlace::context {
namespace {

using base::Result;
using spec::Machine;

Result<Machine> read(const std::string& name) {
  try {
    return spec::find_machine(name);
  } catch (...) {
    return base::status_of_current_exception();
  }
}

/// "200MB/s,50GFLOP/s": of link and GEMM; none where the text is no such thing.
std::optional<spec::MachineRates> rates_of(const std::string& text, const Site& site) {
  const size_t comma = text.find(',');
  if (comma == std::string::npos || text.ends_with(".json")) return std::nullopt;
  constexpr std::string_view kUnit = "FLOP/s", kPrefixes = "KMGT";
  std::string flops = text.substr(comma + 1);
  if (!flops.ends_with(kUnit)) return std::nullopt;
  flops.resize(flops.size() - kUnit.size());
  double scale = 1;
  if (const size_t power = flops.empty() ? std::string_view::npos : kPrefixes.find(flops.back());
      power != std::string_view::npos) {
    for (size_t i = 0; i <= power; ++i) scale *= 1e3;
    flops.pop_back();
  }
  double value = 0;
  const auto [end, code] = std::from_chars(flops.data(), flops.data() + flops.size(), value);
  if (code != std::errc() || end != flops.data() + flops.size() || !(value > 0) || !std::isfinite(value * scale))
    return std::nullopt;
  const LinkOptions link = LinkOptions::parse(text.substr(0, comma) + ",0us");
  return spec::MachineRates{site.is_gpu, link.bytes_per_s, value * scale, site.hosts};
}

/// Whether files say anything of these ranks: they are of one host, and of links as they are.
bool has_files(const Site& site) { return site.hosts == 1 && site.emulated_bytes_per_s == 0; }

/// The machine that somebody named; none where it says nothing of these ranks.
Result<std::optional<Found>> named(const Site& site, const std::string& name, std::string_view from) {
  const std::string origin = base::format("{}, {}", name, from);
  try {
    if (const auto rates = rates_of(name, site)) return std::optional(Found{spec::rated_machine(*rates), origin});
  } catch (...) {
    const base::Status bad = base::status_of_current_exception();
    return base::invalid_argument("{} is \"{}\": {}", from, name, bad.message());
  }
  Result<Machine> machine = read(name);
  if (!machine.ok()) {
    return base::invalid_argument("{} is \"{}\": {}; or rates of link and GEMM such as 50GB/s,2TFLOP/s", from, name,
                                  machine.status().message());
  }
  if (!has_files(site)) return std::optional<Found>();
  if (machine->is_gpu == site.is_gpu) return std::optional(Found{std::move(*machine), origin});
  base::warn_once("machine", base::format("{} is \"{}\", a machine of {}; it says nothing of {}", from, name,
                                          machine->is_gpu ? "GPUs" : "CPU ranks", site.is_gpu ? "GPUs" : "CPU ranks"));
  return std::optional<Found>();
}

/// The newest file of these GPUs and their number.
std::optional<Found> calibrated(const Site& site, const std::string& folder) {
  std::optional<Found> best;
  std::error_code error;
  if (folder.empty()) return best;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".json")) continue;
    Result<Machine> machine = read(path);
    if (!machine.ok()) {
      base::warn_once("machine", machine.status().message() + "; the file is passed over");
      continue;
    }
    if (!machine->is_gpu || machine->ranks != site.ranks || !is_same_device(*machine, site.device)) continue;
    if (best && std::pair(best->machine.date, best->origin) >= std::pair(machine->date, path)) continue;
    best = Found{std::move(*machine), path};
  }
  if (best) best->origin += ", calibrated";
  return best;
}

/// The shipped machine of the same GPUs before others; of those that of a team of this size, else the largest team's,
/// which is fitted to records of smaller ones too (docs/design/planner.md).
Found shipped(const Site& site) {
  const auto distance = [&](const Machine& machine) {
    return std::tuple(!is_same_device(machine, site.device), machine.ranks != site.ranks, -machine.ranks);
  };
  std::vector<Machine> known;
  for (const std::string& name : spec::shipped_machines()) known.push_back(spec::find_machine(name));
  const auto is_part = [&](const Machine& machine) {  // of another: for its few rows
    return std::any_of(known.begin(), known.end(),
                       [&](const Machine& other) { return other.small_m_machine == machine.name; });
  };
  std::optional<Machine> best;
  for (Machine& machine : known)
    if (machine.is_gpu && !is_part(machine) && (!best || distance(machine) < distance(*best))) best = machine;
  const std::string what = best->device.substr(0, best->device.find(','));
  std::string origin = base::format("{}, shipped for {} x {}", best->name, what, best->ranks);
  if (!is_same_device(*best, site.device))
    origin += base::format("; there is none for {}", site.device.empty() ? "this GPU" : site.device);
  return {std::move(*best), std::move(origin)};
}

Found unknown(const Site& site, const std::optional<spec::MachineRates>& rates) {
  if (rates) return {spec::rated_machine(*rates), "measured rates of link and GEMM"};
  const spec::MachineRates known = {site.is_gpu, site.emulated_bytes_per_s, 0, site.hosts};
  std::string why = site.hosts > 1                  ? base::format("{} hosts", site.hosts)
                    : site.emulated_bytes_per_s > 0 ? "an emulated link"
                                                    : "CPU ranks";
  return {spec::rated_machine(known), "no machine file for " + why};
}

base::Result<Found> find_figures(const Site& site, const Wanted& wanted) {
  const std::pair<const std::string&, std::string_view> names[] = {{wanted.argument, "the argument machine"},
                                                                   {wanted.variable, "OVERLACE_MACHINE"}};
  for (const auto& [name, from] : names) {
    if (name.empty()) continue;
    Result<std::optional<Found>> found = named(site, name, from);
    if (!found.ok()) return found.status();
    if (*found) return std::move(**found);
  }
  if (!site.is_gpu || !has_files(site)) return unknown(site, wanted.rates);
  if (std::optional<Found> found = calibrated(site, wanted.folder)) return std::move(*found);
  return shipped(site);
}

}  // namespace

int capability_of_team(Runtime& runtime) {
  std::vector<int> capabilities;
  for (int rank = 0; rank < runtime.world().size(); ++rank)
    capabilities.push_back(runtime.caps(rank).compute_capability);
  return spec::capability_of_team(capabilities);
}

bool is_same_device(const Machine& machine, const std::string& device) {
  return !device.empty() && machine.device.substr(0, machine.device.find(',')) == device;
}

base::Result<Found> find_machine(const Site& site, const Wanted& wanted) {
  Result<Found> found = find_figures(site, wanted);
  if (found.ok() && site.is_gpu) found->machine.compute_capability = site.compute_capability;
  return found;
}

std::string machines_folder() {
  const std::string folder = base::env().cache_folder();
  return folder.empty() ? std::string() : folder + "/machines";
}

}  // namespace overlace::context
