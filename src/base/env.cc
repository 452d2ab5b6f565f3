#include "src/base/env.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>

namespace overlace::base {
namespace {

constexpr std::string_view kPrefix = "OVERLACE_";

/// Text into a field; false where the text is not accepted.
using Apply = bool (*)(Env&, std::string_view);
/// Value in force as text.
using Show = std::string (*)(const Env&);

struct Variable {
  std::string_view name, accepted, doc;
  Apply apply;
  Show show;
};

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// "64M": K, M, G are powers of 1024.
std::optional<int64_t> parse_bytes(std::string_view text) {
  int shift = 0;
  if (!text.empty()) {
    const char suffix = text.back();
    shift = suffix == 'K' ? 10 : suffix == 'M' ? 20 : suffix == 'G' ? 30 : 0;
    if (shift != 0) text.remove_suffix(1);
  }
  const std::optional<int64_t> count = parse_integer(text);
  if (!count || *count < 0 || *count > (std::numeric_limits<int64_t>::max() >> shift)) return std::nullopt;
  return *count << shift;
}

bool parse_choice(std::string_view text, std::initializer_list<std::string_view> choices, std::string& field) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) return false;
  field = text;
  return true;
}

bool parse_flag(std::string_view text, bool& field) {
  if (text != "0" && text != "1") return false;
  field = text == "1";
  return true;
}

bool parse_checks(std::string_view text, std::string& field) {
  field = text;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    if (word != "sync" && word != "calls") return false;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return true;
}

constexpr std::string_view kHidden = "(hidden)";

/// "NAME:SECRET" with "(hidden)" in place of the secret; a text without a colon as it is.
std::string without_secret(const std::string& text) {
  const size_t colon = text.find(':');
  return colon == std::string::npos ? text : text.substr(0, colon + 1) + std::string(kHidden);
}

std::string flag_text(bool v) { return v ? "1" : "0"; }

/// The variables of overlace itself, in the order of the reference page.
const Variable kVariables[] = {
    {"OVERLACE_BACKEND", "auto, cpu, cuda_peer", "Where ranks run; auto takes GPUs if there are any.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"auto", "cpu", "cuda_peer"}, e.backend);
     },
     [](const Env& e) { return e.backend; }},
    {"OVERLACE_HEAP", "auto, vmm, ipc",
     "How GPU heaps are shared: vmm maps exported allocations, ipc opens cudaIpc handles; auto prefers vmm.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"auto", "vmm", "ipc"}, e.heap);
     },
     [](const Env& e) { return e.heap; }},
    {"OVERLACE_HEAP_BYTES", "integer >= 0, optional suffix K, M or G (powers of 1024)",
     "Size of the symmetric heap of each rank; 0 takes the backend's default (1G on GPUs, 64M on CPU ranks).",
     [](Env& e, std::string_view t) {
       const auto bytes = parse_bytes(t);
       if (bytes) e.heap_bytes = *bytes;
       return bytes.has_value();
     },
     [](const Env& e) { return format("{}", e.heap_bytes); }},
    {"OVERLACE_MAX_HEAP_BYTES", "integer >= 0, optional suffix K, M or G (powers of 1024)",
     "To what the symmetric heap of each rank may grow when calls need more; 0: 16 times the default size where "
     "OVERLACE_HEAP_BYTES is 0, else that size.",
     [](Env& e, std::string_view t) {
       const auto bytes = parse_bytes(t);
       if (bytes) e.max_heap_bytes = *bytes;
       return bytes.has_value();
     },
     [](const Env& e) { return format("{}", e.max_heap_bytes); }},
    {"OVERLACE_TIMEOUT_S", "integer, 1 to 86400",
     "Longest wait for a peer in seconds. 0 is refused: no wait is endless.",
     [](Env& e, std::string_view t) {
       const auto seconds = parse_integer(t);
       if (!seconds || *seconds < 1 || *seconds > 86400) return false;
       e.timeout_s = *seconds;
       return true;
     },
     [](const Env& e) { return format("{}", e.timeout_s); }},
    {"OVERLACE_WAIT", "auto, spin, futex",
     "How CPU ranks wait; auto sleeps at once where more threads wait than there are cores, else spins first.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"auto", "spin", "futex"}, e.wait);
     },
     [](const Env& e) { return e.wait; }},
    {"OVERLACE_HOST_ID", "any text", "Replaces the host's identity: ranks with equal text count as one host.",
     [](Env& e, std::string_view t) { return e.host_id = t, true; }, [](const Env& e) { return e.host_id; }},
    {"OVERLACE_SECRET", "16 to 128 printable characters without blanks",
     "What the ranks of a job on several hosts show each other where they meet over TCP; the same on all of them.",
     [](Env& e, std::string_view t) { return e.secret = t, true; },
     [](const Env& e) { return std::string(e.secret.empty() ? "" : kHidden); }},
    {"OVERLACE_LISTEN", "IPv4 address or interface of this host, or any",
     "Where a rank listens for ranks of other hosts; without it only on the address by which they find it.",
     [](Env& e, std::string_view t) { return e.listen = t, true; }, [](const Env& e) { return e.listen; }},
    {"OVERLACE_NET_ENGINE", "auto, nccl, mpi, none", "Library that carries collectives and traffic between hosts.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"auto", "nccl", "mpi", "none"}, e.net_engine);
     },
     [](const Env& e) { return e.net_engine; }},
    {"OVERLACE_ADVERSARY",
     "seed=N with optional delay_us, pieces, window, late_read, weak_signal, workers; comma-separated",
     "CPU ranks deliver puts late, split and out of order, so that missing order shows as an error.",
     [](Env& e, std::string_view t) { return e.adversary = t, true; }, [](const Env& e) { return e.adversary; }},
    {"OVERLACE_LINK", "RATE,LATENCY such as 2GB/s,20us with optional ,hosts, or none",
     "Emulated link between CPU ranks (hosts: from host to host); every result obtained with it is labelled emulated.",
     [](Env& e, std::string_view t) { return e.link = t, true; }, [](const Env& e) { return e.link; }},
    {"OVERLACE_CHECK", "comma-separated list of sync, calls",
     "Extra checks: sync looks for errors after each operator, calls compares what the ranks issue.",
     [](Env& e, std::string_view t) { return parse_checks(t, e.check); }, [](const Env& e) { return e.check; }},
    {"OVERLACE_ALLOW_SHARED_GPU", "0, 1", "Lets two processes use one GPU, with host-waited schedules only.",
     [](Env& e, std::string_view t) { return parse_flag(t, e.allow_shared_gpu); },
     [](const Env& e) { return flag_text(e.allow_shared_gpu); }},
    {"OVERLACE_IO", "auto, uring, pread, buffered",
     "How files are read past the page cache; auto takes io_uring where the kernel lets it, else threads with pread.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"auto", "uring", "pread", "buffered"}, e.io);
     },
     [](const Env& e) { return e.io; }},
    {"OVERLACE_LOG", "off, error, warn, info, debug", "What the command line prints to stderr while it works.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"off", "error", "warn", "info", "debug"}, e.log);
     },
     [](const Env& e) { return e.log; }},
    {"OVERLACE_MACHINE",
     "name of a shipped machine, path of a machine file, or rates of link and GEMM such as 50GB/s,2TFLOP/s",
     "The machine that schedules are chosen for; without it, the one that is found.",
     [](Env& e, std::string_view t) { return e.machine = t, true; }, [](const Env& e) { return e.machine; }},
    {"OVERLACE_EXPLAIN", "0, 1", "Rank 0 writes to stderr why each schedule was chosen, once per problem.",
     [](Env& e, std::string_view t) { return parse_flag(t, e.explain); },
     [](const Env& e) { return flag_text(e.explain); }},
    {"OVERLACE_TRACE", "path ending in .json, .pftrace or .perfetto-trace", "Where a timeline is written.",
     [](Env& e, std::string_view t) { return e.trace = t, true; }, [](const Env& e) { return e.trace; }},
    {"OVERLACE_NVTX", "0, 1", "Operators and their tasks are ranges of NVTX, for profilers such as Nsight Systems.",
     [](Env& e, std::string_view t) { return parse_flag(t, e.nvtx); }, [](const Env& e) { return flag_text(e.nvtx); }},
    {"OVERLACE_PLAN_CACHE", "path", "File that keeps chosen schedules between runs.",
     [](Env& e, std::string_view t) { return e.plan_cache = t, true; }, [](const Env& e) { return e.plan_cache; }},
    {"OVERLACE_TUNE", "off, first_use",
     "first_use: what a call meets for the first time is measured behind it, and later calls take the winner.",
     [](Env& e, std::string_view t) {
       return parse_choice(t, {"off", "first_use"}, e.tune);
     },
     [](const Env& e) { return e.tune; }},
    {"OVERLACE_CACHE_DIR", "path",
     "Folder of calibrated machines; without it overlace in XDG_CACHE_HOME, else in .cache of the home folder.",
     [](Env& e, std::string_view t) { return e.cache_dir = t, true; }, [](const Env& e) { return e.cache_dir; }},
    {"OVERLACE_LAUNCH_SOCKET", "set by overlace run", "How a child of the launcher reaches it.",
     [](Env& e, std::string_view t) { return e.launch_socket = t, true; },
     [](const Env& e) { return without_secret(e.launch_socket); }},
};

/// Names of a launcher's variables, most specific launcher first. `world` being set means that it started us.
struct Launcher {
  std::string_view source, rank, world, local, local_size;
};
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

constexpr std::string_view kSlurmJobRanks = "SLURM_NTASKS", kPmixRank = "PMIX_RANK";

using Block = std::map<std::string, std::string, std::less<>>;

const std::string* lookup(const Block& block, std::string_view name) {
  const auto it = block.find(name);
  return it == block.end() || it->second.empty() ? nullptr : &it->second;  // set to nothing counts as not set
}

Status bad_value(std::string_view name, std::string_view value, std::string_view accepted) {
  return invalid_argument("{} is \"{}\", wanted {}", name, value, accepted);
}

Status read_small_integer(const Block& block, std::string_view name, int& field) {
  const std::string* text = lookup(block, name);
  if (text == nullptr) return {};
  const std::optional<int64_t> value = parse_integer(*text);
  if (!value || *value < 0 || *value > std::numeric_limits<int>::max())
    return bad_value(name, *text, "an integer >= 0");
  field = static_cast<int>(*value);
  return {};
}

std::string text_of(const Block& block, std::string_view name) {
  const std::string* text = lookup(block, name);
  return text == nullptr ? std::string() : *text;
}

/// The first of the two that is set.
std::string_view either(const Block& block, std::string_view name, std::string_view other) {
  return lookup(block, name) != nullptr ? name : other;
}

/// Slurm says on how many hosts a step runs, which they are, and the numbers of job and step.
Status read_slurm(const Block& block, Env& env) {
  const std::string list = text_of(block, either(block, "SLURM_STEP_NODELIST", "SLURM_NODELIST"));
  int hosts = list.empty() ? -1 : list.find_first_of("[,") == std::string::npos ? 1 : 2;  // at least
  OVERLACE_TRY(read_small_integer(block, either(block, "SLURM_STEP_NUM_NODES", "SLURM_NNODES"), hosts));
  if (hosts == 1) env.local_size = env.world_size;
  if (hosts > 1) env.local_size = 0;  // how many they are is not said alike on all hosts
  if (env.master_addr.empty()) env.master_addr = first_host(list);
  if (lookup(block, "SLURM_JOB_ID") != nullptr)
    env.run_id = text_of(block, "SLURM_JOB_ID") + "." + text_of(block, "SLURM_STEP_ID");
  return {};
}

/// The variable with the number of ranks; empty where this launcher did not start us. srun says it of its step. Where
/// only the job's is there it counts if we have a rank, but a batch script, which is no rank, has that too.
std::string_view world_of(const Block& block, const Launcher& launcher) {
  if (lookup(block, launcher.world) != nullptr) return launcher.world;
  const bool is_task = launcher.source == "slurm" && lookup(block, launcher.rank) != nullptr &&
                       lookup(block, kSlurmJobRanks) != nullptr && text_of(block, "ENVIRONMENT") != "BATCH";
  return is_task ? kSlurmJobRanks : "";
}

Status read_launcher(const Block& block, Env& env) {
  for (const Launcher& launcher : kLaunchers) {
    const std::string_view world = world_of(block, launcher);
    if (world.empty()) continue;
    OVERLACE_TRY(read_small_integer(block, launcher.rank, env.rank));
    OVERLACE_TRY(read_small_integer(block, world, env.world_size));
    OVERLACE_TRY(read_small_integer(block, launcher.local, env.local_rank));
    OVERLACE_TRY(read_small_integer(block, launcher.local_size, env.local_size));
    // The launcher of overlace speaks torchrun's names, so that any program understands them.
    env.rank_source = env.launch_socket.empty() ? launcher.source : "overlace";
    break;
  }
  // A launcher that says through its library only how many ranks there are. Ours would all think to be alone.
  if (env.rank_source.empty() && lookup(block, kPmixRank) != nullptr) {
    OVERLACE_TRY(read_small_integer(block, kPmixRank, env.rank));
    env.rank_source = "pmix";
  }
  for (const std::string_view name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (env.mpi_rank < 0) OVERLACE_TRY(read_small_integer(block, name, env.mpi_rank));
  env.master_addr = text_of(block, "MASTER_ADDR");
  env.master_port = text_of(block, "MASTER_PORT");
  env.run_id = text_of(block, "TORCHELASTIC_RUN_ID");
  if (const std::string restart = text_of(block, "TORCHELASTIC_RESTART_COUNT"); !restart.empty())
    env.run_id += "." + restart;
  if (env.rank_source == "slurm") OVERLACE_TRY(read_slurm(block, env));
  env.xdg_cache_home = text_of(block, "XDG_CACHE_HOME");
  env.home = text_of(block, "HOME");
  return read_small_integer(block, "CUDA_DEVICE_MAX_CONNECTIONS", env.cuda_device_max_connections);
}

/// Foreign variables as rows of values().
std::vector<EnvValue> foreign_values(const Block& block) {
  std::vector<EnvValue> rows;
  const auto add = [&](std::string_view name, std::string_view accepted, std::string_view doc) {
    const std::string* text = lookup(block, name);
    rows.push_back(
        {std::string(name), text == nullptr ? "" : *text, text != nullptr, std::string(accepted), std::string(doc)});
  };
  for (const Launcher& launcher : kLaunchers) {
    const std::string by = format("{} sets it", launcher.source);
    add(launcher.rank, "integer >= 0", by + ": this process's rank.");
    add(launcher.world, "integer >= 0", by + ": number of ranks; its presence names the launcher.");
    add(launcher.local, "integer >= 0", by + ": rank within the host, the default CUDA device.");
    if (!launcher.local_size.empty()) add(launcher.local_size, "integer >= 0", by + ": ranks on this host.");
  }
  add(kSlurmJobRanks, "integer >= 0", "slurm sets it: the number of ranks where only that of the job is known.");
  add("SLURM_STEP_NUM_NODES", "integer >= 0", "slurm sets it: number of hosts.");
  add("SLURM_NNODES", "integer >= 0", "slurm sets it: the same of the job, which counts without the step's.");
  add("SLURM_STEP_NODELIST", "list such as node[01-04,07]", "slurm sets it; ranks of several hosts meet on the first.");
  add("SLURM_NODELIST", "list such as node[01-04,07]", "slurm sets it: the same of the job.");
  add("SLURM_JOB_ID", "any text", "slurm sets it; part of the job's name.");
  add("SLURM_STEP_ID", "any text", "slurm sets it; part of the job's name.");
  add(kPmixRank, "integer >= 0",
      "pmix sets it: this process's rank. Alone it is refused: nothing says how many there are.");
  add("MASTER_ADDR", "any text",
      "torchrun and overlace run set it; part of the job's name, and where ranks of several hosts meet.");
  add("MASTER_PORT", "any text", "torchrun and overlace run set it; part of the job's name.");
  add("TORCHELASTIC_RUN_ID", "any text", "torchrun sets it; part of the job's name.");
  add("TORCHELASTIC_RESTART_COUNT", "any text", "torchrun sets it; part of the job's name.");
  add("XDG_CACHE_HOME", "path", "The user's folder of caches.");
  add("HOME", "path", "The user's folder.");
  add("CUDA_DEVICE_MAX_CONNECTIONS", "integer >= 0",
      "Read by the CUDA driver; 1 can deadlock waits on streams, which are then not used.");
  return rows;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view name) {
  std::string_view best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const Variable& variable : kVariables) {
    const size_t distance = edit_distance(name, variable.name);
    if (distance >= best_distance) continue;
    best = variable.name;
    best_distance = distance;
  }
  return std::string(best);
}

}  // namespace

std::string first_host(std::string_view list) {
  const size_t end = list.find_first_of("[,");
  std::string host(list.substr(0, end));
  if (end == std::string_view::npos || list[end] != '[') return host;
  list.remove_prefix(end + 1);
  host += list.substr(0, list.find_first_of("-,]"));
  const size_t close = list.find(']');
  if (close == std::string_view::npos) return host;
  list.remove_prefix(close + 1);
  return host + std::string(list.substr(0, list.find(',')));
}

std::string Env::cache_folder() const {
  if (!cache_dir.empty()) return cache_dir;
  if (!xdg_cache_home.empty()) return xdg_cache_home + "/overlace";
  return home.empty() ? std::string() : home + "/.cache/overlace";
}

std::vector<EnvValue> Env::values() const { return values_; }

std::vector<std::pair<std::string, std::string>> Env::unknown() const { return unknown_; }

Result<Env> Env::parse(const std::vector<std::string>& block) {
  Block settings;
  for (const std::string& line : block) {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) settings.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  Env env;
  for (const Variable& variable : kVariables) {
    const std::string* text = lookup(settings, variable.name);
    if (text != nullptr && !variable.apply(env, *text)) return bad_value(variable.name, *text, variable.accepted);
    env.values_.push_back({std::string(variable.name), variable.show(env), text != nullptr,
                           std::string(variable.accepted), std::string(variable.doc)});
  }
  OVERLACE_TRY(read_launcher(settings, env));
  for (EnvValue& row : foreign_values(settings)) env.values_.push_back(std::move(row));
  for (const auto& setting : settings) {
    const std::string& name = setting.first;
    if (!name.starts_with(kPrefix)) continue;
    const bool is_known = std::any_of(std::begin(kVariables), std::end(kVariables),
                                      [&](const Variable& variable) { return variable.name == name; });
    if (!is_known) env.unknown_.emplace_back(name, nearest_name(name));
  }
  return env;
}

const Env& env() {
  static const Result<Env> instance = [] {
    std::vector<std::string> block;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) block.emplace_back(*entry);
    return Env::parse(block);
  }();
  return instance.value();
}

char** environment_block() { return environ; }

void set_environment_default(const char* name, const char* value) { (void)::setenv(name, value, 0); }

}  // namespace overlace::base
