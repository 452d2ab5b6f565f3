#include "src/spec/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include "overlace/error.h"
#include "overlace/schedule.h"
#include "src/spec/fused_pod.h"
#include "tests/unit/spec/operators.h"
#include "tests/unit/spec/support/findings.h"

namespace overlace::spec {
namespace {

using test::Codes;
using test::errors;
using test::task;

const std::vector<std::string> kOps = test::all_operators();
const char* const kOpsOfHosts[] = {"ag_gemm", "gemm_rs", "gemm_ar"};

OpSpec op_of(const std::string& name, int64_t m, int ranks, bool bias = true) {
  OpSpec op;
  op.op = name;
  op.m = m;
  op.n = 24;
  op.k = 40;
  op.ranks = ranks;
  op.bias = bias && name != "ag_wgrad";
  return op;
}

bool is_measuring(const std::string& family) { return family == "compute" || family == "comm" || family == "limit"; }

void expect_ok(const OpSpec& op, const std::string& family, int degree, const Params& options = {}) {
  CheckOptions how;
  how.coverage = !is_measuring(family);
  const CheckReport report = check(make_schedule(op, family, degree, options), Machine{}, how);
  EXPECT_TRUE(report.ok()) << op.to_string() << " " << family << " q " << degree << "\n" << report.to_string();
  for (const Finding& finding : report.findings) {
    EXPECT_NE(finding.code, "S9") << op.to_string() << " " << family << "\n" << report.to_string();
  }
}

TEST(Check, AllFamiliesPassForAllTeamSizes) {
  for (const std::string& name : kOps) {
    for (const std::string& family : families(name)) {
      for (int ranks : {1, 2, 3, 4, 8}) {
        for (int degree : {1, 2, 4}) {
          expect_ok(op_of(name, 64, ranks), family, degree);
          expect_ok(op_of(name, 45, ranks, false), family, degree, {{"ce_queues", int64_t{3}}});
        }
      }
    }
  }
}

TEST(Check, FewRowsPassUpToTheirLimit) {
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    for (const int ranks : {2, 3, 8}) {
      for (const int64_t m : {int64_t{65}, int64_t{129}, int64_t{200}, kOneShotTokens}) {
        OpSpec op = op_of(name, m, ranks);
        expect_ok(op, "one_shot", 1);
        if (std::string_view(name) == "gemm_ar") continue;
        op.row_offsets.assign(static_cast<size_t>(ranks) + 1, m);  // all rows are the second rank's
        op.row_offsets[0] = op.row_offsets[1] = 0;
        expect_ok(op, "one_shot", 1);
      }
    }
  }
}

TEST(Check, AllFamiliesPassWithRaggedAndEmptyShards) {
  for (const std::string& name : kOps) {
    for (const std::string& family : families(name)) {
      for (int64_t m : {0, 1, 3}) expect_ok(op_of(name, m, 4), family, 3);
      OpSpec op = op_of(name, 50, 4);
      op.row_offsets = {0, 0, 31, 31, 50};
      expect_ok(op, family, 2, {{"align", int64_t{8}}});
      op.b_layout = BLayout::kn;
      expect_ok(op, family, 5);
      if (is_measuring(family) || family == "library" || family == "serial" || family == "shard_p2p") continue;
      expect_ok(op, family, 6, {{"own_degree", int64_t{3}}});
    }
  }
}

TEST(Check, WhatHierarchicalIsMeasuredAgainstPasses) {
  for (const char* name : kOpsOfHosts) {
    for (const char* family : {"serial", "comm", "limit"}) {
      for (const int64_t hosts : {2, 3, 6}) {
        expect_ok(op_of(name, 45, 6), family, 2, {{"hosts", hosts}});
        expect_ok(op_of(name, 4, 6, false), family, 3, {{"hosts", hosts}, {"credits", false}});
      }
    }
  }
}

TEST(Check, HierarchicalPassesForHostsOfEqualSize) {
  const std::pair<int, int64_t> teams[] = {{2, 2}, {3, 3}, {4, 2}, {4, 4}, {6, 2}, {6, 3}, {8, 2}, {8, 4}};
  for (const char* name : kOpsOfHosts) {
    for (const auto& [ranks, hosts] : teams) {
      for (const int degree : {1, 2, 3}) {
        expect_ok(op_of(name, 64, ranks), "hierarchical", degree, {{"hosts", hosts}});
        expect_ok(op_of(name, 45, ranks, false), "hierarchical", degree, {{"hosts", hosts}, {"ce_queues", int64_t{2}}});
        expect_ok(op_of(name, 45, ranks), "hierarchical", degree, {{"hosts", hosts}, {"credits", false}});
        expect_ok(op_of(name, ranks - 1, ranks), "hierarchical", degree, {{"hosts", hosts}});
      }
    }
    OpSpec op = op_of(name, 50, 4);
    op.row_offsets = {0, 0, 31, 31, 50};
    expect_ok(op, "hierarchical", 2, {{"hosts", int64_t{2}}});
    expect_ok(op_of(name, 0, 4), "hierarchical", 2, {{"hosts", int64_t{2}}});
  }
}

TEST(Check, SwigluPassesInAllFamilies) {
  for (const std::string& family : families("ag_gemm")) {
    for (const int ranks : {1, 2, 3, 4}) {
      OpSpec op = op_of("ag_gemm", 45, ranks);
      op.activation = Activation::swiglu;
      const int64_t hosts = ranks % 2 == 0 ? 2 : 1;
      for (const int degree : {1, 3}) expect_ok(op, family, degree, {{"hosts", hosts}});
      op.b_layout = BLayout::kn;
      op.bias = false;
      op.m = 3;
      expect_ok(op, family, 2, {{"credits", false}});
    }
  }
}

TEST(Check, SwigluIsMadeOnceOfWholePairs) {
  OpSpec op = op_of("ag_gemm", 64, 4);
  op.activation = Activation::swiglu;
  const auto found = [&](const char* family, const char* id, const std::function<void(Task&)>& spoil) {
    Schedule schedule = make_schedule(op, family, 2);
    for (Task& task : schedule.tasks)
      if (task.id == id) spoil(task);
    return check(schedule, Machine{}).to_string();
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  };
  const auto drop = [](Task& task) { task.params.erase("activation"); };
  const auto add = [](Task& task) { task.params["activation"] = std::string("swiglu"); };
  const std::string sound = found("hetero_fused_1d", "swiglu_own", [](Task&) {});
  EXPECT_EQ(sound.find("S2"), std::string::npos) << sound;
  expect(found("hetero_fused_1d", "swiglu_own", drop), "of another extent");
  expect(found("hetero_fused_1d", "gemm_own", add), "a gemm has no activation");
  expect(found("uniform_fused_2d", "convert", drop), "of another extent");
  expect(found("k_slab", "tiles_own", drop), "does not give");
  // Made of columns 1 and 2, 3 and 4, ...; of sums that lack their last slab of K; in place of the sums.
  expect(found("serial", "swiglu",
               [](Task& t) {
                 t.reads[0].dims[1] = {1, "N-2"};
                 t.writes[0].dims[1].count = "N/2-1";
               }),
         "half of a pair");
  expect(found("hetero_unfused_1d", "swiglu_remote", [](Task& t) { t.loops[0].end = "q-1"; }), "never written");
  Schedule plain = make_schedule(op_of("ag_gemm", 64, 4), "serial");
  plain.params["activation"] = std::string("swiglu");
  expect(check(plain, Machine{}).to_string(), "have passed no activation");
}

TEST(Check, SwigluIsOfAgGemmWithPairsOfColumns) {
  OpSpec op = op_of("gemm_rs", 64, 4);
  op.activation = Activation::swiglu;
  EXPECT_THROW((void)make_schedule(op, "serial"), ScheduleError);
  op.op = "ag_gemm";
  op.n = 23;
  EXPECT_THROW((void)make_schedule(op, "serial"), ScheduleError);
}

/// The sum is over the rows that travel: each of them must be in it once.
TEST(Check, GradientsOfWeightsMustSumAllRows) {
  const OpSpec op = op_of("ag_wgrad", 64, 4);
  const auto spoilt = [&](const char* family, const char* id, const std::function<void(Task&)>& spoil) {
    Schedule schedule = make_schedule(op, family, 2, {{"credits", false}});  // which a product less would not give
    for (Task& task : schedule.tasks)
      if (task.id == id) spoil(task);
    return errors(schedule);
  };
  EXPECT_EQ(spoilt("hetero_unfused_1d", "gemm_own", [](Task&) {}), Codes());
  // Rows of A by other rows of B; the last chunk is left out; a product that replaces what was there.
  EXPECT_EQ(spoilt("hetero_unfused_1d", "gemm_own", [](Task& t) { t.reads[1].dims[1].begin = "off[(r+1)%G]"; }),
            Codes{"S9"});
  EXPECT_EQ(spoilt("hetero_unfused_1d", "gemm_remote", [](Task& t) { t.loops[0].end = "q-1"; }), Codes{"S9"});
  EXPECT_EQ(spoilt("hetero_unfused_1d", "gemm_remote", [](Task& t) { t.combine = Combine::none; }), Codes{"S9"});
  // Slabs of C at the wrong place, and a product of shapes that do not fit.
  EXPECT_EQ(spoilt("uniform_fused_2d", "gemm", [](Task& t) { t.writes[0].dims[0].begin = 0; }), Codes{"S9"});
  EXPECT_EQ(spoilt("serial", "gemm", [](Task& t) { t.params.erase("a_layout"); }), Codes{"S2"});
}

TEST(Check, FusedKernelsDoNotSumRows) {
  Schedule schedule = make_schedule(op_of("ag_gemm", 64, 4, false), "k_slab", 2);
  for (Task& task : schedule.tasks)
    if (task.kind == Kind::tiles) task.params["a_layout"] = std::string("km");
  const CheckReport report = check(schedule, Machine{});
  EXPECT_NE(report.to_string().find("tiles do not sum rows of a"), std::string::npos) << report.to_string();
}

TEST(Check, GradientsOfWeightsHaveNoBiasAndNoHosts) {
  OpSpec op = op_of("ag_wgrad", 64, 4);
  EXPECT_THROW((void)make_schedule(op, "serial", 1, {{"hosts", int64_t{2}}}), ScheduleError);
  EXPECT_THROW((void)make_schedule(op, "hetero_fused_1d"), ScheduleError);
  op.bias = true;
  EXPECT_THROW((void)make_schedule(op, "serial"), ScheduleError);
}

// ---- one mutant per check: exactly its code ----

Schedule sample(const std::string& family, const std::string& op = "ag_gemm", int degree = 2) {
  return make_schedule(op_of(op, 48, 4), family, degree);
}

TEST(CheckS1, UnknownNamesAndInexactDivision) {
  Schedule s = sample("hetero_fused_1d");
  task(s, "push").order = "s*H";
  EXPECT_EQ(errors(s), Codes{"S1"});
  s = sample("hetero_fused_1d");
  s.buffers[0].shape[0] = "M/5";
  EXPECT_EQ(errors(s), Codes{"S1"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_own").reads[0].buffer = "D";
  EXPECT_EQ(errors(s), Codes{"S1"});
  s = sample("hetero_fused_1d");
  s.consts = {{"a", "b+1"}, {"b", "a"}};
  EXPECT_EQ(errors(s), Codes{"S1"});
  s = sample("hetero_fused_1d");
  task(s, "push").deps = {"nobody"};
  EXPECT_EQ(errors(s), Codes{"S1"});
  s = sample("hetero_fused_1d");
  s.tasks.push_back(s.tasks[0]);
  EXPECT_EQ(errors(s), Codes{"S1"});
  s = sample("hetero_fused_1d");
  task(s, "push").loops[0].var = "M";
  EXPECT_EQ(errors(s), Codes{"S1"});
}

TEST(CheckS2, RegionsInsideBuffersAndRanks) {
  Schedule s = sample("hetero_fused_1d");
  task(s, "push").writes[0].dims[0].begin = "cut[r*q+s]+1";  // one row too far at the end
  EXPECT_EQ(errors(s), Codes{"S2"});
  s = sample("hetero_fused_1d");
  task(s, "push").writes[0].at = "r+p";
  EXPECT_EQ(errors(s), Codes{"S2"});
  s = sample("hetero_fused_1d");
  task(s, "push").sets[0].slot = "s+1";
  EXPECT_EQ(errors(s), Codes{"S2"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_own").reads[1].dims[0].count = "N-1";
  EXPECT_EQ(errors(s), Codes{"S2"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_own").reads[0].each = Loop{"i", 0, 2};
  const std::string uneven = check(s, Machine{}).to_string();
  EXPECT_NE(uneven.find("2 boxes to read, 1 to write"), std::string::npos) << uneven;
  EXPECT_EQ(uneven.find("does not give"), std::string::npos) << "of a second box that is not there\n" << uneven;
  for (const size_t dim : {0u, 1u}) {  // a row too few of A, a column too few: neither does it alone with B give C
    s = sample("hetero_fused_1d");
    task(s, "gemm_own").reads[0].dims[dim].count = dim == 0 ? "off[r+1]-off[r]-1" : "K-1";
    CheckOptions without_coverage;
    without_coverage.coverage = false;
    const CheckReport report = check(s, Machine{}, without_coverage);
    EXPECT_NE(report.to_string().find("does not give"), std::string::npos) << dim << "\n" << report.to_string();
  }
  s = sample("hetero_fused_1d");
  task(s, "gemm_own").writes[0].at = "(r+1)%G";  // C is not symmetric
  EXPECT_EQ(errors(s), Codes{"S2"});
}

TEST(CheckS3, WaitThatDependsOnItself) {
  Schedule s = sample("hetero_fused_1d");
  Task& push = task(s, "push");
  push.queue = "s*G+p";  // lanes of their own: only data and signals remain
  push.deps = {"gemm_remote"};
  EXPECT_EQ(errors(s), Codes{"S3"});
}

TEST(CheckS4, CountsOfAdds) {
  Schedule s = sample("hetero_fused_1d");
  task(s, "push").sets.clear();
  EXPECT_EQ(errors(s), Codes{"S4"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_remote").waits[0].at_least = 2;
  EXPECT_EQ(errors(s), Codes{"S4"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_remote").waits[0].from = "r";  // swapped slot: a word that nobody adds to
  EXPECT_EQ(errors(s), Codes{"S4"});
}

TEST(CheckS4, AddsForWhichNobodyWaitsAreAWarning) {
  Schedule s = sample("hetero_fused_1d");
  s.signals.push_back({"extra", 1});
  task(s, "gemm_own").sets.push_back({.signal = "extra", .slot = 0, .at = "r"});
  const CheckReport report = check(s, Machine{});
  EXPECT_TRUE(report.ok());
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].code, "S4");
  EXPECT_FALSE(report.findings[0].is_error);
}

TEST(CheckS5, UnorderedAccess) {
  Schedule s = sample("hetero_fused_1d");
  task(s, "gemm_remote").waits.clear();  // dropped wait
  EXPECT_EQ(errors(s), Codes{"S5"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_remote").waits[0].slot = 0;  // always the first chunk's word
  EXPECT_EQ(errors(s), Codes{"S5"});
  s = sample("uniform_fused_1d", "gemm_rs");
  task(s, "push").deps.clear();  // sends partials before they are computed
  EXPECT_EQ(errors(s), Codes{"S5"});
  s = sample("uniform_fused_1d", "gemm_ar");
  task(s, "copy_out").waits.clear();
  EXPECT_EQ(errors(s), Codes{"S5"});
  s = sample("uniform_fused_1d");
  task(s, "gemm").reads[0].dims[0].begin = "min(cut[p*q+s]+1,M-(cut[p*q+s+1]-cut[p*q+s]))";  // off by one row
  EXPECT_EQ(errors(s), Codes{"S5"});
}

TEST(CheckS6, ReuseWithoutCredit) {
  Schedule s = sample("hetero_fused_1d", "gemm_rs");
  task(s, "push").waits.clear();
  for (Buffer& buffer : s.buffers) buffer.depth = 1;
  EXPECT_EQ(errors(s), Codes{"S6"});
}

TEST(CheckS6, ABroadcastNeedsNoCreditBecauseItFollowsThePeersPartials) {
  Schedule s = sample("shard_p2p", "gemm_ar");
  for (Buffer& buffer : s.buffers) buffer.depth = 1;
  EXPECT_EQ(errors(s), Codes{});
}

TEST(CheckS6, WithoutCreditsAllFamiliesRestOnDepthTwo) {
  for (const std::string& name : kOps) {
    for (const std::string& family : families(name)) {
      for (int ranks : {2, 3, 4}) {
        expect_ok(op_of(name, 45, ranks), family, 2, {{"credits", false}});
        Schedule s = make_schedule(op_of(name, 45, ranks), family, 2, {{"credits", false}});
        if (s.signals.empty() || is_measuring(family)) continue;  // nobody reads an inbox
        for (Buffer& buffer : s.buffers) buffer.depth = 1;
        // gemm_ar: `ready` of a peer says that it has read my partials.
        const bool is_safe = std::string(name) == "gemm_ar" && family != "one_shot";
        EXPECT_EQ(check(s, Machine{}, {.ranks = {}, .coverage = false}).ok(), is_safe) << name << " " << family;
      }
    }
  }
}

TEST(CheckS6, ForwardedRowsAreReadBeforeTheirCreditGoesOut) {
  Schedule s = make_schedule(op_of("ag_gemm", 48, 4), "hierarchical", 2, {{"hosts", int64_t{2}}});
  for (Buffer& buffer : s.buffers) buffer.depth = 1;
  EXPECT_EQ(errors(s), Codes{});
  task(s, "release").deps.clear();
  EXPECT_EQ(errors(s), Codes{"S6"});
}

TEST(CheckS6, DataSignalsAloneMakeAGatherSafeAtDepthTwoOnly) {
  Schedule s = sample("hetero_fused_1d");
  task(s, "push").waits.clear();
  EXPECT_EQ(errors(s), Codes{});
  for (Buffer& buffer : s.buffers) buffer.depth = 1;
  EXPECT_EQ(errors(s), Codes{"S6"});
}

TEST(CheckS7, ReversedQueueDeadlocks) {
  Schedule s = sample("hetero_fused_1d", "gemm_ar");
  Task& broadcast = task(s, "broadcast");
  broadcast.queue = 0;  // before the copies that its own reduction needs
  broadcast.order = "0-1";
  EXPECT_EQ(errors(s), Codes{"S7"});
}

TEST(CheckS7, SpinningKernelNeedsRoomBesideItsProducer) {
  Schedule s = sample("hetero_fused_1d");
  s.signals.push_back({"own", 1});
  task(s, "gemm_own").queue = 1;
  task(s, "gemm_own").sets.push_back({.signal = "own", .slot = 0, .at = "r"});
  Task& remote = task(s, "gemm_remote");
  remote.wait_by = WaitBy::kernel;
  remote.waits.push_back({.signal = "own", .slot = 0, .from = "r"});
  Machine machine;
  machine.sms = 132;
  EXPECT_EQ(errors(s, machine), Codes{"S7"});
  remote.params["sms"] = int64_t{100};
  task(s, "gemm_own").params["sms"] = int64_t{32};
  EXPECT_EQ(errors(s, machine), Codes{});
}

TEST(CheckS8, QueueWaitsNeedHardwareQueues) {
  Machine machine;
  machine.is_gpu = true;
  machine.sms = 132;
  const Schedule s = sample("hetero_fused_1d");
  EXPECT_EQ(errors(s, machine), Codes{});
  machine.max_connections = 1;
  EXPECT_EQ(errors(s, machine), Codes{"S8"});
  EXPECT_EQ(errors(sample("library"), machine), Codes{});
  machine.is_gpu = false;
  EXPECT_EQ(errors(s, machine), Codes{}) << "lanes of CPU ranks have threads of their own";
  machine.is_gpu = true;
  machine.max_connections = 2;  // sm 0 and ce 0 have one each
  EXPECT_EQ(errors(s, machine), Codes{});
}

TEST(CheckS8, WaitBeforeItsProducerInOneHardwareQueue) {
  const Schedule s = Schedule::from_json(R"({"overlace_schedule":1,"op":"other","family":"crossed",
    "buffers":[["X","local","bf16",[1,1]]],"signals":[["go",1],["late",1]],
    "tasks":[{"id":"a","kind":"barrier","engine":"sm","sets":[["go",0,"(r+1)%G",1]]},
      {"id":"waiter","kind":"barrier","engine":"sm","queue":1,"waits":[["late",0,"(r+1)%G",1]]},
      {"id":"b","kind":"barrier","engine":"sm","queue":2,"waits":[["go",0,"(r+1)%G",1]]},
      {"id":"producer","kind":"barrier","engine":"sm","queue":3,"waits":[["go",0,"(r+1)%G",1]],
       "sets":[["late",0,"(r+1)%G",1]]}]})");
  const CheckOptions two_ranks = {.ranks = {2}, .coverage = true};
  Machine machine;
  machine.is_gpu = true;
  for (const auto& [connections, is_ok] : std::map<int, bool>{{8, true}, {4, true}, {3, true}, {2, false}}) {
    machine.max_connections = connections;
    const CheckReport report = check(s, machine, two_ranks);
    EXPECT_EQ(report.ok(), is_ok) << connections << "\n" << report.to_string();
    if (!is_ok) {
      EXPECT_EQ(report.findings[0].code, "S8");
      EXPECT_NE(report.findings[0].text.find("producer of rank"), std::string::npos) << report.to_string();
    }
  }
}

TEST(CheckS9, EveryContributionExactlyOnce) {
  Schedule s = sample("hetero_fused_1d");
  Task& own = task(s, "gemm_own");
  own.reads[0].dims[0].count = "off[r+1]-off[r]-1";  // last row forgotten
  own.writes[0].dims[0].count = "off[r+1]-off[r]-1";
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = sample("uniform_fused_1d", "gemm_rs");
  task(s, "reduce").reads[0].each->begin = "min(1,r)";  // source 0 left out
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = sample("uniform_fused_1d", "gemm_rs");
  task(s, "reduce").reads[0].each = Loop{"i", 0, "r"};
  task(s, "reduce").reads.push_back(task(s, "reduce").reads[0]);  // sources counted twice, and as the bias
  EXPECT_EQ(errors(s), Codes{"S2"});
  s = sample("uniform_fused_1d", "gemm_rs");
  auto& reads = task(s, "reduce").reads;
  reads.insert(reads.begin(), reads[1]);  // own partial twice
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = sample("uniform_fused_1d", "gemm_rs");
  Task& reduce = task(s, "reduce");
  for (Region& region : reduce.reads) region.dims.back() = {0, "N-1"};
  reduce.reads[1].dims.back().begin = 1;  // columns of one source beside those of another
  reduce.writes[0].dims.back() = {0, "N-1"};
  EXPECT_NE(check(s, Machine{}).to_string().find("adds element ("), std::string::npos)
      << check(s, Machine{}).to_string();
  s = sample("uniform_fused_2d");
  task(s, "gemm_add").reads[1].dims[1].begin = "slab[s-1]";  // the same slab of b again
  task(s, "gemm_add").reads[1].dims[1].count = task(s, "gemm_add").reads[0].dims[1].count;
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = sample("library", "gemm_ar");
  s.tasks.back().writes[0].dims[0].count = "M-1";
  s.tasks.back().reads[0].dims[0].count = "M-1";
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = sample("hetero_fused_1d");
  task(s, "gemm_own").reads.pop_back();  // no bias on the own rows
  EXPECT_EQ(errors(s), Codes{"S9"});
}

/// My rows once for each rank, then all to all: a gather.
Schedule gather_by_all_to_all() {
  OpSpec op = op_of("ag_gemm", 64, 4);
  Schedule s = make_schedule(op, "library");
  s.buffers.push_back({"T", Space::local, op.dtype, {"M", "K"}});
  Task copies;
  copies.id = "copies";
  copies.kind = Kind::copy;
  copies.engine = Engine::ce;
  copies.loops = {{"p", 0, "G"}};
  copies.reads = s.tasks[0].reads;
  copies.writes = {{"T", "r", {{"p*(M/G)", "M/G"}, {0, "K"}}, {}}};
  s.tasks[0].reads = {{"T", "r", {{0, "M"}, {0, "K"}}, {}}};
  s.tasks[0].params = {{"collective", std::string("all_to_all")}};
  s.tasks[0].deps = {"copies"};
  s.tasks.push_back(std::move(copies));
  return s;
}

TEST(CheckS9, AllToAllBringsEachRankItsShardOfEveryOther) {
  EXPECT_EQ(errors(gather_by_all_to_all()), Codes{});
  Schedule s = gather_by_all_to_all();
  s.tasks.back().loops[0].begin = 1;  // nothing for rank 0
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = gather_by_all_to_all();
  s.tasks.back().reads[0].dims[0] = {0, "off[r+1]-off[r]-1"};
  s.tasks.back().writes[0].dims[0].count = "M/G-1";
  EXPECT_EQ(errors(s), Codes{"S9"});
  s = gather_by_all_to_all();
  s.tasks[0].reads.push_back(s.tasks[0].reads[0]);  // a collective reads one box
  EXPECT_EQ(errors(s), Codes{"S2"});
  s = gather_by_all_to_all();
  s.tasks[0].reads[0].dims[0] = {0, "M-2"};
  s.tasks[0].writes[0].dims[0] = {0, "M-2"};  // 62 rows for four ranks
  EXPECT_EQ(errors(s), Codes{"S2"});
}

TEST(CheckS10, UnorderedSums) {
  Schedule s = Schedule::from_json(R"({"overlace_schedule":1,"op":"other","family":"adds",
    "buffers":[["X","symmetric","fp32",[8,4]],["P","local","fp32",[8,4]]],"signals":[["sent",1]],
    "tasks":[{"id":"push","kind":"copy","engine":"ce","combine":"add",
      "reads":[["P","r",[0,8],[0,4]]],"writes":[["X",0,[0,8],[0,4]]],"sets":[["sent",0,"p",1,{"each":["p",0,"G"]}]]},
      {"id":"last","kind":"host","engine":"cpu","waits":[["sent",0,"p",1,{"each":["p",0,"G"]}]]}]})");
  auto codes = [&](int ranks) {
    Codes out;
    const CheckReport report = check(s, Machine{}, {.ranks = {ranks}, .coverage = true});
    for (const Finding& finding : report.findings) {
      if (finding.is_error) out.insert(finding.code);
    }
    return out;
  };
  EXPECT_EQ(codes(2), Codes{}) << "two terms commute";
  EXPECT_EQ(codes(3), Codes{"S10"});
  s.deterministic = false;
  EXPECT_EQ(codes(3), Codes{});
}

TEST(CheckS11, EnginesOfTheMachine) {
  Machine machine;
  machine.has_net_engine = false;
  EXPECT_EQ(errors(sample("library"), machine), Codes{"S11"});
  machine = {};
  machine.has_copy_engine = false;
  EXPECT_EQ(errors(sample("hetero_fused_1d"), machine), Codes{"S11"});
  Schedule s = sample("hetero_fused_1d");
  task(s, "gemm_own").engine = Engine::ce;
  task(s, "gemm_own").queue = 9;
  EXPECT_EQ(errors(s), Codes{"S11"});
  machine = {};
  machine.is_gpu = true;
  OpSpec op = op_of("ag_gemm", 48, 4);
  op.dtype = op.out_dtype = DType::fp64;
  EXPECT_EQ(errors(make_schedule(op, "hetero_fused_1d"), machine), Codes{"S11"});
  EXPECT_EQ(errors(make_schedule(op, "hetero_fused_1d")), Codes{});
}

TEST(CheckS12, LimitsOfTheMachine) {
  Machine machine;
  machine.heap_bytes = 48 * 40 * 2 * 2;
  EXPECT_EQ(errors(sample("hetero_fused_1d"), machine), Codes{});
  machine.heap_bytes -= 1;
  EXPECT_EQ(errors(sample("hetero_fused_1d"), machine), Codes{"S12"});
  machine = {};
  machine.num_signal_ids = 6;
  EXPECT_EQ(errors(sample("hetero_fused_1d"), machine), Codes{});
  machine.num_signal_ids = 5;
  EXPECT_EQ(errors(sample("hetero_fused_1d"), machine), Codes{"S12"});
  Schedule s = sample("hetero_fused_1d", "gemm_rs");
  task(s, "reduce").params["sms"] = int64_t{100};
  task(s, "gemm_own").params["sms"] = int64_t{100};
  machine = {};
  machine.sms = 132;
  EXPECT_EQ(errors(s, machine), Codes{"S12"});
}

TEST(CheckReport, NamesCodeTaskRankAndBothSides) {
  Schedule s = sample("hetero_fused_1d");
  task(s, "gemm_remote").waits.clear();
  const std::string text = check(s, Machine{}).to_string();
  EXPECT_NE(text.find("S5 error: "), std::string::npos) << text;
  EXPECT_NE(text.find("push[s="), std::string::npos) << text;
  EXPECT_NE(text.find("gemm_remote[s="), std::string::npos) << text;
  EXPECT_NE(text.find("X@"), std::string::npos) << text;
}

TEST(Check, FollowsTheTeamSizesAskedForWhereTheScheduleLeavesThemOpen) {
  Schedule s = Schedule::from_json(R"({"overlace_schedule":1,"op":"other","family":"ring","params":{"M":24},
    "buffers":[["X","symmetric","bf16",["M",8],1]],"signals":[["done",1]],
    "tasks":[{"id":"fill","kind":"copy","engine":"ce","reads":[["X","r",[0,0],[0,8]]],"writes":[["X","r",[0,0],[0,8]]],
    "sets":[["done",0,"(r+1)%G",1]]},
    {"id":"last","kind":"host","engine":"cpu","waits":[["done",0,"(r+G-1)%G",1]]}]})");
  EXPECT_TRUE(check(s, Machine{}).ok()) << check(s, Machine{}).to_string();
  s.buffers[0].shape[0] = "M/G*(4/(G-1))";  // G = 4 gives 4/3
  const CheckReport report = check(s, Machine{}, {.ranks = {3, 4}, .coverage = true});
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.to_string().find("of 4"), std::string::npos) << report.to_string();
}

}  // namespace
}  // namespace overlace::spec
