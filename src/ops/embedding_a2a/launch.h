// Pooled bags of embeddings on a GPU: one launch for up to 64 features of a rank and a run of samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/spec/families/bad_bag_pod.h"

namespace overlace::ops {

/// Columns of a table as a rank pools them.
struct PoolFeature {
  int64_t slice = 0;               // element of the weights where row 0 begins
  int64_t rows = 0, padding = -1;  // of the table; -1: none
  int64_t column = 0, width = 0;   // of the destination
};

enum class PoolMode { sum, mean, max };
enum class PoolBounds { error, ignore, clamp, zero_row, none };

/// What kernels of one stream found in bags. `words` is device memory of pool_words_bytes(), zeroed, that outlives
/// this.
class PoolReport {
 public:
  static base::Result<std::unique_ptr<PoolReport>> make(int device, void* words);
  virtual ~PoolReport() = default;
  /// The first bad bag of the first launch that had one since the last time, once the kernel has said so. Waits for
  /// nothing.
  virtual std::optional<spec::BadBag> take() = 0;
};
size_t pool_words_bytes();

/// dst (samples, columns): for samples [first_sample, first_sample + rows of dst) of `batch`, columns of each feature f
/// are the pool of bag f `batch` + sample. Sums are made in fp32 (fp64 for fp64) in the order of the entries, with
/// factors by fused multiply-add in fp32; a mean is divided once; one rounding. Columns of no feature become 0. With
/// bounds `error` entries outside their tables and bags that are none count as left out, and `report` has them.
/// Queued on `cuda_stream`; nothing is allocated.
struct PoolLaunch {
  std::span<const PoolFeature> features;  // of this rank, all of them, columns side by side from 0 on
  int64_t first_feature = 0;              // its number in the placement
  int64_t batch = 0, first_sample = 0;
  TensorView weights, indices, offsets, factors;  // vectors without gaps; factors: undefined, or as weights
  TensorView dst;  // rows without gaps in themselves; dtype of weights, or fp32 of 16 bits
  PoolMode mode = PoolMode::sum;
  PoolBounds bounds = PoolBounds::error;
  PoolReport* report = nullptr;
  void* cuda_stream = nullptr;
};
base::Status launch_pool(const PoolLaunch& args);

}  // namespace overlace::ops
