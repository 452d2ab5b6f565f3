#include "src/base/timing.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace overlace::base {
namespace {

constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ull;

/// splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

double steady_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<size_t> burst_order(size_t competitors, int repetition, uint64_t seed) {
  std::vector<size_t> order(competitors);
  std::iota(order.begin(), order.end(), size_t{0});
  uint64_t state = mix(seed + kGoldenRatio * static_cast<uint64_t>(repetition / 2 + 1));
  for (size_t left = competitors; left > 1; --left) {
    state += kGoldenRatio;
    std::swap(order[left - 1], order[mix(state) % left]);
  }
  if (repetition % 2 != 0) std::reverse(order.begin(), order.end());
  return order;
}

double burst_calls(double burst_us, double call_us, int least, int most) {
  return std::clamp(burst_us / std::max(call_us, 1e-3), static_cast<double>(least), static_cast<double>(most));
}

}  // namespace overlace::base
