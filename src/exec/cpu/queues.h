// What a rank has to do, in queues that one thread serves: a lane each, and for a fused kernel a worker each, which
// draws items from the kernel's list as CTAs do.
#pragma once

#include <cstddef>
#include <vector>

#include "src/exec/program.h"
#include "src/spec/items.h"

namespace overlace::exec {

/// Work that is not interrupted.
struct Step {
  int instance = 0;
  int item = -1;  // of the list; -1: the whole instance
};

/// Instances one after the other.
struct Lane {
  spec::Lane lane;
  std::vector<Step> steps;
  bool is_transfer = false;  // it copies, so it goes on while a body or a product runs
};

/// The queues of one rank and program: lanes without the instances that are drawn, and the list of these.
struct Queues {
  Queues() = default;
  Queues(const Program& program, const std::vector<spec::Item>& items);

  std::vector<Lane> lanes;
  std::vector<Step> list;
  std::vector<char> follows;   // per item: whoever has taken the one before takes it too
  std::vector<int> num_steps;  // per instance: it is done when that many are
};

/// Whether a copy engine does it, or a fused kernel's warps that only copy.
bool is_transfer(const spec::Task& task);

/// How far a call has come. Queues are numbered: lanes, then workers.
class Heads {
 public:
  Heads() = default;
  Heads(const Queues& queues, int workers) { start(queues, workers); }
  /// A call, with the memory of the one before.
  void start(const Queues& queues, int workers);

  size_t size() const { return next_.size() + workers_.size(); }
  bool is_transfer(size_t queue) const { return queue < next_.size() && queues_->lanes[queue].is_transfer; }
  /// The next step, null if there is none. A worker without one draws, and keeps what it has drawn.
  const Step* head(size_t queue);
  void advance(size_t queue);
  /// Counts a step of the instance; true if that was the last.
  bool is_last_of(int instance) { return --left_[static_cast<size_t>(instance)] == 0; }

 private:
  struct Drawn {
    size_t begin = 0, end = 0;
  };
  const Queues* queues_ = nullptr;
  std::vector<size_t> next_;  // per lane
  std::vector<Drawn> workers_;
  size_t drawn_ = 0;  // of the list
  std::vector<int> left_;
};

}  // namespace overlace::exec
