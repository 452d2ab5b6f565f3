#include "tests/ranks/support/faults.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/launcher.h"
#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/clock.h"
#include "tests/ranks/support/process.h"

namespace overlace::test {
namespace {

/// In memory that all processes share.
struct Report {
  std::atomic<int64_t> pid, end_ns;
  int code;
  bool has_failed;  // an expectation in the process
  char text[1000], left[1000];
};
struct Board {
  std::atomic<int64_t> fault_ns;
  char job[128];  // beginning of the names of this job's sockets
  Report ranks[16];
};

/// Sockets of this host whose names begin so, in words; heaps have no names.
std::string sockets_of(const std::string& job) {
  std::string text, line;
  std::ifstream sockets("/proc/net/unix");
  while (std::getline(sockets, line))
    if (const size_t at = line.find("@" + job); at != std::string::npos) text += line.substr(at) + " ";
  return text;
}

/// "rank 1" or "ranks 0, 1" stands somewhere in the text.
bool names_rank(const std::string& text, int rank) {
  for (size_t at = 0; (at = text.find("rank", at)) != std::string::npos;) {
    at += text.compare(at, 5, "ranks") == 0 ? 5 : 4;
    for (const char* separator = " "; text.compare(at, std::strlen(separator), separator) == 0; separator = ", ") {
      at += std::strlen(separator);
      size_t digits = 0;
      while (at + digits < text.size() && std::isdigit(static_cast<unsigned char>(text[at + digits])) != 0) ++digits;
      if (digits == 0) break;
      if (text.substr(at, digits) == base::format("{}", rank)) return true;
      at += digits;
    }
  }
  return false;
}

bool is_loaded() {
  double load = 0;
  return ::getloadavg(&load, 1) != 1 || load > 3;
}

void copy_text(char (&to)[1000], const std::string& from) { std::strncpy(to, from.c_str(), sizeof to - 1); }

void happen_here(Fault fault, Board& board) {
  board.fault_ns = runtime::now_ns();
  switch (fault) {
    case Fault::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case Fault::exit:
      std::exit(0);
    case Fault::stop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case Fault::fail:
      throw IoError(Errc::io, kFailure);
  }
}

}  // namespace

const char* fault_name(Fault fault) {
  constexpr const char* kNames[] = {"kill", "exit", "stop", "fail"};
  return kNames[static_cast<size_t>(fault)];
}

std::vector<Survivor> run_with_fault(
    int n, int culprit, Fault fault,
    const std::function<void(std::unique_ptr<Bootstrap>, const std::function<void()>&)>& body) {
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board& board = *new (memory) Board();
  const auto child = [&](int rank, const std::string& launch_socket) {
    Report& report = board.ranks[rank];
    report.pid = ::getpid();
    const size_t colon = launch_socket.find(':');
    if (rank == 0) launch_socket.copy(board.job, std::min(colon, sizeof board.job - 1));
    const Held before = held();
    try {
      body(std::move(
               runtime::relay_bootstrap(launch_socket.substr(0, colon), launch_socket.substr(colon + 1), rank, n, 20000)
                   .value()),
           [&] { happen_here(fault, board); });
    } catch (const Error& error) {
      report.code = static_cast<int>(error.code());
      copy_text(report.text, error.what());
    }
    copy_text(report.left, left_beyond(before));
    report.has_failed = testing::Test::HasFailure();
    report.end_ns = runtime::now_ns();
    return 0;
  };
  // Whoever has stopped ends by force once the others are through.
  const auto tick = [&] {
    if (fault != Fault::stop || board.fault_ns == 0) return;
    for (int rank = 0; rank < n; ++rank)
      if (rank != culprit && board.ranks[rank].end_ns == 0) return;
    ::kill(static_cast<pid_t>(board.ranks[culprit].pid), SIGKILL);
  };
  const Held before = held();
  const bool is_killed = fault == Fault::kill || fault == Fault::stop;
  EXPECT_EQ(runtime::launch_forked(n, child, tick), is_killed ? 128 + SIGKILL : 0);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
  EXPECT_EQ(left_beyond(before), "") << "left by the launcher";
  EXPECT_NE(board.job[0], 0);
  EXPECT_EQ(sockets_of(board.job), "") << "sockets are left";
  EXPECT_NE(board.fault_ns, 0) << "the fault did not happen";
  std::vector<Survivor> survivors;
  for (int rank = 0; rank < n; ++rank) {
    if (rank == culprit) continue;
    const Report& report = board.ranks[rank];
    EXPECT_NE(report.end_ns, 0) << "rank " << rank << " was ended by force";
    EXPECT_FALSE(report.has_failed) << "rank " << rank << " printed what it expected";
    survivors.push_back({.rank = rank,
                         .code = static_cast<Errc>(report.code),
                         .text = report.text,
                         .seconds = static_cast<double>(report.end_ns - board.fault_ns) * 1e-9,
                         .left = report.left});
  }
  ::munmap(memory, sizeof(Board));
  return survivors;
}

int64_t short_deadline_ms() { return is_loaded() ? 1500 : 400; }

double allowed_seconds(Fault fault, int64_t timeout_ms) {
  // A rank that ends is seen at once, whatever the deadline is.
  return (fault == Fault::stop ? static_cast<double>(timeout_ms) * 1e-3 : 0) + (is_loaded() ? 10 : 1);
}

void expect_told(const std::vector<Survivor>& survivors, int culprit, double allowed, const std::vector<Errc>& codes,
                 const std::string& where) {
  for (const Survivor& s : survivors) {
    const std::string which = base::format("{}: rank {}: {}: \"{}\"", where, s.rank, errc_name(s.code), s.text);
    EXPECT_NE(std::find(codes.begin(), codes.end(), s.code), codes.end()) << which;
    EXPECT_TRUE(names_rank(s.text, culprit)) << which;
    EXPECT_LE(s.seconds, allowed) << which;
    EXPECT_EQ(s.left, "") << which;
  }
}

}  // namespace overlace::test
