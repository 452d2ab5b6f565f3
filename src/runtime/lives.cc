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

struct Life {
  Control* control;
  pid_t pid;  // a forked child inherits the list, not the lives
};

struct Lives {
  std::mutex mutex;
  std::vector<Life> all;
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
  // In a forked child the lock may be held by a thread that does not exist there. It is kept to the end: another thread
  // may be closing its runtime, and remove_life() makes it wait until this is done with the control.
  const std::unique_lock lock(lives().mutex, std::try_to_lock);
  if (!lock) return;
  for (const Life& life : lives().all)
    if (life.pid == ::getpid()) life.control->leave(false);
  lives().all.clear();
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
  lives().all.push_back({control, ::getpid()});
}

void remove_life(Control* control) {
  const std::lock_guard lock(lives().mutex);
  std::erase_if(lives().all, [&](const Life& life) { return life.control == control; });
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
