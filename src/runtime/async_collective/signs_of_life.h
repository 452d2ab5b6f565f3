// Which ranks of a runtime still do anything: a process that has stopped keeps its connections and its words, and looks
// from outside like one that waits for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/runtime/control.h"

namespace overlace::runtime {

/// Answers what the others ask, on a thread of its own, as long as it lives. One for a control plane.
class SignsOfLife {
 public:
  /// `control` must outlive it.
  explicit SignsOfLife(Control& control);
  ~SignsOfLife();
  SignsOfLife(const SignsOfLife&) = delete;
  SignsOfLife& operator=(const SignsOfLife&) = delete;

  /// Any thread. Ranks that do not answer within kPatience and have not aborted or left either; returns as soon as
  /// there are none.
  std::vector<int> missing();
  /// What missing() gives in words, "; no sign of life: rank 3, 5"; empty where all answer.
  std::string missing_text();
  static constexpr std::chrono::milliseconds kPatience{600};

 private:
  void answer();
  void answer(int peer);

  Control& control_;
  std::mutex asking_;                // one question at a time
  uint32_t num_asked_ = 0;           // with it
  std::vector<uint32_t> num_heard_;  // questions of each peer; of the thread
  std::atomic<bool> is_stopped_{false};
  std::thread thread_;
};

}  // namespace overlace::runtime
