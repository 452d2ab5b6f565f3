// Runs a function on n ranks, as threads or as processes, and brings back what failed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "overlace/error.h"
#include "overlace/runtime.h"
#include "overlace/signal.h"

namespace overlace::test {

enum class Mode { threads, threads_adversary, processes };

inline const char* mode_name(Mode mode) {
  return mode == Mode::threads ? "threads" : mode == Mode::threads_adversary ? "threads_adversary" : "processes";
}
inline void PrintTo(Mode mode, std::ostream* out) { *out << mode_name(mode); }
/// The name of a parameterised test: "processes_3".
inline std::string mode_test_name(const testing::TestParamInfo<std::tuple<int, Mode>>& info) {
  return std::string(mode_name(std::get<1>(info.param))) + "_" + std::to_string(std::get<0>(info.param));
}

/// Under ThreadSanitizer ranks are threads.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kHasProcesses = false;
#else
inline constexpr bool kHasProcesses = true;
#endif

/// What a parameterised test runs in.
inline std::vector<Mode> all_modes() {
  std::vector<Mode> modes = {Mode::threads, Mode::threads_adversary};
  if (kHasProcesses) modes.push_back(Mode::processes);
  return modes;
}

struct RankOptions {
  size_t heap_bytes = size_t{8} << 20;
  size_t max_heap_bytes = 0;  // 0: heap_bytes
  int64_t timeout_ms = 20000;
  LinkOptions link{};
  AdversaryOptions adversary{};            // Mode::threads_adversary enables it and draws a seed unless one is given
  int min_seeds = 1, max_seeds = 1 << 30;  // of an adversary that is not given: the body runs once with each
  uint32_t num_signal_ids = 512;
  WaitPolicy wait = WaitPolicy::automatic;
  std::string net_engine = "auto";
  bool checks_end = true;  // synchronize, barrier, check_quiescent, heap.verify, close after the body
};

/// Options of a runtime in this mode, backend cpu.
RuntimeOptions runtime_options(Mode mode, const RankOptions& options);

/// Opens a runtime on each rank, runs `body`, closes. A failed assertion or an exception of any rank fails the current
/// test, with the rank in front; the other ranks are aborted. Hangs end at the deadline. Under the adversary all that
/// happens once per seed (seeds.h) until one fails. The seed is printed with every failure; OVERLACE_ADVERSARY="seed=N"
/// replays it. Processes are forked: memory that `body` writes
/// stays in the child, only failures come back.
void run_ranks(int n, Mode mode, const std::function<void(Runtime&)>& body, const RankOptions& options = {});

/// Runs ranks without a runtime: the body opens one (or does not). Returns nothing; failures as above.
void run_bootstraps(int n, Mode mode, const std::function<void(Bootstrap&)>& body);

}  // namespace overlace::test
