// Runtime::abort of another thread beside close(): at any time, of either rank, it ends the wait or does nothing.
#include <atomic>
#include <chrono>
#include <thread>

#include "overlace/team.h"
#include "src/runtime/clock.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

RankOptions options_of_test() {
  RankOptions options;
  options.heap_bytes = size_t{1} << 20;
  options.checks_end = false;
  options.max_seeds = 1;
  return options;
}

/// The error of close(), or ok.
Errc close_code(Runtime& runtime) {
  try {
    runtime.close();
  } catch (const Error& error) {
    return error.code();
  }
  return Errc::ok;
}

class AbortBesideCloseTest : public testing::TestWithParam<Mode> {};

TEST_P(AbortBesideCloseTest, EndsAWaitForAPeerThatDoesNotClose) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        if (runtime.world().rank() == 1) {  // learns it from the other rank
          const int64_t until = runtime::now_ns() + 15 * kSecondNs;
          try {
            while (runtime::now_ns() < until) runtime.check();
            ADD_FAILURE() << "rank 0 was not aborted";
          } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("as the test wants"), std::string::npos) << error.what();
          }
          (void)close_code(runtime);
          return;
        }
        const int64_t begin = runtime::now_ns();
        std::thread other([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));  // before or in close: both must do
          runtime.abort(Errc::aborted, "as the test wants");
        });
        EXPECT_EQ(errc_name(close_code(runtime)), errc_name(Errc::aborted));
        EXPECT_LT(runtime::now_ns() - begin, 10 * kSecondNs);
        other.join();
      },
      options_of_test());
}

/// All steps of a close that ends well, and of one that does not, beside aborts without a pause.
TEST_P(AbortBesideCloseTest, AtEveryStep) {
  for (int round = 0; round < 12; ++round) {
    run_ranks(
        2, GetParam(),
        [round](Runtime& runtime) {
          std::atomic<bool> is_closed = false;
          std::thread other([&] {
            for (int i = 0; i < round * 40; ++i) std::this_thread::yield();
            while (!is_closed) runtime.abort(Errc::aborted, "as the test wants");
            runtime.abort(Errc::aborted, "late");
          });
          const Errc code = close_code(runtime);
          is_closed = true;
          other.join();
          EXPECT_TRUE(code == Errc::ok || code == Errc::aborted || code == Errc::peer_lost) << errc_name(code);
          EXPECT_EQ(errc_name(close_code(runtime)), errc_name(Errc::ok)) << "the second one";
        },
        options_of_test());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, AbortBesideCloseTest, testing::ValuesIn(all_modes()),
                         [](const auto& mode) { return mode_name(mode.param); });

}  // namespace
}  // namespace overlace::test
