// How long a rank waits for the other groups, by how long they took so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

namespace overlace::train {

/// The median of what the last kRounds rounds were waited for, and ten times the median distance from it, at least
/// kLeastMs. Until there are so many rounds, and at most: the time that it was made with.
class ArrivalDeadline {
 public:
  explicit ArrivalDeadline(int64_t most_ms) : most_ms_(most_ms) {}
  void add(double waited_ms);
  int64_t ms() const;
  static constexpr size_t kRounds = 16;
  static constexpr int64_t kLeastMs = 10000;

 private:
  const int64_t most_ms_;
  std::deque<double> waited_;
};

}  // namespace overlace::train
