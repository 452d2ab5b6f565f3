// Which machine file says something of the ranks of a team.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "overlace/machine.h"
#include "overlace/runtime.h"
#include "src/base/status.h"

namespace overlace::context {

/// spec::capability_of_team of the GPUs of all ranks.
int capability_of_team(Runtime& runtime);

/// What is known of the ranks without measuring.
struct Site {
  bool is_gpu = false;
  std::string device = {};      // of a GPU: "NVIDIA H200"
  int compute_capability = 90;  // of GPUs, of all ranks together (spec::capability_of_team)
  int ranks = 1, hosts = 1;
  double emulated_bytes_per_s = 0;  // of the emulated link; 0: there is none
};

struct Found {
  spec::Machine machine;
  std::string origin;
};

/// What was asked for, and where calibrated files are.
struct Wanted {
  std::string argument = {}, variable = {};  // ContextOptions::machine, OVERLACE_MACHINE
  std::string folder = {};                   // of calibrated files, "" for none
  std::optional<spec::MachineRates> rates = {};
};

/// In the order of Context::open. Figures of whatever machine, but of GPUs the capability of the site.
/// invalid_argument where what was asked for cannot be read.
base::Result<Found> find_machine(const Site& site, const Wanted& wanted);

/// "NVIDIA H200, bf16" and "NVIDIA H200" are the same device.
bool is_same_device(const spec::Machine& machine, const std::string& device);

/// Where `overlace calibrate` puts files that find_machine finds: "machines" in OVERLACE_CACHE_DIR, else in
/// $XDG_CACHE_HOME/overlace, else in ~/.cache/overlace; "" without a home.
std::string machines_folder();

}  // namespace overlace::context
