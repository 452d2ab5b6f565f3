// What findings of the checks say, word by word.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "overlace/schedule.h"
#include "src/spec/check.h"
#include "tests/unit/spec/support/findings.h"

namespace overlace::spec {
namespace {

using test::task;

Schedule gather() {
  OpSpec op;
  op.op = "ag_gemm";
  op.m = 48;
  op.n = 24;
  op.k = 40;
  op.ranks = 4;
  return make_schedule(op, "hetero_fused_1d", 2);
}

std::string findings(const Schedule& schedule) { return check(schedule, Machine{}).to_string(); }

bool says(const Schedule& schedule, const std::string& line) {
  return findings(schedule).find(line) != std::string::npos;
}

TEST(CheckFindings, OfTwoAccessesTheLowerRankComesFirst) {
  Schedule s = gather();
  task(s, "gemm_remote").waits.clear();
  EXPECT_TRUE(says(s,
                   "S5 error: gemm_remote[s=0], rank 0: gemm_remote[s=0] of rank 0 reads X@0[12:18][0:40] and, "
                   "unordered, push[s=0,p=1] of rank 1 writes X@0[12:18][0:40]\n"))
      << findings(s);
}

/// One of two adds on lanes of their own is waited for: it may be either.
TEST(CheckFindings, AWordWithAddsOfTwoLanesSaysNothingOfEither) {
  Schedule s = Schedule::from_json(R"({"overlace_schedule":1,"op":"other","family":"lanes",
    "buffers":[["P","local","fp32",[8,4]],["Q","local","fp32",[8,4]],["X","symmetric","fp32",[8,4]]],
    "signals":[["sent",1]],
    "tasks":[{"id":"low","kind":"copy","engine":"ce","queue":0,"reads":[["P","r",[0,4],[0,4]]],
      "writes":[["X","(r+1)%G",[0,4],[0,4]]],"sets":[["sent",0,"(r+1)%G",1]]},
      {"id":"high","kind":"copy","engine":"ce","queue":1,"reads":[["P","r",[4,4],[0,4]]],
      "writes":[["X","(r+1)%G",[4,4],[0,4]]],"sets":[["sent",0,"(r+1)%G",1]]},
      {"id":"use","kind":"copy","engine":"sm","reads":[["X","r",[0,8],[0,4]]],"writes":[["Q","r",[0,8],[0,4]]],
      "waits":[["sent",0,"(r+G-1)%G",1]]}]})");
  const auto text = [&] { return check(s, Machine{}, {.ranks = {3}, .coverage = false}).to_string(); };
  for (const char* sender : {"low of rank 2 writes X@0[0:4][0:4]", "high of rank 2 writes X@0[4:8][0:4]"})
    EXPECT_NE(text().find(std::string("reads X@0[0:8][0:4] and, unordered, ") + sender), std::string::npos) << text();
  task(s, "use").waits[0].at_least = 2;
  EXPECT_EQ(text().find("S5"), std::string::npos) << text();
}

TEST(CheckFindings, ATaskThatWritesRowsTwiceIsUnorderedWithItself) {
  Schedule s = gather();
  s.buffers.push_back({"T", Space::local, DType::bf16, {8, 8}});
  Task twice;
  twice.id = "twice";
  twice.kind = Kind::copy;
  twice.engine = Engine::ce;
  twice.reads = {{"A", "r", {{0, 2}, {0, 8}}, Loop{"i", 0, 2}}};
  twice.writes = {{"T", "r", {{"2*i", 2}, {0, 8}}, Loop{"i", 0, 2}}};
  s.tasks.push_back(twice);
  EXPECT_TRUE(check(s, Machine{}).ok()) << findings(s);
  s.tasks.back().writes[0].dims[0].begin = "i";
  EXPECT_TRUE(says(s,
                   "S5 error: twice, rank 3: twice of rank 3 writes T@3[0:2][0:8] and, unordered, twice of rank 3 "
                   "writes T@3[1:3][0:8]\n"))
      << findings(s);
}

TEST(CheckFindings, AResultOfInputsIsNamedAsSuch) {
  Schedule s = gather();
  Task& own = task(s, "gemm_own");
  own.kind = Kind::copy;
  own.reads.resize(1);
  own.reads[0].dims[1] = {0, "N"};
  EXPECT_TRUE(says(s,
                   "S9 error: the result, rank 0: rows 0:12 columns 0:24 are elements of an input, wanted sums of "
                   "products\n"))
      << findings(s);
}

TEST(CheckFindings, CoverageNeedsTheResultByItsName) {
  Schedule s = gather();
  const auto rename = [](std::string* name) { *name = *name == "C" ? "D" : *name; };
  for (Buffer& buffer : s.buffers) rename(&buffer.name);
  for (Task& t : s.tasks)
    for (Region& region : t.writes) rename(&region.buffer);
  EXPECT_EQ(findings(s), "S9 warning: hetero_fused_1d, rank 0: needs the result C of ag_gemm\n");
}

TEST(CheckFindings, RegionsDoNotBeginBeforeTheirBuffer) {
  Schedule s = gather();
  task(s, "push").reads[0].dims[0].begin = -1;
  EXPECT_TRUE(says(s, "dimension 0 of 'A' has 12 elements, the region begins at -1 and has 6\n")) << findings(s);
}

TEST(CheckFindings, CoverageNeedsOffsetsOfAllRanks) {
  Schedule s = gather();
  s.tables["off"].push_back(48);
  EXPECT_EQ(findings(s), "S9 warning: hetero_fused_1d, rank 0: needs the table off\n");
}

TEST(CheckFindings, CopiesKeepTheType) {
  Schedule s = gather();
  for (Buffer& buffer : s.buffers)
    if (buffer.name == "X") buffer.dtype = DType::fp32;
  EXPECT_TRUE(says(s, "S2 error: push[s=0,p=1], rank 0: copies A@0[0:6][0:40] to X@3[0:6][0:40] of another type\n"))
      << findings(s);
}

TEST(CheckFindings, AWaitForNoAddsNeedsOneAllTheSame) {
  Schedule s = gather();
  task(s, "push").sets.clear();
  task(s, "gemm_remote").waits[0].at_least = 0;
  EXPECT_TRUE(says(s, "S4 error: gemm_remote[s=0], rank 0: waits for 0 adds by rank 1 to arrived[0], which gets 0"))
      << findings(s);
}

TEST(CheckFindings, CoverageTakesAnInputByItsNameAlone) {
  Schedule s = gather();
  const auto rename = [](std::string* name) { *name = *name == "A" ? "D" : *name; };
  for (Buffer& buffer : s.buffers) rename(&buffer.name);
  for (Task& t : s.tasks)
    for (Region& region : t.reads) rename(&region.buffer);
  EXPECT_EQ(
      findings(s),
      "S9 error: push[s=0,p=1], rank 0: 240 of the 240 elements of D@0 rows 0:6 columns 0:40 were never written\n");
}

TEST(CheckFindings, EnginesForCollectivesAndFilesDoNotCopy) {
  Schedule s = gather();
  for (const auto& [engine, name] : {std::pair(Engine::nic, "nic"), {Engine::io, "io"}}) {
    task(s, "push").engine = engine;
    EXPECT_EQ(findings(s), std::string("S11 error: push, rank 0: engine ") + name + " cannot do a copy\n");
  }
}

TEST(CheckFindings, KernelsOfHopperAreForNoOtherGpu) {
  OpSpec op{.op = "ag_gemm", .m = 1024, .n = 1024, .k = 1024, .ranks = 2, .row_offsets = {}};
  op.dtype = op.out_dtype = DType::bf16;
  const Schedule fused = make_schedule(op, "k_slab", 4), unfused = make_schedule(op, "serial");
  Machine machine;
  machine.is_gpu = true;
  machine.name = "x";
  machine.sms = 132;
  EXPECT_TRUE(check(fused, machine).ok()) << check(fused, machine).to_string();
  machine.compute_capability = 80;
  const std::string found = check(fused, machine).to_string();
  EXPECT_NE(found.find("machine x has compute capability 8.0, its kernel is for compute capability 9.0 alone"),
            std::string::npos)
      << found;
  EXPECT_TRUE(check(unfused, machine).ok());
  machine.is_gpu = false;
  EXPECT_TRUE(check(fused, machine).ok()) << "CPU ranks run every schedule";
}

}  // namespace
}  // namespace overlace::spec
