#include "src/train/co2/deadline.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/statistics.h"

namespace overlace::train {

void ArrivalDeadline::add(double waited_ms) {
  waited_.push_back(waited_ms);
  if (waited_.size() > kRounds) waited_.pop_front();
}

int64_t ArrivalDeadline::ms() const {
  if (waited_.size() < kRounds) return most_ms_;
  std::vector<double> values(waited_.begin(), waited_.end());
  const double middle = base::median(values);
  for (double& value : values) value = std::abs(value - middle);
  const double ms = middle + 10 * base::median(values);
  return ms >= static_cast<double>(most_ms_)
             ? most_ms_
             : std::min(most_ms_, std::max(kLeastMs, static_cast<int64_t>(std::llround(ms))));
}

}  // namespace overlace::train
