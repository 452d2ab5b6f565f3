#include "src/gnn/order/batch_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/gnn/sample/random.h"

namespace overlace::gnn {

const char* name_of(BatchOrder order) {
  switch (order) {
    case BatchOrder::fixed:
      return "fixed";
    case BatchOrder::segments:
      return "segments";
    case BatchOrder::shuffle:
      return "shuffle";
  }
  return "?";
}

OrderChoice automatic_order(int64_t num_batches, int64_t cpu_rows, int64_t rows_per_batch) {
  constexpr int64_t kShortest = 256, kFills = 20, kSegments = 4;
  const int64_t rows = std::max<int64_t>(rows_per_batch, 1);
  const int64_t length = std::max(kShortest, base::ceil_div(kFills * cpu_rows, rows));
  if (num_batches / kSegments < length) return {BatchOrder::fixed, 0};
  return {BatchOrder::segments, length};
}

Segments::Segments(OrderChoice choice, int64_t num_batches, int64_t epoch_batches) {
  const bool is_cut = choice.order == BatchOrder::segments;
  stride_ = std::max<int64_t>(is_cut && epoch_batches > 0 ? epoch_batches : num_batches, 1);
  length_ = is_cut ? choice.segment_batches : stride_;
  OVERLACE_ASSERT(length_ >= 1 && num_batches % stride_ == 0);
  epochs_ = num_batches / stride_;
  per_epoch_ = stride_ / length_ + (stride_ % length_ != 0 ? 1 : 0);
}

std::vector<int64_t> epoch_sequence(OrderChoice choice, int64_t num_batches, uint64_t seed, uint64_t training_epoch,
                                    int64_t epoch_batches) {
  int64_t first = 0;
  if (epoch_batches > 0 && epoch_batches < num_batches) {
    first = static_cast<int64_t>(training_epoch % static_cast<uint64_t>(num_batches / epoch_batches)) * epoch_batches;
    num_batches = epoch_batches;
  }
  const int64_t length = choice.order == BatchOrder::fixed     ? std::max<int64_t>(num_batches, 1)
                         : choice.order == BatchOrder::shuffle ? 1
                                                               : choice.segment_batches;
  OVERLACE_ASSERT(length >= 1);
  std::vector<int64_t> segments(static_cast<size_t>(num_batches / length + (num_batches % length != 0 ? 1 : 0)));
  std::iota(segments.begin(), segments.end(), int64_t{0});
  const uint64_t key = random_word(random_word(seed, 0x6f72646572), training_epoch);  // "order"
  for (size_t i = segments.size(); i > 1; --i)
    std::swap(segments[i - 1], segments[random_below(random_word(key, i), i)]);
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(num_batches));
  for (const int64_t segment : segments)
    for (int64_t b = segment * length; b < std::min((segment + 1) * length, num_batches); ++b) out.push_back(first + b);
  return out;
}

}  // namespace overlace::gnn
