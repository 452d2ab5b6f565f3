// Data of CPU ranks, what must not be timed, command lines and records of the benches.
#include "bench/common/record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "bench/common/arguments.h"
#include "bench/common/device.h"
#include "overlace/error.h"
#include "src/base/file.h"

namespace overlace::bench {
namespace {

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
