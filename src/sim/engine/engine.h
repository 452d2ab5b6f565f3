// Simulated time and pending events. Everything here is deterministic: same pushes, same pops, on every compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "src/base/status.h"

namespace overlace::sim {

using Time = uint64_t;  // picoseconds
inline constexpr Time kPsPerNs = 1'000, kPsPerUs = 1'000'000;
inline constexpr Time kNever = std::numeric_limits<Time>::max();

inline constexpr Time kLongest = 1'000'000'000'000'000'000;  // 11 days: longer than any limit, sums do not overflow

/// Rounds to the nearest picosecond, at most kLongest. Precondition: ps >= 0.
inline Time whole_ps(double ps) { return ps < 1e18 ? static_cast<Time>(ps + 0.5) : kLongest; }
inline Time ps_of_us(double us) { return whole_ps(us * 1e6); }
inline double us_of_ps(Time ps) { return static_cast<double>(ps) * 1e-6; }

/// `order`: priority (4 bits), then number of the push (28 bits). What `handle` means is up to whoever pushes.
struct Event {
  Time t_ps;
  uint32_t order;
  uint32_t handle;
};
static_assert(sizeof(Event) == 16);

/// Begins on a cache line.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}  // NOLINT(google-explicit-constructor): as std::allocator
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
  bool operator==(const LineAllocator&) const = default;
};

/// Pending events by time; of equal times the lower priority number first, then the one that was pushed first.
class EventQueue {
 public:
  static constexpr uint32_t kUrgent = 0, kNormal = 8, kLast = 15;
  static constexpr uint32_t kPushBits = 28, kMaxPushes = 1u << kPushBits;

  EventQueue() = default;
  /// A queue as if `num_pushes` < kMaxPushes events had come and gone.
  explicit EventQueue(uint32_t num_pushes) : next_(num_pushes) {}

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  /// Time of the event popped last.
  Time now() const { return now_; }
  uint64_t num_popped() const { return num_popped_; }

  /// Precondition: t_ps >= now().
  void push(Time t_ps, uint32_t handle, uint32_t priority = kNormal) {
    if (next_ == kMaxPushes) renumber();
    const Event event{t_ps, priority << kPushBits | next_++, handle};
    ++size_;
    if (has_hole_) {  // an event takes the place of the one popped last: half the work of a push behind a pop
      has_hole_ = false;
      sift_down(event);
    } else {
      if (size_ + kRoot > heap_.size()) heap_.resize(std::max<size_t>(heap_.size() * 2, 64));
      sift_up(kRoot + size_ - 1, event);
    }
  }

  /// Precondition: not empty.
  Event pop() {
    if (has_hole_) close_hole();
    const Event out = heap_[kRoot];
    --size_;
    has_hole_ = true;
    now_ = out.t_ps;
    ++num_popped_;
    return out;
  }

  /// Empty, at time 0, as if new; keeps its memory.
  void clear();

 private:
  // Children of node i are 4 i - 8 to 4 i - 5 with the root at 3, so that four children share a cache line.
  static constexpr size_t kRoot = 3;
  static size_t first_child(size_t i) { return 4 * i - 8; }
  static size_t parent(size_t i) { return (i + 8) / 4; }
  static bool before(const Event& a, const Event& b) {
    return a.t_ps < b.t_ps || (a.t_ps == b.t_ps && a.order < b.order);
  }

  void sift_up(size_t i, const Event& event) {
    Event* heap = heap_.data();
    while (i > kRoot && before(event, heap[parent(i)])) {
      heap[i] = heap[parent(i)];
      i = parent(i);
    }
    heap[i] = event;
  }

  /// From the root, whose event is gone, down to where `event` belongs among kRoot .. kRoot + size_ - 1.
  void sift_down(const Event& event) {
    Event* heap = heap_.data();
    const size_t end = kRoot + size_;
    size_t i = kRoot;
    for (size_t child = first_child(i); child < end; child = first_child(i)) {
      size_t least = child;
      if (child + 4 <= end) {
        const size_t left = child + (before(heap[child + 1], heap[child]) ? 1 : 0);
        const size_t right = child + (before(heap[child + 3], heap[child + 2]) ? 3 : 2);
        least = before(heap[right], heap[left]) ? right : left;
      } else {
        for (size_t c = child + 1; c < end; ++c) {
          if (before(heap[c], heap[least])) least = c;
        }
      }
      if (!before(heap[least], event)) break;
      heap[i] = heap[least];
      i = least;
    }
    heap[i] = event;
  }

  void close_hole() {
    has_hole_ = false;
    const Event last = heap_[kRoot + size_];
    if (size_ > 0) sift_down(last);
  }
  void renumber();

  std::vector<Event, LineAllocator<Event>> heap_;
  size_t size_ = 0;
  bool has_hole_ = false;  // the root's event was popped, and nothing has taken its place
  uint32_t next_ = 0;
  Time now_ = 0;
  uint64_t num_popped_ = 0;
};

/// When a simulation ends although events are left.
struct Limits {
  uint64_t events = 1'000'000'000;
  Time time_ps = kNever;
};

/// Handles events in order until none is left. not_supported ("limit reached") at a limit: what was simulated so far is
/// a beginning, not a result.
template <class Handle>
base::Status run_events(EventQueue& queue, const Limits& limits, Handle handle) {
  const uint64_t last = queue.num_popped() + limits.events;
  while (!queue.empty()) {
    const Event event = queue.pop();
    if (event.t_ps > limits.time_ps || queue.num_popped() > last) {
      return base::error(Errc::not_supported,
                         "simulation: limit reached after {} events at {:.3f} us; limits: {} events, {:.3f} us",
                         queue.num_popped() - 1, us_of_ps(event.t_ps), limits.events, us_of_ps(limits.time_ps));
    }
    handle(event);
  }
  return {};
}

// ---- randomness without state: a number depends on its keys only, whoever asks in whatever order ----

/// 64 well-mixed bits (the finalizer of splitmix64, over each key in turn).
constexpr uint64_t random_bits(uint64_t seed, uint64_t rank, uint64_t task, uint64_t draw) {
  uint64_t x = seed;
  for (const uint64_t key : {rank, task, draw}) {
    x += 0x9e3779b97f4a7c15u + key * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

/// In (0, 1).
constexpr double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

/// Mean 0, deviation 1 (Box and Muller).
inline double normal(uint64_t seed, uint64_t rank, uint64_t task, uint64_t draw) {
  const double u = uniform(random_bits(seed, rank, task, 2 * draw));
  const double v = uniform(random_bits(seed, rank, task, 2 * draw + 1));
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * 3.14159265358979323846 * v);
}

}  // namespace overlace::sim
