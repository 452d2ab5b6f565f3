#include "cli/doctor/machine.h"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/base/file.h"
#include "src/base/format.h"
#include "src/runtime/engine/mpi/service.h"
#include "src/spec/fusable.h"

namespace overlace::cli {
namespace {

std::string text_of(const std::string& path) {
  base::Result<std::string> text = base::read_file(path);
  return text.ok() ? *text : std::string();
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

std::optional<int64_t> integer_of(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

/// Files of this process's control group and of all above it: the tightest limit counts.
std::vector<std::string> cgroup_files(std::string_view name) {
  std::vector<std::string> files;
  std::string path;
  const std::string groups = text_of("/proc/self/cgroup");
  if (const size_t at = groups.find("0::"); at != std::string::npos)
    path = groups.substr(at + 3, groups.find('\n', at) - at - 3);
  while (true) {
    files.push_back(base::format("/sys/fs/cgroup{}/{}", path == "/" ? "" : path, name));
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.empty()) return files;
    path.resize(slash);
  }
}

/// Stays in the process: some of these libraries do not survive being unloaded.
using Library = void*;

Library open_library(const std::string& name) { return ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL); }

template <class Function>
Function* symbol(Library library, const char* name) {
  return library != nullptr ? reinterpret_cast<Function*>(::dlsym(library, name)) : nullptr;
}

std::string path_of(Library library) {
  struct link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "?";
  return map->l_name;
}

/// NCCL, cuDNN and cuBLASLt pack three parts into one number, with two digits for the last two.
std::string packed_version(int64_t version) {
  return base::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string nccl_version(Library library) {
  int version = 0;
  const auto get = symbol<int(int*)>(library, "ncclGetVersion");
  return get != nullptr && get(&version) == 0 ? packed_version(version) : "";
}

template <const char* kSymbol>
std::string returned_version(Library library) {
  const auto get = symbol<size_t()>(library, kSymbol);
  return get != nullptr ? packed_version(static_cast<int64_t>(get())) : "";
}
constexpr char kCudnnSymbol[] = "cudnnGetVersion", kCublasLtSymbol[] = "cublasLtGetVersion";

/// 13000: 13.0
std::string cuda_version(Library library) {
  int version = 0;
  const auto get = symbol<int(int*)>(library, "cuDriverGetVersion");
  return get != nullptr && get(&version) == 0 ? base::format("CUDA {}.{}", version / 1000, version % 1000 / 10) : "";
}

}  // namespace

int CpuFacts::usable() const {
  int cores = allowed > 0 ? allowed : online;
  if (quota) cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  return std::max(cores, 1);
}

std::optional<double> parse_cpu_max(std::string_view text) {
  text = trimmed(text);
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto quota = integer_of(text.substr(0, space)), period = integer_of(text.substr(space));
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

int64_t parse_meminfo(std::string_view text, std::string_view key) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    const auto kilobytes = integer_of(line.substr(key.size() + 1));
    return kilobytes ? *kilobytes * 1024 : -1;
  }
  return -1;
}

CpuFacts cpu_facts() {
  CpuFacts facts{.model = "unknown", .online = 0, .allowed = 0, .quota = std::nullopt};
  const std::string info = text_of("/proc/cpuinfo");
  if (const size_t key = info.find("model name"); key != std::string::npos) {
    const size_t begin = info.find(':', key) + 1;
    facts.model = trimmed(std::string_view(info).substr(begin, info.find('\n', begin) - begin));
  }
  facts.online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) facts.allowed = CPU_COUNT(&set);
  for (const std::string& file : cgroup_files("cpu.max")) {
    const std::optional<double> quota = parse_cpu_max(text_of(file));
    if (quota && (!facts.quota || *quota < *facts.quota)) facts.quota = quota;
  }
  const auto old_quota = integer_of(text_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
  const auto old_period = integer_of(text_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  if (!facts.quota && old_quota && old_period && *old_quota > 0 && *old_period > 0)
    facts.quota = static_cast<double>(*old_quota) / static_cast<double>(*old_period);
  return facts;
}

MemoryFacts memory_facts() {
  MemoryFacts facts;
  const std::string info = text_of("/proc/meminfo");
  facts.total_bytes = parse_meminfo(info, "MemTotal");
  facts.available_bytes = parse_meminfo(info, "MemAvailable");
  for (const std::string& file : cgroup_files("memory.max")) {
    const auto limit = integer_of(text_of(file));
    if (limit && (!facts.limit_bytes || *limit < *facts.limit_bytes)) facts.limit_bytes = limit;
  }
  const auto old_limit = integer_of(text_of("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  if (!facts.limit_bytes && old_limit && *old_limit < facts.total_bytes) facts.limit_bytes = old_limit;
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0)
    facts.shm_free_bytes = static_cast<int64_t>(shm.f_bavail) * static_cast<int64_t>(shm.f_frsize);
  return facts;
}

std::string driver_version() {
  const std::string text = text_of("/proc/driver/nvidia/version");
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build ..."
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \n", at);
    if (begin == std::string::npos) break;
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
    at = end;
  }
  return "";
}

std::vector<GpuFacts> gpu_facts() {
  std::vector<GpuFacts> gpus;
  const Library driver = open_library("libcuda.so.1");
  const auto init = symbol<int(unsigned)>(driver, "cuInit");
  const auto count = symbol<int(int*)>(driver, "cuDeviceGetCount");
  const auto name = symbol<int(char*, int, int)>(driver, "cuDeviceGetName");
  const auto memory = symbol<int(size_t*, int)>(driver, "cuDeviceTotalMem_v2");
  const auto attribute = symbol<int(int*, int, int)>(driver, "cuDeviceGetAttribute");
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  int num_devices = 0;
  if (init == nullptr || count == nullptr || name == nullptr || memory == nullptr || attribute == nullptr) return gpus;
  if (init(0) != 0 || count(&num_devices) != 0) return gpus;
  for (int device = 0; device < num_devices; ++device) {
    char text[128] = {};
    size_t bytes = 0;
    if (name(text, sizeof text - 1, device) != 0 || memory(&bytes, device) != 0) continue;
    int major = 0, minor = 0;
    if (attribute(&major, kMajor, device) != 0 || attribute(&minor, kMinor, device) != 0) major = minor = 0;
    gpus.push_back({text, static_cast<int64_t>(bytes), 10 * major + minor});
  }
  return gpus;
}

int capability_of_ranks(const std::vector<GpuFacts>& gpus, int ranks) {
  std::vector<int> capabilities;
  for (size_t i = 0; i < gpus.size() && i < static_cast<size_t>(ranks); ++i)
    capabilities.push_back(gpus[i].compute_capability);
  return spec::capability_of_team(capabilities);
}

std::string capability_text(int compute_capability) {
  return compute_capability == 0 ? "compute capability not known" : spec::capability_text(compute_capability);
}

std::vector<LibraryFacts> library_facts() {
  struct Wanted {
    std::vector<std::string> names;  // the first that opens counts
    std::string purpose;
    std::string (*version)(Library);
  };
  const Wanted wanted[] = {
      {{"libcuda.so.1"}, "CUDA driver: backend cuda_peer", cuda_version},
      {{"libcublasLt.so.13", "libcublasLt.so.12"}, "GEMMs on GPUs", returned_version<kCublasLtSymbol>},
      {{"libnccl.so.2"}, "collectives between GPUs", nccl_version},
      {{"libcudnn.so.9"}, "attention on GPUs", returned_version<kCudnnSymbol>},
  };
  std::vector<LibraryFacts> facts;
  for (const Wanted& library : wanted) {
    LibraryFacts found{.name = library.names.front(), .purpose = library.purpose, .path = "", .version = ""};
    for (const std::string& name : library.names) {
      const Library handle = open_library(name);
      if (handle == nullptr) continue;
      found = {.name = name, .purpose = library.purpose, .path = path_of(handle), .version = library.version(handle)};
      break;
    }
    facts.push_back(std::move(found));
  }
  const auto mpi = []() -> base::Result<std::string> {
    try {
      return runtime::mpi::Service::library();
    } catch (...) {  // a bad variable, which another part of the report shows
      return base::status_of_current_exception();
    }
  }();
  facts.push_back({.name = "mpi",
                   .purpose = "CPU ranks on several hosts",
                   .path = mpi.ok() ? "engine mpi" : "",
                   .version = mpi.ok() ? *mpi : ""});
  return facts;
}

}  // namespace overlace::cli
