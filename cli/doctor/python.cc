#include "cli/doctor/python.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "src/base/env.h"

namespace overlace::cli {
namespace {

using base::Json;
using Clock = std::chrono::steady_clock;

// NOTE: imports may print, so the answer is the last line.
constexpr const char* kQuestion = R"py(
import json, platform, sys
out = {"program": sys.executable, "version": platform.python_version(), "torch": None, "overlace": None}
out.update(operators=[], why="")
try:
    import torch
    out["torch"] = str(torch.__version__)
    import overlace
    out["overlace"] = overlace.__version__
    names = torch._C._dispatch_get_all_op_names()
    out["operators"] = sorted({n[10:].split(".")[0] for n in names if n.startswith("overlace::")})
    out["why"] = overlace._WHY_NO_TORCH or ""
except Exception as why:
    out["why"] = f"{type(why).__name__}: {why}"
print("\n" + json.dumps(out))
)py";

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr int64_t kLookMs = 20;  // between looks at whether the program has ended

bool is_answer(const Json& said) {
  for (const char* name : {"program", "version", "torch", "overlace", "why"}) {
    const Json* value = said.find(name);
    const bool may_be_null = name == std::string_view("torch") || name == std::string_view("overlace");
    if (value == nullptr || !(value->is_string() || (may_be_null && value->is_null()))) return false;
  }
  const Json* operators = said.find("operators");
  return operators != nullptr && operators->is_array() &&
         std::all_of(operators->as_array().begin(), operators->as_array().end(),
                     [](const Json& name) { return name.is_string(); });
}

/// A program started in a process group of its own, which ends with the object, and the reading end of its stdout.
class Child {
 public:
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (out_ >= 0) ::close(out_);
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);  // before it is waited for: until then no other group has this number
    ::kill(pid_, SIGKILL);   // it may have left its group
    ::waitpid(pid_, nullptr, 0);
  }

  /// 0, or the errno of what failed.
  int start(std::string program) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
    out_ = ends[0];
    ::fcntl(out_, F_SETFL, O_NONBLOCK);
    std::string flag = "-c", question = kQuestion;
    char* arguments[] = {program.data(), flag.data(), question.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    const int failed =
        ::posix_spawnp(&pid_, program.c_str(), &actions, &attributes, arguments, base::environment_block());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) pid_ = -1;
    return failed;
  }

  /// What it has written when it closes stdout, has ended, or at the deadline; the end of it, where that is much.
  std::string read_until(Clock::time_point deadline) const {
    std::string text;
    for (;;) {
      const bool is_last = has_ended() || Clock::now() >= deadline;  // asked before what is there is read
      if (!read_some(&text) || is_last) return text;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      struct pollfd wanted = {out_, POLLIN, 0};
      ::poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(left, 0, kLookMs)));
    }
  }

 private:
  /// It is not waited for, so that its number stays its own.
  bool has_ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid != 0;
  }

  /// Appends what can be read at once, of which at most kMostBytes; false at its end.
  bool read_some(std::string* text) const {
    char bytes[4096];
    for (size_t read = 0; read < kMostBytes;) {
      const ssize_t count = ::read(out_, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return count < 0 && errno == EAGAIN;
      read += static_cast<size_t>(count);
      text->append(bytes, static_cast<size_t>(count));
      if (text->size() > 2 * kMostBytes) text->erase(0, text->size() - kMostBytes);
    }
    return true;
  }

  pid_t pid_ = -1;
  int out_ = -1;
};

}  // namespace

base::Result<Json> ask_python(const std::string& program, int64_t timeout_ms) {
  Child child;
  if (const int failed = child.start(program); failed != 0)
    return base::error(Errc::not_supported, "--python is {}: {}, wanted an interpreter that starts", program,
                       std::generic_category().message(failed));
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  const std::string said = child.read_until(deadline);
  const bool is_late = Clock::now() >= deadline;
  const size_t end = said.find_last_not_of('\n');
  const size_t begin = end == std::string::npos ? 0 : said.rfind('\n', end) + 1;  // npos + 1 is 0
  const std::string line = end == std::string::npos ? "" : said.substr(begin, end + 1 - begin);
  base::Result<Json> answer = Json::parse(line, program);
  if (answer.ok() && is_answer(*answer)) return answer;
  if (is_late)
    return base::error(Errc::timeout, "--python is {}: no answer, wanted one within {} s", program,
                       static_cast<double>(timeout_ms) / 1000);
  return base::error(Errc::not_supported, "--python is {}: it says \"{}\", wanted a Python interpreter", program,
                     line.substr(0, 80));
}

}  // namespace overlace::cli
