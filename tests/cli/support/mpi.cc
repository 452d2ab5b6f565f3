#include "tests/cli/support/mpi.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>

namespace overlace::cli_test {
namespace {

const char* const kHosts = OVERLACE_SOURCE_DIR "/tests/ranks/net/hosts.sh";

void append(std::vector<std::string>& to, const std::vector<std::string>& words) {
  to.insert(to.end(), words.begin(), words.end());
}

bool is_installed(const std::string& program) {
  for (const char* directory : {"/usr/bin/", "/usr/local/bin/", "/bin/", "/usr/sbin/", "/sbin/"})
    if (::access((directory + program).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace

const Mpi& openmpi() {
  static const Mpi mpi{
      "openmpi", "mpirun.openmpi", {"--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"}};
  return mpi;
}

const Mpi& mpich() {
  static const Mpi mpi{"mpich", "mpiexec.hydra", {}};
  return mpi;
}

std::string why_not(const Mpi& mpi) {
  if (!is_installed(mpi.launcher)) return std::string(mpi.launcher) + " is not installed";
  const auto beside = std::filesystem::path(OVERLACE_PROGRAM).parent_path();
  const bool is_built = std::filesystem::exists(beside / (std::string("liboverlace_mpi_") + mpi.name + ".so"));
  return is_built ? "" : std::string("engine mpi was not built for ") + mpi.name;
}

std::string why_no_hosts(const Mpi& mpi) {
  if (const std::string why = why_not(mpi); !why.empty()) return why;
  if (::geteuid() != 0) return "network namespaces need root";
  if (!is_installed("ip") || !is_installed("unshare")) return "ip or unshare is not installed";
  static const Result result = run(plainly({kHosts, "check"}));
  return result.exit == 0 ? "" : "this machine has no network namespaces: " + result.out + result.err;
}

Command plainly(const std::vector<std::string>& words) {
  Command command{.args = {"run", "-n", "1", "--", "env"}};
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OVERLACE_LAUNCH_SOCKET"})
    append(command.args, {"-u", name});
  append(command.args, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "ASAN_OPTIONS=detect_leaks=0"});
  append(command.args, words);
  return command;
}

std::vector<std::string> ranks_of(const Mpi& mpi, int ranks, const std::vector<std::string>& words) {
  std::vector<std::string> out = {mpi.launcher};
  append(out, mpi.options);
  append(out, {"-n", std::to_string(ranks)});
  append(out, words);
  return out;
}

std::vector<std::string> ranks_on_hosts(const Mpi& mpi, int hosts, int ranks_each,
                                        const std::vector<std::string>& words) {
  std::vector<std::string> out = {"env",
                                  std::string("OVERLACE_TEST_MPI=") + mpi.name,
                                  kHosts,
                                  "run",
                                  std::to_string(hosts),
                                  std::to_string(ranks_each)};
  append(out, words);
  return out;
}

std::vector<std::string> small_run(const std::vector<std::string>& more) {
  std::vector<std::string> out = {OVERLACE_PROGRAM, "run", "--backend", "cpu", "--layers", "1",
                                  "--tokens",       "64",  "--repeat",  "1"};
  append(out, more);
  return out;
}

std::vector<std::string> errors_of(const Result& result) {
  constexpr const char* kBegin = "overlace: error: ";
  std::vector<std::string> out;
  std::istringstream lines(result.out + "\n" + result.err);
  for (std::string line; std::getline(lines, line);)
    if (const size_t at = line.find(kBegin); at != std::string::npos)
      out.push_back(line.substr(at + std::string(kBegin).size()));
  return out;
}

}  // namespace overlace::cli_test
