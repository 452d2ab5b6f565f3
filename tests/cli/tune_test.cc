// `overlace tune` as a command: measures, keeps, goes on where it stopped, and what it refuses.
#include <gtest/gtest.h>

#include "tests/cli/support/command.h"

namespace overlace::cli_test {
namespace {

Command command(const Directory& directory, const std::vector<std::string>& args) {
  Command out;
  out.args = {"tune"};
  out.args.insert(out.args.end(), args.begin(), args.end());
  out.env = {{"CUDA_VISIBLE_DEVICES", ""}, {"OVERLACE_PLAN_CACHE", directory / "plans.jsonl"}};
  out.directory = directory.path();
  out.limit_s = 300;
  return out;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in:\n" << text;
}

TEST(Tune, MeasuresOnceKeepsItAndGoesOn) {
  const Directory directory;
  const std::vector<std::string> shapes = {"--machine",         "cpu2",    "--shape",
                                           "gemm_rs:100x64x32", "--shape", "ag_gemm:64x64x32"};
  const Result first = run(command(directory, {"--machine", "cpu2", "--shape", "gemm_rs:100x64x32"}));
  ASSERT_EQ(first.exit, 0) << first.err;
  expect_part(first.out, "1 problem in ");
  expect_part(first.out, ": 1 measured, 0 measured before; auto changes at ");
  expect_part(first.out, "machine cpu2: cpu2, the argument machine\n");
  expect_part(directory.read("plans.jsonl"), "\"tier\":\"probe\"");
  std::vector<std::string> both = shapes;
  both.insert(both.end(), {"--json", "-"});
  const Result second = run(command(directory, both));
  ASSERT_EQ(second.exit, 0) << second.err;
  EXPECT_EQ(second.out.find("{\n"), 0u) << "nothing but JSON: " << second.out;
  expect_part(second.out, "\"schema\": \"overlace.tune/1\"");
  expect_part(second.out, "\"measured_before\": true");
  expect_part(second.out, "\"measured_before\": false");
  const Result third = run(command(directory, shapes));
  ASSERT_EQ(third.exit, 0) << third.err;
  expect_part(third.out, ": 0 measured, 2 measured before; auto changes at ");
  EXPECT_EQ(third.out.find("nan"), std::string::npos) << third.out;
}

TEST(Tune, StopsWhenItsTimeIsOver) {
  const Directory directory;
  const Result result = run(command(directory, {"--config", "tiny", "--tokens", "64,128", "--machine", "cpu2",
                                                "--seconds", "0.000001", "--json", "out.json"}));
  ASSERT_EQ(result.exit, 0) << result.err;
  expect_part(result.out, "0 problems in ");
  expect_part(result.out, "8 problems left, as --seconds were over: the same command goes on\n");
  expect_part(directory.read("out.json"), "\"tuned\": []");
}

TEST(Tune, RefusesBeforeAnythingRuns) {
  const Directory directory;
  const std::vector<std::string> shape = {"--shape", "gemm_rs:64x64x64"};
  const struct {
    std::vector<std::string> words;
    const char* error;
  } cases[] = {
      {{"--ranks", "1"}, "--ranks is 1, wanted 2 to 64"},
      {{"--backend", "tpu"}, "--backend is tpu, wanted auto, cpu or cuda_peer"},
      {{"--backend", "cuda_peer"}, "--backend is cuda_peer, wanted 2 GPUs at least, found 0"},
      {{"--dtype", "fp8"}, "--dtype is fp8, wanted fp32, bf16 or fp16"},
      {{"--seconds", "-1"}, "--seconds is -1, wanted 0 to "},
      {{"--cache", "no/such/plans.jsonl"}, "--cache"},
      {{"--machine", "none.json"}, "none.json"},
      {{}, "no machine file for CPU ranks"},
  };
  for (const auto& one : cases) {
    std::vector<std::string> words = shape;
    words.insert(words.end(), one.words.begin(), one.words.end());
    const Result result = run(command(directory, words));
    EXPECT_NE(result.exit, 0) << result.out;
    expect_part(result.err, one.error);
    EXPECT_TRUE(directory.entries().empty());
  }
  Command nowhere = command(directory, shape);
  nowhere.env.erase("OVERLACE_PLAN_CACHE");
  expect_part(run(nowhere).err, "neither --cache nor OVERLACE_PLAN_CACHE names a file, wanted one");
}

}  // namespace
}  // namespace overlace::cli_test
