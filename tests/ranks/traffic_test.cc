// Everyday traffic (support/traffic.h), of ranks as threads and as processes, under the adversary and without, for a
// given time: results are exact, nothing grows, nothing is left over. OVERLACE_TEST_TRAFFIC_S says for how many seconds
// (default 20; 0: only as many teams as OVERLACE_TEST_SEEDS says); a failure names the seed that draws its team again.
#include "tests/ranks/support/traffic.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "src/base/format.h"
#include "tests/ranks/support/process.h"
#include "tests/ranks/support/seeds.h"

namespace overlace::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 120;  // of a lap; all ranks settle behind it
constexpr size_t kHeapBytes = size_t{256} << 10;

double seconds_to_go() {
  const char* text = std::getenv("OVERLACE_TEST_TRAFFIC_S");
  if (text == nullptr) return 20;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  EXPECT_TRUE(*text != '\0' && *end == '\0' && seconds >= 0)
      << "OVERLACE_TEST_TRAFFIC_S is \"" << text << "\", wanted a number of seconds";
  return seconds;
}

/// A part of the time of this program, from now on.
Clock::time_point end_of(double part) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(part * seconds_to_go()));
}

/// What one seed stands for.
struct Trip {
  uint64_t seed = 0;
  int ranks = 1, laps = 1;
  Mode mode = Mode::threads;
  Clock::time_point end{};  // laps go on until then
};

Trip draw_trip(uint64_t seed) {
  Dice dice(seed);
  Trip trip{.seed = seed, .ranks = static_cast<int>(dice.number(1, 6)), .laps = static_cast<int>(dice.number(2, 6))};
  trip.mode = dice.one_in(2) ? Mode::threads_adversary : Mode::threads;
  if (dice.one_in(12) && kHasProcesses) trip.mode = Mode::processes;
  return trip;
}

std::string again(const Trip& trip, int lap, int step) {
  return base::format("\nOVERLACE_TEST_TRAFFIC_S={} OVERLACE_TEST_SEEDS=1@{} draws this again; lap {}, step {}",
                      trip.end == Clock::time_point{} ? 0 : seconds_to_go(), trip.seed, lap, step);
}

/// Totals of all teams; filled by rank 0 where ranks are threads.
struct Total {
  std::mutex mutex;
  Counts counts;
  double most_asked = 0;  // bytes of all shapes of a team, of those that the heap has

  void print(const char* test, int teams) const {
    std::printf("%s: %d teams from seed %llu on; one asked for %.1f times its heap\n", test, teams,
                static_cast<unsigned long long>(seeds().first), most_asked);
    for (const auto& [name, count] : counts)
      std::printf("%s: %-40s %lld\n", test, name.c_str(), static_cast<long long>(count));
  }
};

/// Looks at the process after each lap. The first lap makes what there is one of; caches take some laps to fill.
class Watch {
 public:
  void look(const std::string& where) {
    laps_.push_back(held());
    EXPECT_EQ(laps_.back().descriptors, laps_.front().descriptors) << where;
    EXPECT_EQ(laps_.back().threads, laps_.front().threads) << where;
    EXPECT_EQ(laps_.back().heaps, laps_.front().heaps) << where;
  }
  /// What the last third of the laps had at most, against the third before it.
  void expect_bounded(const std::string& where) const {
    constexpr size_t kLeast = 12;
    if (laps_.size() < kLeast) return;
    const size_t third = laps_.size() / 3;
    EXPECT_LE(most(laps_.size() - third, laps_.size()), most(third, laps_.size() - third) * 13 / 10 + (1 << 20))
        << where << ": bytes, in " << laps_.size() << " laps";
  }

 private:
  size_t most(size_t first, size_t last) const {
    size_t bytes = 0;
    for (size_t lap = first; lap < last; ++lap) bytes = std::max(bytes, laps_[lap].bytes);
    return bytes;
  }
  std::vector<Held> laps_;
};

/// Rank 0's answer for all.
bool goes_on(Team& team, const Trip& trip, int laps_made) {
  const std::byte mine{laps_made < trip.laps || Clock::now() < trip.end};
  return team.exchange(std::span(&mine, 1))[0][0] == std::byte{1};
}

void make_trip(Runtime& runtime, const Trip& trip, const Families& families, Total& total) {
  Team& world = runtime.world();
  Traffic traffic(runtime, trip.seed, families);
  const bool looks = trip.mode == Mode::processes || world.rank() == 0;
  Watch watch;
  int lap = 0;
  for (; goes_on(world, trip, lap); ++lap) {
    for (int step = 0; step < kSteps; ++step) ASSERT_EQ(traffic.step(), "") << again(trip, lap, step);
    traffic.settle();
    if (looks) watch.look(again(trip, lap, kSteps));
    world.barrier();  // the others wait meanwhile
  }
  if (!looks) return;
  watch.expect_bounded(again(trip, lap, 0));
  const double asked = static_cast<double>(traffic.asked_bytes()) / kHeapBytes;
  constexpr int kManyLaps = 4;
  EXPECT_TRUE(asked > 1 || world.size() == 1 || lap < kManyLaps) << "nothing had to be given up" << again(trip, lap, 0);
  const std::lock_guard<std::mutex> lock(total.mutex);
  for (const auto& [name, count] : traffic.counts()) total.counts[name] += count;
  total.most_asked = std::max(total.most_asked, asked);
}

RankOptions options_of(const Trip& trip) {
  RankOptions options;
  options.heap_bytes = kHeapBytes;
  options.num_signal_ids = 4096;
  if (trip.mode == Mode::threads_adversary)
    options.adversary = AdversaryOptions::parse(base::format("delay_us=50,seed={}", trip.seed));
  return options;
}

void run_trip(const Trip& trip, const Families& families, Total& total) {
  const Held before = held();
  run_ranks(
      trip.ranks, trip.mode, [&](Runtime& runtime) { make_trip(runtime, trip, families, total); }, options_of(trip));
  EXPECT_EQ(left_beyond(before), "") << again(trip, trip.laps, 0);
}

TEST(Traffic, OfManyTeamsIsExactAndLeavesNothing) {
  const Clock::time_point end = end_of(0.65);
  const Families families = families_here();
  Total total;
  int made = 0;
  for (; !HasFailure() && (made < seeds().count || Clock::now() < end); ++made)
    run_trip(draw_trip(seeds().first + static_cast<uint64_t>(made)), families, total);
  total.print("many teams", made);
}

/// More shapes than any cache holds, on one team.
TEST(Traffic, OfOneTeamForLongDoesNotGrow) {
  Total total;
  run_trip({.seed = seeds().first, .ranks = 3, .laps = 2, .end = end_of(0.35)}, families_here(), total);
  total.print("one team", 1);
}

/// Bytes that stay for a shape that is not called any more, on average of one rank. All shapes are of one size, so that
/// the programs that a channel keeps are, too. fp64: libraries for other types keep what they know of 512 shapes.
double bytes_per_old_shape(const std::vector<std::pair<std::string, std::string>>& families) {
  // What a channel keeps is full by then; old agreements go 256 at a time, so between the two looks lies a multiple.
  constexpr int64_t kRows = 3600, kWarm = 1100, kPasses = kWarm + 513;
  double grown = 0;
  RankOptions options;
  options.heap_bytes = size_t{2} << 20;
  run_ranks(
      3, Mode::threads,
      [&](Runtime& runtime) {
        Channel& channel = runtime.world().channel(StreamRef::cpu());
        Held before;
        for (int64_t pass = 0; pass < kPasses; ++pass) {
          for (const auto& [op, family] : families) {
            Case what{.op = op, .family = family, .m = kRows, .n = 2, .k = 2, .in = DType::fp64, .out = DType::fp64};
            what.offsets = {0, pass + 1, kRows / 2, kRows};  // the largest shard stays
            Operands(what, channel).run();
          }
          if (pass != kWarm && pass != kPasses - 1) continue;
          runtime.world().barrier();
          if (runtime.world().rank() == 0 && pass == kWarm) before = held();
          if (runtime.world().rank() == 0 && pass != kWarm)
            grown = static_cast<double>(held().bytes) - static_cast<double>(before.bytes);
          runtime.world().barrier();
        }
      },
      options);
  return grown / static_cast<double>((kPasses - 1 - kWarm) * 3 * static_cast<int64_t>(families.size()));
}

TEST(Traffic, ShapesThatAreNotCalledAnyMoreTakeNoMemory) {
  if (held().bytes == 0) GTEST_SKIP() << "a sanitizer allocates";
  EXPECT_LT(bytes_per_old_shape({{"ag_gemm", "serial"}, {"ag_gemm", "hetero_unfused_1d"}, {"gemm_rs", "serial"}}), 64);
}

/// Schedules without heap and signals make no room when they go, but what a channel knows of them takes memory.
TEST(Traffic, ShapesOfTheLibraryTakeNoMemoryEither) {
  EXPECT_LT(bytes_per_old_shape({{"ag_gemm", "library"}, {"gemm_rs", "library"}}), 64);
}

/// What other channels of the team keep goes, too, where the heap is full.
TEST(Traffic, AChannelTakesTheHeapThatOthersKeepForLater) {
  RankOptions options;
  options.heap_bytes = kHeapBytes;
  run_ranks(
      2, Mode::threads,
      [](Runtime& runtime) {
        Team& world = runtime.world();
        for (const int budget : {0, 1}) {
          Channel& channel = world.channel(StreamRef::cpu(), {.sm_budget = budget});
          for (int64_t m = 64; m < 128; ++m) {
            Operands operands({.op = "gemm_rs", .family = "serial", .m = m, .n = 32}, channel);
            operands.fill(m);
            operands.run();
            ASSERT_EQ(operands.mismatch(), "");
          }
        }
      },
      options);
}

/// Teams that share no rank take heap for calls of their own: the next block of the world has another free place on
/// each rank.
TEST(Traffic, CallsOfTwoHalvesLeaveTheHeapOfTheWholeAlone) {
  const auto body = [](Runtime& runtime) {
    Team& world = runtime.world();
    const int even[] = {0, 2}, odd[] = {1, 3};
    Team first = world.sub(even, {.name = "even"}), second = world.sub(odd, {.name = "odd"});
    const bool is_first = first.size() > 0;
    Operands own({.op = "gemm_rs", .family = "shard_p2p", .m = is_first ? 64 : 128, .n = 16},
                 (is_first ? first : second).channel(StreamRef::cpu()));
    own.fill(1);
    own.run();
    EXPECT_EQ(own.mismatch(), "");
    Operands whole({.op = "gemm_rs", .family = "shard_p2p", .m = 64, .n = 16}, world.channel(StreamRef::cpu()));
    for (int64_t call = 2; call < 12; ++call) {
      whole.fill(call);
      whole.run();
      ASSERT_EQ(whole.mismatch(), "");
    }
    runtime.synchronize();  // what the wire still carries
    world.barrier();
    runtime.check_quiescent();
    runtime.close();  // without heap.verify: the halves made other calls
  };
  run_ranks(4, Mode::threads, body, {.checks_end = false});
}

}  // namespace
}  // namespace overlace::test
