#include "src/runtime/backend/cpu/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <string>

namespace overlace::runtime {

void futex_wait(uint32_t* word, uint32_t expected, int64_t bound_ns) {
  constexpr int64_t kSecond = 1000000000;
  const timespec bound = {bound_ns / kSecond, bound_ns % kSecond};
  // Not the private form: ranks may be processes.
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &bound, nullptr, 0);
}

void futex_wake(uint32_t* word) { ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

int usable_cores() {
  static const int cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    int count = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    int64_t period = 0;
    if (file >> quota >> period && quota != "max" && period > 0)
      count = std::min(count, static_cast<int>((std::stoll(quota) + period - 1) / period));
    return std::max(count, 1);
  }();
  return cores;
}

}  // namespace overlace::runtime
