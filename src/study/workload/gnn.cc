#include "src/study/workload/gnn.h"

#include <string>
#include <utility>
#include <vector>

#include "src/base/format.h"

namespace overlace::study {
namespace {

enum GnnLane { kTrain, kDisk, kLink, kCheck, kGather, kAdmit };
constexpr int kTasksPerItem = 8;

base::Status check_gnn_run(std::span<const GnnItem> items, const GnnRun& run) {
  if (items.empty()) return base::invalid_argument("gnn: no items, wanted at least one");
  if (run.depth < 0 || run.depth > 64) return base::invalid_argument("gnn: depth is {}, wanted 0 to 64", run.depth);
  if (run.outputs < 1) return base::invalid_argument("gnn: {} outputs, wanted at least 1", run.outputs);
  if (std::ssize(items) > kMostTasks / kTasksPerItem)
    return base::invalid_argument("gnn: {} items of {} tasks, wanted at most {} tasks", items.size(), kTasksPerItem,
                                  kMostTasks);
  for (size_t i = 1; i < items.size(); ++i)
    if (items[i].is_restore && items[i - 1].is_restore)
      return base::invalid_argument("gnn: item {} is a restore behind a restore, wanted a batch between them", i);
  return {};
}

/// Tasks of all items; a task waits for what its stage needs, and a lane takes its tasks in their order.
class Pipeline {
 public:
  Pipeline(std::span<const GnnItem> items, const GnnRun& run)
      : items_(items),
        run_(run),
        step_(1, {"train", "disk", "link", "check", "gather", "admit"}),
        checked_(items.size()),
        gathered_(items.size()),
        admitted_(items.size()) {
    const int64_t n = std::ssize(items);
    read(0);
    for (int64_t i = 0; i < n; ++i) {
      if (i + 1 < n && run.way != GnnWay::sequential) read(i + 1);
      finish(i);
      if (i + 1 < n && run.way == GnnWay::sequential) read(i + 1);
    }
  }
  const Step& step() const { return step_; }

 private:
  int add(const char* name, int64_t i, GnnLane lane, const char* kind, double us, std::vector<int> after,
          int64_t bytes = 0) {
    if (run_.way == GnnWay::sequential) after.push_back(last_);
    if (run_.way == GnnWay::free && lane == kDisk) us = 0;
    const bool is_restore = items_[static_cast<size_t>(i)].is_restore;
    return last_ = step_.add(
               {.name = is_restore ? base::format("restore_{}[{}]", name, i) : base::format("{}[{}]", name, i),
                .lane = lane,
                .us = us,
                .bytes = bytes,
                .kind = kind},
               after);
  }
  static int of(const std::vector<int>& tasks, int64_t i) { return i < 0 ? -1 : tasks[static_cast<size_t>(i)]; }

  void read(int64_t i) {
    const GnnItem& item = items_[static_cast<size_t>(i)];
    const int64_t places = 2 * int64_t{run_.depth} + 2;
    std::vector<int> after;
    if (i >= places) after = {of(admitted_, i - places), of(gathered_, i - places + run_.depth)};
    if (item.is_restore) after.push_back(of(gathered_, std::exchange(last_restore_, i)));
    const int read = add("read", i, kDisk, "copy", item.read_us, after, item.disk_bytes);
    checked_[static_cast<size_t>(i)] = add("check", i, kCheck, "other", item.check_us, {read});
  }

  void finish(int64_t i) {
    const GnnItem& item = items_[static_cast<size_t>(i)];
    int ready = of(checked_, i);
    if (item.page_us > 0) {
      const int pages = add("pages", i, kDisk, "copy", item.page_us, {ready});
      ready = add("page_check", i, kCheck, "other", item.page_check_us, {pages});
    }
    const int copied = add("to_gpu", i, kLink, "copy", item.link_us, {ready}, item.link_bytes);
    std::vector<int> after = {copied, of(admitted_, item.is_restore ? i - 1 : i - 1 - run_.depth)};
    if (!item.is_restore) after.push_back(of(trained_, std::ssize(trained_) - run_.outputs));
    gathered_[static_cast<size_t>(i)] = add("gather", i, kGather, "copy", item.gather_us, after);
    admitted_[static_cast<size_t>(i)] = add("admit", i, kAdmit, "copy", item.admit_us, {of(gathered_, i)});
    if (!item.is_restore) trained_.push_back(add("train", i, kTrain, "gemm", item.train_us, {of(gathered_, i)}));
  }

  std::span<const GnnItem> items_;
  const GnnRun& run_;
  Step step_;
  int last_ = -1;
  int64_t last_restore_ = -1;
  std::vector<int> checked_, gathered_, admitted_, trained_;
};

}  // namespace

base::Result<GnnTime> gnn_epoch(std::span<const GnnItem> items, const GnnRun& run, base::Trace* timeline) {
  OVERLACE_TRY(check_gnn_run(items, run));
  const Pipeline pipeline(items, run);
  const base::Result<StepTime> time = pipeline.step().run();
  if (!time.ok()) return time.status();
  GnnTime out{.us = time->us, .bound_us = time->bound_us};
  for (const GnnItem& item : items) {
    if (run.way != GnnWay::free) out.disk_us += item.read_us + item.page_us;
    out.link_us += item.link_us;
    out.train_us += item.is_restore ? 0 : item.train_us;
  }
  if (timeline != nullptr) *timeline = pipeline.step().to_trace(*time, "a training epoch from packs, simulated");
  return out;
}

}  // namespace overlace::study
