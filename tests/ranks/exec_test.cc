// What all operators share when schedules run: reuse, eviction, agreement, deadlines, bits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "overlace/net_engine.h"
#include "overlace/ops/ag_gemm.h"
#include "src/exec/gemm.h"
#include "src/exec/run.h"
#include "src/ops/reduce/bodies.h"
#include "src/runtime/state.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

std::vector<std::string> valid_families(const std::string& op) {
  std::vector<std::string> all = spec::families(op);
  std::erase_if(all, [](const std::string& f) { return f == "compute" || f == "comm" || f == "limit"; });
  return all;
}

/// Runs once and expects the right result.
void call(const Case& c, Channel& channel, int64_t seed) {
  Operands operands(c, channel);
  operands.fill(seed);
  operands.run();
  ASSERT_EQ(operands.mismatch(), "");
}

template <class E>
std::string thrown(const std::function<void()>& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception: " << e.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(Exec, GivesUpTheLeastRecentlyUsedWhenTheHeapIsFull) {
  RankOptions options;
  options.heap_bytes = 1 << 20;
  run_ranks(
      3, Mode::threads,
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        // Two copies of X take 2 * 60 * k * 4 bytes: 0.3 to 0.4 MB each, so three do not fit.
        for (int round = 0; round < 3; ++round) {
          for (const int64_t k : {640, 720, 800, 880}) {
            call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = 60, .n = 2, .k = k}, channel, round);
          }
        }
        runtime.heap().verify();
        runtime.synchronize();  // what the wire still carries
        runtime.world().barrier();
        runtime.check_quiescent();
      },
      options);
}

TEST(Exec, GivesUpIdsToo) {
  RankOptions options;
  options.num_signal_ids = 128;
  run_ranks(
      2, Mode::threads_adversary,
      [](Runtime& runtime) {
        for (int round = 0; round < 2; ++round) {
          for (const int degree : {1, 2, 3, 5, 7, 8}) {
            call({.op = "gemm_ar", .family = "uniform_fused_1d", .degree = degree, .m = 16}, channel_of(runtime),
                 round);
          }
        }
      },
      options);
}

TEST(Exec, AScheduleThatCannotFitIsHeapExhaustedOnAllRanksAndOthersStillRun) {
  RankOptions options;
  options.heap_bytes = 1 << 20;
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        call({.op = "ag_gemm", .family = "serial"}, channel, 0);
        Operands large({.op = "ag_gemm", .family = "serial", .m = 1024, .n = 1, .k = 512}, channel);
        large.fill(1);
        const std::string text = thrown<OutOfMemory>([&] { large.run(); });
        EXPECT_NE(text.find("\"ag_gemm.serial\" asked 4194304 bytes"), std::string::npos) << text;
        call({.op = "ag_gemm", .family = "serial"}, channel, 2);
      },
      options);
}

TEST(Exec, RanksWithDifferentSchedulesAllSeeBoth) {
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const int degree = runtime.world().rank() == 1 ? 2 : 1;
    Operands mine({.op = "gemm_rs", .family = "hetero_fused_1d", .degree = degree}, channel);
    mine.fill(0);
    const std::string text = thrown<PlanMismatch>([&] { mine.run(); });
    for (const char* part : {"rank 0 has gemm_rs M 8 N 5 G 3 fp32 -> fp32", "hetero_fused_1d_rs q 1",
                             "rank 1 has gemm_rs", "hetero_fused_1d_rs q 2"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in " << text;
    }
    call({.op = "gemm_rs", .family = "hetero_fused_1d", .degree = 2}, channel, 1);
  });
}

TEST(Exec, ARankThatCannotExpandTellsTheOthers) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    Matrix a(4, 6, DType::fp32, 0), b(6, 5, DType::fp32, 0), out(8, 5, DType::fp32, 0);
    const ops::AgGemmArgs args{.a_shard = a.view, .b = b.view, .c = out.view};
    spec::Schedule schedule = spec::make_schedule(ops::op_spec(channel, args), "serial");
    if (runtime.world().rank() == 1) schedule.tasks[0].queue = spec::Expr("1/0");
    const std::string text = thrown<ScheduleError>([&] { ops::run(channel, args, schedule); });
    EXPECT_EQ(text.find("rank 1 refused the call") != std::string::npos, runtime.world().rank() == 0) << text;
    EXPECT_NE(text.find("division by zero"), std::string::npos) << text;
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the process where memory runs out
TEST(Exec, ARankWithoutMemoryForItsWorkspaceEndsTheCallOnAllRanksAndTheNextOneRuns) {
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const int rank = runtime.world().rank();
    spec::OpSpec op;
    op.op = "ag_gemm";
    op.m = 9, op.k = 6;
    op.n = rank == 1 ? int64_t{1} << 46 : 5;  // its accumulator takes more than any address space
    op.ranks = 3;
    op.dtype = op.out_dtype = DType::fp32;
    const spec::Schedule schedule = spec::make_schedule(op, "uniform_fused_2d");
    const size_t before = runtime.heap().in_use();
    for (int attempt = 0; attempt < 2; ++attempt) {
      const base::Status status = exec::run(channel, schedule, "large", {}, {}, {.local_param = "N"});
      EXPECT_EQ(status.code(), Errc::out_of_memory) << status.message();
      EXPECT_NE(status.message().find("workspace of ag_gemm.uniform_fused_2d"), std::string::npos) << status.message();
      EXPECT_EQ(status.message().find("rank 1 refused the call") != std::string::npos, rank != 1) << status.message();
    }
    EXPECT_EQ(runtime.heap().in_use(), before);
    call({.op = "ag_gemm", .family = "uniform_fused_2d", .m = 9}, channel, 1);
  });
}
#endif

TEST(Exec, AnotherLocalWidthNeedsNoNewAgreement) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const int rank = runtime.world().rank();
    const size_t before = runtime.heap().in_use();
    call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .n = 5}, channel, 0);
    const size_t after = runtime.heap().in_use();
    // Rank 0 repeats its call, rank 1 comes with two new widths: if that were agreed upon anew, rank 0 would not
    // answer.
    for (const int64_t n : {5, 6, 7}) {
      call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .n = rank == 0 ? 5 : n}, channel, n);
    }
    EXPECT_GT(after, before);
    EXPECT_EQ(runtime.heap().in_use(), after);
  });
}

TEST(Exec, AMissingRankIsNamedWithSignalAndInstance) {
  RankOptions options;
  options.timeout_ms = 300;
  options.checks_end = false;
  std::atomic<int> timeouts{0}, finished{0};
  run_ranks(
      3, Mode::threads,
      [&](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        const Case c{.op = "ag_gemm", .family = "hetero_unfused_1d", .degree = 1, .m = 9};
        call(c, channel, 0);
        if (runtime.world().rank() == 1) {  // alive, but does not call
          for (int i = 0; i < 1000 && finished < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          EXPECT_NE(thrown<PeerLost>([&] { runtime.check(); }).find("timeout after 0.3 s"), std::string::npos);
          return;
        }
        Operands operands(c, channel);
        operands.fill(1);
        try {
          operands.run();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Timeout& e) {
          ++timeouts;
          const std::string text = e.what();
          for (const char* part : {"waited for rank 1", "ag_gemm.hetero_unfused_1d", "gemm_remote[", "arrived[0]"}) {
            EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in " << text;
          }
        } catch (const PeerLost& e) {  // somebody else's deadline came first
          EXPECT_NE(std::string(e.what()).find("timeout"), std::string::npos) << e.what();
        }
        ++finished;
      },
      options);
  EXPECT_GE(timeouts, 1);
}

/// Block p of every rank's rows to rank p, as a schedule of one task.
spec::Schedule all_to_all_of(int ranks, int64_t rows, const char* count) {
  spec::Schedule out;
  out.op = "test";
  out.family = "all_to_all";
  out.params = {{"G", int64_t{ranks}}, {"n", rows}};
  for (int p = 0; p <= ranks; ++p) out.tables["off"].push_back(p * rows);
  out.buffers = {{"X", spec::Space::argument, DType::fp32, {"G*n", 3}},
                 {"D", spec::Space::argument, DType::fp32, {"G*n", 3}}};
  spec::Task task;
  task.id = "all_to_all";
  task.kind = spec::Kind::collective;
  task.params = {{"collective", std::string("all_to_all")}};
  task.reads = {{"X", "r", {{0, count}, {0, 3}}, {}}};
  task.writes = {{"D", "r", {{0, count}, {0, 3}}, {}}};
  out.tasks = {std::move(task)};
  return out;
}

TEST(Exec, AllToAllSendsEachRankItsBlock) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, Mode::threads, [&](Runtime& runtime) {
      Channel& channel = channel_of(runtime);
      const int rank = runtime.world().rank();
      constexpr int64_t kRows = 5;
      Matrix x(ranks * kRows, 3, DType::fp32, 0), d(ranks * kRows, 3, DType::fp32, 0);
      x.fill([&](int64_t i, int64_t j) { return static_cast<double>(rank * 1000 + i * 10 + j); });
      const exec::Bindings bindings = {{"X", x.view}, {"D", d.view}};
      const base::Status status = exec::run(channel, all_to_all_of(ranks, kRows, "G*n"), "a2a", bindings, {}, {});
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t i = 0; i < ranks * kRows; ++i)
        for (int64_t j = 0; j < 3; ++j)
          ASSERT_EQ(d.get(i, j), static_cast<double>(i / kRows * 1000 + (rank * kRows + i % kRows) * 10 + j));
    });
  }
}

TEST(Exec, AllToAllRefusesRowsWithGaps) {
  RankOptions options;
  options.checks_end = false;
  const auto body = [](Runtime& runtime) {
    Matrix x(4, 3, DType::fp32, 2), d(4, 3, DType::fp32, 0);
    const exec::Bindings bindings = {{"X", x.view}, {"D", d.view}};
    const base::Status status = exec::run(channel_of(runtime), all_to_all_of(2, 2, "G*n"), "a2a", bindings, {}, {});
    EXPECT_EQ(status.code(), Errc::not_supported);
    EXPECT_NE(status.message().find("wanted shards of equal length"), std::string::npos) << status.message();
  };
  run_ranks(2, Mode::threads, body, options);
}

/// Normal data; out in fp32 bits per rank and family.
std::vector<char> run_normal(const Case& c, Channel& channel) {
  Operands operands(c, channel);
  operands.fill_normal(11);
  operands.run();
  return operands.out().bytes();
}

/// Counts what it is asked for, and moves nothing.
class CountingEngine final : public NetEngine {
 public:
  std::string name() const override { return "counting"; }
  std::string version() const override { return "1"; }
  void all_gather(const void*, void*, size_t, DType, StreamRef) override { ++calls; }
  void reduce_scatter(const void*, void*, size_t, DType, StreamRef) override { ++calls; }
  void all_reduce(const void*, void*, size_t, DType, StreamRef) override { ++calls; }
  void all_to_all(const void*, void*, size_t, DType, StreamRef) override { ++calls; }
  void broadcast(void*, size_t, DType, int, StreamRef) override { ++calls; }
  void reduce(const void*, void*, size_t, DType, int, StreamRef) override { ++calls; }
  void send(const void*, size_t, int, StreamRef) override { ++calls; }
  void recv(void*, size_t, int, StreamRef) override { ++calls; }
  void group_begin(std::string_view) override { ++calls; }
  void group_end() override {}
  void abort() override {}
  int calls = 0;
};

TEST(Exec, ACollectiveWithoutRowsDoesNotCallTheEngine) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    std::unique_ptr<NetEngine>& engine = runtime.world().state().engine;
    auto counting = std::make_unique<CountingEngine>();
    const int& calls = counting->calls;
    std::unique_ptr<NetEngine> own = std::exchange(engine, std::move(counting));
    for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
      call({.op = op, .family = "library", .m = 0}, channel_of(runtime), 0);
      EXPECT_EQ(calls, 0) << op;
    }
    Operands some({.op = "gemm_ar", .family = "library"}, channel_of(runtime));
    some.fill(0);
    some.run();
    EXPECT_EQ(calls, 1);
    engine = std::move(own);
  });
}

TEST(Exec, AFailingBodyEndsTheCallOnAllRanks) {
  RankOptions options;
  options.checks_end = false;
  const auto body = [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    Operands operands({.op = "gemm_rs", .family = "serial"}, channel);
    operands.fill(0);
    const TensorView a = operands.a(), b = operands.b(), out = operands.out().view;
    const exec::Bodies bodies = {.by_kind = {{spec::Kind::reduce, [&](const exec::BodyContext& context) {
                                                if (runtime.world().rank() == 0)
                                                  return base::invalid_argument("spoilt");
                                                return ops::reduce_on_cpu(context);
                                              }}}};
    const auto run = [&] {
      return exec::run(channel, operands.schedule(), "spoilt", {{"A", a}, {"B", b}, {"Y", out}}, bodies);
    };
    base::Status status = run();
    if (runtime.world().rank() == 0) {
      EXPECT_EQ(status.message(), "spoilt");
    } else {
      while (status.ok()) status = run();  // its part of the first call may not need the other rank's reduction
      EXPECT_NE(status.message().find("aborted by rank 0: spoilt"), std::string::npos) << status.message();
    }
  };
  run_ranks(2, Mode::threads, body, options);
}

TEST(Exec, TheSameScheduleGivesTheSameBitsAgain) {
  for (const Mode mode : {Mode::threads, Mode::threads_adversary}) {
    run_ranks(3, mode, [](Runtime& runtime) {
      Channel& channel = channel_of(runtime);
      for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
        for (const std::string& family : valid_families(op)) {
          const Case c{.op = op,
                       .family = family,
                       .degree = 2,
                       .m = 40,
                       .n = 24,
                       .k = 70,
                       .in = DType::bf16,
                       .out = DType::bf16,
                       .bias = true};
          EXPECT_EQ(run_normal(c, channel), run_normal(c, channel)) << c.text();
        }
      }
    });
  }
}

TEST(Exec, WithTheReferenceProductAllSchedulesGiveTheSameBits) {
  ASSERT_TRUE(exec::set_cpu_gemm_provider("reference").ok());
  run_ranks(3, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
      for (const DType in : {DType::fp32, DType::bf16}) {
        Case c{.op = op, .family = "serial", .m = 41, .n = 24, .k = 70, .in = in, .out = in};
        const std::vector<char> want = run_normal(c, channel);
        for (const std::string& family : valid_families(op)) {
          for (const int degree : {2, 3}) {
            if (family == "library" && std::string(op) != "ag_gemm") continue;  // the engine adds in its own order
            c.family = family;
            c.degree = degree;
            EXPECT_EQ(run_normal(c, channel), want) << c.text();
          }
        }
      }
    }
  });
  ASSERT_TRUE(exec::set_cpu_gemm_provider("auto").ok());
}

TEST(Exec, ErrorsOnNormalDataStayNearThoseOfTheLibrary) {
  run_ranks(4, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
      for (const auto& [in, out] : {std::pair(DType::fp32, DType::fp32), std::pair(DType::bf16, DType::bf16),
                                    std::pair(DType::fp16, DType::fp16), std::pair(DType::bf16, DType::fp32)}) {
        Case c{.op = op, .family = "library", .m = 30, .n = 20, .k = 200, .in = in, .out = out, .bias = true};
        const auto error_of = [&](const std::string& family) {
          c.family = family;
          c.degree = 3;
          Operands operands(c, channel);
          operands.fill_normal(5);
          operands.run();
          return operands.largest_error();
        };
        const auto [baseline, magnitude] = error_of("library");
        const int digits = out == DType::fp32 ? 24 : out == DType::fp16 ? 11 : 8;
        for (const std::string& family : valid_families(op)) {
          const double error = error_of(family).first;
          EXPECT_LE(error, 2 * baseline + std::ldexp(magnitude, 1 - digits)) << c.text();
        }
      }
    }
  });
}

TEST(Exec, RunsOverAnEmulatedLink) {
  RankOptions options;
  options.link = LinkOptions::parse("200MB/s,200us");
  run_ranks(
      3, Mode::threads,
      [](Runtime& runtime) {
        for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
          run_cases(runtime, channel_of(runtime),
                    {{.op = op, .family = "hetero_fused_1d", .degree = 2, .m = 33, .gathered = true},
                     {.op = op, .family = "uniform_fused_2d", .degree = 3, .m = 12, .k = 20}});
        }
      },
      options);
}

TEST(Exec, LongProductsServeTransfersInBetween) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    for (const char* op : {"gemm_rs", "gemm_ar"}) {
      run_cases(runtime, channel_of(runtime),
                {{.op = op, .family = "hetero_fused_1d", .degree = 3, .m = 2100, .n = 4, .k = 5}});
    }
  });
}

TEST(Exec, TwoTeamsOfOneJobRunTheirOwnSchedules) {
  run_ranks(4, Mode::threads, [](Runtime& runtime) {
    const int rank = runtime.world().rank();
    const std::vector<int> even = {0, 2}, odd = {3, 1};
    Team first = runtime.world().sub(even, {.name = "even"});
    Team second = runtime.world().sub(odd, {.name = "odd"});
    Team& mine = rank % 2 == 0 ? first : second;
    for (int64_t seed = 0; seed < 3; ++seed) {
      call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = 9}, mine.channel(StreamRef::cpu()), seed);
    }
  });
}

}  // namespace
}  // namespace overlace::test
