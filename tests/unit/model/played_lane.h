// A device on a CPU whose lane of copies runs as far apart from its computation as events allow, and lanes that forget
// one event.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/model/device.h"

namespace overlace::model {

/// Which of the queues runs whenever it can; the other one waits until it must.
enum class Eager { copies, computation };
/// What a lane forgets.
enum class Forgets { nothing, copied_record, used_record, copies_wait, computation_wait, host_wait };

/// What both queues hold. It outlives the lane.
class Queues {
 public:
  Queues(Eager eager, Forgets forgets) : eager_(eager), forgets_(forgets) {}

  void queue(CopyLane::Queue queue, std::function<void()> run) { push(queue, {std::move(run), -1, 0, -1}); }
  void record(CopyLane::Queue queue, int event) {
    if (forgets_ == (queue == CopyLane::Queue::copies ? Forgets::copied_record : Forgets::used_record)) return;
    const std::lock_guard lock(mutex_);
    ++recorded_[event];
    push(queue, {{}, -1, 0, event});
  }
  void wait(CopyLane::Queue queue, int event) {
    if (forgets_ == (queue == CopyLane::Queue::copies ? Forgets::copies_wait : Forgets::computation_wait)) return;
    const std::lock_guard lock(mutex_);
    push(queue, {{}, event, recorded_[event], -1});
  }
  void synchronize(int event) {
    if (forgets_ == Forgets::host_wait) return;
    const std::lock_guard lock(mutex_);
    while (passed_[event] < recorded_[event]) ASSERT_TRUE(step()) << "event " << event << " never comes";
  }
  /// Runs all there is.
  void drain() {
    const std::lock_guard lock(mutex_);
    while (step()) continue;
    EXPECT_TRUE(works_[0].empty() && works_[1].empty()) << "something waits for what never comes";
  }

 private:
  struct Work {
    std::function<void()> run;
    int waits_for = -1;
    int64_t count = 0;  // of that event
    int records = -1;
  };
  std::deque<Work>& of(CopyLane::Queue queue) { return works_[queue == CopyLane::Queue::copies ? 0 : 1]; }
  void push(CopyLane::Queue queue, Work work) {
    const std::lock_guard lock(mutex_);
    of(queue).push_back(std::move(work));
    while (run_first(eager())) continue;
  }
  CopyLane::Queue eager() const {
    return eager_ == Eager::copies ? CopyLane::Queue::copies : CopyLane::Queue::computation;
  }
  bool step() {
    return run_first(eager()) ||
           run_first(eager_ == Eager::copies ? CopyLane::Queue::computation : CopyLane::Queue::copies);
  }
  bool run_first(CopyLane::Queue queue) {
    if (of(queue).empty()) return false;
    Work& work = of(queue).front();
    if (work.waits_for >= 0 && passed_[work.waits_for] < work.count) return false;
    if (work.run) work.run();
    if (work.records >= 0) ++passed_[work.records];
    of(queue).pop_front();
    return true;
  }

  const Eager eager_;
  const Forgets forgets_;
  std::recursive_mutex mutex_;
  std::array<std::deque<Work>, 2> works_;
  std::map<int, int64_t> recorded_, passed_;
};

/// The time of a copy: less than what the host takes to queue it.
inline constexpr double kCopied_s = 1e-9;

class PlayedLane final : public CopyLane {
 public:
  PlayedLane(Queues& queues, std::chrono::milliseconds slow, bool is_entered)
      : queues_(queues), slow_(slow), is_entered_(is_entered) {}
  base::Status enter() override {
    EXPECT_EQ(entered_, std::thread::id()) << "twice";
    entered_ = std::this_thread::get_id();
    std::this_thread::sleep_for(slow_);
    return {};
  }
  base::Status copy(const void* from, void* to, int64_t bytes, base::Span span) override {
    EXPECT_EQ(span.bytes, bytes);
    EXPECT_EQ(entered_, is_entered_ ? std::this_thread::get_id() : std::thread::id());
    queues_.queue(CopyLane::Queue::copies, [=, this, span = std::move(span)] {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      const std::lock_guard lock(mutex_);
      times_.copied_s += kCopied_s;
      spans_.push_back(span);
    });
    return {};
  }
  base::Status record(CopyLane::Queue queue, int event) override {
    return queues_.record(queue, event), base::Status();
  }
  base::Status wait(CopyLane::Queue queue, int event) override { return queues_.wait(queue, event), base::Status(); }
  base::Status begin_wait() override {
    const std::lock_guard lock(mutex_);
    return times_.waited_s += 1, base::Status();
  }
  base::Status synchronize(int event) override { return queues_.synchronize(event), base::Status(); }
  Times times() override {
    const std::lock_guard lock(mutex_);
    return times_;
  }
  base::Result<std::vector<base::Span>> take_spans() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  Queues& queues_;
  const std::chrono::milliseconds slow_;
  const bool is_entered_;
  std::thread::id entered_;
  std::mutex mutex_;
  Times times_;
  std::vector<base::Span> spans_;
};

/// A CPU with such a lane.
class PlayedDevice final : public Device {
 public:
  explicit PlayedDevice(Queues& queues) : queues_(queues) {}
  base::Result<void*> alloc(int64_t bytes, std::string_view what) override {
    device_bytes += bytes;
    return cpu_->alloc(bytes, what);
  }
  void free(void* block) override { cpu_->free(block); }
  base::Result<void*> alloc_host(int64_t bytes, std::string_view what) override {
    host_bytes += bytes;
    if (host_bytes > most_host_bytes)
      return base::error(Errc::out_of_memory, "{}: {} bytes were asked and not available", what, bytes);
    return cpu_->alloc_host(bytes, what);
  }
  void free_host(void* block) override { cpu_->free_host(block); }
  base::Result<std::unique_ptr<CopyLane>> make_copy_lane(int) override {
    return std::unique_ptr<CopyLane>(std::make_unique<PlayedLane>(queues_, slow, is_entered));
  }
  base::Status upload(const void* host, void* device, int64_t n) override { return cpu_->upload(host, device, n); }
  base::Status download(const void* device, void* host, int64_t n) override { return cpu_->download(device, host, n); }
  base::Status copy(const void* from, void* to, int64_t n) override { return cpu_->copy(from, to, n); }
  base::Status synchronize() override { return {}; }
  base::Status fill(const SeededMatrix& matrix, const TensorView& out) override { return cpu_->fill(matrix, out); }
  base::Status add_norm(const AddNormArgs& args) override { return cpu_->add_norm(args); }
  base::Status rope(const RopeArgs& args) override { return cpu_->rope(args); }
  base::Status attention(const AttentionArgs& args) override { return cpu_->attention(args); }
  std::string attention_by() const override { return cpu_->attention_by(); }
  base::Status activation(const ActivationArgs& args) override { return cpu_->activation(args); }

  int64_t device_bytes = 0, host_bytes = 0, most_host_bytes = std::numeric_limits<int64_t>::max();
  std::chrono::milliseconds slow{};  // until a copy can be queued
  bool is_entered = true;            // the lane, by a thread of copies

 private:
  Queues& queues_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

}  // namespace overlace::model
