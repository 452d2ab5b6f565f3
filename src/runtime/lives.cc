#include "src/runtime/lives.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "src/runtime/control.h"

namespace overlace::runtime {
namespace {

constexpr int kMaxDescriptors = 4096;

/// Plain arrays and atomics where the child of a fork reads: it may do little more than close descriptors.
std::atomic<uint64_t> forks{0};
std::atomic<int> descriptors[kMaxDescriptors];  // fd + 1; 0: free

struct Lives {
  std::mutex mutex;
  std::vector<Control*> controls;
};

/// Never destroyed: used while the process ends.
Lives& lives() {
  static Lives* const instance = new Lives;
  return *instance;
}

void in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  for (std::atomic<int>& slot : descriptors)
    if (const int fd = slot.exchange(0, std::memory_order_relaxed); fd != 0) ::close(fd - 1);
}

void at_exit() {
  if (fork_count() != 0) return;  // these are the parent's
  std::vector<Control*> controls;
  {
    const std::lock_guard lock(lives().mutex);
    controls.swap(lives().controls);
  }
  for (Control* control : controls) control->leave(false);
}

void install_once() {
  static const bool is_installed = [] {
    pthread_atfork(nullptr, nullptr, in_child);
    return std::atexit(at_exit) == 0;
  }();
  (void)is_installed;
}

}  // namespace

uint64_t fork_count() { return forks.load(std::memory_order_relaxed); }

void add_life(Control* control) {
  install_once();
  const std::lock_guard lock(lives().mutex);
  lives().controls.push_back(control);
}

void remove_life(Control* control) {
  const std::lock_guard lock(lives().mutex);
  std::erase(lives().controls, control);
}

void add_descriptor(int fd) {
  install_once();
  for (std::atomic<int>& slot : descriptors) {
    int expected = 0;
    if (slot.compare_exchange_strong(expected, fd + 1, std::memory_order_relaxed)) return;
  }
}

void remove_descriptor(int fd) {
  for (std::atomic<int>& slot : descriptors) {
    int expected = fd + 1;
    if (slot.compare_exchange_strong(expected, 0, std::memory_order_relaxed)) return;
  }
}

}  // namespace overlace::runtime
