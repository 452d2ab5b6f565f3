#include "src/study/workload/co2.h"

#include <algorithm>
#include <cmath>

#include "src/sim/engine/engine.h"
#include "src/spec/costs.h"

namespace overlace::study {
namespace {

constexpr double kPassBytes = 32;  // per parameter: live, anchor, momentum and wire, each read and written

base::Status check(const Co2Run& run, const Network& network, int per_group) {
  if (per_group < 1 || network.ranks % per_group != 0)
    return base::invalid_argument("co2: groups of {} ranks, wanted a divisor of {}", per_group, network.ranks);
  if (run.period < 1 || run.period > 65536 || run.rounds < 2 || run.rounds > 4096)
    return base::invalid_argument("co2: {} rounds of {} steps, wanted 2 to 4096 of 1 to 65536", run.rounds, run.period);
  if (run.rule == OuterRule::streaming && (run.fragments < 1 || run.fragments > run.period ||
                                           run.period % run.fragments != 0 || run.delay < 0 || run.delay > run.period))
    return base::invalid_argument(
        "co2: streaming {} fragments with delay {} in rounds of {} steps, wanted fragments that divide a round, a "
        "delay "
        "within one",
        run.fragments, run.delay, run.period);
  if (!(run.parameters >= 1) || !(run.parameters <= 1e14) || !(run.wire_bytes > 0) || !(run.wire_bytes <= 8) ||
      !(run.step_us > 0) || !(run.step_us <= 1e9) || !(run.sigma >= 0) || !(run.sigma <= 2) || !(run.pass_us <= 1e9) ||
      !(run.all_reduce_us <= 1e9))
    return base::invalid_argument(
        "co2: {} parameters of {} bytes, step {} us, pass {} us, all-reduce {} us, sigma {}, wanted 1 to 1e14, 0 to 8, "
        "up to 1e9 each, 0 to 2",
        run.parameters, run.wire_bytes, run.step_us, run.pass_us, run.all_reduce_us, run.sigma);
  return {};
}

/// An exchange of a part of the increments every so many steps, awaited `wait` steps after it was sent.
struct Rhythm {
  int every = 1, parts = 1, wait = 0;
  bool has_pass = true;  // over parameters, where something is sent or has arrived
};
Rhythm rhythm_of(const Co2Run& run) {
  if (run.rule == OuterRule::ddp) return {1, 1, 0, false};
  if (run.rule == OuterRule::co2 || run.rule == OuterRule::eager) return {run.period, 1, run.period, true};
  if (run.rule == OuterRule::streaming) return {run.period / run.fragments, run.fragments, run.delay, true};
  return {run.period, 1, 0, true};
}

/// Steps are cheap; an exchange has up to four tasks.
base::Status check_size(const Co2Run& run, int groups) {
  const int64_t of_round = run.period / rhythm_of(run).every, steps = int64_t{groups} * run.rounds * run.period;
  if (steps > kMostTasks)
    return base::invalid_argument("co2: {} groups that differ x {} rounds x {} steps are {} steps, wanted at most {}",
                                  groups, run.rounds, run.period, steps, kMostTasks);
  if (const int64_t exchanges = int64_t{groups} * run.rounds * of_round; exchanges > kMostTasks / 4)
    return base::invalid_argument(
        "co2: {} groups that differ x {} rounds x {} exchanges are {} exchanges, wanted at most {}", groups, run.rounds,
        of_round, exchanges, kMostTasks / 4);
  return {};
}

/// `groups` that differ; alike groups are one. A group stands for its ranks.
class Training {
 public:
  Training(const Co2Run& run, const Co2Time& times, int groups)
      : run_(run), rhythm_(rhythm_of(run)), times_(times), step_(groups) {
    std::vector<int> exchanges;
    for (int i = 0; i < run.rounds * run.period / rhythm_.every; ++i) exchanges.push_back(step_.new_group());
    for (int group = 0; group < groups; ++group) add(group, exchanges);
  }

  const Step& step() const { return step_; }
  /// The last task of each round, group by group.
  const std::vector<int>& ends() const { return ends_; }

 private:
  void add(int group, const std::vector<int>& exchanges) {
    std::vector<int> sent;
    double us = 0;  // of steps since the last task
    size_t taken = 0;
    for (int k = 1; k <= run_.rounds * run_.period; ++k) {
      us += step_us(group, k);
      const bool sends = times_.groups > 1 && k % rhythm_.every == 0;
      const bool takes = taken < sent.size() && (static_cast<int>(taken) + 1) * rhythm_.every + rhythm_.wait == k;
      if (!sends && !takes && k % run_.period != 0) continue;
      int last = compute(group, "steps", us, -1);
      us = 0;
      if (takes || (sends && rhythm_.wait > 0)) last = pass(group, takes ? sent[taken] : -1);
      taken += takes ? 1 : 0;
      if (sends)
        sent.push_back(step_.add({.name = "all_reduce",
                                  .rank = group,
                                  .lane = kNetLane,
                                  .us = times_.all_reduce_us / rhythm_.parts,
                                  .group = exchanges[sent.size()],
                                  .load = spec::Load::sm_copy,
                                  .bytes = static_cast<int64_t>(run_.parameters * run_.wire_bytes / rhythm_.parts)},
                                 {last}));
      if (sends && rhythm_.wait == 0) last = pass(group, sent[taken++]);
      if (k % run_.period == 0) ends_.push_back(last);
    }
  }
  int compute(int group, const char* name, double us, int after) {
    return step_.add({.name = name, .rank = group, .us = us}, {after});
  }
  int pass(int group, int after) {
    return compute(group, "update", rhythm_.has_pass ? times_.pass_us / rhythm_.parts : 0, after);
  }
  double step_us(int group, int k) const {
    if (run_.sigma == 0) return run_.step_us;
    const double z = sim::normal(run_.seed, static_cast<uint64_t>(group), static_cast<uint64_t>(k), 0);
    return run_.step_us * std::exp(run_.sigma * z - run_.sigma * run_.sigma / 2);  // mean 1
  }

  const Co2Run& run_;
  Rhythm rhythm_;
  const Co2Time& times_;
  Step step_;
  std::vector<int> ends_;
};

}  // namespace

base::Result<Co2Time> co2_training(const Co2Run& run, const spec::Machine& machine, const Network& network,
                                   base::Trace* timeline) {
  const int per_group = run.per_group == 0 ? network.per_host : run.per_group;
  OVERLACE_TRY(check(run, network, per_group));
  Co2Time out;
  out.groups = network.ranks / per_group;
  const int groups = run.sigma == 0 ? 1 : out.groups;
  OVERLACE_TRY(check_size(run, groups));
  const double own = run.parameters / per_group;
  out.pass_us = run.pass_us >= 0 ? run.pass_us : spec::reduce_us(machine, kPassBytes * own);
  if (run.all_reduce_us >= 0) {
    out.all_reduce_us = run.all_reduce_us;
    out.algorithm = "given";
  } else if (out.groups > 1) {
    const auto bytes = static_cast<uint64_t>(std::ceil(own * run.wire_bytes));
    const auto time = best_collective(Collective::all_reduce, network, bytes, {}, {per_group, out.groups});
    if (!time.ok()) return time.status();
    out.all_reduce_us = time->us;
    out.algorithm = time->algorithm;
  }
  const Training training(run, out, groups);
  const base::Result<StepTime> time = training.step().run(machine.contention);
  if (!time.ok()) return time.status();
  out.us = time->us;
  out.bound_us = time->bound_us;
  const auto end_of = [&](int round) {
    sim::Time last = 0;
    for (int group = 0; group < groups; ++group) {
      const auto i = static_cast<size_t>(group) * static_cast<size_t>(run.rounds) + static_cast<size_t>(round);
      last = std::max(last, time->end[static_cast<size_t>(training.ends()[i])]);
    }
    return sim::us_of_ps(last);
  };
  const int half = run.rounds / 2;
  out.round_us = (end_of(run.rounds - 1) - end_of(half - 1)) / (run.rounds - half);
  out.compute_us = time->compute_us / run.rounds;
  out.efficiency = run.period * run.step_us / out.round_us;
  if (timeline != nullptr) *timeline = training.step().to_trace(*time, "training with local steps, simulated");
  return out;
}

}  // namespace overlace::study
