// Memory of prepared schedules: what captured graphs hold, who goes when the heap is full, and how it grows.
#include <memory>
#include <vector>

#include "src/exec/run.h"
#include "tests/ranks/ops_cases.h"
#include "tests/ranks/support/dice.h"

namespace overlace::test {
namespace {

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

/// Runs once and expects the right result.
void call(const Case& c, Channel& channel, int64_t seed = 0) {
  Operands operands(c, channel);
  operands.fill(seed);
  operands.run();
  ASSERT_EQ(operands.mismatch(), "") << c.text();
}

/// Two copies of the gathered rows take 2 * 48000 * 4 bytes whatever m is: two of them fit into 1 MiB.
Case large(int64_t m, int64_t elements = 48000) {
  return {.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = m, .n = 2, .k = elements / m};
}

RankOptions one_mebibyte(size_t max_heap_bytes = 0) {
  RankOptions options;
  options.heap_bytes = 1 << 20;
  options.max_heap_bytes = max_heap_bytes;
  return options;
}

std::string refusal(const Case& c, Channel& channel) {
  Operands operands(c, channel);
  operands.fill(0);
  try {
    operands.run();
  } catch (const OutOfMemory& e) {
    return e.what();
  }
  return "nothing was thrown";
}

class ExecMemory : public testing::TestWithParam<Mode> {};

TEST_P(ExecMemory, SchedulesShareMemoryOnceTheHeapIsFull) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        for (const int64_t m : {48, 60}) call(large(m), channel);
        EXPECT_EQ(runtime.stats().shared_blocks, 0u);
        for (const int64_t m : {96, 120}) call(large(m), channel);
        call(large(96, 40000), channel);  // smaller ones, too
        EXPECT_EQ(runtime.stats().shared_blocks, 3u);
        const uint64_t preparations = runtime.stats().preparations;
        for (int64_t round = 1; round <= 5; ++round)
          for (const int64_t m : {120, 48, 96, 60, 120}) call(large(m), channel, 10 * round + m);
        EXPECT_EQ(runtime.stats().preparations, preparations);
        EXPECT_EQ(runtime.stats().evictions, 0u);
        EXPECT_EQ(runtime.stats().shared_blocks, 3u);
        runtime.synchronize();  // what the wire still carries
        runtime.world().barrier();
        runtime.check_quiescent();
        runtime.heap().verify();
      },
      one_mebibyte());
}

TEST_P(ExecMemory, TheLeastRecentlyUsedGoesWhereNobodyHasAsMuch) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        const auto evictions = [&] { return runtime.stats().evictions; };
        call(large(48), channel);
        call(large(60), channel);
        call(large(48), channel);
        EXPECT_EQ(evictions(), 0u);
        call(large(96, 60000), channel);  // in place of 60
        EXPECT_EQ(evictions(), 1u);
        const uint64_t preparations = runtime.stats().preparations;
        call(large(48), channel);
        call(large(96, 60000), channel);
        EXPECT_EQ(runtime.stats().preparations, preparations);
        call(large(60, 72000), channel);  // in place of 48 and of 96, as the hole of 48 is too small
        EXPECT_EQ(evictions(), 3u);
        EXPECT_EQ(runtime.stats().shared_blocks, 0u);
        call(large(60, 72000), channel);
        EXPECT_EQ(runtime.stats().preparations, preparations + 1);
      },
      one_mebibyte());
}

/// Shared memory goes with the last of those that use it.
TEST_P(ExecMemory, AllThatShareGoBeforeTheirMemoryIsFree) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        for (const int64_t m : {48, 60, 96, 120}) call(large(m), channel);
        call(large(240, 120000), channel);  // 960,000 bytes: wants all of the heap
        EXPECT_EQ(runtime.stats().evictions, 4u);
        EXPECT_EQ(runtime.heap().in_use(), 960000u);
        for (const int64_t m : {48, 96}) call(large(m), channel, 5);
        call(large(240, 120000), channel, 6);
        EXPECT_EQ(runtime.stats().evictions, 4u);
        runtime.heap().verify();
      },
      one_mebibyte());
}

/// Rank 0 has little to multiply: it is through with a call while the others still read what was gathered for it, and
/// the next one has another layout in the same memory.
TEST(ExecMemoryShared, IsNotWrittenBeforeAllHaveReadIt) {
  for (const char* family : {"hetero_fused_1d", "uniform_fused_1d"}) {
    run_ranks(3, Mode::threads,
              [&](Runtime& runtime) {
                Channel& channel = channel_of(runtime);
                const int64_t n = runtime.world().rank() == 0 ? 1 : 100;
                const Case first_case{.op = "ag_gemm", .family = family, .degree = 2, .m = 120, .n = n, .k = 100};
                Case second_case = first_case;
                second_case.m = 93;
                Operands first(first_case, channel), second(second_case, channel);
                for (int64_t round = 0; round < 4; ++round) {
                  first.fill(2 * round);
                  second.fill(2 * round + 1);
                  runtime.world().barrier();
                  first.run();
                  second.run();
                  ASSERT_EQ(first.mismatch(), "") << family << " round " << round;
                  ASSERT_EQ(second.mismatch(), "") << family << " round " << round;
                }
                EXPECT_EQ(runtime.stats().shared_blocks, 1u);
                runtime.heap().verify();
              },
              {.heap_bytes = 128 << 10});
  }
}

/// All operators, with memory for a fifth of what they would take, under the adversary.
TEST(ExecMemoryShared, SchedulesOfAllOperatorsTakeTurns) {
  run_ranks(3, Mode::threads_adversary,
            [](Runtime& runtime) {
              Channel& channel = channel_of(runtime);
              std::vector<Case> cases;
              for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"})
                for (const char* family : {"hetero_fused_1d", "uniform_fused_1d", "serial"})
                  for (const int64_t m : {30, 63, 100})
                    cases.push_back({.op = op, .family = family, .degree = 2, .m = m, .n = 40, .k = 40});
              for (const Case& c : cases) call(c, channel, c.m);
              EXPECT_GT(runtime.stats().shared_blocks, 10u);
              Dice dice(7);
              for (int64_t i = 0; i < 40; ++i)
                call(cases[static_cast<size_t>(dice.number(0, static_cast<int64_t>(cases.size()) - 1))], channel, i);
              runtime.synchronize();  // what the wire still carries
              runtime.world().barrier();
              runtime.check_quiescent();
              runtime.heap().verify();
            },
            {.heap_bytes = 192 << 10});
}

TEST_P(ExecMemory, WhatACapturedCallUsesStaysAmidHundredsOfOtherShapes) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        call(large(48), channel);
        // Only one rank still holds it: graphs are destroyed at other times on each.
        const bool holds = runtime.world().rank() == 1;
        std::shared_ptr<void> graph = holds ? exec::hold_last_call(channel) : nullptr;
        for (int64_t m = 1; m <= 300; ++m) call({.op = "gemm_rs", .family = "serial", .m = m, .n = 3, .k = 2}, channel);
        for (const int64_t m : {60, 96, 120, 60}) call(large(m), channel);
        EXPECT_GE(runtime.stats().evictions, 200u);
        const uint64_t preparations = runtime.stats().preparations, evictions = runtime.stats().evictions;
        call(large(48), channel);
        EXPECT_EQ(runtime.stats().evictions, evictions) << "a replay would use memory that was given up";
        EXPECT_EQ(runtime.stats().preparations, preparations);
        graph.reset();
        runtime.world().barrier();
        call(large(240, 90000), channel);  // now this one may go
        EXPECT_GT(runtime.stats().evictions, evictions);
        EXPECT_LT(runtime.heap().in_use(), 800000u);
        call(large(48), channel);
        EXPECT_EQ(runtime.stats().preparations, preparations + 2);
      },
      one_mebibyte());
}

TEST_P(ExecMemory, WhereGraphsHoldAllOfTheHeapTheCallSaysSoOnAllRanks) {
  run_ranks(
      3, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        std::vector<std::shared_ptr<void>> graphs;
        for (const int64_t m : {48, 60}) {
          call(large(m), channel);
          if (runtime.world().rank() == 2) graphs.push_back(exec::hold_last_call(channel));
        }
        const std::string text = refusal(large(96), channel);
        for (const char* part : {"\"ag_gemm.hetero_fused_1d\" asked 384000 bytes", "raise heap_bytes",
                                 "captured graphs hold 768000 bytes of it for 2 calls"}) {
          EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
        }
        call(large(48), channel);
        graphs.clear();
        runtime.world().barrier();
        call(large(96), channel);
        EXPECT_EQ(runtime.stats().shared_blocks, 1u);
        EXPECT_EQ(runtime.stats().evictions, 0u);
      },
      one_mebibyte());
}

TEST_P(ExecMemory, WhereTheCallerHoldsAllOfTheHeapNoGraphsAreNamed) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        const SymBuffer mine = runtime.heap().alloc(900000, 256, "mine");
        const std::string text = refusal(large(96), channel_of(runtime));
        EXPECT_NE(text.find("in use 900096"), std::string::npos) << text;
        EXPECT_EQ(text.find("captured graphs"), std::string::npos) << text;
        runtime.heap().free(mine);
        call(large(96), channel_of(runtime));
      },
      one_mebibyte());
}

/// What the library takes is compared as what the caller takes: ranks that run other schedules learn of it.
TEST_P(ExecMemory, IsTakenByHeapCallsThatAreVerified) {
  run_ranks(
      3, GetParam(),
      [](Runtime& runtime) {
        call(large(48), channel_of(runtime));
        const bool is_odd = runtime.world().rank() == 1;
        if (is_odd) runtime.heap().alloc(64, 64, "odd");
        std::string text;
        try {
          runtime.heap().verify();
        } catch (const PlanMismatch& e) {
          text = e.what();
        }
        EXPECT_NE(text.find("rank 1 made other heap calls: 2 calls"), std::string::npos) << text;
        EXPECT_NE(text.find("last alloc 64 64 \"odd\"; wanted, as the others: 1 calls"), std::string::npos) << text;
        EXPECT_NE(text.find("last alloc 384000 256 \"ag_gemm.hetero_fused_1d\""), std::string::npos) << text;
        if (!is_odd) runtime.heap().alloc(64, 64, "odd");
      },
      one_mebibyte());
}

TEST_P(ExecMemory, TheHeapGrowsUpToItsLimit) {
  run_ranks(
      3, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        for (const int64_t m : {48, 60, 96, 120, 240}) call(large(m), channel, m);
        EXPECT_EQ(runtime.stats().evictions, 0u);
        EXPECT_GE(runtime.stats().heap_growths, 2u);
        EXPECT_GT(runtime.heap().capacity(), 1'900'000u);
        const uint64_t preparations = runtime.stats().preparations;
        for (const int64_t m : {48, 240}) call(large(m), channel, m + 1);
        EXPECT_EQ(runtime.stats().preparations, preparations);
        const std::string text = refusal(large(60, 1200000), channel);
        EXPECT_NE(text.find("asked 9600000 bytes"), std::string::npos) << text;
        EXPECT_NE(text.find("raise max_heap_bytes"), std::string::npos) << text;
        EXPECT_LT(runtime.heap().capacity(), 8u << 20) << "it grew for what can never fit";
        EXPECT_EQ(runtime.stats().evictions, 0u);
        call(large(60, 900000), channel, 2);  // 7.2 MB: all of the limit, and the room of others
        EXPECT_EQ(runtime.heap().capacity(), 8u << 20);
        EXPECT_GT(runtime.stats().evictions, 0u);
        call(large(60), channel, 3);
        runtime.heap().verify();
      },
      one_mebibyte(8 << 20));
}

TEST_P(ExecMemory, WhatWasNotUsedForLongGoesBeforeTheHeapGrows) {
  run_ranks(
      2, GetParam(),
      [](Runtime& runtime) {
        Channel& channel = channel_of(runtime);
        call(large(48), channel);
        call(large(60), channel);
        for (int i = 0; i < 1100; ++i) call({.op = "gemm_rs", .family = "serial", .m = 2, .n = 1, .k = 1}, channel, i);
        call(large(60), channel);
        call(large(96), channel);
        EXPECT_EQ(runtime.stats().heap_growths, 0u);
        EXPECT_EQ(runtime.stats().evictions, 1u);
        call(large(48), channel);
        EXPECT_EQ(runtime.stats().heap_growths, 1u);
      },
      one_mebibyte(8 << 20));
}

INSTANTIATE_TEST_SUITE_P(Modes, ExecMemory, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& param) { return mode_name(param.param); });

/// Ranks 0 and 1 prepare larger schedules in their team than ranks 2 and 3: the next place that is free differs.
TEST(ExecMemoryOfTeams, TheWorldFindsAPlaceThatIsFreeOnAllRanks) {
  run_ranks(
      4, Mode::threads,
      [](Runtime& runtime) {
        const int rank = runtime.world().rank();
        const std::vector<int> low = {0, 1}, high = {2, 3};
        Team first = runtime.world().sub(low, {.name = "low"});
        Team second = runtime.world().sub(high, {.name = "high"});
        Team& mine = rank < 2 ? first : second;
        Channel& world = channel_of(runtime);
        for (int64_t round = 0; round < 3; ++round) {
          call(large(60, rank < 2 ? 24000 + 6000 * round : 4800), mine.channel(StreamRef::cpu()), round);
          call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = 60 + round, .n = 2, .k = 30}, world,
               round);
          call({.op = "gemm_rs", .family = "uniform_fused_1d", .degree = 2, .m = 60, .n = 7 + round}, world, round);
        }
        for (int64_t round = 0; round < 3; ++round)
          call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .m = 60 + round, .n = 2, .k = 30}, world, 7);
        runtime.synchronize();  // what the wire still carries
        runtime.world().barrier();
        runtime.check_quiescent();
        runtime.close();  // without heap.verify: the teams made other calls
      },
      {.checks_end = false});
}

/// More programs of one rank than are kept, which share their memory: those of graphs stay.
TEST(ExecMemoryOfPrograms, TheOldestGoesUnlessAGraphHoldsIt) {
  run_ranks(2, Mode::threads, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const int rank = runtime.world().rank();
    const auto width = [&](int64_t n) {
      call({.op = "ag_gemm", .family = "hetero_fused_1d", .degree = 2, .n = rank == 0 ? 5 : n}, channel, n);
    };
    width(1);
    const std::shared_ptr<void> graph = exec::hold_last_call(channel);
    constexpr int64_t kMost = 2100;
    for (int64_t n = 2; n <= kMost; ++n) width(n);
    const uint64_t preparations = runtime.stats().preparations;
    EXPECT_EQ(preparations, rank == 0 ? 1u : static_cast<uint64_t>(kMost));
    width(1);
    width(kMost);
    EXPECT_EQ(runtime.stats().preparations, preparations);
    // An eighth of 2048 went once, the oldest that no graph held: 2 to 257.
    width(258);
    EXPECT_EQ(runtime.stats().preparations, preparations);
    width(257);
    EXPECT_EQ(runtime.stats().preparations, preparations + (rank == 0 ? 0 : 1));
  });
}

}  // namespace
}  // namespace overlace::test
