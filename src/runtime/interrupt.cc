#include "src/runtime/interrupt.h"

#include <atomic>
#include <thread>

namespace overlace::runtime {
namespace {

std::atomic<int (*)()> check_of_process{nullptr};
std::atomic<std::thread::id> thread_of_check{};

}  // namespace

void set_interrupt_check(int (*check)()) {
  check_of_process.store(nullptr, std::memory_order_seq_cst);
  thread_of_check.store(std::this_thread::get_id(), std::memory_order_seq_cst);
  check_of_process.store(check, std::memory_order_seq_cst);
}

bool InterruptClock::is_interrupted(int64_t now_ns) {
  if (now_ns < next_ns_) return false;
  next_ns_ = now_ns + kPeriodNs;
  int (*const check)() = check_of_process.load(std::memory_order_seq_cst);
  return check != nullptr && thread_of_check.load(std::memory_order_seq_cst) == std::this_thread::get_id() &&
         check() != 0;
}

}  // namespace overlace::runtime
