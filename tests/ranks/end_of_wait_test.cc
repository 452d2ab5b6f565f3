// Waits that end before their deadline: what they wait for has closed, or the program is told to stop.
#include <atomic>
#include <chrono>
#include <thread>

#include "overlace/team.h"
#include "src/runtime/clock.h"
#include "src/runtime/interrupt.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

RankOptions options_of_test() {
  RankOptions options;
  options.heap_bytes = size_t{1} << 20;
  options.timeout_ms = 60000;
  options.checks_end = false;
  options.max_seeds = 1;
  return options;
}

/// The text of what close() throws; empty if it throws nothing.
std::string text_of_close(Runtime& runtime) {
  try {
    runtime.close();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class EndOfWaitTest : public testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(EndOfWaitTest, ASignalOfARankThatClosesIsLostAtOnce) {
  run_ranks(
      std::get<0>(GetParam()), std::get<1>(GetParam()),
      [](Runtime& runtime) {
        if (runtime.world().rank() > 1) {  // is told, wherever it is by then
          EXPECT_NE(text_of_close(runtime), "");
          return;
        }
        const ChannelPod& channel = runtime.world().channel(StreamRef::cpu()).pod();
        const SignalIds ids = runtime.world().channel(StreamRef::cpu()).ids(1, Domain::cpu, "late.news");
        if (runtime.world().rank() == 1) {
          signal_add(channel, 0, ids.first);  // this much it still says
          EXPECT_NE(text_of_close(runtime), "");
          return;
        }
        const int64_t begin = runtime::now_ns();
        EXPECT_EQ(errc_name(wait_ge(channel, 1, ids.first, 1)), errc_name(Errc::ok));
        EXPECT_EQ(errc_name(wait_ge(channel, 1, ids.first, 2)), errc_name(Errc::peer_lost));
        const std::string text = text_of_close(runtime);
        EXPECT_EQ(text.find("lost rank 1: it has called close(); rank 0 waited for rank 1, "), 0u) << text;
        EXPECT_NE(text.find("late.news"), std::string::npos) << text;
        EXPECT_NE(text.find("expected >= 2, seen 1"), std::string::npos) << text;
        EXPECT_LT(runtime::now_ns() - begin, 10'000'000'000);
      },
      options_of_test());
}

/// Nobody is lost who closes when all is done, however long the others take to come.
TEST_P(EndOfWaitTest, WhatHasBeenSentBeforeCloseArrives) {
  run_ranks(
      std::get<0>(GetParam()), std::get<1>(GetParam()),
      [](Runtime& runtime) {
        const ChannelPod& channel = runtime.world().channel(StreamRef::cpu()).pod();
        const SignalIds ids = runtime.world().channel(StreamRef::cpu()).ids(1, Domain::cpu, "late.news");
        const int rank = runtime.world().rank();
        if (rank == 1)
          for (int i = 0; i < 100; ++i) signal_add(channel, 0, ids.first);
        if (rank == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          for (uint64_t i = 1; i <= 100; ++i)
            ASSERT_EQ(errc_name(wait_ge(channel, 1, ids.first, i)), errc_name(Errc::ok));
        }
        EXPECT_EQ(text_of_close(runtime), "");
      },
      options_of_test());
}

INSTANTIATE_TEST_SUITE_P(Ranks, EndOfWaitTest, testing::Combine(testing::Values(2, 3), testing::ValuesIn(all_modes())),
                         mode_test_name);

std::atomic<bool> is_told{false};
int told() { return is_told ? 1 : 0; }

TEST(InterruptedWait, EndsAndAbortsAllRanks) {
  is_told = false;
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        const ChannelPod& channel = runtime.world().channel(StreamRef::cpu()).pod();
        const SignalIds ids = runtime.world().channel(StreamRef::cpu()).ids(1, Domain::cpu, "never");
        runtime.world().barrier();
        const int64_t begin = runtime::now_ns();
        if (runtime.world().rank() == 0) {
          runtime::set_interrupt_check(&told);
          std::thread other([] {
            std::this_thread::sleep_for(std::chrono::milliseconds(250));
            is_told = true;
          });
          EXPECT_EQ(errc_name(wait_ge(channel, 1, ids.first, 1)), errc_name(Errc::aborted));
          other.join();
          runtime::set_interrupt_check(nullptr);
        } else {
          EXPECT_EQ(errc_name(wait_ge(channel, 0, ids.first, 1)), errc_name(Errc::aborted));
        }
        EXPECT_LT(runtime::now_ns() - begin, 10'000'000'000);
        const std::string text = text_of_close(runtime);
        EXPECT_NE(text.find("rank 0 was interrupted while it waited for rank 1"), std::string::npos) << text;
      },
      options_of_test());
}

/// First calls and close() wait for messages.
TEST(InterruptedWait, EndsAMeetingToo) {
  is_told = true;
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        if (runtime.world().rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
          EXPECT_NE(text_of_close(runtime).find("interrupted"), std::string::npos);
          return;
        }
        runtime::set_interrupt_check(&told);
        const std::string text = text_of_close(runtime);
        runtime::set_interrupt_check(nullptr);
        EXPECT_NE(text.find("rank 0 was interrupted: close"), std::string::npos) << text;
      },
      options_of_test());
}

}  // namespace
}  // namespace overlace::test
