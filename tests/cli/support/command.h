// Runs the command line in a directory of its own and looks at everything it leaves behind.
#pragma once

#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace overlace::cli_test {

/// A temporary directory that goes with the object.
class Directory {
 public:
  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, const std::string& bytes) const;  // makes directories on the way
  std::string read(const std::string& name) const;
  bool has(const std::string& name) const;
  /// Relative paths of all files and directories.
  std::set<std::string> entries() const;

 private:
  std::string path_;
};

struct Result {
  int exit = -1;  // 128 + signal where one ended it
  bool timed_out = false;
  double seconds = 0;
  std::string out, err;
};

struct Command {
  std::vector<std::string> args;                // after the program's name
  std::map<std::string, std::string> env = {};  // besides the inherited, from which OVERLACE_*, launchers' names go
  std::string directory = "/";
  std::string stdout_path = {};  // empty: captured
  int limit_s = 60;
};

/// A started command line.
class Process {
 public:
  explicit Process(const Command& command);
  ~Process();  // kills what still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  pid_t pid() const { return pid_; }
  void signal(int number);
  /// Until it ends or the limit is over, when it is killed.
  Result wait();

 private:
  pid_t pid_ = -1;
  int limit_s_;
  std::string out_, err_;  // files
  bool captures_out_;
  double begin_s_;
};

inline Result run(const Command& command) { return Process(command).wait(); }

/// Direct and indirect children of a process.
std::vector<pid_t> descendants(pid_t pid);
/// Also true for one that ended and was not waited for yet.
bool is_running(pid_t pid);
/// Names below /dev/shm that could be ours.
std::set<std::string> shared_memory();

}  // namespace overlace::cli_test
