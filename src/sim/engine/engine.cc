#include "src/sim/engine/engine.h"

namespace overlace::sim {

void EventQueue::clear() {
  size_ = 0;
  has_hole_ = false;
  next_ = 0;
  now_ = 0;
  num_popped_ = 0;
}

/// Numbers of pushes start again; what is pending keeps its order. A sorted array is a heap.
void EventQueue::renumber() {
  if (has_hole_) close_hole();
  Event* first = heap_.data() + kRoot;
  std::sort(first, first + size_, before);
  next_ = 0;
  for (size_t i = 0; i < size_; ++i) {
    Event& event = first[i];
    event.order = (event.order >> kPushBits) << kPushBits | next_++;
  }
}

}  // namespace overlace::sim
