#include "src/train/co2/buckets.h"

namespace overlace::train {

std::vector<BucketRange> make_buckets(std::span<const int64_t> counts, int64_t max_count) {
  std::vector<BucketRange> buckets;
  BucketRange open;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (open.count > 0 && counts[i] > 0 && open.count + counts[i] > max_count) {
      buckets.push_back(open);
      open = {i, 0, open.begin + open.count, 0};
    }
    ++open.tensors;
    open.count += counts[i];
  }
  if (open.count > 0)
    buckets.push_back(open);
  else if (!buckets.empty())
    buckets.back().tensors += open.tensors;
  return buckets;
}

std::vector<int> fragments_of(std::span<const BucketRange> buckets, int64_t fragments) {
  std::vector<int> numbers;
  const int64_t total = buckets.empty() ? 0 : buckets.back().begin + buckets.back().count;
  for (const BucketRange& bucket : buckets) {
    const double middle = static_cast<double>(bucket.begin) + static_cast<double>(bucket.count) / 2;
    numbers.push_back(static_cast<int>(middle / static_cast<double>(total) * static_cast<double>(fragments)));
  }
  return numbers;
}

}  // namespace overlace::train
