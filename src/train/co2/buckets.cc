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

}  // namespace overlace::train
