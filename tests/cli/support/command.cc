#include "tests/cli/support/command.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace overlace::cli_test {
namespace {

namespace fs = std::filesystem;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string temporary_file() {
  char name[] = "/tmp/overlace_cli_XXXXXX";
  const int file = ::mkstemp(name);
  if (file < 0) throw std::runtime_error("mkstemp failed");
  ::close(file);
  return name;
}

/// The inherited environment without what would make the program a rank or change its defaults.
std::vector<std::string> environment(const std::map<std::string, std::string>& extra) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    bool foreign = true;
    for (const char* prefix :
         {"OVERLACE_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_"})
      foreign = foreign && name.rfind(prefix, 0) != 0;
    if (foreign && extra.count(name) == 0) out.push_back(text);
  }
  for (const auto& [name, value] : extra) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// Parent process, from /proc/<pid>/stat; the name in parentheses may hold anything.
pid_t parent_of(pid_t pid) {
  const std::string text = slurp("/proc/" + std::to_string(pid) + "/stat");
  const size_t after = text.rfind(')');
  if (after == std::string::npos) return -1;
  char state = 0;
  int parent = -1;
  std::istringstream(text.substr(after + 1)) >> state >> parent;
  return parent;
}

}  // namespace

Directory::Directory() {
  char name[] = "/tmp/overlace_cli_XXXXXX";
  if (::mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

Directory::~Directory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Directory::write(const std::string& name, const std::string& bytes) const {
  const fs::path path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string Directory::read(const std::string& name) const { return slurp(*this / name); }

bool Directory::has(const std::string& name) const { return fs::exists(fs::path(path_) / name); }

std::set<std::string> Directory::entries() const {
  std::set<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(path_))
    out.insert(fs::relative(entry.path(), path_).string());
  return out;
}

Process::Process(const Command& command)
    : limit_s_(command.limit_s),
      out_(command.stdout_path.empty() ? temporary_file() : command.stdout_path),
      err_(temporary_file()),
      captures_out_(command.stdout_path.empty()),
      begin_s_(now_s()) {
  std::vector<std::string> args = {OVERLACE_PROGRAM};
  args.insert(args.end(), command.args.begin(), command.args.end());
  std::vector<std::string> env = environment(command.env);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addchdir_np(&actions, command.directory.c_str());
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, out_.c_str(), O_WRONLY | O_TRUNC, 0);
  ::posix_spawn_file_actions_addopen(&actions, 2, err_.c_str(), O_WRONLY | O_TRUNC, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // A group of its own, so that a terminal's Ctrl-C can be imitated; and SIGINT is not ignored, as it is for whatever a
  // shell without job control starts in the background.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t defaults;
  ::sigemptyset(&defaults);
  ::sigaddset(&defaults, SIGINT);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  const int failed =
      ::posix_spawn(&pid_, OVERLACE_PROGRAM, &actions, &attributes, pointers(args).data(), pointers(env).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error(std::string("cannot start " OVERLACE_PROGRAM ": ") + std::strerror(failed));
}

Process::~Process() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::unlink(err_.c_str());
  if (captures_out_) ::unlink(out_.c_str());
}

void Process::signal(int number) { ::kill(pid_, number); }

Result Process::wait() {
  Result result;
  int status = 0;
  while (true) {
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) break;
    if (now_s() - begin_s_ > limit_s_) {
      result.timed_out = true;
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  pid_ = -1;
  result.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.seconds = now_s() - begin_s_;
  result.err = slurp(err_);
  if (captures_out_) result.out = slurp(out_);
  return result;
}

std::vector<pid_t> descendants(pid_t pid) {
  std::vector<pid_t> out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto one = static_cast<pid_t>(std::stoi(name));
    if (parent_of(one) != pid) continue;
    out.push_back(one);
    for (pid_t below : descendants(one)) out.push_back(below);
  }
  return out;
}

bool is_running(pid_t pid) { return ::kill(pid, 0) == 0; }

std::set<std::string> shared_memory() {
  std::set<std::string> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev/shm", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find("overlace") != std::string::npos) out.insert(name);
  }
  return out;
}

}  // namespace overlace::cli_test
