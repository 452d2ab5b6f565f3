#include "src/runtime/bootstrap/launcher.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/bootstrap/secret.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"

namespace overlace::runtime {
namespace {

constexpr int kTickMs = 50;
constexpr int64_t kPoliteNs = 3000000000;  // after the first failure the others may still word their own
constexpr int64_t kHardNs = 4500000000;    // then SIGTERM, then SIGKILL
constexpr int kInterrupted = 130;

struct Child {
  pid_t pid = -1;
  UniqueFd handle;  // pidfd: readable at its end
  bool has_ended = false;
};

[[noreturn]] void fail(const char* what) {
  throw IoError(Errc::io, base::format("launcher: {} failed: {}", what, std::strerror(errno)));
}

/// SIGINT and SIGTERM as something to read, until destroyed.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { restore(); }
  void restore() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  int fd() const { return fd_.get(); }
  /// 0: none.
  int next() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_;
  UniqueFd fd_;
};

class Group {
 public:
  Group(int n, const std::function<int(int, const std::string&)>& child) {
    const std::string name = "overlace.launch." + random_token().substr(0, 16);
    const std::string token = random_token();
    base::Result<std::unique_ptr<RelayServer>> server = RelayServer::open(name, token, n);
    server_ = std::move(server.value());
    const pid_t parent = ::getpid();
    for (int rank = 0; rank < n; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) become_child(rank, parent, child, name + ":" + token);
      if (pid < 0) {
        end_all(SIGKILL);
        wait_all();
        fail("fork");
      }
      ::setpgid(pid, pid);
      Child& entry = children_.emplace_back();
      entry.pid = pid;
      entry.handle = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    }
  }

  /// Also when `tick` throws: nothing that was started survives.
  ~Group() {
    end_all(SIGKILL);
    wait_all();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int first_failed() const { return first_failed_; }

  int run(const std::function<void()>& tick) {
    while (num_ended_ < children_.size()) {
      wait_some();
      server_->serve();
      for (Child& child : children_) look_at(child);
      if (const int signal = signals_.next(); signal != 0) {
        is_interrupted_ = true;
        end_all(signal);
        start_ending();
      }
      if (end_ns_ != 0) hurry();
      if (tick) tick();
    }
    return is_interrupted_ ? kInterrupted : status_;
  }

 private:
  [[noreturn]] void become_child(int rank, pid_t parent, const std::function<int(int, const std::string&)>& child,
                                 const std::string& launch_socket) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before the line above
    ::setpgid(0, 0);                        // so that what this rank starts can be ended with it
    signals_.restore();
    server_.reset();
    // A background process that reads the terminal would be stopped.
    if (::isatty(STDIN_FILENO) == 1) {
      const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (null >= 0) ::dup2(null, STDIN_FILENO);
    }
    int status = 1;
    try {
      status = child(rank, launch_socket);
    } catch (...) {
      status = 70;  // nobody is left to hear of it; docs/reference/errors.md: internal
    }
    ::_exit(status);
  }

  void wait_some() {
    std::vector<pollfd> entries = {{signals_.fd(), POLLIN, 0}, {server_->fd(), POLLIN, 0}};
    for (const Child& child : children_)
      if (!child.has_ended && child.handle) entries.push_back({child.handle.get(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), kTickMs);
  }

  void look_at(Child& child) {
    if (child.has_ended) return;
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      return;
    // While it is not reaped its process group cannot be anybody else's.
    ::kill(-child.pid, SIGKILL);
    int status = 0;
    ::waitpid(child.pid, &status, 0);
    child.has_ended = true;
    ++num_ended_;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code == 0 || status_ != 0 || is_interrupted_) return;
    status_ = code;
    first_failed_ = static_cast<int>(&child - children_.data());
    start_ending();
  }

  void start_ending() {
    if (end_ns_ == 0) end_ns_ = now_ns();
  }

  void hurry() {
    const int64_t since = now_ns() - end_ns_;
    if (since >= kHardNs)
      end_all(SIGKILL);
    else if (since >= kPoliteNs && !was_polite_)
      end_all(SIGTERM), was_polite_ = true;
  }

  void end_all(int signal) {
    for (const Child& child : children_)
      if (!child.has_ended) ::kill(-child.pid, signal);
  }
  void wait_all() {
    for (const Child& child : children_)
      if (!child.has_ended) ::waitpid(child.pid, nullptr, 0);
  }

  Signals signals_;
  std::unique_ptr<RelayServer> server_;
  std::vector<Child> children_;
  size_t num_ended_ = 0;
  int status_ = 0, first_failed_ = -1;
  bool is_interrupted_ = false, was_polite_ = false;
  int64_t end_ns_ = 0;
};

/// Array of pointers for exec; the texts stay where they are.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// This process's environment without the names that `own` sets, and `own`.
std::vector<std::string> environment_with(const Variables& own) {
  std::vector<std::string> block;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string line = *entry;
    const std::string name = line.substr(0, line.find('='));
    if (std::none_of(own.begin(), own.end(), [&](const auto& variable) { return variable.first == name; }))
      block.push_back(line);
  }
  for (const auto& [name, value] : own) block.push_back(name + "=" + value);
  return block;
}

/// A port of the loopback that nobody had a moment ago, for whatever else the ranks meet by.
int free_port() {
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (!probe || ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail("finding a free port");
  return ntohs(address.sin_port);
}

}  // namespace

Variables meeting_place() {
  if (std::getenv("MASTER_ADDR") != nullptr || std::getenv("MASTER_PORT") != nullptr) return {};
  return {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", base::format("{}", free_port())}};
}

int launch_forked(int n, const std::function<int(int rank, const std::string& launch_socket)>& child,
                  const std::function<void()>& tick, int* first_failed) {
  if (n < 1 || n > 1024)
    throw InvalidArgument(Errc::invalid_argument, base::format("launch: n is {}, wanted 1 to 1024", n));
  Group group(n, child);
  const int status = group.run(tick);
  if (first_failed != nullptr) *first_failed = group.first_failed();
  return status;
}

int launch(int n, const std::vector<std::string>& argv, const std::function<Variables(int rank)>& additions,
           int* first_failed) {
  if (argv.empty()) throw InvalidArgument(Errc::invalid_argument, "launch: argv is empty, wanted a program");
  std::vector<std::string> arguments = argv;
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) fail("pipe");
  UniqueFd failures(pipe_fds[0]), reports(pipe_fds[1]);
  const Variables meeting = meeting_place();
  const auto child = [&](int rank, const std::string& launch_socket) {
    Variables own = {{"RANK", base::format("{}", rank)},
                     {"WORLD_SIZE", base::format("{}", n)},
                     {"LOCAL_RANK", base::format("{}", rank)},
                     {"LOCAL_WORLD_SIZE", base::format("{}", n)},
                     {"OVERLACE_LAUNCH_SOCKET", launch_socket}};
    own.insert(own.end(), meeting.begin(), meeting.end());
    for (const auto& addition : additions ? additions(rank) : Variables{}) {
      std::erase_if(own, [&](const auto& variable) { return variable.first == addition.first; });
      own.push_back(addition);
    }
    std::vector<std::string> block = environment_with(own);
    ::execvpe(argument_pointers[0], argument_pointers.data(), pointers_to(block).data());
    const int code = errno;
    (void)!::write(reports.get(), &code, sizeof code);
    return 127;
  };
  const int status = launch_forked(n, child, {}, first_failed);
  reports.reset();
  int code = 0;
  if (::read(failures.get(), &code, sizeof code) == sizeof code)
    throw IoError(Errc::io, base::format("launch: cannot start \"{}\": {}", argv[0], std::strerror(code)));
  return status;
}

}  // namespace overlace::runtime
