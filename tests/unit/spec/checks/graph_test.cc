// Parts of a fused kernel run side by side: what the checks say of a schedule that relies on their order in a lane.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "overlace/schedule.h"
#include "src/spec/check.h"
#include "src/spec/expand.h"
#include "tests/unit/spec/support/findings.h"

namespace overlace::spec {
namespace {

using test::Codes;
using test::errors;
using test::task;

/// Three ranks, several groups of tiles for each owner. `depth`: of all buffers; at 2 the data signals of the call
/// between stand in for credits.
Schedule kernel_of(const std::string& op, const std::string& family, int degree, int depth = 1) {
  OpSpec spec;
  spec.op = op;
  spec.m = 3 * 1024;
  spec.n = 1024;
  spec.k = 512;
  spec.ranks = 3;
  Schedule out = make_schedule(spec, family, degree);
  for (Buffer& buffer : out.buffers) buffer.depth = depth;
  return out;
}

TEST(PartsOfAKernel, AreOrderedByWhatTheScheduleSaysOfThem) {
  for (const int depth : {1, 2}) {
    EXPECT_EQ(errors(kernel_of("gemm_rs", "tma_slot", 4, depth)), Codes{}) << depth;
    EXPECT_EQ(errors(kernel_of("ag_gemm", "k_slab", 4, depth)), Codes{}) << depth;
  }
  EXPECT_EQ(errors(kernel_of("gemm_ar", "tma_slot", 4)), Codes{});
  EXPECT_GT(expand(kernel_of("gemm_rs", "tma_slot", 4), 0, 3).value().instances.size(), 3U * 2 + 1)
      << "one group for each owner has no order to lose";
}

TEST(PartsOfAKernel, ACreditThatOnlyTheFirstOneAwaitsDoesNotCoverTheOthers) {
  Schedule s = kernel_of("ag_gemm", "k_slab", 4);
  task(s, "push").waits[0].each = Loop{"z", 0, "max(0,1-s)"};
  EXPECT_EQ(errors(s), Codes{"S6"});
  s = kernel_of("gemm_rs", "tma_slot", 4);
  task(s, "tiles_remote").waits[0].each = Loop{"z", 0, "max(0,1-s-j)"};
  EXPECT_EQ(errors(s), Codes{"S6"});
}

TEST(PartsOfAKernel, ACreditThatOnlyTheLastOneGivesDoesNotCoverTheOthers) {
  Schedule s = kernel_of("gemm_rs", "tma_slot", 4);
  Set give = std::move(task(s, "release").sets[0]);
  give.each = Loop{"p", 1, "1+(G-1)*max(0,s*strips+j+2-q*strips)"};
  task(s, "release").sets.clear();
  task(s, "sum_own").sets = {std::move(give)};
  EXPECT_EQ(errors(s), Codes{"S6"});
}

TEST(Counters, OfAKernelOrderItsCopies) {
  for (const int depth : {1, 2}) EXPECT_EQ(errors(kernel_of("gemm_rs", "tracked", 2, depth)), Codes{}) << depth;
  Schedule s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "tiles_remote").sets.clear();
  EXPECT_EQ(errors(s), Codes{"S4"}) << "a missing counter";
  s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "push").waits.back().at_least = 0;
  EXPECT_EQ(errors(s), Codes{"S5"}) << "a threshold that is too low";
  s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "push").waits.back().at_least = 2;
  EXPECT_EQ(errors(s), Codes{"S4"}) << "one that is never reached";
  s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "push").waits.back().slot = "(q-1-s)*(G-1)+p-1";
  EXPECT_EQ(errors(s), Codes{"S5"}) << "the counter of another chunk";
  s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "reduce").deps.clear();
  EXPECT_EQ(errors(s), Codes{"S5"}) << "own tiles are not counted";
}

TEST(Counters, AreSetAndAwaitedByTheirOwnRankInThisCall) {
  Schedule s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "tiles_remote").sets[0].at = "(r+1)%G";
  EXPECT_EQ(errors(s), Codes{"S4"});
  s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "push").waits.back().from = "(r+1)%G";
  EXPECT_EQ(errors(s), Codes{"S4"});
  s = kernel_of("gemm_rs", "tracked", 2);
  task(s, "push").waits.back().previous = true;
  EXPECT_EQ(errors(s), Codes{"S4"}) << "counters begin at 0 in each call";
}

/// A copy lane may wait for a running kernel, a kernel not for a copy lane, which holds the SMs that others may need.
TEST(Counters, AKernelDoesNotWaitForACopyLane) {
  Schedule s = kernel_of("gemm_rs", "tracked", 2);
  s.signals.push_back({"sent", "q*(G-1)", Scope::device});
  task(s, "push").sets.push_back({.signal = "sent", .slot = "s*(G-1)+p-1", .at = "r"});
  task(s, "tiles_own").waits = {{.signal = "sent", .slot = 0, .from = "r"}};
  EXPECT_EQ(errors(s), Codes{"S7"});
}

TEST(Counters, TakeNoWordsOfTheHeap) {
  Machine machine;
  machine.num_signal_ids = 2 * (2 + 1);  // two copies of arrived and credit
  EXPECT_EQ(errors(kernel_of("gemm_rs", "tracked", 2, 2), machine), Codes{});
  Schedule s = kernel_of("gemm_rs", "tracked", 2, 2);
  for (SignalDecl& signal : s.signals) signal.scope = Scope::system;
  EXPECT_EQ(errors(s, machine), Codes{"S12"});
}

TEST(PartsOfAKernel, ASumFollowsItsOwnTilesByADependencyAlone) {
  for (const char* op : {"gemm_rs", "gemm_ar"}) {
    Schedule s = kernel_of(op, "one_shot", 1, 2);
    EXPECT_EQ(errors(s), Codes{}) << op;
    task(s, "sum").deps.clear();
    EXPECT_EQ(errors(s), Codes{"S5"}) << op;
  }
}

/// Sums of a tile stay with the CTA that began it, so a slab that is added follows the one before.
TEST(PartsOfAKernel, SlabsThatAreAddedFollowEachOtherAndOthersDoNot) {
  Schedule s = kernel_of("ag_gemm", "k_slab", 4);
  task(s, "tiles_add").combine = Combine::none;
  EXPECT_TRUE(errors(s).contains("S5"));
}

/// A lane goes on behind the whole kernel, and the kernel begins behind what stands in front of it.
TEST(PartsOfAKernel, WhatStandsInFrontOfAKernelAndBehindItIsOrdered) {
  Schedule s = Schedule::from_json(R"({"overlace_schedule":1,"op":"other","family":"lane",
    "buffers":[["P","local","fp32",[8,4]],["Q","local","fp32",[8,4]],["R","local","fp32",[8,4]]],
    "tasks":[{"id":"first","kind":"copy","engine":"sm","order":0,"reads":[["P","r",[0,8],[0,4]]],
      "writes":[["Q","r",[0,8],[0,4]]]},
      {"id":"part","kind":"copy","engine":"sm","order":1,"loops":[["i",0,2]],"wait_by":"kernel",
      "reads":[["Q","r",["4*i",4],[0,4]]],"writes":[["R","r",["4*i",4],[0,4]]]},
      {"id":"last","kind":"copy","engine":"sm","order":2,"reads":[["R","r",[0,8],[0,4]]],
      "writes":[["P","r",[0,8],[0,4]]]}]})");
  const auto found = [&] { return check(s, Machine{}, {.ranks = {2}, .coverage = false}).to_string(); };
  EXPECT_EQ(found(), "");
  task(s, "part").writes[0].dims[0].begin = "3*i";  // both write a row
  EXPECT_NE(found().find("S5 error: part[i=0]"), std::string::npos) << found();
  task(s, "part").wait_by = WaitBy::queue;
  EXPECT_EQ(found(), "") << "in a queue they follow each other";
}

/// Either of two parts may be the one that is missing, whatever their order in the lane.
TEST(PartsOfAKernel, AWaitThatOneOfTwoAddsSatisfiesFollowsNeither) {
  Schedule s = kernel_of("ag_gemm", "k_slab", 4);
  task(s, "tiles_first").waits[0].slot = 1;  // of the slab behind
  task(s, "push").sets[0].slot = "max(1,s)";
  EXPECT_TRUE(errors(s).contains("S5"));
}

}  // namespace
}  // namespace overlace::spec
