// What `overlace doctor` finds out about the machine without opening a runtime.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace overlace::cli {

struct CpuFacts {
  std::string model;            // "unknown" where the system does not say
  int online = 0;               // of the machine
  int allowed = 0;              // by affinity
  std::optional<double> quota;  // cores' worth of time that the control group grants
  /// What may run at once: the smaller of affinity and quota, at least 1.
  int usable() const;
};
struct MemoryFacts {
  int64_t total_bytes = 0, available_bytes = 0;
  std::optional<int64_t> limit_bytes;  // of the control group
  int64_t shm_free_bytes = 0;          // /dev/shm
};
struct GpuFacts {
  std::string name;
  int64_t memory_bytes = 0;
  int compute_capability = 0;  // 90: 9.0
};
struct LibraryFacts {
  std::string name, purpose;  // "libnccl.so.2", "collectives between GPUs"
  std::string path, version;  // empty: not found
};

CpuFacts cpu_facts();
MemoryFacts memory_facts();
/// "580.65.06", empty without a driver.
std::string driver_version();
/// From the driver; empty without one.
std::vector<GpuFacts> gpu_facts();
/// Capability of a team of so many ranks, one on each of the first GPUs: spec::capability_of_team.
int capability_of_ranks(const std::vector<GpuFacts>& gpus, int ranks);
/// The text of spec::capability_text; of 0: "compute capability not known".
std::string capability_text(int compute_capability);
std::vector<LibraryFacts> library_facts();

/// Text of cpu.max: "max 100000" or "150000 100000". Nothing if there is no limit or the text is something else.
std::optional<double> parse_cpu_max(std::string_view text);
/// "MemTotal:  24 kB" of /proc/meminfo in bytes; -1 if the key is missing.
int64_t parse_meminfo(std::string_view text, std::string_view key);

}  // namespace overlace::cli
