#include "src/gnn/plan/pipeline_time.h"

#include <algorithm>

#include "src/gnn/pipeline/loader.h"

namespace overlace::gnn {
namespace {

/// When each stage of each item ends; before the first item: 0.
class Recurrence {
 public:
  Recurrence(std::span<const ItemTimes> items, int depth)
      : items_(items), depth_(depth), checked_(items.size()), gathered_(items.size()), admitted_(items.size()) {}

  PipelineTime run() {
    const int64_t n = std::ssize(items_);
    if (n > 0) read(0);
    for (int64_t i = 0; i < n; ++i) {
      if (i + 1 < n) read(i + 1);
      finish(i);
    }
    out_.us = std::max({out_.us, trained_.empty() ? 0 : trained_.back(), n == 0 ? 0 : admitted_.back()});
    return out_;
  }

 private:
  const ItemTimes& item(int64_t i) const { return items_[static_cast<size_t>(i)]; }
  static double end_of(const std::vector<double>& ends, int64_t i) { return i < 0 ? 0 : ends[static_cast<size_t>(i)]; }

  /// R3, and one restore at a time.
  void read(int64_t i) {
    const int64_t places = 2 * int64_t{depth_} + 2;
    double begin = disk_;
    if (i >= places) begin = std::max({disk_, end_of(admitted_, i - places), end_of(gathered_, i - places + depth_)});
    if (item(i).is_restore) {
      begin = std::max(begin, end_of(gathered_, last_restore_));
      last_restore_ = i;
    }
    disk_ = begin + item(i).read_us;
    check_ = std::max(check_, disk_) + item(i).check_us;
    checked_[static_cast<size_t>(i)] = check_;
    out_.disk_us += item(i).read_us;
    out_.check_us += item(i).check_us;
  }

  /// R1, R2 and R4.
  void finish(int64_t i) {
    const ItemTimes& it = item(i);
    double ready = checked_[static_cast<size_t>(i)];
    if (it.page_us > 0) {
      disk_ = std::max(disk_, ready) + it.page_us;
      ready = check_ = std::max(check_, disk_) + it.page_check_us;
    }
    link_ = std::max(link_, ready) + it.link_us;
    double begin =
        std::max({link_, end_of(gathered_, i - 1), end_of(admitted_, it.is_restore ? i - 1 : i - 1 - depth_)});
    if (!it.is_restore) begin = std::max(begin, end_of(trained_, std::ssize(trained_) - LoaderBuffers::kOutputs));
    gathered_[static_cast<size_t>(i)] = begin + it.gather_us;
    admitted_[static_cast<size_t>(i)] = std::max(end_of(admitted_, i - 1), end_of(gathered_, i)) + it.admit_us;
    if (!it.is_restore)
      trained_.push_back(std::max(trained_.empty() ? 0 : trained_.back(), end_of(gathered_, i)) + it.train_us);
    out_.disk_us += it.page_us;
    out_.check_us += it.page_us > 0 ? it.page_check_us : 0;
    out_.link_us += it.link_us;
    out_.gather_us += it.gather_us;
    out_.admit_us += it.admit_us;
    out_.train_us += it.is_restore ? 0 : it.train_us;
  }

  std::span<const ItemTimes> items_;
  int depth_;
  double disk_ = 0, check_ = 0, link_ = 0;  // when each is free
  int64_t last_restore_ = -1;
  std::vector<double> checked_, gathered_, admitted_, trained_;
  PipelineTime out_;
};

double us_of(int64_t bytes, double GBps) { return GBps > 0 ? static_cast<double>(bytes) / (GBps * 1e3) : 0; }

}  // namespace

base::Status check(const EpochRates& rates) {
  const auto positive = [](const char* name, double rate) {
    return rate > 0 ? base::Status() : base::invalid_argument("{} is {}, wanted more than 0", name, rate);
  };
  const auto not_negative = [](const char* name, double rate) {
    return rate >= 0 ? base::Status() : base::invalid_argument("{} is {}, wanted at least 0", name, rate);
  };
  OVERLACE_TRY(positive("extent_GBps", rates.extent_GBps));
  OVERLACE_TRY(positive("page_GBps", rates.page_GBps));
  OVERLACE_TRY(not_negative("link_GBps", rates.link_GBps));
  OVERLACE_TRY(not_negative("compute_ms", rates.compute_ms));
  OVERLACE_TRY(not_negative("check_GBps", rates.check_GBps));
  return not_negative("gather_GBps", rates.gather_GBps);
}

std::vector<ItemTimes> item_times(const Prediction& prediction, const EpochRates& rates) {
  const int64_t row = prediction.options.row_bytes;
  std::vector<ItemTimes> out;
  out.reserve(prediction.items.size());
  for (const ItemBytes& item : prediction.items)
    out.push_back(
        {.read_us = us_of(item.extent, rates.extent_GBps),
         .check_us = us_of(item.extent, rates.check_GBps),
         .page_us = us_of(item.pages, rates.page_GBps),
         .page_check_us = us_of(item.pages, rates.check_GBps),
         .link_us = item.is_restore ? 0 : us_of(item.extent + item.pages + item.cpu_rows * row, rates.link_GBps),
         .gather_us = us_of(item.rows * row, rates.gather_GBps),
         .admit_us = us_of(item.admitted * row, rates.gather_GBps),
         .train_us = item.is_restore ? 0 : rates.compute_ms * 1e3,
         .is_restore = item.is_restore});
  return out;
}

base::Result<PipelineTime> pipeline_time(std::span<const ItemTimes> items, int depth) {
  if (depth < 0) return base::invalid_argument("depth is {}, wanted at least 0", depth);
  for (size_t i = 1; i < items.size(); ++i)
    if (items[i].is_restore && items[i - 1].is_restore)
      return base::invalid_argument("item {} is a restore behind a restore, wanted a batch between them", i);
  return Recurrence(items, depth).run();
}

}  // namespace overlace::gnn
