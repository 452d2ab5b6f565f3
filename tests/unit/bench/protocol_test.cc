// The protocol of the benches with made-up competitors and a made-up clock; data of CPU ranks; records.
#include "bench/common/protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/common/arguments.h"
#include "bench/common/record.h"
#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/statistics.h"

namespace overlace::bench {
namespace {

/// A clock that only calls move.
class FakeCrew final : public Crew {
 public:
  base::Status synchronize() override { return {}; }
  base::Status barrier() override {
    ++barriers;
    return {};
  }
  base::Result<double> max_over_ranks(double mine) override { return mine; }
  base::Status record_begin() override {
    begin_us_ = us;
    return {};
  }
  base::Status record_end() override { return {}; }
  base::Result<double> elapsed_us() override { return us - begin_us_; }
  ClockSample clocks() override {
    ClockSample sample;
    sample.ok = true;
    sample.sm_mhz = mhz.size() > 1 ? mhz.back() : 1500;
    if (mhz.size() > 1) mhz.pop_back();
    return sample;
  }
  double now_s() override { return us * 1e-6; }

  double us = 0;
  int barriers = 0;
  std::vector<double> mhz;

 private:
  double begin_us_ = 0;
};

/// Entrant i takes costs[i] us per call; wrong[i] is what verification says of it, from call `from` on.
class FakeSubject final : public Subject {
 public:
  FakeSubject(FakeCrew& crew, std::vector<double> costs) : crew_(crew), costs_(std::move(costs)) {}
  base::Status enqueue(size_t which, int turn) override {
    crew_.us += costs_[which];
    turns.insert(turn);
    ++calls[which];
    return failure;
  }
  base::Result<std::string> verify(size_t which, Check* check) override {
    check->sampled = 1;
    if (which == not_supported) return base::error(Errc::not_supported, "no such engine");
    return std::string(++verified[which] >= wrong_from[which] ? "made up" : "");
  }

  std::map<size_t, int> calls, verified;
  std::map<size_t, int> wrong_from = {{0, 99}, {1, 99}, {2, 99}};
  std::set<int> turns;
  size_t not_supported = 99;
  base::Status failure;

 private:
  FakeCrew& crew_;
  std::vector<double> costs_;
};

ProtocolOptions quick() {
  ProtocolOptions options;
  options.repetitions = 5;
  options.burst_ms = 10;
  options.warm_s = 0.01;
  options.settle_s = 1;
  return options;
}

TEST(Protocol, TimesWhatIsRight) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 250});
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"b"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->wrong, 0);
  EXPECT_FALSE(outcome->unsettled);
  ASSERT_EQ(entrants[0].samples_us.size(), 5u);
  EXPECT_NEAR(base::median(entrants[0].samples_us), 100, 1e-6);
  EXPECT_NEAR(base::median(entrants[1].samples_us), 250, 1e-6);
  EXPECT_EQ(entrants[0].calls, 100);  // 10 ms
  EXPECT_EQ(entrants[1].calls, 40);
  EXPECT_EQ(subject.verified[0], 2);  // before and after
  EXPECT_GT(*subject.turns.rbegin(), 100) << "operand sets are not rotated";
}

TEST(Protocol, NeverTimesWhatIsWrong) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100, 100});
  subject.wrong_from[1] = 1;
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"wrong"}, Entrant{"c"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->wrong, 1);
  EXPECT_EQ(entrants[1].status, "wrong");
  EXPECT_EQ(entrants[1].reason, "made up");
  EXPECT_FALSE(entrants[1].is_timed());
  EXPECT_EQ(subject.calls[1], 0);
  EXPECT_TRUE(entrants[2].is_timed());
}

TEST(Protocol, TakesBackWhatIsWrongAfterwards) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100});
  subject.wrong_from[0] = 2;
  std::vector<Entrant> entrants = {Entrant{"stale"}, Entrant{"b"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->wrong, 1);
  EXPECT_GT(subject.calls[0], 100);
  EXPECT_FALSE(entrants[0].is_timed());
  EXPECT_TRUE(entrants[1].is_timed());
}

TEST(Protocol, VerifyOnlyTimesNothing) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100});
  ProtocolOptions options = quick();
  options.verify_only = true;
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"part"}};
  entrants[1].has_output = false;
  ASSERT_TRUE(run_case(&entrants, subject, crew, options).ok());
  EXPECT_EQ(subject.calls[0], 0);
  EXPECT_EQ(subject.calls[1], 1);  // it runs at least
  EXPECT_FALSE(entrants[0].is_timed());
}

TEST(Protocol, LeavesOutWhatIsNotThereAndEndsAtFailures) {
  FakeCrew crew;
  FakeSubject subject(crew, {100, 100});
  subject.not_supported = 1;
  std::vector<Entrant> entrants = {Entrant{"a"}, Entrant{"b"}};
  const auto outcome = run_case(&entrants, subject, crew, quick());
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->wrong, 0);
  EXPECT_EQ(entrants[1].status, "unsupported");
  EXPECT_EQ(entrants[1].reason, "no such engine");
  subject.failure = base::error(Errc::timeout, "waited for rank 1");
  entrants = {Entrant{"a"}};
  EXPECT_EQ(run_case(&entrants, subject, crew, quick()).status().code(), Errc::timeout);
}

TEST(Protocol, WarmsUpUntilTheClockSettles) {
  FakeCrew settles, wanders;
  // Read from the back: falling clocks, then steady ones.
  settles.mhz = {1400, 1400, 1402, 1405, 1500, 1700, 1900};
  for (int i = 0; i < 100000; ++i) wanders.mhz.push_back(i % 2 == 0 ? 1400 : 1700);
  for (FakeCrew* crew : {&settles, &wanders}) {
    FakeSubject subject(*crew, {100});
    std::vector<Entrant> entrants = {Entrant{"a"}};
    const auto outcome = run_case(&entrants, subject, *crew, quick());
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->unsettled, crew == &wanders);
  }
}

TEST(Protocol, OrdersAreThoseOfThePythonTwin) {
  const std::vector<size_t> want = {3, 4, 5, 0, 1, 2};  // tests/bench/driver_test.py
  EXPECT_EQ(burst_order(6, 0, 1), want);
  EXPECT_EQ(burst_order(6, 1, 1), std::vector<size_t>(want.rbegin(), want.rend()));
  EXPECT_EQ(burst_order(6, 2, 1), (std::vector<size_t>{0, 3, 1, 4, 5, 2}));
}

TEST(Data, AreThoseOfThePythonTwin) {
  const auto device = cpu_device();
  const struct {
    Normal normal;
    float want;
  } values[] = {{{1, 1, 1, 0, 0}, -0.5419128606f},
                {{1, 1000, 0.5, 5, 77}, -0.00044343173f},
                {{7, 3, 1, 123456, 8191}, -1.4723134139f}};
  for (const auto& one : values) {
    float cell = 0;
    ASSERT_TRUE(device->fill(TensorView::contiguous(&cell, DType::fp32, {1, 1}), one.normal).ok());
    EXPECT_NEAR(cell, one.want, 1e-6);
  }
}

std::vector<float> filled(const Normal& normal) {
  std::vector<float> values(4096);
  const auto device = cpu_device();
  device->fill(TensorView::contiguous(values.data(), DType::fp32, {64, 64}), normal).or_throw();
  return values;
}

TEST(Data, NormalValuesMayBeTimed) {
  EXPECT_EQ(low_entropy(filled({.seed = 3})), "");
  EXPECT_EQ(low_entropy(filled({.seed = 4, .stream = 9, .scale = 0.01})), "");
}

TEST(Data, LowEntropyIsRefused) {
  std::vector<float> zeros(4096), uniform(4096), integers(4096), ramp(4096);
  for (size_t i = 0; i < ramp.size(); ++i) {
    const uint64_t h = mix(i * kGoldenRatio);
    ramp[i] = static_cast<float>(i);
    integers[i] = static_cast<float>(h % 9) - 4;
    uniform[i] = 0.5f + static_cast<float>(h >> 40) * 0x1p-25f;  // [0.5, 1): 30 % faster than normal data
  }
  EXPECT_NE(low_entropy(zeros), "");
  EXPECT_NE(low_entropy(uniform), "");
  EXPECT_NE(low_entropy(integers), "");
  EXPECT_NE(low_entropy(ramp), "");
  EXPECT_NE(low_entropy(filled({.is_ramp = true})), "");
}

TEST(Data, OneWrongElementIsSeen) {
  const auto device = cpu_device();
  std::vector<float> a = filled({.seed = 1}), b = a;
  const auto view = [](std::vector<float>& v) { return TensorView::contiguous(v.data(), DType::fp32, {64, 64}); };
  EXPECT_TRUE(device->compare(view(a), view(b))->same_bits);
  b[4095] += 0.5f;
  const auto difference = device->compare(view(a), view(b));
  EXPECT_FALSE(difference->same_bits);
  EXPECT_NEAR(difference->max_abs, 0.5, 1e-6);
  EXPECT_NEAR(difference->rms, 1, 0.1);
  b[7] = NAN;
  EXPECT_GT(device->compare(view(a), view(b))->max_abs, 1e200);
}

void parse(Arguments arguments, std::vector<std::string> words) {
  words.insert(words.begin(), "/somewhere/bench_x");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  arguments.parse(static_cast<int>(argv.size()), argv.data());
}

TEST(Options, AreTakenWholeOrRefused) {
  RunFacts run;
  int n = 1;
  double x = 1;
  bool flag = false;
  std::vector<std::string> list;
  Arguments arguments(&run);
  arguments.add("--n", &n, 1);
  arguments.add("--x", &x, 0.0);
  arguments.add("--flag", &flag);
  arguments.add("--list", &list);
  parse(arguments, {"--n", "7", "--flag", "--x", "2.5", "--list", "a,b:2", "--git", "abc"});
  EXPECT_EQ(n, 7);
  EXPECT_EQ(x, 2.5);
  EXPECT_TRUE(flag);
  EXPECT_EQ(list, (std::vector<std::string>{"a", "b:2"}));
  EXPECT_EQ(run.git, "abc");
  EXPECT_EQ(run.command, "bench_x --n 7 --flag --x 2.5 --list a,b:2 --git abc");
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--n", "0"}, {"--n", "7x"}, {"--n"}, {"--x", "nan"}, {"--m", "1"}}) {
    try {
      parse(arguments, bad);
      ADD_FAILURE() << bad[0] << " was taken";
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find(bad[0]), std::string::npos) << e.what();
    }
  }
}

TEST(Records, CarryTheHashOfTheirContent) {
  const std::string path = ::testing::TempDir() + "overlace_record_test.jsonl";
  std::remove(path.c_str());
  RunFacts run;
  run.out = path;
  base::Json shape = base::Json::object();
  shape.set("name", "x");
  const base::Json record = new_record({run, base::Json::object()}, "cpu", shape, "overlace");
  ASSERT_TRUE(append_records(run, {record, record}).ok());
  const auto text = base::read_file(path);
  ASSERT_TRUE(text.ok());
  const std::string line = text->substr(0, text->find('\n'));
  EXPECT_EQ(*text, line + "\n" + line + "\n");
  const auto json = base::Json::parse(line);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->find("id")->as_string().size(), 16u);
  run.out = "/nonexistent/file";
  EXPECT_EQ(append_records(run, {record}).code(), Errc::io);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace overlace::bench
