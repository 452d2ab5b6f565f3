#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/costs.h"
#include "src/spec/expand.h"
#include "tests/unit/sim/schedule/problem.h"
#include "tests/unit/spec/operators.h"

namespace overlace::sim {
namespace {

using spec::Machine;
using spec::OpSpec;
using spec::Schedule;

const Machine& h200() {
  static const Machine machine = spec::find_machine("h200x4");
  return machine;
}

/// Every operator, family, team and degree.
template <class Visit>
void for_all(const Machine& machine, Visit visit) {
  for (const std::string& name : test::all_operators()) {
    for (const std::string& family : spec::families(name)) {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const int degree : {1, 4}) {
          SCOPED_TRACE(std::string(name) + " " + family + " G " + std::to_string(ranks) + " q " +
                       std::to_string(degree));
          visit(build(op_of(name, ranks), family, degree), machine);
        }
      }
    }
  }
}

TEST(Simulate, EveryFamilyLiesBetweenBoundAndSerialSum) {
  for (const char* name : {"h200x4", "h200x2", "cpu2"}) {
    const Machine machine = spec::find_machine(name);
    SimOptions plain;
    plain.has_contention = false;
    for_all(machine, [&](const Schedule& schedule, const Machine& m) {
      const SimResult r = simulate(schedule, m, plain);
      const bool is_idle = schedule.family.starts_with("comm") && schedule.params.at("G") == spec::Param(int64_t{1});
      EXPECT_EQ(r.bound_us > 0, !is_idle);
      EXPECT_GE(r.us(), r.bound_us * (1 - 1e-9));
      EXPECT_LE(r.us(), r.serial_us + 1e-6 * static_cast<double>(r.events));  // whole ps
    });
  }
}

TEST(Simulate, LanesCostTheHostOnceACall) {
  const auto host_us = [](const char* family, int degree, double lanes_us) {
    Machine machine = spec::find_machine("h200x2");
    machine.latency.host_lanes_us = {lanes_us};
    return simulate(spec::make_schedule(op_of("gemm_rs", 2), family, degree), machine).host_us;
  };
  for (const int degree : {1, 4})
    EXPECT_NEAR(host_us("hetero_unfused_1d", degree, 500), host_us("hetero_unfused_1d", degree, 0) + 500, 1e-9);
  EXPECT_EQ(host_us("library", 1, 500), host_us("library", 1, 0));
}

/// A few tokens sent to two peers more, by all SMs: not two starts of a copy engine more.
TEST(Simulate, PartsOfAKernelThatCopyStartNothing) {
  const auto us = [](int ranks) {
    OpSpec op = op_of("gemm_ar", ranks, 8, 8192, 2048);
    op.dtype = op.out_dtype = DType::bf16;
    return simulate(spec::make_schedule(op, "one_shot"), h200()).us();
  };
  EXPECT_LT(us(4) - us(2), h200().copy.start_us.value) << us(4) << " " << us(2);
}

/// Two H200, bench/results/decode_x2.jsonl: weights stream, SM by SM, however few rows they meet.
TEST(Simulate, FewGatheredTokensTakeWhatWasMeasured) {
  struct Row {
    int64_t m, n, k;
    double measured_us;
  };
  for (const Row& row : {Row{16, 2560, 8192, 23.8},
                         {16, 4608, 16384, 68.2},
                         {16, 7168, 4096, 24.0},
                         {1, 14336, 8192, 70.2},
                         {64, 14336, 8192, 73.4}}) {
    OpSpec op = op_of("ag_gemm", 2, row.m, row.n, row.k);
    op.dtype = op.out_dtype = DType::bf16;
    const double us = simulate(spec::make_schedule(op, "one_shot"), spec::find_machine("h200x2_calibrated")).us();
    EXPECT_NEAR(us / row.measured_us, 1, 0.07) << op.to_string();
  }
}

/// Each rank sends another its rows, not all.
TEST(Simulate, ReduceScatterOfFewTokensSendsAShardToEach) {
  const auto sent = [](const char* name) {
    OpSpec op = op_of(name, 4, 64, 8192, 2048);
    op.dtype = op.out_dtype = DType::bf16;
    return simulate(spec::make_schedule(op, "one_shot"), h200()).bytes.at(0).egress;
  };
  EXPECT_EQ(sent("gemm_ar"), 3 * 64 * 8192 * 2);
  EXPECT_EQ(sent("gemm_rs"), 3 * 16 * 8192 * 2);
}

TEST(Simulate, MovesTheBytesOfTheRegions) {
  for_all(h200(), [](const Schedule& schedule, const Machine& m) {
    SimOptions twice;
    twice.calls = 3;
    const SimResult r = simulate(schedule, m, twice);
    EXPECT_EQ(r.bytes, r.static_bytes);
    int64_t out = 0, in = 0;
    for (const RankBytes& b : r.bytes) {
      out += b.egress;
      in += b.ingress;
    }
    EXPECT_EQ(out, in);
  });
}

/// An all-gather brings each rank the shards of the others, whatever the family, once a call.
TEST(Simulate, GathersEveryShardOnce) {
  const OpSpec op = op_of("ag_gemm", 4);
  const int64_t shards = op.m / 4 * 3 * op.k * 2;
  for (const std::string& family : spec::families("ag_gemm")) {
    if (family == "compute") continue;
    for (const RankBytes& b : simulate(build(op, family, 2), h200()).bytes) EXPECT_EQ(b.ingress, shards) << family;
  }
}

TEST(Simulate, MoreBandwidthIsNeverSlower) {
  Machine wide = h200();
  wide.link.egress_GBps.value *= 3;
  wide.link.ingress_GBps.value *= 3;
  wide.memory.hbm_GBps.value *= 2;
  SimOptions plain;
  plain.has_contention = false;
  for_all(h200(), [&](const Schedule& schedule, const Machine& m) {
    EXPECT_LE(simulate(schedule, wide, plain).time_ps, simulate(schedule, m, plain).time_ps + 10);
  });
}

TEST(Simulate, IsTheSameEveryTime) {
  SimOptions options;
  options.seed = 3;
  options.calls = 2;
  options.has_spans = true;
  for_all(h200(), [&](const Schedule& schedule, const Machine& m) {
    const SimResult a = simulate(schedule, m, options), b = simulate(schedule, m, options);
    EXPECT_EQ(a.time_ps, b.time_ps);
    ASSERT_EQ(a.spans.size(), b.spans.size());
    for (size_t i = 0; i < a.spans.size(); ++i) {
      EXPECT_EQ(a.spans[i].name, b.spans[i].name);
      EXPECT_EQ(a.spans[i].end_ps, b.spans[i].end_ps);
    }
  });
}

TEST(Simulate, WithoutNoiseSeedsDoNotMatter) {
  Machine quiet = h200();
  quiet.noise = {};
  SimOptions options;
  const Schedule schedule = build(op_of("ag_gemm", 4), "hetero_unfused_1d", 2);
  const uint64_t plain = simulate(schedule, quiet, options).time_ps;
  for (options.seed = 1; options.seed < 5; ++options.seed) EXPECT_EQ(simulate(schedule, quiet, options).time_ps, plain);
  options.seed = 1;
  EXPECT_NE(simulate(schedule, h200(), options).time_ps, plain);
}

/// Ranks of equal shards are alike: a late or slow one costs the same, whichever it is.
TEST(Simulate, RanksMayBePermuted) {
  for (const char* family : {"hetero_unfused_1d", "uniform_fused_1d", "library", "k_slab"}) {
    const Schedule schedule = build(op_of("ag_gemm", 4), family, 2);
    uint64_t first = 0, slow = 0;
    for (size_t rank = 0; rank < 4; ++rank) {
      SimOptions late;
      late.start_us = {0, 0, 0, 0};
      late.start_us[rank] = 37;
      const uint64_t time = simulate(schedule, h200(), late).time_ps;
      first = rank == 0 ? time : first;
      EXPECT_EQ(time, first) << family << " rank " << rank;
      SimOptions straggler;
      straggler.slower = {1, 1, 1, 1};
      straggler.slower[rank] = 1.5;
      const uint64_t slow_time = simulate(schedule, h200(), straggler).time_ps;
      slow = rank == 0 ? slow_time : slow;
      EXPECT_EQ(slow_time, slow) << family << " rank " << rank;
    }
    EXPECT_GT(slow, simulate(schedule, h200()).time_ps) << family;
  }
}

/// One product of one rank, in closed form.
TEST(Simulate, OneTaskIsItsClosedForm) {
  const OpSpec op = op_of("ag_gemm", 1, 1024, 768, 512);
  const spec::GemmWork product{1024, 768, 512};
  const double want =
      spec::gemm_cost(h200(), product).us + h200().latency.launch_us.value + h200().latency.call_us.value;
  EXPECT_NEAR(simulate(build(op, "library", 1), h200()).us(), want, 1e-5);
}

/// One chunk from each rank to the other: start, bytes over the rate, signal, flag.
TEST(Simulate, OneChunkIsItsClosedForm) {
  Machine m = h200();
  m.copy.pair_us = {};
  m.contention = {};
  const OpSpec op = op_of("ag_gemm", 2);
  const double bytes = static_cast<double>(op.m / 2 * op.k * 2);
  const double want = m.latency.wait_us.value + m.latency.event_us.value + m.copy.trigger_us.value +
                      m.copy.start_us.value + bytes / m.copy.peer_GBps.value * 1e-3 + m.copy.post_us.value +
                      m.latency.flag_us.value + m.latency.signal_us.value + m.latency.call_us.value;
  EXPECT_NEAR(simulate(build(op, "comm", 1), m).us(), want, 1e-4);
}

TEST(Simulate, TwoProductsOfACoreTakeTurns) {
  const Machine cpu = spec::find_machine("cpu2");
  Schedule schedule = build(op_of("gemm_rs", 2), "hetero_unfused_1d", 1);
  for (spec::Task& task : schedule.tasks)
    if (task.id == "gemm_own") task.queue = 7;  // a lane of its own, but the same core
  const double flops = 2.0 * 2048 * 1536 * 1024;
  EXPECT_GE(simulate(schedule, cpu).us(), flops / cpu.gemm.sustained_TFLOPs.value * 1e-6);
}

TEST(Simulate, LateRanksHoldTheOthersUp) {
  const Schedule schedule = build(op_of("ag_gemm", 4), "library", 1);
  SimOptions late;
  late.start_us = {0, 0, 0, 500};
  EXPECT_NEAR(simulate(schedule, h200(), late).us(), simulate(schedule, h200()).us() + 500, 1e-3);
  SimOptions wrong;
  wrong.start_us = {0, 1};
  EXPECT_THROW((void)simulate(schedule, h200(), wrong), InvalidArgument);
}

/// Spans are those of the instances, in their lanes' order and never at once in one lane.
TEST(Simulate, SpansAreTheInstances) {
  const Schedule schedule = build(op_of("ag_gemm", 4), "hetero_unfused_1d", 2);
  SimOptions options;
  options.has_spans = true;
  const SimResult r = simulate(schedule, h200(), options);
  for (int rank = 0; rank < 4; ++rank) {
    const spec::Expansion expansion = spec::expand(schedule, rank, 4).value();
    std::vector<std::string> want, got;
    for (const spec::Instance& in : expansion.instances) want.push_back(in.id(schedule));
    std::map<std::string, uint64_t> busy_until;
    for (const SimSpan& span : r.spans) {
      if (span.rank != rank || span.category == "wait") continue;
      got.push_back(span.name);
      EXPECT_GE(span.begin_ps, busy_until[span.lane]) << span.name;
      busy_until[span.lane] = span.end_ps;
    }
    std::sort(want.begin(), want.end());
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, want);
  }
}

TEST(Simulate, AFusedKernelIsOneSpanAndItsPartsOnRequest) {
  const Schedule schedule = build(op_of("ag_gemm", 4), "k_slab", 2);
  SimOptions options;
  options.has_spans = true;
  const auto names = [&] {
    std::vector<std::string> out;
    for (const SimSpan& span : simulate(schedule, h200(), options).spans) {
      if (span.rank == 0) out.push_back(span.name);
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  EXPECT_EQ(names(), std::vector<std::string>{"k_slab"});
  options.has_parts = true;
  const std::vector<std::string> parts = names();
  EXPECT_TRUE(std::binary_search(parts.begin(), parts.end(), "tiles_own"));
  EXPECT_TRUE(std::binary_search(parts.begin(), parts.end(), "tiles_add[p=3,s=1]"));
}

TEST(Simulate, ADeadlockIsReportedWithItsCircle) {
  Schedule schedule = build(op_of("ag_gemm", 2), "hetero_unfused_1d", 1);
  for (spec::Task& task : schedule.tasks) {
    if (task.id == "push") {  // sends only after what it sends for
      task.deps = {"gemm_remote"};
    }
  }
  try {
    (void)simulate(schedule, h200());
    FAIL() << "it ended";
  } catch (const ScheduleError& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find("deadlock"), std::string::npos) << text;
    EXPECT_NE(text.find("a circle of waits"), std::string::npos) << text;
    EXPECT_NE(text.find("gemm_remote[s=0,p=1] of rank 0 waits for arrived[0] from rank 1: expected 1, seen 0"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("push[s=0,p=1] of rank 1 is behind gemm_remote[s=0,p=1]"), std::string::npos) << text;
  }
}

TEST(Simulate, AWaitThatNobodyFulfilsIsReported) {
  Schedule schedule = build(op_of("ag_gemm", 2), "hetero_unfused_1d", 1);
  for (spec::Task& task : schedule.tasks) {
    if (task.id == "push") task.sets.clear();
  }
  try {
    (void)simulate(schedule, h200());
    FAIL() << "it ended";
  } catch (const ScheduleError& e) {
    EXPECT_NE(std::string(e.what()).find("and nobody will add"), std::string::npos) << e.what();
  }
}

TEST(Simulate, EndsAtItsLimits) {
  SimOptions options;
  options.max_events = 10;
  EXPECT_THROW((void)simulate(build(op_of("ag_gemm", 4), "serial", 1), h200(), options), Unsupported);
  options = {};
  options.max_us = 5;
  EXPECT_THROW((void)simulate(build(op_of("ag_gemm", 4), "serial", 1), h200(), options), Unsupported);
  EXPECT_THROW((void)simulate(build(op_of("ag_gemm", 4), "serial", 1), Machine{}), Unsupported);
}

/// The fused kernels' tiles are timed by the machine's largest one, wherever its file has it.
TEST(Simulate, TheOrderOfAMachinesTilesDoesNotMatter) {
  Machine turned = h200();
  std::reverse(turned.gemm.tiles.begin(), turned.gemm.tiles.end());
  ASSERT_FALSE(turned == h200());
  for (const char* family : {"k_slab", "tma_slot", "hetero_fused_1d", "library"}) {
    const OpSpec op = op_of(std::string(family) == "k_slab" ? "ag_gemm" : "gemm_rs", 4);
    const Schedule schedule = build(op, family, 4);
    EXPECT_EQ(simulate(schedule, turned).time_ps, simulate(schedule, h200()).time_ps) << family;
  }
}

TEST(Simulate, SeveralCallsTakeTurnsOnTheirCopies) {
  const Schedule schedule = build(op_of("gemm_rs", 4), "hetero_unfused_1d", 2);
  SimOptions options;
  options.calls = 7;
  const SimResult r = simulate(schedule, h200(), options);
  ASSERT_EQ(r.call_ps.size(), 7u);
  EXPECT_TRUE(std::is_sorted(r.call_ps.begin(), r.call_ps.end()));
  EXPECT_GE(r.time_ps, 6 * simulate(schedule, h200()).time_ps);
}

TEST(Simulation, EstimatesAddUp) {
  const Simulation model;
  const OpSpec op = op_of("ag_gemm", 4);
  const Schedule schedule = build(op, "hetero_unfused_1d", 1);
  const spec::Estimate e = model.estimate(schedule, op, h200()).value();
  EXPECT_EQ(e.us, simulate(schedule, h200()).us());
  double sum = 0;
  for (const auto& [name, us] : e.parts) {
    EXPECT_GE(us, 0) << name;
    sum += us;
  }
  EXPECT_NEAR(sum, e.us, 1e-9);
  EXPECT_EQ(model.estimate(schedule, op, Machine{}).status().code(), Errc::not_supported);
}

}  // namespace
}  // namespace overlace::sim
