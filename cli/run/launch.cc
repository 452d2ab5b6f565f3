#include "cli/run/launch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <system_error>
#include <vector>

#include "cli/run/failures.h"
#include "src/base/env.h"
#include "src/base/file.h"
#include "src/runtime/bootstrap/emulated.h"
#include "src/runtime/bootstrap/launcher.h"
#include "src/runtime/engine/mpi/service.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

constexpr int kInterrupted = 130, kSignalled = 128;

/// Where ranks leave their failures: memory, so that no rank ever blocks on words.
class FailureLog {
 public:
  FailureLog() : fd_(::memfd_create("overlace failures", 0)) {
    // Ranks append at the same time.
    if (fd_ >= 0 && ::fcntl(fd_, F_SETFL, O_APPEND) != 0) close();
  }
  FailureLog(const FailureLog&) = delete;
  FailureLog& operator=(const FailureLog&) = delete;
  ~FailureLog() { close(); }
  int fd() const { return fd_; }
  std::vector<RankFailure> failures() const {
    std::string text;
    char piece[4096];
    for (off_t at = 0;;) {
      const ssize_t n = ::pread(fd_, piece, sizeof piece, at);
      if (n <= 0) return decode_failures(text);
      text.append(piece, static_cast<size_t>(n));
      at += n;
    }
  }

 private:
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int fd_;
};

/// This program, and the words it was called with.
Result<std::vector<std::string>> own_command() {
  const auto words = base::read_file("/proc/self/cmdline");
  if (!words.ok()) return words.status();
  std::vector<std::string> out;
  for (size_t at = 0; at < words->size();) {
    const size_t end = words->find('\0', at);
    out.push_back(words->substr(at, end - at));
    at = end == std::string::npos ? words->size() : end + 1;
  }
  if (out.empty()) return base::error(Errc::io, "/proc/self/cmdline is empty, wanted this process's arguments");
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  out.front() = length > 0 ? std::string(path, static_cast<size_t>(length)) : "/proc/self/exe";
  // A program that was replaced while it runs is still there under its process.
  if (::access(out.front().c_str(), X_OK) != 0) out.front() = "/proc/self/exe";
  return out;
}

/// Without MPI: for ranks on GPUs.
int launch_emulated(int ranks, int hosts, const std::vector<std::string>& command) {
  runtime::keep_nccl_to_sockets();
  return runtime::launch(ranks, command, [&](int rank) { return runtime::emulated_host(rank / (ranks / hosts)); });
}

int exit_with(Errc code, const std::string& message) {
  std::fprintf(stderr, "overlace: error: %s\n", message.c_str());
  return exit_code(code);
}

/// In this process's place, for ranks on the CPU.
int launch_by_mpirun(int ranks, int hosts, const std::vector<std::string>& command) {
  const auto library = runtime::mpi::Service::library();
  if (!library.ok()) return exit_with(library.status().code(), "--emulate-hosts: " + library.status().message());
  const bool is_openmpi = library->starts_with("openmpi");
  const std::vector<std::string> starters = is_openmpi
                                                ? std::vector<std::string>{"mpirun.openmpi", "mpirun"}
                                                : std::vector<std::string>{"mpiexec.hydra", "mpirun.mpich", "mpirun"};
  std::vector<std::string> words = {""};
  if (is_openmpi) words.insert(words.end(), {"--oversubscribe", "--bind-to", "none", "--quiet"});
  for (int host = 0; host < hosts; ++host) {
    if (host != 0) words.push_back(":");
    words.insert(words.end(), {"-n", std::to_string(ranks / hosts), "env",
                               base::format("OVERLACE_HOST_ID={}{}", runtime::kEmulatedHost, host)});
    words.insert(words.end(), command.begin(), command.end());
  }
  // Root in a container: Open MPI wants to hear that it is meant.
  base::set_environment_default("OMPI_ALLOW_RUN_AS_ROOT", "1");
  base::set_environment_default("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  // All hosts are this one: nothing that starts processes on others is looked for, nor missed (ssh).
  if (library->find(" 4.") != std::string::npos) base::set_environment_default("OMPI_MCA_plm", "isolated");
  for (const std::string& starter : starters) {
    words.front() = starter;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execvp(starter.c_str(), pointers.data());
  }
  return exit_with(Errc::io, base::format("--emulate-hosts: cannot start {}: {}", starters.front(),
                                          std::generic_category().message(errno)));
}

}  // namespace

int launch_ranks(const RunPlan& plan) {
  auto command = own_command();
  if (!command.ok()) return exit_with(command.status().code(), command.status().message());
  const FailureLog log;
  if (log.fd() >= 0) {
    command->push_back("--error-fd");
    command->push_back(std::to_string(log.fd()));
  }
  int first_failed = -1;
  const int status = runtime::launch(plan.ranks, *command, {}, &first_failed);
  if (status == 0 || status == kInterrupted) return status;
  const auto failures = log.failures();
  const std::string killed = status > kSignalled
                                 ? base::format("rank {} was ended by signal {}", first_failed, status - kSignalled)
                                 : std::string();
  if (const auto cause = first_cause(failures)) {
    const std::string why = killed.empty() ? std::string() : "; " + killed;
    return exit_with(cause->status.code(), failure_text(*cause, failures) + why);
  }
  if (!killed.empty()) return exit_with(Errc::peer_lost, killed);
  return status;
}

int launch_hosts(const RunPlan& plan) {
  const auto command = own_command();
  if (!command.ok()) return exit_with(command.status().code(), command.status().message());
  if (plan.backend == Backend::cuda_peer) return launch_emulated(plan.ranks, plan.hosts, *command);
  return launch_by_mpirun(plan.ranks, plan.hosts, *command);
}

int launch_program(const RunOptions& options) {
  const int64_t ranks = options.ranks ? *options.ranks : 2;
  if (ranks < 1 || ranks > kMaxRanks)
    return exit_with(Errc::invalid_argument, base::format("--ranks is {}, wanted 1 to {}", ranks, kMaxRanks));
  if (!options.emulate_hosts) return runtime::launch(static_cast<int>(ranks), options.program);
  const Status hosts = check_emulated_hosts(*options.emulate_hosts, ranks);
  if (!hosts.ok()) return exit_with(hosts.code(), hosts.message());
  const bool is_cpu = options.backend == "cpu";
  for (const auto& [name, value] : is_cpu ? runtime::meeting_place() : runtime::Variables())
    base::set_environment_default(name.c_str(), value.c_str());
  const auto launch = is_cpu ? launch_by_mpirun : launch_emulated;
  return launch(static_cast<int>(ranks), static_cast<int>(*options.emulate_hosts), options.program);
}

}  // namespace overlace::cli
