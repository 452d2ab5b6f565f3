// A model of few numbers, and whole runs on it of several groups as threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "src/train/co2/replica.h"
#include "tests/unit/train/co2/hostile_collective.h"

namespace overlace::train::test {

/// A quadratic per element with a minimum that differs by group and element, and gradient descent on it.
class Toy {
 public:
  explicit Toy(int rank, std::vector<int64_t> counts = {5, 0, 130, 1}) : rank_(rank) {
    for (const int64_t count : counts) {
      values_.emplace_back(static_cast<size_t>(count));
      for (size_t i = 0; i < values_.back().size(); ++i) values_.back()[i] = 0.01f * static_cast<float>(i % 17) + 1;
    }
  }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    for (size_t t = 0; t < values_.size(); ++t)
      all.push_back({.name = "p" + std::to_string(t),
                     .data = values_[t].data(),
                     .count = static_cast<int64_t>(values_[t].size())});
    return all;
  }
  void step(float lr = 0.1f) {
    for (std::vector<float>& tensor : values_)
      for (size_t i = 0; i < tensor.size(); ++i)
        tensor[i] -= lr * (tensor[i] - 0.2f * static_cast<float>(rank_) - 0.001f * static_cast<float>(i));
  }
  std::vector<float> flat() const {
    std::vector<float> all;
    for (const std::vector<float>& tensor : values_) all.insert(all.end(), tensor.begin(), tensor.end());
    return all;
  }
  std::vector<std::vector<float>>& values() { return values_; }

 private:
  const int rank_;
  std::vector<std::vector<float>> values_;
};

inline ReplicaOptions small(Co2Options co2, DType wire = DType::fp32) {
  ReplicaOptions options;
  options.co2 = co2;
  options.wire_dtype = wire;
  options.bucket_bytes = 64 * 4;
  options.timeout_ms = 20000;
  options.threads = 1;
  return options;
}

/// Parameters of each group at the end of a run that is flushed.
inline std::vector<std::vector<float>> train(int groups, const Co2Options& co2, int steps, uint64_t seed = 0,
                                             DType wire = DType::fp32) {
  std::vector<std::vector<float>> ends(static_cast<size_t>(groups));
  run_members(groups, seed, [&](AsyncCollective& outer) {
    Toy toy(outer.rank());
    Replica replica(small(co2, wire), toy.parameters(), outer);
    for (int i = 0; i < steps; ++i) {
      toy.step();
      replica.on_inner_step(0.1);
    }
    replica.flush();
    ends[static_cast<size_t>(outer.rank())] = toy.flat();
  });
  return ends;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return a.size() == b.size() ? largest : std::numeric_limits<double>::infinity();
}

}  // namespace overlace::train::test
