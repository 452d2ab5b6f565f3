// Local counters: tile triggers among the threads of one rank.
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "overlace/handle_pod.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

template <class Exception, class Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing was thrown";
}

class CountersTest : public testing::TestWithParam<Mode> {};

/// Two producers fill chunks of four tiles each; a consumer waits for each chunk's counter and reads all its tiles.
TEST_P(CountersTest, AConsumerSeesAllTilesOfAChunk) {
  run_ranks(2, GetParam(), [](Runtime& runtime) {
    constexpr uint32_t kChunks = 50, kTiles = 8;
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Counters counters = channel.counters(kChunks, "mlp.tiles");
    for (int call = 1; call <= 3; ++call) {
      std::vector<int> tiles(kChunks * kTiles, -1);
      const auto value = [&](size_t i) { return static_cast<int>(i) * 4 + runtime.world().rank() * 1000 + call; };
      const auto produce = [&](uint32_t part) {
        for (uint32_t chunk = 0; chunk < kChunks; ++chunk)
          for (uint32_t tile = part; tile < kTiles; tile += 2) {
            tiles[chunk * kTiles + tile] = value(chunk * kTiles + tile);
            counter_add(channel.pod(), counters.pod(), chunk);
          }
      };
      std::thread first(produce, 0u), second(produce, 1u);
      int wrong = 0;
      for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        EXPECT_EQ(counter_wait_ge(channel.pod(), counters.pod(), chunk, kTiles), Errc::ok);
        for (size_t i = chunk * kTiles; i < (chunk + 1) * kTiles; ++i) wrong += tiles[i] != value(i);
      }
      first.join();
      second.join();
      ASSERT_EQ(wrong, 0);
      channel.reset(counters);
    }
    channel.release(counters);
  });
}

TEST_P(CountersTest, TheLastToArriveSeesTheOthers) {
  run_ranks(1, GetParam(), [](Runtime& runtime) {
    Channel& channel = runtime.world().channel(StreamRef::cpu());
    const Counters counters = channel.counters(1, "last");
    std::array<int, 4> parts{};
    std::atomic<int> sums{0}, last{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, i] {
        parts[static_cast<size_t>(i)] = 10 + i;
        if (counter_arrive(channel.pod(), counters.pod(), 0) != 4) return;
        ++last;
        for (const int part : parts) sums += part;
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(last, 1);
    EXPECT_EQ(sums, 46);
  });
}

TEST_P(CountersTest, ErrorsNameThem) {
  run_ranks(1, GetParam(),
            [](Runtime& runtime) {
              Channel& channel = runtime.world().channel(StreamRef::cpu());
              EXPECT_EQ(refusal<InvalidArgument>([&] { (void)channel.counters(0, "none"); }),
                        "channel.counters \"none\": count is 0, wanted 1 to 16777216");
              const Counters gone = channel.counters(2, "gone");
              channel.release(gone);
              EXPECT_NE(
                  refusal<InvalidArgument>([&] { channel.reset(gone); }).find("channel.reset: the 2 counters are not"),
                  std::string::npos);
              const Counters counters = channel.counters(3, "mlp.tiles");
              EXPECT_EQ(refusal<InvalidArgument>([&] { counter_add(channel.pod(), counters.pod(), 3); }),
                        "counter: index is 3, wanted less than 3");
              counter_add(channel.pod(), counters.pod(), 2, 5);
              EXPECT_EQ(counter_wait_ge(channel.pod(), counters.pod(), 2, 5), Errc::ok);
              EXPECT_EQ(counter_wait_ge(channel.pod(), counters.pod(), 2, 6), Errc::timeout);
              const std::string what = refusal<Timeout>([&] { runtime.check(); });
              EXPECT_NE(what.find("counter 2 (mlp.tiles, block 0): expected >= 6, seen 5"), std::string::npos) << what;
            },
            {.timeout_ms = 300, .checks_end = false});
}

INSTANTIATE_TEST_SUITE_P(Modes, CountersTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return mode_name(test.param); });

}  // namespace
}  // namespace overlace::test
