#include "src/study/workload/step.h"

#include <algorithm>
#include <cmath>

#include "src/sim/resource/fluid.h"

namespace overlace::study {
namespace {

/// Edges by their source, and how many come to each task.
struct Successors {
  std::vector<uint32_t> first, to, preds;
  Successors(size_t tasks, const std::vector<std::pair<int, int>>& edges) : first(tasks + 1, 0), preds(tasks, 0) {
    for (const auto& [from, target] : edges) {
      ++first[static_cast<size_t>(from) + 1];
      ++preds[static_cast<size_t>(target)];
    }
    for (size_t i = 0; i < tasks; ++i) first[i + 1] += first[i];
    to.resize(edges.size());
    std::vector<uint32_t> next(first.begin(), first.end() - 1);
    for (const auto& [from, target] : edges) to[next[static_cast<size_t>(from)]++] = static_cast<uint32_t>(target);
  }
};

/// One run: what is ready becomes a flow whose work is its time alone.
class Runner {
 public:
  Runner(const std::vector<StepTask>& tasks, const std::vector<std::pair<int, int>>& edges, int ranks, int groups,
         std::span<const spec::Contention> contention)
      : tasks_(tasks), next_(tasks.size(), edges), fluid_(static_cast<uint32_t>(ranks)) {
    fluid_.set_contention(contention);
    missing_.assign(static_cast<size_t>(groups), 0);
    members_.resize(static_cast<size_t>(groups));
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].group == kNoGroup) continue;
      ++missing_[static_cast<size_t>(tasks[i].group)];
      members_[static_cast<size_t>(tasks[i].group)].push_back(static_cast<uint32_t>(i));
    }
    time_.begin.assign(tasks.size(), sim::kNever);
    time_.end.assign(tasks.size(), sim::kNever);
    flow_.assign(tasks.size(), 0);
    lost_.assign(static_cast<size_t>(ranks), 0);
  }

  base::Result<StepTime> run() {
    for (uint32_t i = 0; i < tasks_.size(); ++i)
      if (next_.preds[i] == 0) ready(0, i);
    fluid_.settle(0, queue_);
    while (!queue_.empty()) {
      const sim::Event event = queue_.pop();
      handle(event);
      if (fluid_.needs_settle()) fluid_.settle(event.t_ps, queue_);
    }
    sim::Time last = 0;  // not the queue's: events that rates have overtaken come later
    for (size_t i = 0; i < tasks_.size(); ++i) {
      last = std::max(last, time_.end[i]);
      if (time_.end[i] != sim::kNever) continue;
      return base::error(Errc::bad_schedule, "step: {} of rank {} never begins, {} of {} tasks have ended",
                         tasks_[i].name, tasks_[i].rank, ended_, tasks_.size());
    }
    time_.us = sim::us_of_ps(last);
    for (const double lost : lost_) time_.lost_us = std::max(time_.lost_us, lost);
    return std::move(time_);
  }

 private:
  void ready(sim::Time now, uint32_t i) {
    const int group = tasks_[i].group;
    if (group == kNoGroup) return start(now, i);
    if (--missing_[static_cast<size_t>(group)] > 0) return;
    for (const uint32_t member : members_[static_cast<size_t>(group)]) start(now, member);
  }

  void start(sim::Time now, uint32_t i) {
    time_.begin[i] = now;
    const sim::Time alone = sim::ps_of_us(tasks_[i].us);
    if (alone == 0) return queue_.push(now, i);
    const sim::Presence here{static_cast<uint32_t>(tasks_[i].rank), tasks_[i].load};
    const size_t present = tasks_[i].is_apart ? 0 : 1;
    flow_[i] = fluid_.start(now, {.work = alone, .most_per_ps = 1, .presences = {&here, present}, .handle = i});
  }

  void handle(const sim::Event& event) {
    const uint32_t i = event.handle;
    if (time_.begin[i] == sim::kNever || time_.end[i] != sim::kNever) return;
    if (sim::ps_of_us(tasks_[i].us) > 0) {
      if (!fluid_.finish(event.t_ps, flow_[i])) return;
      lost_[static_cast<size_t>(tasks_[i].rank)] += sim::us_of_ps(fluid_.lost_to_contention(flow_[i]));
    }
    time_.end[i] = event.t_ps;
    ++ended_;
    for (uint32_t e = next_.first[i]; e < next_.first[i + 1]; ++e)
      if (--next_.preds[next_.to[e]] == 0) ready(event.t_ps, next_.to[e]);
  }

  const std::vector<StepTask>& tasks_;
  Successors next_;
  sim::Fluid fluid_;
  sim::EventQueue queue_;
  std::vector<int> missing_;  // by group: members that have not come
  std::vector<std::vector<uint32_t>> members_;
  std::vector<uint32_t> flow_;
  std::vector<double> lost_;  // by rank
  size_t ended_ = 0;
  StepTime time_;
};

}  // namespace

int Step::add(StepTask task, std::span<const int> after) {
  const int number = static_cast<int>(tasks_.size());
  int& before = last_[place(task)];
  if (before >= 0) edges_.emplace_back(before, number);
  before = number;
  for (const int from : after)
    if (from >= 0) edges_.emplace_back(from, number);
  tasks_.push_back(std::move(task));
  return number;
}

/// No order takes longer than all tasks one after the other, each beside the worst on the other lanes.
base::Status Step::check_times(std::span<const spec::Contention> contention) const {
  double worst = 1, sum = 0;
  for (const spec::Contention& c : contention) worst = std::max(worst, c.factor.value);
  const double slowest = std::pow(worst, static_cast<double>(lanes_.size()) - 1);
  for (const StepTask& task : tasks_) {
    if (!(task.us >= 0) || !(task.us * slowest < 1e12))
      return base::invalid_argument(
          "step: {} of rank {} takes {} us, up to {} times as long beside others, wanted 0 to 1e12", task.name,
          task.rank, task.us, slowest);
    sum += task.us;
  }
  if (!(sum * slowest <= kMostSumUs))
    return base::invalid_argument(
        "step: {} tasks take {:.3g} us one after the other, up to {:.3g} times as long beside others, wanted at most "
        "{:.3g}",
        tasks_.size(), sum, slowest, kMostSumUs);
  return {};
}

base::Result<StepTime> Step::run(std::span<const spec::Contention> contention) const {
  OVERLACE_TRY(check_times(contention));
  base::Result<StepTime> time = Runner(tasks_, edges_, ranks_, groups_, contention).run();
  if (!time.ok()) return time;
  std::vector<sim::Time> lanes(last_.size(), 0), whole(static_cast<size_t>(ranks_), 0), chain(tasks_.size(), 0);
  for (const StepTask& task : tasks_) {
    lanes[place(task)] += sim::ps_of_us(task.us);
    whole[static_cast<size_t>(task.rank)] += sim::ps_of_us(task.us);
  }
  const auto most = [](const std::vector<sim::Time>& v) {
    return v.empty() ? 0 : *std::max_element(v.begin(), v.end());
  };
  // Tasks are numbered behind what they depend on.
  const Successors next(tasks_.size(), edges_);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    chain[i] += sim::ps_of_us(tasks_[i].us);
    for (uint32_t e = next.first[i]; e < next.first[i + 1]; ++e)
      chain[next.to[e]] = std::max(chain[next.to[e]], chain[i]);
  }
  time->bound_us = sim::us_of_ps(std::max(most(lanes), most(chain)));
  time->serial_us = sim::us_of_ps(most(whole));
  for (size_t i = kComputeLane; i < lanes.size(); i += lanes_.size())
    time->compute_us = std::max(time->compute_us, sim::us_of_ps(lanes[i]));
  return time;
}

base::Trace Step::to_trace(const StepTime& time, const std::string& title) const {
  const auto ns = [](sim::Time ps) { return static_cast<int64_t>((ps + sim::kPsPerNs / 2) / sim::kPsPerNs); };
  const auto lane = [this](const StepTask& task) { return lanes_[static_cast<size_t>(task.lane)]; };
  base::Trace trace;
  trace.title = title;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const StepTask& t = tasks_[i];
    const char* kind = t.kind != nullptr        ? t.kind
                       : t.lane != kComputeLane ? "collective"
                       : t.flops > 0            ? "gemm"
                                                : "other";
    trace.spans.push_back({t.rank, lane(t), t.name, kind, ns(time.begin[i]), ns(time.end[i]), t.bytes, t.flops});
  }
  for (const auto& [from, to] : edges_) {
    const StepTask &a = tasks_[static_cast<size_t>(from)], &b = tasks_[static_cast<size_t>(to)];
    if (a.rank == b.rank && a.lane == b.lane) continue;
    trace.arrows.push_back({a.name, a.rank, lane(a), ns(time.end[static_cast<size_t>(from)]), b.rank, lane(b),
                            ns(time.begin[static_cast<size_t>(to)])});
  }
  return trace;
}

}  // namespace overlace::study
