// Every environment variable that overlace reads, in one documented struct; read once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::base {

struct EnvValue {
  std::string name;      // "OVERLACE_TIMEOUT_S"
  std::string value;     // in force, as text
  bool is_set = false;   // false: the default
  std::string accepted;  // "integer, 1 to 86400"
  std::string doc;       // one sentence
};

struct Env {
  std::string backend = "auto";  // OVERLACE_BACKEND: auto | cpu | cuda_peer
  std::string heap = "auto";     // OVERLACE_HEAP: auto | vmm | ipc
  int64_t heap_bytes = 0;        // OVERLACE_HEAP_BYTES: bytes per rank, 0 = default of the backend; K, M, G suffixes
  int64_t max_heap_bytes = 0;    // OVERLACE_MAX_HEAP_BYTES: to which it may grow; 0 = RuntimeOptions
  int64_t timeout_s = 300;    // OVERLACE_TIMEOUT_S: longest wait for a peer, 1 to 86400; 0 refused: no wait is endless
  std::string wait = "auto";  // OVERLACE_WAIT: auto | spin | futex
  std::string host_id;        // OVERLACE_HOST_ID: overrides the host's identity
  std::string secret;         // OVERLACE_SECRET: what ranks on several hosts show each other over TCP
  std::string listen;         // OVERLACE_LISTEN: address, interface or any; "" = where the ranks meet
  std::string net_engine = "auto";  // OVERLACE_NET_ENGINE: auto | nccl | mpi | none
  std::string adversary;            // OVERLACE_ADVERSARY: AdversaryOptions text
  std::string link;                 // OVERLACE_LINK: LinkOptions text
  std::string check;                // OVERLACE_CHECK: list of sync, calls
  bool allow_shared_gpu = false;    // OVERLACE_ALLOW_SHARED_GPU: 0 | 1
  std::string io = "auto";          // OVERLACE_IO: auto | uring | pread | buffered
  std::string log = "warn";         // OVERLACE_LOG: off | error | warn | info | debug
  std::string machine;              // OVERLACE_MACHINE: name or file
  bool explain = false;             // OVERLACE_EXPLAIN: 0 | 1
  std::string trace;                // OVERLACE_TRACE: file
  bool nvtx = false;                // OVERLACE_NVTX: 0 | 1
  std::string plan_cache;           // OVERLACE_PLAN_CACHE: file
  std::string tune = "off";         // OVERLACE_TUNE: off | first_use
  std::string cache_dir;            // OVERLACE_CACHE_DIR, as it is set; cache_folder() has the default
  // Launcher and foreign variables, "" or -1 if not set.
  std::string launch_socket;                        // OVERLACE_LAUNCH_SOCKET: set by `overlace run` for its children
  int rank = -1, world_size = -1, local_rank = -1;  // RANK/WORLD_SIZE/LOCAL_RANK, OMPI_COMM_WORLD_*, PMI_*, SLURM_*
  std::string rank_source;                       // "overlace" | "torchrun" | "openmpi" | "pmi" | "slurm" | "pmix" | ""
  int mpi_rank = -1;                             // what MPI's launcher says, if there is one beside rank_source
  int local_size = -1;                           // ranks on this host: less than world_size where there are several
  std::string master_addr, master_port, run_id;  // torchrun, or set by hand; srun: of the job and its first host
  int cuda_device_max_connections = -1;
  std::string xdg_cache_home, home;

  /// OVERLACE_CACHE_DIR, else overlace in XDG_CACHE_HOME or in .cache of the home folder; "" if there is none.
  std::string cache_folder() const;
  /// All variables with value and origin, for `overlace doctor` and the generated reference.
  std::vector<EnvValue> values() const;
  /// OVERLACE_* variables that are set but unknown, each with the nearest known name.
  std::vector<std::pair<std::string, std::string>> unknown() const;

  /// From an environment block (NAME=value strings); invalid_argument names variable, value and accepted set.
  static Result<Env> parse(const std::vector<std::string>& block);

 private:
  std::vector<EnvValue> values_;
  std::vector<std::pair<std::string, std::string>> unknown_;
};

/// The process environment, read at the first call; throws InvalidArgument on a bad value.
const Env& env();

/// The first host of a list as Slurm writes it: "node[01-04,07],x3" begins with node01.
std::string first_host(std::string_view list);

/// What programs that this process starts inherit: ends with null.
char** environment_block();

/// Sets a variable for libraries that read their own, unless it is set. Before they are loaded.
void set_environment_default(const char* name, const char* value);

}  // namespace overlace::base
