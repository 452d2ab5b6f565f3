// A disk that is played: its rate, its order, right bytes, and waits that end.
#include "src/io/pace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "src/io/engine.h"
#include "tests/unit/io/scratch.h"

namespace overlace::io {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kMiB = int64_t{1} << 20;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

class Pace : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto choice = choose_engine(GetParam());
    if (!choice.ok()) GTEST_SKIP() << choice.status().message();
    write_pattern(scratch_.path("data"), 4 * kMiB);
  }
  std::unique_ptr<IoEngine> open(int64_t bytes_per_s, int64_t timeout_ms = 60000) {
    EngineOptions options;
    options.engine = GetParam();
    options.request_bytes = kMiB / 4;
    options.timeout_ms = timeout_ms;
    options.pace_bytes_per_s = bytes_per_s;
    return std::move(IoEngine::open(std::move(options))).value();
  }
  /// Reads 4 MiB in pieces of 1 MiB and checks them; seconds.
  double read_all(IoEngine& engine, bool is_paced = true) {
    const auto file = std::move(engine.open_file(scratch_.path("data"), FileMode::read)).value();
    AlignedBuffer memory = AlignedBuffer::allocate(4 * kMiB).value();
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < 4; ++i)
      engine.read(file, i * kMiB, kMiB, {memory.data() + i * kMiB, kMiB}, static_cast<uint64_t>(i)).or_throw();
    std::vector<uint64_t> tags;
    while (engine.pending() > 0) {
      Completion completions[4];
      const size_t n = engine.poll(completions).value();
      for (size_t i = 0; i < n; ++i) {
        completions[i].status.or_throw();
        tags.push_back(completions[i].tag);
      }
    }
    const double seconds = seconds_since(begin);
    if (is_paced) {
      EXPECT_EQ(tags, (std::vector<uint64_t>{0, 1, 2, 3})) << "the disk that is played serves in order";
    }
    const std::vector<std::byte> right = pattern(0, 4 * kMiB);
    EXPECT_EQ(std::memcmp(memory.data(), right.data(), right.size()), 0);
    return seconds;
  }
  Scratch scratch_;
};

INSTANTIATE_TEST_SUITE_P(Io, Pace, testing::Values("uring", "pread", "buffered"),
                         [](const testing::TestParamInfo<const char*>& named) { return std::string(named.param); });

TEST_P(Pace, TakesTheTimeOfTheSlowerDisk) {
  const auto fast = open(0);
  const double own = read_all(*fast, false);
  for (const int64_t rate : {16 * kMiB, 32 * kMiB}) {
    const auto engine = open(rate);
    const double least = 4.0 * static_cast<double>(kMiB) / static_cast<double>(rate);
    const double first = read_all(*engine);
    EXPECT_GE(first, 0.99 * least);
    EXPECT_LT(first, least + own + 1);  // on a busy machine
    EXPECT_GE(read_all(*engine), 0.99 * least) << "nothing is saved up while nobody reads";
  }
}

TEST_P(Pace, AWaitEndsThoughNothingIsDue) {
  const auto engine = open(kMiB);
  const auto file = std::move(engine->open_file(scratch_.path("data"), FileMode::read)).value();
  AlignedBuffer memory = AlignedBuffer::allocate(kMiB).value();
  engine->read(file, 0, kMiB, {memory.data(), kMiB}, 7).or_throw();  // due after a second
  Completion completion;
  const Clock::time_point begin = Clock::now();
  EXPECT_EQ(engine->poll({&completion, 1}, 0).value(), 0u);
  EXPECT_EQ(engine->poll({&completion, 1}, 20).value(), 0u);
  EXPECT_LT(seconds_since(begin), 0.9);
  EXPECT_EQ(engine->poll({&completion, 1}).value(), 1u);
  EXPECT_GE(seconds_since(begin), 0.98);
  EXPECT_EQ(completion.tag, 7u);
}

TEST_P(Pace, ADiskThatIsTooSlowIsATimeout) {
  const auto engine = open(kMiB, 50);
  const auto file = std::move(engine->open_file(scratch_.path("data"), FileMode::read)).value();
  AlignedBuffer memory = AlignedBuffer::allocate(kMiB).value();
  engine->read(file, 0, kMiB, {memory.data(), kMiB}, 0).or_throw();
  Completion completion;
  EXPECT_EQ(engine->poll({&completion, 1}).status().code(), Errc::timeout);
}

/// A disk that gives the last request first, one at each wait.
class Backwards final : public Queue {
 public:
  const char* name() const override { return "backwards"; }
  int capacity() const override { return 8; }
  void push(const QueueRequest& request) override { pushed_.push_back(request); }
  base::Status submit() override { return {}; }
  base::Result<size_t> wait(std::span<QueueResult> results, int64_t) override {
    if (pushed_.empty()) return size_t{0};
    results[0] = {pushed_.back().id, pushed_.back().bytes};
    pushed_.pop_back();
    return size_t{1};
  }

 private:
  std::vector<QueueRequest> pushed_;
};

TEST(PacedQueue, ServesInOrderThoughTheDiskBelowIsLateAndDoesNot) {
  const auto queue = with_pace({.bytes_per_s = int64_t{1} << 40})(std::make_unique<Backwards>());
  for (uint64_t id = 0; id < 5; ++id) queue->push({.bytes = 4096, .id = id});
  const Clock::time_point all_are_due = Clock::now() + std::chrono::milliseconds(2);
  while (Clock::now() < all_are_due) {
  }
  std::vector<uint64_t> ids;
  QueueResult results[8];
  while (ids.size() < 5) {
    const size_t n = queue->wait(results, 1000).value();
    for (size_t i = 0; i < n; ++i) ids.push_back(results[i].id);
  }
  EXPECT_EQ(ids, (std::vector<uint64_t>{0, 1, 2, 3, 4}));
}

TEST(PaceOptions, ARateBelowZeroIsRefused) {
  EXPECT_EQ(IoEngine::open({.pace_bytes_per_s = -5}).status().message(),
            "engine: pace_bytes_per_s is -5, wanted at least 0");
}

}  // namespace
}  // namespace overlace::io
