#include <bit>
#include <cmath>
#include <map>

#include "bench/common/device.h"

namespace overlace::bench {
namespace {

constexpr size_t kLeastValues = 1024;  // fewer say little about their distribution
/// Least entropy of the upper 16 bits (a bf16 pattern). Normal data have about 9.7; [0.5, 1) has the 7 of its mantissa.
constexpr double kLeastBits = 8;

double pattern_entropy(const std::vector<float>& values) {
  std::map<uint32_t, double> counts;
  for (const float value : values) counts[std::bit_cast<uint32_t>(value) >> 16] += 1;
  double bits = 0;
  for (const auto& [pattern, count] : counts) {
    const double share = count / static_cast<double>(values.size());
    bits -= share * std::log2(share);
  }
  return bits;
}

}  // namespace

std::string low_entropy(const std::vector<float>& values) {
  if (values.size() < kLeastValues) return {};
  std::vector<float> steps;
  for (size_t i = 1; i < values.size(); ++i) steps.push_back(values[i] - values[i - 1]);
  const double of_values = pattern_entropy(values), of_steps = pattern_entropy(steps);
  if (of_values >= kLeastBits && of_steps >= kLeastBits) return {};
  return base::format(
      "the data hold {:.1f} bits per value and {:.1f} from one to the next, wanted at least {}: they "
      "would run faster than real ones",
      of_values, of_steps, kLeastBits);
}

}  // namespace overlace::bench
