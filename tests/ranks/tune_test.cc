// Measuring on the ranks of a team: what is kept, and what is refused.
#include "overlace/tune.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/ag_gemm.h"
#include "src/tuning/prober.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

spec::OpSpec problem(const std::string& op, int64_t m, int ranks) {
  spec::OpSpec out;
  out.op = op, out.m = m, out.n = 64, out.k = 64, out.ranks = ranks;
  out.dtype = out.out_dtype = DType::fp32;
  return out;
}

Context opened(Runtime& runtime) { return Context::open(runtime, {.machine = "cpu2"}); }

template <class Work>
std::string refusal(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Tune, WhatWasMeasuredIsTakenByAllRanksForTheWholeBucket) {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    run_ranks(3, mode, [](Runtime& runtime) {
      Team& team = runtime.world();
      Channel& channel = team.channel(StreamRef::cpu());
      const Context context = opened(runtime);
      EXPECT_EQ(context.plan(problem("gemm_rs", 600, 3))->tier, plan::Tier::recurrence);
      const uint64_t before = context.generation();
      std::vector<std::string> seen;
      const TuneResult result =
          tune(context, channel, {problem("gemm_rs", 600, 3), problem("ag_gemm", 96, 3)},
               {.on_problem = [&](const spec::OpSpec& op, size_t place, size_t count) {
                 seen.push_back(op.op + " " + std::to_string(place) + "/" + std::to_string(count));
               }});
      EXPECT_EQ(seen, (std::vector<std::string>{"gemm_rs 0/2", "ag_gemm 1/2"}));
      ASSERT_EQ(result.tuned.size(), 2u);
      EXPECT_TRUE(result.left.empty());
      EXPECT_GT(context.generation(), before);
      for (const Tuned& one : result.tuned) {
        EXPECT_EQ(one.failure, "");
        EXPECT_FALSE(one.was_kept);
        EXPECT_GT(one.usual_us, 0);
        EXPECT_GT(one.library_us, 0);
        EXPECT_GT(one.tuned_us, 0);
      }
      // 577 to 640 rows are one bucket; 641 are another.
      for (const int64_t rows : {600, 577, 640}) {
        const auto plan = context.plan(problem("gemm_rs", rows, 3));
        EXPECT_EQ(plan->tier, plan::Tier::probe) << rows;
        EXPECT_EQ(plan->candidate, result.tuned[0].tuned) << rows;
        EXPECT_NE(plan->reason.find("; kept in this context"), std::string::npos) << plan->reason;
        team.agree(plan->schedule.to_json(), "the plan");
      }
      EXPECT_EQ(context.plan(problem("gemm_rs", 641, 3))->tier, plan::Tier::recurrence);
      EXPECT_EQ(context.plan(problem("ag_gemm", 96, 3))->candidate, result.tuned[1].tuned);
    });
  }
}

/// Calls find the programs that it measured, ranks with other columns among them.
TEST(Tune, WhatItPreparesIsThatOfCalls) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Context context = opened(runtime);
    const TuneResult result = tune(context, channel, {problem("ag_gemm", 64, 2)});
    ASSERT_EQ(result.tuned.size(), 1u);
    const plan::Candidate& best = result.tuned[0].tuned;
    const auto call = [&](int64_t n) {
      std::vector<float> a(32 * 64, 1), b(static_cast<size_t>(n) * 64, 1), c(64 * static_cast<size_t>(n));
      spec::OpSpec op = problem("ag_gemm", 64, 2);
      op.n = n;
      const ops::AgGemmArgs args{.a_shard = TensorView::contiguous(a.data(), DType::fp32, {32, 64}),
                                 .b = TensorView::contiguous(b.data(), DType::fp32, {n, 64}).transposed(),
                                 .c = TensorView::contiguous(c.data(), DType::fp32, {64, n})};
      ops::run(channel, args, spec::make_schedule(op, best.family, best.degree, context.plan(op)->options));
      EXPECT_EQ(c.back(), 64);
    };
    const uint64_t before = runtime.stats().preparations;
    call(64);
    EXPECT_EQ(runtime.stats().preparations, before);
    call(runtime.world().rank() == 0 ? 64 : 72);
    call(64);
  });
}

TEST(Tune, WithoutAListItMeasuresWhatAllRanksHaveMet) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Context context = opened(runtime);
    (void)context.plan(problem("gemm_rs", 64, 2));
    if (runtime.world().rank() == 1) (void)context.plan(problem("gemm_ar", 64, 2));  // the other one has not
    (void)context.plan(problem("ag_gemm", 64, 2));
    (void)context.plan(problem("ag_gemm", 64, 2), 1 << 20);  // a fallback is no problem of its own
    const TuneResult result = tune(context, channel);
    ASSERT_EQ(result.tuned.size(), 2u);
    EXPECT_EQ(result.tuned[0].op.op, "ag_gemm") << "the latest first";
    EXPECT_EQ(result.tuned[1].op.op, "gemm_rs");
  });
}

TEST(Tune, KeepsTheFileAndFindsItThere) {
  const std::string path = testing::TempDir() + "overlace_tune_test.jsonl";
  std::remove(path.c_str());
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    // Only rank 0's path counts.
    const TuneOptions options = {.cache = runtime.world().rank() == 0 ? path : std::string()};
    const TuneResult first = tune(opened(runtime), channel, {problem("gemm_rs", 64, 2)}, options);
    ASSERT_EQ(first.tuned.size(), 1u);
    EXPECT_FALSE(first.tuned[0].was_kept);
    const TuneResult second = tune(opened(runtime), channel, {problem("gemm_rs", 64, 2)}, options);
    ASSERT_EQ(second.tuned.size(), 1u);
    EXPECT_TRUE(second.tuned[0].was_kept);
    EXPECT_EQ(second.tuned[0].tuned, first.tuned[0].tuned);
    EXPECT_EQ(second.tuned[0].tuned_us, first.tuned[0].tuned_us);
  });
  std::ifstream file(path);
  std::string line;
  EXPECT_TRUE(std::getline(file, line));
  EXPECT_NE(line.find("\"tier\":\"probe\""), std::string::npos) << line;
}

TEST(Tune, StopsWhenTheFirstRanksTimeIsOver) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const TuneOptions options = {.seconds = runtime.world().rank() == 0 ? 1e-9 : 1e6};
    const TuneResult result = tune(opened(runtime), channel, {problem("gemm_rs", 64, 2)}, options);
    EXPECT_TRUE(result.tuned.empty());
    EXPECT_EQ(result.left.size(), 1u);
  });
}

TEST(Tune, WhatCannotBeMeasuredIsSaidAndTheTeamGoesOn) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cpu());
    const Context context = opened(runtime), unknown = Context::open(runtime);
    EXPECT_EQ(refusal([&] { (void)tune(context, channel, {problem("gemm_rs", 64, 3)}); }),
              "tune: gemm_rs M 64 N 64 K 64 G 3 fp32 is a problem of 3 ranks, wanted 2 as the team");
    EXPECT_NE(refusal([&] {
                (void)tune(unknown, channel, {problem("gemm_rs", 64, 2)});
              }).find("which has no costs to choose candidates by"),
              std::string::npos);
    const std::string differs =
        refusal([&] { (void)tune(context, channel, {problem("gemm_rs", 64 + team.rank(), 2)}); });
    EXPECT_NE(differs.find("tune: the list differs between ranks"), std::string::npos) << differs;
    EXPECT_NE(differs.find("of which number 1 is "), std::string::npos) << differs;
    EXPECT_NE(differs.find("M 65"), std::string::npos) << differs;
    EXPECT_EQ(tune(context, channel, {problem("gemm_rs", 64, 2)}).tuned.size(), 1u);
  });
}

TEST(Tune, WhatOneRankRefusesAllRefuse) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cpu());
    const Context context = opened(runtime);
    const bool is_bad = team.rank() == 1;
    const std::string who = is_bad ? "" : "rank 1: ";
    EXPECT_EQ(refusal([&] { (void)tune(context, channel, {problem("gemm_rs", 64, is_bad ? 3 : 2)}); }),
              who + "tune: gemm_rs M 64 N 64 K 64 G 3 fp32 is a problem of 3 ranks, wanted 2 as the team");
    EXPECT_EQ(refusal([&] { (void)tune(context, channel, TuneOptions{.seconds = is_bad ? std::nan("") : 0}); }),
              who + "tune: seconds is nan, wanted 0 or more");
    EXPECT_NE(refusal([&] { (void)tune(context, channel, {problem("gemm_rs", is_bad ? -1 : 64, 2)}); }), "accepted");
    const std::string form = refusal([&] {
      if (is_bad) {
        (void)tune(context, channel);
      } else {
        (void)tune(context, channel, {problem("gemm_rs", 64, 2)});
      }
    });
    EXPECT_NE(form.find("rank 0 has with a list, 0 ms for each problem, rank 1 has without a list"), std::string::npos)
        << form;
    const TuneOptions unlike = {.problem_ms = is_bad ? 2.5 : 2};
    const std::string ms = refusal([&] { (void)tune(context, channel, {problem("gemm_rs", 64, 2)}, unlike); });
    EXPECT_NE(ms.find("with a list, 2.5 ms for each problem"), std::string::npos) << ms;
    EXPECT_EQ(refusal([&] { (void)tune(context, channel, TuneOptions{.problem_ms = is_bad ? -1.0 : 0}); }),
              who + "tune: problem_ms is -1, wanted 0 or more");
    EXPECT_EQ(tune(context, channel, {problem("gemm_rs", 64, 2)}).tuned.size(), 1u) << "the ranks go on";
  });
}

TEST(Tune, WhatCannotBeMeasuredDoesNotKeepTheRestFromBeingTaken) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Context context = opened(runtime);
    spec::OpSpec fp64 = problem("gemm_rs", 64, 2);
    fp64.dtype = fp64.out_dtype = DType::fp64;
    std::vector<spec::OpSpec> problems = {problem("gemm_rs", 96, 2), fp64};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end the process where memory runs out
    problems.push_back(problem("ag_gemm", int64_t{1} << 40, 2));
#endif
    const TuneResult result = tune(context, channel, problems);
    ASSERT_EQ(result.tuned.size(), problems.size());
    EXPECT_EQ(result.tuned[0].failure, "");
    EXPECT_EQ(context.plan(problems[0])->tier, plan::Tier::probe);
    EXPECT_EQ(result.tuned[1].failure, "argument A is fp64, wanted fp32, bf16, fp16, e4m3 or e5m2: data are made up");
    EXPECT_EQ(result.tuned[1].gain(), 1);
    EXPECT_FALSE(result.tuned[1].was_kept);
    for (size_t i = 2; i < problems.size(); ++i) {
      EXPECT_EQ(result.tuned[i].failure.find("no "), 0u) << result.tuned[i].failure;
      EXPECT_NE(result.tuned[i].failure.find(" bytes for argument "), std::string::npos) << result.tuned[i].failure;
    }
  });
}

TEST(TuneProber, AllRanksSeeTheSameTimesAndTheFirstOnesText) {
  constexpr int kRanks = 2;
  std::mutex mutex;
  std::vector<std::vector<spec::Estimate>> times;
  run_ranks(kRanks, Mode::threads, [&](Runtime& runtime) {
    tuning::ChannelProber prober(runtime.world().channel(StreamRef::cpu()));
    const int rank = runtime.world().rank();
    EXPECT_EQ(prober.is_first(), rank == 0);
    EXPECT_EQ(prober.from_first("rank " + std::to_string(rank)).value(), "rank 0");
    const spec::OpSpec op = problem("gemm_rs", 96, kRanks);
    auto found = prober.measure({spec::make_schedule(op, "library"), spec::make_schedule(op, "serial")}, op).value();
    const std::lock_guard lock(mutex);
    times.push_back(std::move(found));
  });
  ASSERT_EQ(times.size(), 2u);
  ASSERT_EQ(times[0].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(times[0][i].us, 0);
    EXPECT_LE(times[0][i].lo_us, times[0][i].us);
    EXPECT_GE(times[0][i].hi_us, times[0][i].us);
    EXPECT_EQ(times[0][i].us, times[1][i].us) << "to the bit";
    EXPECT_EQ(times[0][i].hi_us, times[1][i].hi_us);
  }
}

TEST(TuneProber, DataThatCannotBeMadeUpFailOnAllRanksBeforeAnyRuns) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    tuning::ChannelProber prober(runtime.world().channel(StreamRef::cpu()));
    const spec::OpSpec op = problem("gemm_rs", 96, 2);
    spec::Schedule whole_numbers = spec::make_schedule(op, "library");
    for (spec::Buffer& buffer : whole_numbers.buffers)
      if (buffer.name == "A") buffer.dtype = DType::i64;
    const base::Status status = prober.measure({whole_numbers}, op).status();
    EXPECT_EQ(status.code(), Errc::not_supported);
    EXPECT_EQ(status.message(), "argument A is i64, wanted fp32, bf16, fp16, e4m3 or e5m2: data are made up");
    const std::string placement = R"({"tables":[{"rows":4,"dim":8}],"features":[{"table":0,"rank":0,"column":0}]})";
    spec::OpSpec bags{.op = "embedding_a2a", .m = 6, .n = 8, .ranks = 2, .row_offsets = {}};
    bags.dtype = bags.out_dtype = DType::fp32;
    bags.fields = {{"batch", bags.m}, {"bounds", "error"}, {"mode", "sum"}, {"placement", placement}};
    EXPECT_EQ(prober.measure({spec::make_schedule(bags, "serial")}, bags).status().message(),
              "operator embedding_a2a pools bags of its arguments, wanted none: data are made up");
    EXPECT_TRUE(prober.measure({spec::make_schedule(op, "serial")}, op).ok()) << "the ranks go on";
  });
}

/// Timing needs no more than this of a team.
class OfTeam final : public tuning::Crew {
 public:
  explicit OfTeam(Team& team) : team_(team) {}
  base::Status synchronize() override { return {}; }
  base::Status barrier() override { return team_.barrier(), base::Status(); }
  base::Result<std::vector<double>> max_over_ranks(const std::vector<double>& mine) override {
    return tuning::max_over_ranks(team_, mine);
  }

 private:
  Team& team_;
};

TEST(TuneProber, WhatOneRankCannotRunFailsOnAllAndTheyGoOn) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Team& team = runtime.world();
    OfTeam crew(team);
    const int rank = team.rank();
    const tuning::Competitor broken{
        "broken", [&](int) { return rank == 1 ? base::Status(Errc::io, "no disk") : base::Status(); }};
    const base::Status status = tuning::measure({broken}, crew, {}).status();
    EXPECT_EQ(status.message(), rank == 1 ? "no disk" : "broken: another rank cannot run it");
    EXPECT_TRUE(tuning::measure({{"works", [](int) { return base::Status(); }}}, crew, {.repetitions = 1}).ok());
  });
}

}  // namespace
}  // namespace overlace::test
