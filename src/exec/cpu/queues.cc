#include "src/exec/cpu/queues.h"

#include <utility>

#include "src/spec/operators.h"

namespace overlace::exec {

bool is_transfer(const spec::Task& task) {
  return task.engine != spec::Engine::sm || (spec::is_part(task) && task.kind == spec::Kind::copy);
}

Queues::Queues(const Program& program, const std::vector<spec::Item>& items)
    : num_steps(program.expansion.instances.size(), 1) {
  const auto& instances = program.expansion.instances;
  std::vector<char> is_drawn(instances.size(), 0);
  for (size_t n = 0; n < items.size(); ++n) {
    const auto instance = static_cast<size_t>(items[n].instance);
    num_steps[instance] += std::exchange(is_drawn[instance], 1);
    list.push_back({items[n].instance, static_cast<int>(n)});
    follows.push_back(items[n].follows ? 1 : 0);
  }
  for (const spec::LaneQueue& queue : program.lanes) {
    Lane& lane = lanes.emplace_back();
    lane.lane = queue.lane;
    lane.is_transfer = exec::is_transfer(program.task(instances[static_cast<size_t>(queue.instances[0])]));
    for (const int index : queue.instances)
      if (is_drawn[static_cast<size_t>(index)] == 0) lane.steps.push_back({index});
  }
}

void Heads::start(const Queues& queues, int workers) {
  queues_ = &queues;
  next_.assign(queues.lanes.size(), 0);
  workers_.assign(queues.list.empty() ? 0 : static_cast<size_t>(workers), Drawn{});
  drawn_ = 0;
  left_ = queues.num_steps;
}

const Step* Heads::head(size_t queue) {
  if (queue < next_.size()) {
    const std::vector<Step>& steps = queues_->lanes[queue].steps;
    return next_[queue] < steps.size() ? &steps[next_[queue]] : nullptr;
  }
  Drawn& mine = workers_[queue - next_.size()];
  if (mine.begin == mine.end) {
    if (drawn_ == queues_->list.size()) return nullptr;
    mine.begin = drawn_++;
    while (drawn_ < queues_->list.size() && queues_->follows[drawn_] != 0) ++drawn_;
    mine.end = drawn_;
  }
  return &queues_->list[mine.begin];
}

void Heads::advance(size_t queue) {
  if (queue < next_.size())
    ++next_[queue];
  else
    ++workers_[queue - next_.size()].begin;
}

}  // namespace overlace::exec
