// `overlace calibrate` as a command: a file that the other subcommands read, and what it refuses.
#include <gtest/gtest.h>

#include "tests/cli/support/command.h"

namespace overlace::cli_test {
namespace {

Command command(const Directory& directory, std::vector<std::string> args) {
  Command out;
  out.args = std::move(args);
  out.env = {{"CUDA_VISIBLE_DEVICES", ""}};
  out.directory = directory.path();
  out.limit_s = 300;
  return out;
}

TEST(Calibrate, WritesAMachineThatCanBePlannedFor) {
  const Directory directory;
  // Whatever else runs here, a file comes out; a good one would take longer.
  const Result result = run(command(directory, {"calibrate", "-n", "2", "--minutes", "0.01", "--max-residual", "1e9",
                                                "--disk", ".", "--disk-size", "4MiB"}));
  ASSERT_EQ(result.exit, 0) << result.err;
  EXPECT_EQ(directory.entries(), std::set<std::string>{"here.json"});
  EXPECT_NE(result.out.find("held out p50"), std::string::npos) << result.out;
  const std::string text = directory.read("here.json");
  EXPECT_NE(text.find("\"name\": \"here\""), std::string::npos);
  EXPECT_NE(text.find("\"x-calibration\""), std::string::npos);
  for (const char* probe : {"store", "link", "duty"})
    EXPECT_NE(text.find("\"" + std::string(probe) + "\":["), std::string::npos) << probe;
  const Result offload = run(
      command(directory, {"plan", "offload", "--device-memory", "16GiB", "--machine", "here.json", "--tflops", "1"}));
  EXPECT_EQ(offload.exit, 0) << offload.err;
  EXPECT_EQ(offload.out.find("here has no figures of the disk"), std::string::npos) << offload.out;
  EXPECT_NE(offload.out.find("here has no figures of the host link"), std::string::npos) << offload.out;
  for (const char* tier : {"recurrence", "simulation"}) {
    const Result plan = run(command(directory, {"plan", "ag_gemm", "--m", "512", "--n", "512", "--k", "512", "--dtype",
                                                "fp32", "--machine", "here.json", "--tier", tier}));
    EXPECT_EQ(plan.exit, 0) << plan.err;
    EXPECT_NE(plan.out.find("machine here"), std::string::npos) << plan.out;
    EXPECT_NE(plan.out.find("library"), std::string::npos) << plan.out;
  }
}

TEST(Calibrate, AFitThatIsWorseThanAskedForLeavesNoFile) {
  const Directory directory;
  const Result result =
      run(command(directory, {"calibrate", "--minutes", "0.01", "--max-residual", "0.0001", "--out", "m.json"}));
  EXPECT_EQ(result.exit, 3) << result.err;
  // On a busy machine there may be no line through what was measured: that is no fit either.
  const bool is_refused = result.err.find("points that no fit has seen") != std::string::npos ||
                          result.err.find("does not take longer for more bytes") != std::string::npos;
  EXPECT_TRUE(is_refused) << result.err;
  EXPECT_TRUE(directory.entries().empty());
}

TEST(PlanTierProbe, RunsTheBestForRealAndKeepsWhatItFound) {
  const Directory directory;
  Command probed = command(directory, {"plan", "gemm_rs", "--m", "256", "--n", "256", "--k", "256", "--dtype", "fp32",
                                       "--machine", "cpu2", "--tier", "probe"});
  probed.env["OVERLACE_PLAN_CACHE"] = directory / "plans.jsonl";
  const Result first = run(probed);
  ASSERT_EQ(first.exit, 0) << first.err;
  EXPECT_NE(first.out.find("| probe\n"), std::string::npos) << first.out;
  EXPECT_NE(first.out.find("library"), std::string::npos) << first.out;
  ASSERT_TRUE(directory.has("plans.jsonl"));
  EXPECT_EQ(run(probed).out, first.out) << "not measured again: the same times to the digit";
  directory.write("plans.jsonl", "{\"overlace_plan\": 1, \"key\"\n");
  const Result damaged = run(probed);
  EXPECT_EQ(damaged.exit, 0) << damaged.err;
  EXPECT_NE(damaged.err.find("1 of 1 lines are damaged"), std::string::npos) << damaged.err;
  EXPECT_NE(directory.read("plans.jsonl").find("\"tier\":\"probe\""), std::string::npos);
  Command absent = probed;
  absent.args[11] = "h200x4";
  const Result none = run(absent);
  EXPECT_EQ(none.exit, 3);
  EXPECT_NE(none.err.find("machine h200x4 has GPUs"), std::string::npos) << none.err;
}

TEST(Calibrate, BadWordsAreRefusedBeforeAnythingRuns) {
  const Directory directory;
  const struct {
    std::vector<std::string> words;
    const char* error;
  } cases[] = {
      {{"--ranks", "1"}, "--ranks is 1, wanted 2 to 16"},
      {{"--ranks", "two"}, "--ranks"},
      {{"--minutes", "0"}, "--minutes is 0, wanted more than 0 and at most 60"},
      {{"--max-residual", "-1"}, "--max-residual is -1, wanted at least 0"},
      {{"--max-residual", "nan"}, "--max-residual is nan, wanted at least 0"},
      {{"--name", "../evil/x"}, "--name is \"../evil/x\", wanted letters, digits, _ and -"},
      {{"--name", ""}, "--name is \"\", wanted letters, digits, _ and -"},
      {{"--name", "cpu2"}, "--name is cpu2, that of a shipped machine; wanted another name, or --out as well"},
      {{"--dtype", "i8"}, "--dtype is i8, wanted fp32, bf16 or fp16"},
      {{"--backend", "tpu"}, "--backend is tpu, wanted auto, cpu or cuda_peer"},
      {{"--out", "machine.txt"}, "--out is machine.txt, wanted a name in .json"},
  };
  for (const auto& one : cases) {
    std::vector<std::string> args = {"calibrate"};
    args.insert(args.end(), one.words.begin(), one.words.end());
    const Result result = run(command(directory, args));
    EXPECT_EQ(result.exit, 2) << one.error;
    EXPECT_NE(result.err.find(one.error), std::string::npos) << result.err;
  }
  for (const char* out : {"no/folder/m.json", "/proc/m.json/m.json"}) {
    const Result nowhere = run(command(directory, {"calibrate", "--name", "cpu2", "--out", out}));
    EXPECT_EQ(nowhere.exit, 5) << nowhere.err;
    EXPECT_NE(nowhere.err.find(std::string("--out: ") + out + " cannot be written: there is no directory"),
              std::string::npos)
        << nowhere.err;
    EXPECT_EQ(nowhere.out, "") << "no table: nothing was measured";
  }
  Command emulated = command(directory, {"calibrate"});
  emulated.env["OVERLACE_LINK"] = "1GB/s,10us";
  const Result result = run(emulated);
  EXPECT_EQ(result.exit, 2);
  EXPECT_NE(result.err.find("OVERLACE_LINK"), std::string::npos) << result.err;
  EXPECT_TRUE(directory.entries().empty());
}

}  // namespace
}  // namespace overlace::cli_test
