#include "src/runtime/backend/cpu/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <string>

#include "src/base/ceil_div_pod.h"

namespace overlace::runtime {

void futex_wait(uint32_t* word, uint32_t expected, int64_t bound_ns) {
  constexpr int64_t kSecond = 1000000000;
  const timespec bound = {bound_ns / kSecond, bound_ns % kSecond};
  // Not the private form: ranks may be processes.
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &bound, nullptr, 0);
}

void futex_wake(uint32_t* word) { ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

std::vector<std::byte> own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  std::vector<std::byte> mask(sizeof set);
  std::memcpy(mask.data(), &set, sizeof set);
  return mask;
}

int usable_cores(std::span<const std::vector<std::byte>> masks) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (const std::vector<std::byte>& mask : masks) {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::memcpy(&set, mask.data(), std::min(mask.size(), sizeof set));
    CPU_OR(&all, &all, &set);
  }
  int count = CPU_COUNT(&all);
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  int64_t period = 0;
  if (file >> quota >> period && quota != "max" && period > 0)
    count = std::min(count, static_cast<int>(base::ceil_div(std::stoll(quota), period)));
  return std::max(count, 1);
}

}  // namespace overlace::runtime
