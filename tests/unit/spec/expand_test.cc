#include "src/spec/expand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <tuple>

#include "overlace/error.h"
#include "src/spec/alike.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

OpSpec expanded_op(const std::string& name, int64_t m, int ranks, bool bias = false) {
  OpSpec op;
  op.op = name;
  op.m = m;
  op.n = 24;
  op.k = 40;
  op.ranks = ranks;
  op.bias = bias && name != "ag_wgrad";
  return op;
}

TEST(Expand, EveryFamilyResolvesOnEveryRank) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : families(name)) {
      for (int ranks = 1; ranks <= 9; ++ranks) {
        for (int64_t m : {0, 1, 7, 64, 101}) {
          for (int degree : {1, 2, 3, 16}) {
            const Schedule schedule = make_schedule(expanded_op(name, m, ranks, degree == 2), family, degree);
            const base::Result<std::vector<Expansion>> out = expand_all(schedule, ranks);
            ASSERT_TRUE(out.ok()) << name << " " << family << " G " << ranks << " M " << m << " q " << degree << ": "
                                  << out.status().message();
            ASSERT_EQ(out->size(), static_cast<size_t>(ranks));
          }
        }
      }
    }
  }
}

/// Every expression of an instance, evaluated by name and from nothing: the slow twin of what the expander keeps.
class Slow {
 public:
  Slow(const Schedule& schedule, int rank, int ranks) : schedule_(schedule) {
    env_ = {{"r", rank}, {"G", ranks}, {"host", 0}, {"local", rank}};
    for (const auto& [name, value] : schedule.params)
      if (const int64_t* whole = std::get_if<int64_t>(&value); whole != nullptr) env_[name] = *whole;
    if (const auto hosts = env_.find("hosts"); hosts != env_.end()) {
      env_["host"] = rank / (ranks / hosts->second);
      env_["local"] = rank % (ranks / hosts->second);
    }
    for (size_t turn = 0; turn < schedule.consts.size(); ++turn) {  // they may need each other, in any order
      for (const auto& [name, expr] : schedule.consts) {
        try {
          env_[name] = eval(expr);
        } catch (const ScheduleError&) {
          env_.erase(name);
        }
      }
    }
  }
  int64_t eval(const Expr& expr) const { return expr.eval(env_, schedule_.tables); }

  void check(const Instance& in) {
    const Task& task = schedule_.tasks[static_cast<size_t>(in.task)];
    for (size_t i = 0; i < task.loops.size(); ++i) env_[task.loops[i].var] = in.loop_values[i];
    EXPECT_EQ(in.lane.queue, eval(task.queue));
    EXPECT_EQ(in.order, eval(task.order));
    check_regions(task.reads, in.reads);
    check_regions(task.writes, in.writes);
    size_t next = 0;
    for (const Wait& wait : task.waits)
      for_each(wait.each, [&] {
        ASSERT_LT(next, in.waits.size());
        const ResolvedWait& got = in.waits[next++];
        EXPECT_EQ(std::tuple(got.slot, int64_t{got.from}, got.at_least),
                  std::tuple(eval(wait.slot), eval(wait.from), eval(wait.at_least)));
      });
    EXPECT_EQ(next, in.waits.size());
    next = 0;
    for (const Set& set : task.sets)
      for_each(set.each, [&] {
        ASSERT_LT(next, in.sets.size());
        const ResolvedSet& got = in.sets[next++];
        EXPECT_EQ(std::pair(got.slot, int64_t{got.at}), std::pair(eval(set.slot), eval(set.at)));
      });
    EXPECT_EQ(next, in.sets.size());
    for (const Loop& loop : task.loops) env_.erase(loop.var);
  }

 private:
  template <class Visit>
  void for_each(const std::optional<Loop>& each, Visit visit) {
    if (!each) return visit();
    const int64_t begin = eval(each->begin), end = eval(each->end);
    for (int64_t i = begin; i < end; ++i) {
      env_[each->var] = i;
      visit();
    }
    env_.erase(each->var);
  }
  void check_regions(const std::vector<Region>& regions, const std::vector<std::vector<Box>>& lists) {
    ASSERT_EQ(lists.size(), regions.size());
    for (size_t r = 0; r < regions.size(); ++r) {
      size_t next = 0;
      for_each(regions[r].each, [&] {
        ASSERT_LT(next, lists[r].size());
        const Box& box = lists[r][next++];
        EXPECT_EQ(box.rank, eval(regions[r].at));
        for (size_t d = 0; d < regions[r].dims.size(); ++d) {
          EXPECT_EQ(box.begin[d], eval(regions[r].dims[d].begin));
          EXPECT_EQ(box.count[d], eval(regions[r].dims[d].count));
        }
      });
      EXPECT_EQ(next, lists[r].size());
    }
  }

  const Schedule& schedule_;
  Env env_;
};

TEST(Expand, EveryExpressionIsWhatItIsByItself) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : families(name)) {
      for (const int degree : {1, 3}) {
        SCOPED_TRACE(std::string(name) + " " + family + " " + std::to_string(degree));
        const Schedule schedule = make_schedule(expanded_op(name, 101, 4, degree == 3), family, degree);
        const std::vector<Expansion> all = expand_all(schedule, 4).value();
        for (const Expansion& one : all) {
          Slow slow(schedule, one.rank, 4);
          for (const Instance& in : one.instances) slow.check(in);
        }
      }
    }
  }
}

/// Rank 0 stands for all where each sums what all others sent it: those below and those above are one fewer together.
TEST(Expand, RanksThatSumTheLastOneOrNotAreNotAlike) {
  const OpSpec op = expanded_op("gemm_rs", 48, 4);
  Schedule schedule = make_schedule(op, "uniform_fused_1d", 2);
  const auto expanded = [&] { return expand_alike(schedule, op.ranks).value().size(); };
  EXPECT_EQ(expanded(), 1u);
  for (Task& task : schedule.tasks)
    for (Region& region : task.reads)
      if (task.kind == Kind::reduce && region.each && region.each->end.text() == "G") region.each->end = "G-1";
  EXPECT_EQ(expanded(), 4u);
}

TEST(Expand, AllRanksAtOnceAreTheSame) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : families(name)) {
      const Schedule schedule = make_schedule(expanded_op(name, 101, 3), family, 2);
      const std::vector<Expansion> all = expand_all(schedule, 3).value();
      ASSERT_EQ(all.size(), 3u);
      for (int rank = 0; rank < 3; ++rank) {
        const Expansion one = expand(schedule, rank, 3).value();
        const Expansion& same = all[static_cast<size_t>(rank)];
        EXPECT_EQ(same.adds_table, one.adds_table) << name << " " << family;
        EXPECT_EQ(same.num_items, one.num_items);
        ASSERT_EQ(same.instances.size(), one.instances.size());
        for (size_t i = 0; i < one.instances.size(); ++i)
          EXPECT_EQ(same.instances[i].id(schedule), one.instances[i].id(schedule));
      }
    }
  }
}

TEST(Expand, AllRanksAtOnceRefuseWhatNoMemoryHolds) {
  Schedule schedule = make_schedule(expanded_op("ag_gemm", 100, 10), "hetero_unfused_1d", 1);
  schedule.signals[0].slots = 90000;
  ASSERT_TRUE(expand(schedule, 0, 10).ok());
  const base::Status status = expand_all(schedule, 10).status();
  EXPECT_EQ(status.code(), Errc::bad_schedule);
  EXPECT_EQ(status.message(),
            "S1: 10 ranks need more than 8000000 instances, regions, waits, sets, dependencies and words of signals");
}

/// A sender with more slots than the receiver.
TEST(Expand, AllRanksAtOnceFindSlotsThatTheReceiverLacks) {
  Schedule schedule = make_schedule(expanded_op("ag_gemm", 12, 2), "hetero_unfused_1d", 1);
  schedule.signals[0].slots = "3-r";
  for (Task& task : schedule.tasks) {
    if (task.id == "push") task.sets[0].slot = "2-2*r";
  }
  EXPECT_EQ(expand_all(schedule, 2).status().code(), Errc::bad_schedule);
  EXPECT_EQ(expand(schedule, 1, 2).status().code(), Errc::bad_schedule);
}

TEST(Expand, OrdersDepsAndLanePredecessorsFirst) {
  const Schedule schedule = make_schedule(expanded_op("gemm_ar", 64, 4), "hetero_fused_1d", 4);
  const Expansion out = expand(schedule, 2, 4).value();
  std::map<Lane, std::pair<int64_t, std::vector<int64_t>>> last;
  for (size_t i = 0; i < out.instances.size(); ++i) {
    const Instance& in = out.instances[i];
    for (int dep : in.deps) EXPECT_LT(dep, static_cast<int>(i)) << in.id(schedule);
    const std::pair<int64_t, std::vector<int64_t>> place = {in.order, in.loop_values};
    if (const auto it = last.find(in.lane); it != last.end()) {
      EXPECT_LE(it->second, place) << in.id(schedule);
    }
    last[in.lane] = place;
  }
}

TEST(Expand, IssuesWhatPeersNeedBeforeWhatWaitsForPeers) {
  const Schedule schedule = make_schedule(expanded_op("ag_gemm", 64, 4), "hetero_fused_1d", 4);
  const Expansion out = expand(schedule, 1, 4).value();
  bool has_waited = false;
  for (const Instance& in : out.instances) {
    const bool waits = std::any_of(in.waits.begin(), in.waits.end(), [](const ResolvedWait& w) { return !w.previous; });
    has_waited |= waits;
    if (schedule.tasks[static_cast<size_t>(in.task)].id == "push") {
      EXPECT_FALSE(has_waited) << in.id(schedule);
    }
  }
  EXPECT_TRUE(has_waited);
  EXPECT_EQ(out.instances.front().id(schedule), "push[s=0,p=1]");
}

TEST(Expand, GroupedChunksTakeTurnsAmongTheOwnersAndCoverAllRowsOnce) {
  for (const int64_t m : {0, 1, 7, 24, 45, 48}) {
    const Schedule schedule = make_schedule(expanded_op("gemm_ar", m, 3), "grouped_unfused_1d", 4);
    std::vector<int> owners(static_cast<size_t>(m));
    for (int rank = 0; rank < 3; ++rank) {
      int64_t end_of_slot = 0, group = -1;
      const Expansion out = expand(schedule, rank, 3).value();
      for (const Instance& in : out.instances) {
        if (schedule.tasks[static_cast<size_t>(in.task)].id != "reduce") continue;
        EXPECT_EQ(in.loop_values[0], ++group);
        const Box& rows = in.writes[0][0];
        const Box& slot = in.reads[0].empty() ? in.reads[2][0] : in.reads[0][0];
        EXPECT_EQ(slot.begin[1], end_of_slot);  // my chunks lie one behind the other in the slots
        EXPECT_EQ(slot.count[1], rows.count[0]);
        end_of_slot += slot.count[1];
        for (int64_t i = rows.begin[0]; i < rows.begin[0] + rows.count[0]; ++i) {
          ++owners[static_cast<size_t>(i)];
          const std::vector<int64_t>& cut = schedule.tables.at("cut");
          const auto chunk = std::upper_bound(cut.begin(), cut.end(), i) - cut.begin() - 1;
          EXPECT_EQ(chunk % 3, rank) << "row " << i << " of " << m;
          EXPECT_EQ(chunk / 3, group);
        }
      }
      EXPECT_EQ(group, 3);
    }
    EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), m);
  }
}

TEST(Expand, AGroupIsSummedAndSentBeforeTheGemmOfTheGroupAfterTheNext) {
  for (const char* family : {"grouped_fused_1d", "grouped_unfused_1d"}) {
    const Schedule schedule = make_schedule(expanded_op("gemm_ar", 64, 4), family, 4);
    const Expansion out = expand(schedule, 2, 4).value();
    std::vector<std::string> lane;  // what one stream runs
    for (const Instance& in : out.instances) {
      if (in.lane == Lane{Engine::sm, 0}) lane.push_back(in.id(schedule));
    }
    const auto position = [&](const std::string& name) {
      const auto at = std::find(lane.begin(), lane.end(), name);
      EXPECT_NE(at, lane.end()) << name;
      return at - lane.begin();
    };
    const std::string first = family == std::string("grouped_fused_1d") ? "gemm[s={}]" : "gemm_remote[s={},p=1]";
    const auto gemm = [&](int s) {
      return position(first.substr(0, first.find('{')) + std::to_string(s) + first.substr(first.find('}') + 1));
    };
    for (int s = 0; s < 4; ++s) {
      const auto reduce = position("reduce[s=" + std::to_string(s) + "]");
      const auto take = position("take[s=" + std::to_string(s) + "]");
      // What peers send meanwhile is covered.
      if (s < 3) {
        EXPECT_GT(reduce, gemm(s + 1)) << family;
      }
      if (s < 2) {
        EXPECT_LT(reduce, gemm(s + 2)) << family;
        EXPECT_GT(take, gemm(s + 2)) << family;
      }
      EXPECT_GT(take, reduce);
    }
    for (const Instance& in : out.instances) {
      EXPECT_TRUE(in.lane.engine == Engine::ce || in.lane.queue == 0) << in.id(schedule);
    }
  }
}

/// Elements that the copies of all ranks bring to other hosts.
int64_t crossing(const Schedule& schedule, int ranks, int hosts) {
  int64_t out = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Expansion mine = expand(schedule, rank, ranks).value();
    for (const Instance& in : mine.instances) {
      if (schedule.tasks[static_cast<size_t>(in.task)].kind != Kind::copy) continue;
      for (const Box& to : in.writes[0])
        if (to.rank * hosts / ranks != rank * hosts / ranks) out += to.numel();
    }
  }
  return out;
}

TEST(Expand, HierarchicalPiecesCrossToAnotherHostOnce) {
  constexpr int64_t kRows = 30, kColumns[] = {40, 24, 24};  // K of ag_gemm, N of the others
  const char* const names[] = {"ag_gemm", "gemm_rs", "gemm_ar"};
  for (size_t i = 0; i < 3; ++i) {
    for (const int hosts : {2, 3}) {
      const OpSpec op = expanded_op(names[i], kRows, 6);
      const int64_t passes = i == 2 ? 2 : 1, once = passes * kRows * kColumns[i] * (hosts - 1);
      const int64_t width = 6 / hosts;
      EXPECT_EQ(crossing(make_schedule(op, "hierarchical", 2, {{"hosts", int64_t{hosts}}}), 6, hosts), once);
      EXPECT_EQ(crossing(make_schedule(op, "hetero_unfused_1d", 2), 6, hosts), once * width);
    }
  }
}

TEST(Expand, HierarchicalGathersUseOwnRowsThenThoseOfTheHostThenTheRest) {
  const Schedule schedule = make_schedule(expanded_op("ag_gemm", 64, 4), "hierarchical", 2, {{"hosts", int64_t{2}}});
  const Expansion out = expand(schedule, 2, 4).value();
  std::vector<std::string> products;
  for (const Instance& in : out.instances)
    if (schedule.tasks[static_cast<size_t>(in.task)].kind == Kind::gemm) products.push_back(in.id(schedule));
  EXPECT_EQ(products, (std::vector<std::string>{"gemm_own", "gemm_near[s=0]", "gemm_near[s=1]", "gemm_far[s=0,d=1]",
                                                "gemm_far[s=1,d=1]"}));
}

TEST(Expand, CountsOneAddPerWordAndEpoch) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : families(name)) {
      if (family == "library" || family == "compute") continue;  // no signals
      const Schedule schedule = make_schedule(expanded_op(name, 30, 3), family, 2);
      const Expansion out = expand(schedule, 1, 3).value();
      for (size_t signal = 0; signal < schedule.signals.size(); ++signal) {
        for (int64_t slot = 0; slot < out.signal_slots[signal]; ++slot) {
          if (schedule.signals[signal].scope == Scope::device) {  // a counter, of this rank alone
            for (int from : {0, 1, 2})
              EXPECT_EQ(out.adds(static_cast<int>(signal), slot, from), from == 1 ? 1 : 0) << family << " " << slot;
            continue;
          }
          for (int from : {0, 2}) {
            const bool is_fused = family == "k_slab" || (family == "one_shot" && spec::gathers(name));
            const bool is_shared = is_fused && schedule.signals[signal].name == "arrived";
            EXPECT_EQ(out.adds(static_cast<int>(signal), slot, from), is_shared ? kShares : 1)
                << name << " " << family << " " << schedule.signals[signal].name << "[" << slot << "] from " << from;
          }
          EXPECT_EQ(out.adds(static_cast<int>(signal), slot, 1), 0) << name << " " << family;
        }
      }
    }
  }
}

TEST(Expand, TakesMicroseconds) {
  for (const char* family : {"hetero_fused_1d", "hetero_unfused_1d", "uniform_fused_1d"}) {
    const Schedule schedule = make_schedule(expanded_op("ag_gemm", 8192, 8), family, 16);
    double best_us = 1e9;
    for (int i = 0; i < 20; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      ASSERT_TRUE(expand(schedule, 3, 8).ok());
      const auto end = std::chrono::steady_clock::now();
      best_us = std::min(best_us, std::chrono::duration<double, std::micro>(end - begin).count());
    }
    RecordProperty(std::string("us_") + family, std::to_string(best_us));
    EXPECT_LT(best_us, 20'000) << family;  // about 200 on an idle machine
  }
}

}  // namespace
}  // namespace overlace::spec
