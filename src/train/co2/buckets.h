// Which parameters travel together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace overlace::train {

inline constexpr int64_t kBucketBytes = int64_t{32} << 20;

/// Parameters [first, first + tensors) and their elements [begin, begin + count) of the flat buffers; count > 0.
struct BucketRange {
  size_t first = 0, tensors = 0;
  int64_t begin = 0, count = 0;
};

/// Buckets end at edges of parameters. One takes parameters while it has room for the next; a larger parameter has a
/// bucket of its own. Parameters of which this rank holds nothing join their neighbours; none at all: no bucket.
/// `counts`: elements that this rank holds, each 0 or more.
std::vector<BucketRange> make_buckets(std::span<const int64_t> counts, int64_t max_count);

/// Which of so many fragments each bucket belongs to: neighbours, of about the same size. Some may have none.
std::vector<int> fragments_of(std::span<const BucketRange> buckets, int64_t fragments);

}  // namespace overlace::train
