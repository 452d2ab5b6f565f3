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
#include <optional>
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

/// A started program and the reading end of its stdout.
class Child {
 public:
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (out_ >= 0) ::close(out_);
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  /// 0, or the errno of what failed.
  int start(std::string program) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno;
    out_ = ends[0];
    std::string flag = "-c", question = kQuestion;
    char* arguments[] = {program.data(), flag.data(), question.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    const int failed = ::posix_spawnp(&pid_, program.c_str(), &actions, nullptr, arguments, base::environment_block());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) pid_ = -1;
    return failed;
  }

  /// All that it writes until it closes stdout, or the first kMostBytes; nothing if it has not by then.
  std::optional<std::string> read_until(Clock::time_point deadline) const {
    std::string text;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      struct pollfd wanted = {out_, POLLIN, 0};
      const int ready = left > 0 ? ::poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left, 1000))) : 0;
      if (ready == 0 && left <= 0) return std::nullopt;
      if (ready <= 0) continue;  // the deadline ends it
      char bytes[4096];
      const ssize_t count = ::read(out_, bytes, sizeof bytes);
      if (count == 0 || (count < 0 && errno != EINTR)) return text;
      if (count > 0) text.append(bytes, static_cast<size_t>(count));
      if (text.size() > kMostBytes) return text;
    }
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

}  // namespace

base::Result<Json> ask_python(const std::string& program, int64_t timeout_ms) {
  Child child;
  if (const int failed = child.start(program); failed != 0)
    return base::error(Errc::not_supported, "--python is {}: {}, wanted an interpreter that starts", program,
                       std::generic_category().message(failed));
  const std::optional<std::string> said = child.read_until(Clock::now() + std::chrono::milliseconds(timeout_ms));
  if (!said)
    return base::error(Errc::timeout, "--python is {}: no answer, wanted one within {} s", program,
                       static_cast<double>(timeout_ms) / 1000);
  const size_t end = said->find_last_not_of('\n');
  const size_t begin = end == std::string::npos ? 0 : said->rfind('\n', end) + 1;  // npos + 1 is 0
  const std::string line = end == std::string::npos ? "" : said->substr(begin, end + 1 - begin);
  base::Result<Json> answer = Json::parse(line, program);
  if (!answer.ok() || !is_answer(*answer))
    return base::error(Errc::not_supported, "--python is {}: it says \"{}\", wanted a Python interpreter", program,
                       line.substr(0, 80));
  return answer;
}

}  // namespace overlace::cli
