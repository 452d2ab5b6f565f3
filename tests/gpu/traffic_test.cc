// Everyday traffic on GPUs (support/traffic.h) for a given time, on two GPUs or, with virtual ranks, on one: results
// are exact, nothing grows, nothing is left over. OVERLACE_TEST_TRAFFIC_S says for how many seconds (default 30), and
// OVERLACE_TEST_SEEDS="1@FIRST" which seed is drawn from.
//
// gpu_traffic --shapes 2000 [--calls 10000] [--octaves 9]: what new shapes cost. The same calls of random shapes once
// as they come and once shape by shape, each of them known; prints a record and asserts nothing about it. Without
// --octaves calls are short, some 30 us; with them rows are drawn evenly over so many octaves from 64 on, N and K up to
// 8192.
#include "tests/gpu/support/traffic.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "src/base/format.h"
#include "tests/ranks/support/process.h"
#include "tests/ranks/support/seeds.h"

namespace overlace::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2, kSteps = 100;  // of a lap; all ranks settle behind it
int shapes_to_time = 0, calls_to_time = 10000, octaves = 0;

double seconds_to_go() {
  const char* text = std::getenv("OVERLACE_TEST_TRAFFIC_S");
  if (text == nullptr) return 30;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  EXPECT_TRUE(*text != '\0' && *end == '\0' && seconds >= 0)
      << "OVERLACE_TEST_TRAFFIC_S is \"" << text << "\", wanted a number of seconds";
  return seconds;
}

/// Rank 0's answer for all.
bool goes_on(Team& team, bool mine) {
  const std::byte byte{mine};
  return team.exchange(std::span(&byte, 1))[0][0] == std::byte{1};
}

/// Descriptors, threads, memory and the schedules that are kept after each lap. Caches fill in the first ones, but
/// where schedules share memory that takes longer than a short run has: memory may grow as their number does.
class Watch {
 public:
  void look(const Stats& stats) {
    size_t free = 0, total = 0;
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    constexpr uint64_t kMostKept = 2 * 2048;  // of two channels
    laps_.push_back({held(), total - free, std::min(kMostKept, stats.preparations - stats.evictions)});
  }
  void expect_bounded() const {
    constexpr size_t kLeast = 12;
    if (laps_.size() < kLeast) return;
    const size_t third = laps_.size() / 3, last = laps_.size() - third;
    const double grown = std::max(1.0, static_cast<double>(laps_.back().kept) / static_cast<double>(laps_[third].kept));
    std::printf(
        "traffic: %llu schedules kept after a third of the laps, %llu at last, %zu and %zu bytes on the device\n",
        static_cast<unsigned long long>(laps_[third].kept), static_cast<unsigned long long>(laps_.back().kept),
        laps_[third].device, laps_.back().device);
    for (const bool is_device : {false, true}) {
      const auto most = [&](size_t begin, size_t end) {
        size_t bytes = 0;
        for (size_t i = begin; i < end; ++i) bytes = std::max(bytes, is_device ? laps_[i].device : laps_[i].host.bytes);
        return bytes;
      };
      const auto least = static_cast<double>(most(third, third + 1)) * grown;
      EXPECT_LE(static_cast<double>(most(last, laps_.size())),
                std::max(least, static_cast<double>(most(third, last))) * 1.1 + (1 << 24))
          << (is_device ? "device" : "host") << " bytes, in " << laps_.size() << " laps";
    }
    EXPECT_LE(laps_.back().host.descriptors, laps_[third].host.descriptors + 8) << "descriptors";
    EXPECT_LE(laps_.back().host.threads, laps_[third].host.threads + 2) << "threads";
  }

 private:
  struct Lap {
    Held host;
    size_t device;
    uint64_t kept;
  };
  std::vector<Lap> laps_;
};

TEST(GpuTraffic, StaysExactAndBounded) {
  OVERLACE_NEED_GPUS(1);
  if (shapes_to_time > 0) GTEST_SKIP() << "--shapes";
  const uint64_t seed = seeds().first;
  const std::string again = base::format("OVERLACE_TEST_SEEDS=1@{}", seed);
  GpuOptions options = default_options();
  options.heap_bytes = size_t{64} << 20;  // fewer schedules than take turns
  options.timeout_ms = 30000;
  run_gpu_threads(
      kRanks,
      [&](GpuRank& gpu) {
        const auto end = Clock::now() + std::chrono::duration<double>(seconds_to_go());
        GpuTraffic traffic(gpu, seed);
        Watch watch;
        int lap = 0;
        for (; goes_on(gpu.team, Clock::now() < end); ++lap) {
          SCOPED_TRACE(base::format("{}, lap {}", again, lap));
          for (int step = 0; step < kSteps; ++step) {
            try {
              traffic.step();
            } catch (const Error& error) {
              ADD_FAILURE() << "step " << step << " behind\n" << traffic.history();
              throw;
            }
          }
          ASSERT_EQ(traffic.settle(), "");
          if (gpu.rank == 0) watch.look(gpu.runtime.stats());
          gpu.team.barrier();
        }
        if (gpu.rank != 0) return;
        watch.expect_bounded();
        std::printf("traffic: %d laps of %d steps, %s\n", lap, kSteps, again.c_str());
        for (const auto& [name, count] : traffic.counts())
          std::printf("traffic: %-40s %lld\n", name.c_str(), static_cast<long long>(count));
        const Stats stats = gpu.runtime.stats();
        constexpr int kFull = 12;  // laps
        EXPECT_TRUE(lap < kFull || stats.shared_blocks > 0) << "the heap was never full";
        for (const auto& [name, count] :
             {std::pair("preparations", stats.preparations), std::pair("evictions", stats.evictions),
              std::pair("shared blocks", stats.shared_blocks)})
          std::printf("traffic: %-40s %llu\n", name, static_cast<unsigned long long>(count));
      },
      options);
}

constexpr int kMostOctaves = 9;

/// A shape as large as one that is timed may be.
ExactProblem largest_shape() {
  if (octaves == 0) return {.m = 4096, .n = 1024, .k = 1024};
  return {.m = int64_t{64} << octaves, .n = 8192, .k = 8192};
}

/// Fused kernels: they prepare most for a shape.
ExactProblem timed_shape(Dice& dice) {
  ExactProblem p{.op = dice.one_in(2) ? "ag_gemm" : "gemm_rs", .degree = 2};
  p.family = p.op == "ag_gemm" ? "k_slab" : "tma_slot";
  if (octaves == 0) {
    p.m = dice.number(65, 4096);
    p.n = 8 * dice.number(8, 128);
    p.k = 64 * dice.number(2, 16);
    return p;
  }
  const int64_t least = int64_t{64} << dice.number(0, octaves - 1);
  p.m = dice.number(least + 1, 2 * least);
  p.n = 8 * dice.number(64, 1024);
  p.k = 64 * dice.number(8, 128);
  return p;
}

/// Seconds from the first call to the end of the last on the stream.
template <class Body>
double seconds_of(GpuRank& gpu, Body body) {
  gpu.wait();
  gpu.team.barrier();
  const auto begin = Clock::now();
  body();
  gpu.wait();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void time_shapes(GpuRank& gpu, uint64_t seed) {
  Dice dice(seed);
  auto memory = std::make_shared<ExactMemory>(gpu.stream, largest_shape());
  std::vector<std::unique_ptr<ExactSite>> sites;
  for (int i = 0; i < shapes_to_time; ++i)
    sites.push_back(std::make_unique<ExactSite>(gpu.channel, timed_shape(dice), memory));
  std::vector<size_t> order(static_cast<size_t>(calls_to_time));
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i < sites.size() ? i : static_cast<size_t>(dice.number(0, shapes_to_time - 1));
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<size_t>(dice.number(0, static_cast<int64_t>(i) - 1))]);
  std::map<size_t, int> calls;
  for (const size_t which : order) ++calls[which];

  sites.front()->call();  // the channel's own first call
  const double as_they_come = seconds_of(gpu, [&] {
    for (const size_t which : order) sites[which]->run();
  });
  double known = 0;
  for (const auto& [which, count] : calls) {
    ExactSite& site = *sites[which];
    site.run();
    const int times = count;
    known += seconds_of(gpu, [&] {
      for (int i = 0; i < times; ++i) site.run();
    });
  }
  const uint64_t before = sites.front()->wrong();
  sites.front()->call();
  EXPECT_EQ(sites.front()->wrong(), before) << "elements of the first shape, at last";
  if (gpu.rank == 0)
    std::printf(
        "{\"record\": \"gpu_traffic_shapes\", \"ranks\": %d, \"gpus\": %d, \"shapes\": %d, \"calls\": %d, \"seed\": "
        "%llu, \"octaves\": %d, \"shared_blocks\": %llu, \"as_they_come_s\": %.3f, \"known_s\": %.3f, \"ratio\": "
        "%.3f}\n",
        gpu.size, std::min(gpu.size, gpu_count()), shapes_to_time, calls_to_time, static_cast<unsigned long long>(seed),
        octaves, static_cast<unsigned long long>(gpu.runtime.stats().shared_blocks), as_they_come, known,
        as_they_come / known);
}

TEST(GpuTraffic, TimesNewShapes) {
  OVERLACE_NEED_GPUS(1);
  if (shapes_to_time == 0) GTEST_SKIP() << "a measurement; --shapes 2000 makes it";
  run_gpu_threads(
      kRanks,
      [](GpuRank& gpu) {
        EXPECT_CUDA(load_exact_kernels());
        time_shapes(gpu, seeds().first);
      },
      default_options());
}

/// Takes `name VALUE` out of the arguments.
bool take(int* argc, char** argv, const std::string& name, int* value) {
  for (int i = 1; i < *argc; ++i) {
    if (argv[i] != name) continue;
    *value = i + 1 < *argc ? std::atoi(argv[i + 1]) : 0;
    if (*value < 1) return false;
    std::rotate(argv + i, argv + i + 2, argv + *argc);
    *argc -= 2;
    return true;
  }
  return true;
}

}  // namespace
}  // namespace overlace::test

int main(int argc, char** argv) {
  using namespace overlace::test;
  if (!take(&argc, argv, "--shapes", &shapes_to_time) || !take(&argc, argv, "--calls", &calls_to_time) ||
      !take(&argc, argv, "--octaves", &octaves) || shapes_to_time > calls_to_time || octaves > kMostOctaves) {
    std::fprintf(stderr,
                 "wanted: --shapes COUNT [--calls COUNT] [--octaves COUNT], counts of at least 1, no more shapes than "
                 "calls, at most %d octaves\n",
                 kMostOctaves);
    return 2;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
