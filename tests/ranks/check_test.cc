// OVERLACE_CHECK: sync looks for errors after each operator, calls compares what the ranks issue.
#include <string>

#include "src/runtime/state.h"
#include "tests/ranks/ops_cases.h"

namespace overlace::test {
namespace {

const Case kGemm{.op = "gemm_rs", .family = "uniform_fused_1d", .degree = 2, .m = 16};
const Case kOther{.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = 16};

/// Runs once and expects the right result.
void call(const Case& c, Channel& channel, int64_t seed) {
  Operands operands(c, channel);
  operands.fill(seed);
  operands.run();
  ASSERT_EQ(operands.mismatch(), "");
}

/// The text of what `body` throws, after its code.
std::string thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return std::string(errc_name(error.code())) + ": " + error.what();
  }
  return "nothing was thrown";
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << text;
}

class CheckTest : public testing::TestWithParam<Mode> {
 protected:
  /// A runtime per rank with these checks; the body closes it or leaves it.
  void run(int n, const char* checks, const std::function<void(Runtime&)>& body) {
    RuntimeOptions options = runtime_options(GetParam(), {});
    options.checks = CheckOptions::parse(checks);
    run_bootstraps(n, GetParam(), [&](Bootstrap& bootstrap) {
      Runtime runtime = Runtime::open(bootstrap, options);
      body(runtime);
    });
  }
};

TEST_P(CheckTest, EqualCallsPass) {
  run(3, "sync,calls", [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    for (int64_t i = 0; i < 3; ++i) {
      call(kGemm, channel, i);
      call(kOther, channel, i);
      runtime.world().barrier();
    }
    EXPECT_EQ(runtime.stats().calls, 6u);
    EXPECT_EQ(runtime.stats().serialised_calls, 0u);
    runtime.close();
  });
}

/// Its peers compare calls first, where a rank that refuses its own would not come.
TEST_P(CheckTest, ARefusedCallIsMadeAgain) {
  run(2, "calls", [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    for (const Case& c : {kGemm, kGemm, kOther}) {  // new, known, new
      Operands operands(c, channel);
      operands.fill(1);
      const TensorView right = operands.a();
      if (runtime.world().rank() == 1) {
        TensorView wrong = right;
        wrong.dtype = DType::i32;
        operands.set_a(wrong);
        const std::string text = thrown([&] { operands.run(); });
        expect_part(text, "invalid_argument: ");
        EXPECT_EQ(text.find("refused"), std::string::npos) << text;
        operands.set_a(right);
      }
      operands.run();
      EXPECT_EQ(operands.mismatch(), "");
      runtime.world().barrier();
    }
    runtime.close();
  });
}

TEST_P(CheckTest, DifferentCallsAreNamedOnAllRanks) {
  run(3, "calls", [](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cpu());
    call(kGemm, channel, 1);
    const std::string text = thrown([&] { call(team.rank() == 2 ? kOther : kGemm, channel, 2); });
    expect_part(text, "desync: ranks of team \"world\" do not make the same calls: rank 0 makes call 2: ");
    expect_part(text, "gemm_rs");
    expect_part(text, "; rank 2 makes call 2: ");
    expect_part(text, "ag_gemm");
    // Only closing is left.
    expect_part(thrown([&] { runtime.check(); }), "desync: ranks of team");
    runtime.close();
  });
}

TEST_P(CheckTest, RanksOutsideTheTeamAreTold) {
  run(3, "calls", [](Runtime& runtime) {
    const int two[] = {0, 1};
    Team team = runtime.world().sub(two, {.name = "two"});
    if (team.size() == 0) {
      expect_part(thrown([&] { runtime.world().barrier(); }), ": ranks of team \"two\" do not make the same calls");
    } else {
      Channel& channel = team.channel(StreamRef::cpu());
      expect_part(thrown([&] { call(team.rank() == 1 ? kOther : kGemm, channel, 2); }),
                  "desync: ranks of team \"two\" do not make the same calls");
    }
    runtime.close();
  });
}

TEST_P(CheckTest, ARankThatMakesNoCallIsNamed) {
  run(2, "calls", [](Runtime& runtime) {
    Team& team = runtime.world();
    Channel& channel = team.channel(StreamRef::cpu());
    call(kGemm, channel, 1);
    if (team.rank() == 1) {
      team.barrier();  // meets the other rank's call, which finds out
      EXPECT_NE(thrown([&] { runtime.close(); }), "");
      return;
    }
    expect_part(thrown([&] { call(kGemm, channel, 2); }),
                "rank 1 makes no call, but another collective (a barrier, close)");
    runtime.close();
  });
}

TEST_P(CheckTest, SyncThrowsAfterTheCallThatFailed) {
  for (const bool is_sync : {false, true}) {
    run(1, is_sync ? "sync" : "", [&](Runtime& runtime) {
      Channel& channel = runtime.world().channel(StreamRef::cpu());
      ASSERT_TRUE(runtime::begin_call(channel, [] { return std::string("op"); }).ok());
      runtime.abort(Errc::aborted, "a tile was missing");
      const base::Status status = runtime::end_call(channel);
      EXPECT_EQ(status.code(), is_sync ? Errc::aborted : Errc::ok);
      EXPECT_EQ(status.message(), is_sync ? "a tile was missing" : "");
    });
  }
}

TEST_P(CheckTest, AllRanksCompareOrNone) {
  RuntimeOptions options = runtime_options(GetParam(), {});
  run_bootstraps(2, GetParam(), [&](Bootstrap& bootstrap) {
    RuntimeOptions mine = options;
    mine.checks.calls = bootstrap.rank() == 1;
    expect_part(
        thrown([&] { (void)Runtime::open(bootstrap, mine); }),
        "layout_mismatch: ranks 0 and 1 disagree: rank 0 has checks of calls=off, rank 1 has checks of calls=on");
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, CheckTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return mode_name(test.param); });

}  // namespace
}  // namespace overlace::test
