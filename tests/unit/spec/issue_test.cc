// Messages between hosts: what sends and receives in which round, and that no rank can be stuck in any order of events.
#include "src/spec/issue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "src/spec/operators.h"
#include "tests/unit/spec/operators.h"

namespace overlace::spec {
namespace {

OpSpec issued_op(const std::string& name, int ranks, int64_t m = 64) {
  OpSpec op;
  op.op = name;
  op.m = m;
  op.n = 16;
  op.k = 32;
  op.ranks = ranks;
  op.dtype = op.out_dtype = DType::bf16;
  return op;
}

/// All ranks' timetables of one schedule.
struct Whole {
  std::vector<Expansion> all;
  std::vector<Timetable> tables;
};

Whole whole_of(const Schedule& schedule, const std::vector<int>& group) {
  Whole out;
  out.all = expand_all(schedule, static_cast<int>(group.size())).value();
  for (size_t r = 0; r < group.size(); ++r)
    out.tables.push_back(make_timetable(schedule, out.all, group, static_cast<int>(r)).value());
  return out;
}

/// Each rank runs its steps strictly one after the other, as if all its streams were one. A message is through once
/// both ends have come to a round that has it; a round ends when all its messages are through. Empty if all ranks get
/// to their ends, else where they are stuck.
std::string play(const Schedule& schedule, const Whole& whole, const std::vector<int>& group) {
  const size_t ranks = whole.all.size();
  std::vector<size_t> at(ranks, 0);
  std::vector<std::map<std::tuple<int, int64_t, int>, int64_t>> seen(ranks);
  using Key = std::tuple<int, int, int>;  // from, to, instance
  std::map<Key, std::set<int>> met;
  const auto add = [&](int from, const ResolvedSet& set) {
    seen[static_cast<size_t>(set.at)][{set.signal, set.slot, from}] += set.add;
  };
  const auto is_mine = [](const Message& m, int rank) { return m.from == rank || m.to == rank; };
  const auto step = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const Timetable& table = whole.tables[r];
    const Step now = table.steps[at[r]];
    if (now.round >= 0) {
      const Round& round = table.rounds[static_cast<size_t>(now.round)];
      bool is_over = true;
      for (const Message& m : round) {
        if (!is_mine(m, rank)) continue;
        met[{m.from, m.to, m.instance}].insert(rank);
        is_over = is_over && met[{m.from, m.to, m.instance}].size() == 2;
      }
      if (!is_over) return false;
      for (const Message& m : round)
        for (const ResolvedSet& set : m.sets)
          if (m.to == rank) add(m.from, set);
      return true;
    }
    const Instance& i = whole.all[r].instances[static_cast<size_t>(now.instance)];
    for (const ResolvedWait& w : i.waits)
      if (!w.previous && seen[r][{w.signal, w.slot, w.from}] < w.at_least) return false;
    for (const ResolvedSet& set : i.sets)
      if (group[r] == group[static_cast<size_t>(set.at)]) add(rank, set);
    return true;
  };
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (size_t r = 0; r < ranks; ++r)
      for (; at[r] < whole.tables[r].steps.size() && step(static_cast<int>(r)); ++at[r]) has_moved = true;
  }
  std::string stuck;
  for (size_t r = 0; r < ranks; ++r)
    if (at[r] < whole.tables[r].steps.size())
      stuck +=
          base::format("rank {} at step {} of {} of {}; ", r, at[r], whole.tables[r].steps.size(), schedule.family);
  return stuck;
}

/// What each pair exchanges, in the order in which `rank` does.
std::map<std::pair<int, int>, std::vector<int>> exchange_order(const Timetable& table, int rank) {
  std::map<std::pair<int, int>, std::vector<int>> out;
  for (const Step& step : table.steps) {
    if (step.round < 0) continue;
    for (const Message& m : table.rounds[static_cast<size_t>(step.round)])
      if (m.from == rank || m.to == rank) out[{m.from, m.to}].push_back(m.instance);
  }
  return out;
}

bool is_fused(const Schedule& schedule) { return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), is_part); }

void expect_data_leave_before_what_depends(const std::vector<Instance>& instances, const Timetable& table,
                                           const std::string& where) {
  const auto place = [&](const Step& step) {
    return std::find(table.steps.begin(), table.steps.end(), step) - table.steps.begin();
  };
  for (size_t i = 0; i < instances.size(); ++i)
    for (const int dep : instances[i].deps)
      if (const int last = table.last_round[static_cast<size_t>(dep)]; last >= 0) {
        EXPECT_LT(place({.round = last}), place({.instance = static_cast<int>(i)})) << where << ": its data have left";
      }
}

struct Case {
  std::string op;
  int64_t m;
  std::vector<int> group;
};

void expect_sound(const Case& c, const std::string& family, int degree) {
  const int ranks = static_cast<int>(c.group.size());
  Params options;
  if (family == "hierarchical" || family == "serial") options["hosts"] = int64_t{2};
  const Schedule schedule = make_schedule(issued_op(c.op, ranks, c.m), family, degree, options);
  const std::string where = base::format("{} {} q {} M {}", c.op, family, degree, c.m);
  if (is_fused(schedule)) return;
  const Whole whole = whole_of(schedule, c.group);
  EXPECT_EQ(play(schedule, whole, c.group), "") << where;
  int64_t far_sets = 0, delivered = 0, far_bytes = 0, moved = 0;
  for (int r = 0; r < ranks; ++r) {
    const Timetable& table = whole.tables[static_cast<size_t>(r)];
    const std::vector<Instance>& instances = whole.all[static_cast<size_t>(r)].instances;
    std::vector<int> issued;
    std::vector<size_t> place(instances.size());
    for (size_t s = 0; s < table.steps.size(); ++s) {
      if (table.steps[s].instance < 0) continue;
      issued.push_back(table.steps[s].instance);
      place[static_cast<size_t>(issued.back())] = s;
    }
    EXPECT_EQ(std::set<int>(issued.begin(), issued.end()).size(), instances.size()) << where << ": each once";
    for (size_t s = 0; s < table.steps.size(); ++s) {
      if (table.steps[s].round < 0) continue;
      std::set<std::pair<int, int>> pairs;
      for (const Message& m : table.rounds[static_cast<size_t>(table.steps[s].round)]) {
        EXPECT_FALSE(pairs.contains({m.from, m.to})) << where << ": nothing of a pair behind its data";
        if (!m.parts.empty()) pairs.insert({m.from, m.to});
        if (m.from == r) {
          EXPECT_LT(place[static_cast<size_t>(m.instance)], s) << where << ": made before it leaves";
        }
        if (m.to != r) continue;
        delivered += static_cast<int64_t>(m.sets.size());
        for (const auto& [from, to] : m.parts) {
          EXPECT_EQ(from.numel(), to.numel());
          EXPECT_EQ(to.rank, r);
          moved += to.numel();
        }
      }
    }
    for (const Instance& i : instances) {
      const auto is_far = [&](int peer) {
        return c.group[static_cast<size_t>(peer)] != c.group[static_cast<size_t>(r)];
      };
      for (const ResolvedSet& set : i.sets) far_sets += is_far(set.at) ? 1 : 0;
      for (const auto& boxes : i.writes)
        for (const Box& box : boxes) far_bytes += is_far(box.rank) ? box.numel() : 0;
    }
    expect_data_leave_before_what_depends(instances, table, where);
    // Both ends of each pair have the same messages in the same order.
    for (const auto& [pair, messages] : exchange_order(table, r)) {
      const int peer = pair.first == r ? pair.second : pair.first;
      EXPECT_EQ(exchange_order(whole.tables[static_cast<size_t>(peer)], peer).at(pair), messages) << where;
    }
  }
  EXPECT_EQ(delivered, far_sets) << where;
  EXPECT_EQ(moved, far_bytes) << where;
}

TEST(Rounds, EveryFamilyEndsEvenIfAllStreamsOfARankAreOne) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const int64_t m : {64, 45, 3, 0})
      for (const std::vector<int>& group :
           std::vector<std::vector<int>>{{0, 0, 2, 2}, {0, 1, 2, 3}, {0, 1, 0, 1}, {0, 0, 0, 3}, {0, 0, 0, 0}})
        for (const std::string& family : families(op))
          for (const int degree : {1, 3}) expect_sound({op, m, group}, family, degree);
}

/// Its data for one rank leave a round later than those for the other, behind what another copy has for that rank.
TEST(Rounds, ACopyIsDoneWhenTheLastOfItsMessagesHasLeft) {
  const Schedule schedule = Schedule::from_json(R"({"overlace_schedule":1,"op":"other","family":"fan",
    "buffers":[["X","symmetric","bf16",[3,1]],["A","local","bf16",[2,1]],["B","local","bf16",[1,1]]],
    "signals":[["one",1],["two",1]],
    "tasks":[{"id":"first","kind":"copy","engine":"ce","reads":[["A","r",[0,1],[0,1]]],
        "writes":[["X","(r+1)%G",[0,1],[0,1]]],"sets":[["one",0,"(r+1)%G",1]]},
      {"id":"both","kind":"copy","engine":"ce","reads":[["A","r",[1,1],[0,1],{"each":["p",1,"G"]}]],
        "writes":[["X","(r+p)%G",["p",1],[0,1],{"each":["p",1,"G"]}]],
        "sets":[["two",0,"(r+p)%G",1,{"each":["p",1,"G"]}]]},
      {"id":"after","kind":"copy","engine":"ce","queue":1,"deps":["both"],"reads":[["A","r",[0,1],[0,1]]],
        "writes":[["B","r",[0,1],[0,1]]]},
      {"id":"got","kind":"barrier","engine":"sm","queue":1,
        "waits":[["one",0,"(r+2)%G",1],["two",0,"(r+1)%G",1],["two",0,"(r+2)%G",1]]}]})");
  const std::vector<int> group = {0, 1, 2};
  const Whole whole = whole_of(schedule, group);
  EXPECT_EQ(play(schedule, whole, group), "");
  for (size_t r = 0; r < group.size(); ++r) {
    const std::vector<int>& last = whole.tables[r].last_round;
    EXPECT_GT(last[1], last[0]) << "rank " << r << ": the first copy's data left before";
    expect_data_leave_before_what_depends(whole.all[r].instances, whole.tables[r], "rank " + std::to_string(r));
  }
}

TEST(Rounds, SixRanksOnThreeHosts) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
    for (const char* family : {"hetero_unfused_1d", "serial"}) expect_sound({op, 50, {0, 0, 2, 2, 4, 4}}, family, 2);
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const std::vector<int> group = {0, 0, 2, 2, 4, 4};
    const Schedule schedule = make_schedule(issued_op(op, 6, 50), "hierarchical", 2, {{"hosts", int64_t{3}}});
    EXPECT_EQ(play(schedule, whole_of(schedule, group), group), "");
  }
}

/// What play() says of two rounds that one rank takes the other way round; so it can see what is wrong.
TEST(Rounds, OneRankInAnotherOrderWouldBeStuck) {
  const std::vector<int> group = {0, 0, 2, 2};
  const Schedule schedule = make_schedule(issued_op("ag_gemm", 4), "hetero_fused_1d", 2);
  Whole whole = whole_of(schedule, group);
  ASSERT_EQ(play(schedule, whole, group), "");
  std::vector<Round>& rounds = whole.tables[2].rounds;
  ASSERT_GE(rounds.size(), 2u);
  std::swap(rounds[0], rounds[1]);
  EXPECT_NE(play(schedule, whole, group).find("rank 2 at step"), std::string::npos);
}

TEST(Rounds, ChunksCrossOneByOneAndBeforeTheProductsThatNeedThem) {
  const Schedule schedule = make_schedule(issued_op("ag_gemm", 4), "hetero_fused_1d", 4);
  const Whole whole = whole_of(schedule, {0, 0, 2, 2});
  const Timetable& table = whole.tables[1];
  std::vector<std::string> text;
  for (const Step& step : table.steps)
    text.push_back(step.round >= 0 ? base::format("round {}", step.round)
                                   : whole.all[1].instances[static_cast<size_t>(step.instance)].id(schedule));
  const auto place = [&](const std::string& what) { return std::find(text.begin(), text.end(), what) - text.begin(); };
  for (int s = 0; s < 4; ++s) {
    for (const Message& m : table.rounds[static_cast<size_t>(s)]) {
      ASSERT_EQ(m.sets.size(), 1u);
      EXPECT_EQ(m.sets[0].slot, s);
      EXPECT_EQ(m.parts.size(), 1u);
    }
    EXPECT_LT(place(base::format("round {}", s)), place(base::format("gemm_remote[s={}]", s)));
  }
  // All leave before the first product; the credits, which carry no data, after the last one.
  EXPECT_LT(place("round 3"), place("gemm_own"));
  ASSERT_EQ(table.rounds.size(), 5u);
  EXPECT_GT(place("round 4"), place("gemm_remote[s=3]"));
  for (const Message& m : table.rounds[4]) EXPECT_TRUE(m.parts.empty());
}

TEST(Rounds, SignalsRideWithTheDataBehindThem) {
  const std::vector<int> group = {0, 0, 2, 2};
  const Schedule ar = make_schedule(issued_op("gemm_ar", 4), "serial");
  for (const Timetable& table : whole_of(ar, group).tables) {
    EXPECT_EQ(table.last_data, static_cast<int>(table.rounds.size()) - 1);
    const Round& last = table.rounds.back();  // credits of the sum, then the sums
    EXPECT_TRUE(std::any_of(last.begin(), last.end(), [](const Message& m) { return m.parts.empty(); }));
  }
  const Schedule ag = make_schedule(issued_op("ag_gemm", 4), "serial");
  for (const Timetable& table : whole_of(ag, group).tables) {
    ASSERT_EQ(table.rounds.size(), 2u);
    EXPECT_EQ(table.last_data, 0) << "a call does not wait for the credits of its end";
  }
}

TEST(Rounds, AHierarchyCrossesBetweenGatewaysOnly) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const Schedule schedule = make_schedule(issued_op(op, 4), "hierarchical", 2, {{"hosts", int64_t{2}}});
    for (const Timetable& table : whole_of(schedule, {0, 0, 2, 2}).tables)
      for (const Round& round : table.rounds)
        for (const Message& m : round) EXPECT_EQ((m.from + 2) % 4, m.to) << op;
  }
}

/// A copy lane may share a hardware queue with the kernel whose counters it waits for.
TEST(IssueOrder, WhatSetsACounterComesBeforeWhoWaitsForIt) {
  OpSpec op = issued_op("gemm_rs", 3, 3 * 1024);
  const Schedule schedule = make_schedule(op, "tracked", 2);
  const Expansion mine = expand(schedule, 1, 3).value();
  const std::vector<LaneQueue> lanes = lanes_of(mine);
  int kernel_parts = 0, copies = 0;
  for (const Step& step : issue_order(mine, lanes)) {
    const Task& task = schedule.tasks[static_cast<size_t>(mine.instances[static_cast<size_t>(step.instance)].task)];
    kernel_parts += task.id == "tiles_remote" ? 1 : 0;
    copies += task.id == "push" ? 1 : 0;
    EXPECT_LE(copies, kernel_parts);
  }
  EXPECT_EQ(copies, 4);
  EXPECT_FALSE(needs_timetable(schedule, mine, std::vector<int>{0, 0, 0})) << "nobody waits for a peer on a copy lane";
}

TEST(Rounds, OneHostHasNone) {
  const Schedule schedule = make_schedule(issued_op("gemm_ar", 4), "hierarchical", 2, {{"hosts", int64_t{2}}});
  for (const Timetable& table : whole_of(schedule, {0, 0, 0, 0}).tables) EXPECT_TRUE(table.rounds.empty());
}

TEST(Rounds, AKernelThatStoresToAnotherHostIsRefused) {
  OpSpec op = issued_op("gemm_rs", 4, 2048);
  op.n = 1024;
  op.k = 512;
  const Schedule schedule = make_schedule(op, "tma_slot", 4);
  const auto all = expand_all(schedule, 4).value();
  const auto refused = make_timetable(schedule, all, std::vector<int>{0, 0, 2, 2}, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Errc::not_supported);
  EXPECT_NE(refused.status().message().find("which loads and stores do not reach"), std::string::npos)
      << refused.status().message();
  EXPECT_TRUE(make_timetable(schedule, all, std::vector<int>{0, 0, 0, 0}, 1).ok());
}

TEST(Rounds, BoxesOfThreeDimensionsToAnotherHostAreRefused) {
  const Schedule schedule = make_schedule(issued_op("ag_gemm", 4), "hetero_unfused_1d", 1);
  const std::vector<int> hosts = {0, 0, 2, 2};
  for (const int64_t deep : {1, 2}) {
    auto all = expand_all(schedule, 4).value();
    for (Instance& i : all[0].instances) {
      const bool is_far = !i.writes.empty() && !i.writes[0].empty() && i.writes[0][0].rank >= 2;
      if (!is_far) continue;
      Box& box = i.writes[0][0];
      for (int d = box.ndim; d > 0; --d) box.begin[d] = box.begin[d - 1], box.count[d] = box.count[d - 1];
      box.begin[0] = 0;
      box.count[0] = deep;
      ++box.ndim;
    }
    const auto table = make_timetable(schedule, all, hosts, 1);
    EXPECT_EQ(table.ok(), deep == 1);
    if (table.ok()) continue;
    EXPECT_EQ(table.status().code(), Errc::not_supported);
    EXPECT_NE(table.status().message().find("copies a box of 3 dimensions to rank 3 of another host"),
              std::string::npos)
        << table.status().message();
  }
}

TEST(Rounds, ARoundSaysWhatItBrings) {
  const Schedule schedule = make_schedule(issued_op("ag_gemm", 4), "hetero_fused_1d", 1);
  const Whole whole = whole_of(schedule, {0, 0, 2, 2});
  EXPECT_EQ(round_text(schedule, 1, whole.tables[1].rounds[0]), "arrived[0] of rank 2, arrived[0] of rank 3");
  Round sent = whole.tables[1].rounds[0];
  std::erase_if(sent, [](const Message& m) { return m.to == 1; });
  EXPECT_EQ(round_text(schedule, 1, sent), "arrived[0] to rank 2, arrived[0] to rank 3");
}

/// The simulator, which knows of no rounds, has one order for the caller's stream.
TEST(Rounds, OnOneHostATimetableKeepsTheOrderOfTheCallersStream) {
  int compared = 0;
  const auto on_sm = [](const Expansion& expansion, const std::vector<Step>& steps) {
    std::vector<int> out;
    for (const Step& step : steps)
      if (expansion.instances[static_cast<size_t>(step.instance)].lane.engine == Engine::sm)
        out.push_back(step.instance);
    return out;
  };
  for (const OperatorDef* def : test::sized_operators()) {
    for (const FamilyDef& family : def->families) {
      for (const int64_t hosts : {1, 2}) {
        if (hosts > 1 && !def->knows_hosts && family.form != ClosedForm::hosts) continue;
        if (hosts == 1 && family.form == ClosedForm::hosts) continue;
        const bool takes_hosts = hosts > 1 && (family.form == ClosedForm::hosts || family.name == kSerial ||
                                               family.purpose == Purpose::comm || family.purpose == Purpose::limit);
        const Schedule schedule =
            make_schedule(issued_op(std::string(def->name), 4), std::string(family.name), family.has_degree ? 2 : 1,
                          takes_hosts ? Params{{"hosts", hosts}} : Params{});
        const std::vector<int> group(4, 0);
        const std::vector<Expansion> all = expand_all(schedule, 4).value();
        for (int rank = 0; rank < 4; ++rank) {
          const Expansion& mine = all[static_cast<size_t>(rank)];
          if (!needs_timetable(schedule, mine, group)) continue;
          const Timetable table = make_timetable(schedule, all, group, rank).value();
          EXPECT_EQ(on_sm(mine, table.steps), on_sm(mine, issue_order(mine, lanes_of(mine)))) << schedule.family;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 20);
}

}  // namespace
}  // namespace overlace::spec
