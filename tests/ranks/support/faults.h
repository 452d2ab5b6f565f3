// One rank of several processes fails at a chosen place; what the others see of it, and what they leave behind.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/errc_pod.h"

namespace overlace::test {

/// kill: SIGKILL. exit: std::exit without close(). stop: SIGSTOP, so that its sockets stay open. fail: an exception.
enum class Fault { kill, exit, stop, fail };
const char* fault_name(Fault fault);
/// What Fault::fail throws, an IoError.
inline constexpr const char* kFailure = "the disk is full";

/// What became of a rank that did not fail by itself.
struct Survivor {
  int rank = 0;
  Errc code = Errc::ok;
  std::string text;    // of what it threw, "" if nothing
  double seconds = 0;  // from the fault to its end
  std::string left;    // descriptors, threads and mapped heaps that are still there, in words
};

/// Runs `body` on n forked processes. Rank `culprit` calls `happen` somewhere in it. Fails the test if a process is
/// still there at the end. In rank order, without the culprit.
std::vector<Survivor> run_with_fault(
    int n, int culprit, Fault fault,
    const std::function<void(std::unique_ptr<Bootstrap>, const std::function<void()>& happen)>& body);

/// A deadline that a test waits for: short, but long enough to open a runtime on this machine as busy as it is.
int64_t short_deadline_ms();

/// Longest time from a fault to the end of a survivor: the deadline and a second, more where the machine is loaded.
double allowed_seconds(Fault fault, int64_t timeout_ms);

/// Expects that each survivor threw an error of one of `codes` in time, that it names the culprit, and that nothing is
/// left. `where` says which case that was.
void expect_told(const std::vector<Survivor>& survivors, int culprit, double allowed, const std::vector<Errc>& codes,
                 const std::string& where);

}  // namespace overlace::test
