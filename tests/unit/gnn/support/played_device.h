// A device whose lanes do what they were given as late as events allow, or at once: what an event was forgotten for is
// then read or written too early or too late, each time. Its memory is the host's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/gnn/pipeline/loader_device.h"

namespace overlace::gnn::test {

/// Lanes of a device with a second stream of who trains, which set_caller(nullptr) does not name.
inline constexpr int kCaller = static_cast<int>(Lane::caller), kOtherCaller = kCaller + 1;

/// Waits that a loader owes: of one lane, or of the host, for another.
enum class Forgotten { nothing, gather_for_transfer, caller_for_gather, transfer_for_caller, host_for_gather };

class PlayedDevice final : public LoaderDevice {
 public:
  /// Bit 1 << lane: the lane is late. `forgotten`: a wait that counts as done.
  explicit PlayedDevice(unsigned late, Forgotten forgotten = Forgotten::nothing) : late_(late), forgotten_(forgotten) {}

  /// Bytes that may be allocated, and calls of gather() that succeed.
  int64_t room = int64_t{1} << 30, gathers = int64_t{1} << 30;
  /// How many events the host sees reached; it waits for later ones in vain.
  std::atomic<int64_t> reaches = int64_t{1} << 30;

  /// What the lane does then, behind all it was given.
  void give(Lane lane, std::function<void()> what) {
    const std::lock_guard lock(mutex_);
    give(queue_of(lane), [what = std::move(what)] {
      what();
      return true;
    });
  }
  /// Both streams of a caller.
  void finish(Lane lane) {
    const std::lock_guard lock(mutex_);
    const int queue = static_cast<int>(lane);
    run(queue, at(queue).given);
    if (queue == kCaller) run(kOtherCaller, at(kOtherCaller).given);
  }
  /// Until it is let go nothing that a stream of the caller was given is done.
  void hold_caller(bool is_held) {
    const std::lock_guard lock(mutex_);
    is_held_ = is_held;
  }

  base::Status enter() override { return {}; }
  base::Result<std::byte*> allocate(int64_t bytes) override {
    if (bytes > room) return base::error(Errc::out_of_memory, "no room");
    room -= bytes;
    memory_.emplace_back(static_cast<size_t>(bytes) + 1, std::byte{0xEE});
    return memory_.back().data();
  }
  base::Status pin(std::span<std::byte> memory) override {
    pinned_.push_back(memory);
    return {};
  }
  base::Status make_events(int count) override {
    events_.resize(static_cast<size_t>(count), {0, 0});
    return {};
  }
  void set_caller(void* stream) override {
    const std::lock_guard lock(mutex_);
    caller_ = stream == nullptr ? kCaller : kOtherCaller;
  }

  base::Status copy(Lane lane, std::byte* to, const std::byte* from, int64_t bytes, int64_t pitch,
                    int64_t count) override {
    EXPECT_TRUE(is_mine(to, bytes * count));
    give(lane, [=] {
      for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * bytes, from + i * pitch, static_cast<size_t>(bytes));
    });
    return {};
  }
  base::Status gather(Lane lane, DeviceGather g) override {
    if (gathers-- <= 0) return base::error(Errc::cuda, "gather: a device that fails");
    const std::vector<DeviceRows> sources(g.sources.begin(), g.sources.end());
    EXPECT_TRUE(is_mine(g.out, g.num_ids * g.row_bytes) && is_mine(g.ids, g.num_ids * g.id_bytes));
    for (const DeviceRows& source : sources)
      EXPECT_TRUE(is_read(source.data, source.num_rows * g.row_bytes)) << source.num_rows;
    give(lane, [g, sources] {
      for (int64_t i = 0; i < g.num_ids; ++i) {
        int64_t row = static_cast<const int64_t*>(g.ids)[i];
        size_t s = 0;
        while (s < sources.size() && row >= sources[s].num_rows) row -= sources[s++].num_rows;
        if (s == sources.size() || row < 0) continue;  // ids that came too late
        std::memcpy(static_cast<std::byte*>(g.out) + i * g.row_bytes,
                    static_cast<const std::byte*>(sources[s].data) + row * g.row_bytes,
                    static_cast<size_t>(g.row_bytes));
      }
    });
    return {};
  }
  base::Status record(Lane lane, int event) override {
    const std::lock_guard lock(mutex_);
    events_[static_cast<size_t>(event)] = {queue_of(lane), at(queue_of(lane)).given};
    return {};
  }
  base::Status wait(Lane lane, int event) override {
    const std::lock_guard lock(mutex_);
    const auto [from, place] = events_[static_cast<size_t>(event)];
    const bool is_forgotten =
        (forgotten_ == Forgotten::gather_for_transfer && lane == Lane::gather && from == 0) ||
        (forgotten_ == Forgotten::caller_for_gather && lane == Lane::caller) ||
        (forgotten_ == Forgotten::transfer_for_caller && lane == Lane::transfer && from >= kCaller);
    if (!is_forgotten) give(queue_of(lane), [this, other = from, until = place] { return run(other, until); });
    return {};
  }
  base::Result<bool> reached(int event, int64_t) override {
    if (reaches <= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    }
    const std::lock_guard lock(mutex_);
    const auto [queue, place] = events_[static_cast<size_t>(event)];
    if (forgotten_ != Forgotten::host_for_gather && !run(queue, place)) return false;
    --reaches;
    return true;
  }
  base::Status drain() override {
    const std::lock_guard lock(mutex_);
    for (const Lane lane : {Lane::transfer, Lane::gather}) {
      const int queue = static_cast<int>(lane);
      if (!run(queue, at(queue).given)) return base::error(Errc::timeout, "a caller's stream is held");
    }
    return {};
  }

 private:
  struct Queue {
    std::deque<std::function<bool()>> operations;  // false: not now
    int64_t given = 0, done = 0;
  };

  Queue& at(int queue) { return queues_[static_cast<size_t>(queue)]; }
  int queue_of(Lane lane) const { return lane == Lane::caller ? caller_ : static_cast<int>(lane); }
  void give(int lane, std::function<bool()> what) {
    Queue& queue = at(lane);
    queue.operations.push_back(std::move(what));
    ++queue.given;
    if ((late_ >> std::min(lane, kCaller) & 1) == 0) run(lane, queue.given);
  }
  /// Whether it has come so far.
  bool run(int lane, int64_t until) {
    Queue& queue = at(lane);
    while (queue.done < until) {
      if (lane >= kCaller && is_held_) return false;
      if (!queue.operations.front()()) return false;
      queue.operations.pop_front();
      ++queue.done;
    }
    return true;
  }
  static bool is_in(std::span<const std::byte> memory, const void* data, int64_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    return begin >= memory.data() && begin + bytes <= memory.data() + memory.size();
  }
  bool is_mine(const void* data, int64_t bytes) const {
    return std::any_of(memory_.begin(), memory_.end(), [&](const auto& one) { return is_in(one, data, bytes); });
  }
  /// That lanes may read.
  bool is_read(const void* data, int64_t bytes) const {
    return bytes == 0 || is_mine(data, bytes) ||
           std::any_of(pinned_.begin(), pinned_.end(), [&](const auto& one) { return is_in(one, data, bytes); });
  }

  const unsigned late_;
  const Forgotten forgotten_;
  std::recursive_mutex mutex_;
  std::array<Queue, 4> queues_;
  int caller_ = kCaller;
  bool is_held_ = false;
  std::vector<std::pair<int, int64_t>> events_;  // queue, place in it
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::span<std::byte>> pinned_;
};

}  // namespace overlace::gnn::test
