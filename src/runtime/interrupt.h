// Waits of the host end early if the program around them says so: a Python program has been told to stop, for instance.
#pragma once

#include <cstdint>

namespace overlace::runtime {

/// From now on waits of the calling thread ask `check` ten times a second; anything but 0 ends the wait and aborts its
/// runtime. Null: no more. One for the process; the last one counts.
void set_interrupt_check(int (*check)());

/// The clock of one wait.
class InterruptClock {
 public:
  explicit InterruptClock(int64_t start_ns) : next_ns_(start_ns + kPeriodNs) {}
  /// At `now_ns`: asks if it is time to. Hold no lock: the check may run anything.
  bool is_interrupted(int64_t now_ns);

  static constexpr int64_t kPeriodNs = 100'000'000;

 private:
  int64_t next_ns_;
};

}  // namespace overlace::runtime
