// A thread that fills slots beside whoever uses them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/status.h"

namespace overlace::offload {

/// A fill that has ended, well or not.
struct FillEnd {
  uint64_t tag = 0;
  base::Status status;
};

/// Runs what it is given, one after the other. One thread gives and polls. What is thrown becomes the status.
class Filler {
 public:
  Filler();
  /// Waits for the fill that runs; those behind it are dropped.
  ~Filler();
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

  void start(std::function<base::Status()> work, uint64_t tag);
  /// What has ended; waits for something at most so long. None where nothing is under way.
  std::vector<FillEnd> poll(int64_t wait_ms);
  /// Time that fills took, all together.
  double busy_s() const;

 private:
  struct Work {
    std::function<base::Status()> run;
    uint64_t tag = 0;
  };
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable given_, ended_;
  std::deque<Work> backlog_;
  std::vector<FillEnd> done_;
  int64_t under_way_ = 0;  // given and not yet polled
  double busy_s_ = 0;
  bool is_ending_ = false;
  std::thread thread_;  // last: all else is there when it begins
};

}  // namespace overlace::offload
