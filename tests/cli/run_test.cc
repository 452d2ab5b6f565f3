// The main job as a user runs it: results, files, every way to start ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <regex>

#include "overlace/machine.h"
#include "src/base/json.h"
#include "tests/cli/support/command.h"
#include "tests/cli/support/files.h"

namespace overlace::cli_test {
namespace {

using base::Json;

const std::map<std::string, std::string> kNoGpu = {{"CUDA_VISIBLE_DEVICES", ""}, {"OVERLACE_TIMEOUT_S", "60"}};

/// A run of the small model in `directory`: quick, and small enough that a wrong element is seen.
Command small_run(const Directory& directory, std::vector<std::string> more) {
  directory.write("config.json", small_config());
  Command command;
  command.args = {"run", "--config", "./config.json", "--tokens", "24", "--sequence-length", "8", "--repeat", "1"};
  command.args.insert(command.args.end(), more.begin(), more.end());
  command.env = kNoGpu;
  command.directory = directory.path();
  return command;
}

std::vector<float> npy_values(const std::string& bytes) {
  const size_t begin = bytes.find('\n') + 1;
  std::vector<float> out((bytes.size() - begin) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + begin, out.size() * sizeof(float));
  return out;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

/// What a run says in r.json; right if it is not more wrong than fp32 rounds, nor compared with itself.
void read_right_result(const Directory& directory, Json* json) {
  const auto parsed = Json::parse(directory.read("r.json"));
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->find("ok")->as_bool());
  EXPECT_GT(parsed->find("error")->as_double(), 0);
  EXPECT_LT(parsed->find("error")->as_double(), 1e-4);
  *json = *parsed;
}

/// Plans what the run poses at a site with `overlace plan`, which keeps it in plans.jsonl.
Result plan_for(const Directory& directory, const Json& site, const std::map<std::string, std::string>& env) {
  Command command;
  command.args = {"plan", site.find("op")->as_string(), "--machine", "cpu2", "--tier", "simulation", "-n", "2"};
  for (const char* key : {"m", "n", "k"}) {
    command.args.push_back(std::string("--") + key);
    command.args.push_back(std::to_string(site.find(key)->as_int()));
  }
  command.args.insert(command.args.end(), {"--dtype", "fp32"});
  command.env = env;
  command.directory = directory.path();
  return run(command);
}

TEST(Run, GivesATrueResultOverTwoProcesses) {
  Directory directory;
  const Result result = run(small_run(directory, {"-n", "2", "--json", "r.json", "--output", "y.npy"}));
  ASSERT_EQ(result.exit, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("\nok\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("EMULATED"), std::string::npos);
  Json json;
  ASSERT_NO_FATAL_FAILURE(read_right_result(directory, &json));
  EXPECT_EQ(json.find("schema")->as_string(), "overlace.run/1");
  EXPECT_TRUE(json.find("emulated")->as_bool());
  EXPECT_EQ(json.find("backend")->as_string(), "cpu");
  EXPECT_EQ(json.find("ranks")->as_int(), 2);
  ASSERT_EQ(json.find("sites")->as_array().size(), 4u);
  for (const Json& site : json.find("sites")->as_array()) {
    EXPECT_EQ(site.find("m")->as_int(), 24);
    for (const char* key : {"serial_us", "overlapped_us", "limit_us"})
      EXPECT_GT(site.find(key)->as_double(), 0) << site.find("name")->as_string() << " " << key;
    EXPECT_FALSE(site.find("reason")->as_string().empty());
  }
  const Json& all = *json.find("total");
  EXPECT_GT(all.find("stack_limit_us")->as_double(), 0);
  EXPECT_LE(all.find("stack_limit_us")->as_double(), all.find("serial_us")->as_double());
  EXPECT_EQ(npy_values(directory.read("y.npy")).size(), 24u * 16);
}

TEST(Run, RunsExpertsThatRanksCannotShareEqually) {
  for (const char* ranks : {"1", "2", "3"}) {
    Directory directory;
    Command command;
    command.args = {"run", "--config", "tiny-moe", "-n",     ranks,  "--tokens", "50",     "--sequence-length",
                    "10",  "--repeat", "1",        "--link", "none", "--json",   "r.json", "--micro-batch",
                    "20"};
    command.env = kNoGpu;
    command.directory = directory.path();
    const Result result = run(command);
    ASSERT_EQ(result.exit, 0) << ranks << " ranks: " << result.out << result.err;
    Json json;
    ASSERT_NO_FATAL_FAILURE(read_right_result(directory, &json));
    ASSERT_EQ(json.find("sites")->as_array().size(), 3u);
    const Json& moe = json.find("sites")->as_array().back();
    EXPECT_EQ(moe.find("name")->as_string(), "moe");
    EXPECT_EQ(moe.find("op")->as_string(), "moe");
    EXPECT_EQ(moe.find("experts")->as_int(), 10);
    EXPECT_EQ(moe.find("top_k")->as_int(), 2);
    EXPECT_EQ(moe.find("m")->as_int(), 20) << "of a micro-batch";
    EXPECT_EQ(moe.find("n")->as_int(), 256);
    EXPECT_EQ(moe.find("k")->as_int(), 384);
    EXPECT_EQ(moe.find("layers")->as_int(), 2);
    EXPECT_GT(moe.find("serial_us")->as_double(), 0);
    EXPECT_EQ(moe.find("overlapped_us")->as_double(), moe.find("serial_us")->as_double());
    for (const char* key : {"limit_us", "hidden", "library_us", "compute_us", "comm_us"})
      EXPECT_TRUE(moe.find(key)->is_null()) << key;
    const double load = moe.find("load")->as_double();
    EXPECT_GE(load, 1);
    EXPECT_LE(load, ranks[0] - '0');
    EXPECT_NE(result.out.find("moe: the only way: 2 of 10 experts for each token"), std::string::npos) << result.out;
  }
}

TEST(Run, PartMoeRunsRouterAndExpertsAlone) {
  for (const char* ranks : {"1", "3"}) {
    Directory directory;
    directory.write("config.json", R"({"model_type": "deepseek_v3", "hidden_size": 16, "intermediate_size": 8,
      "num_hidden_layers": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
      "moe_intermediate_size": 6, "n_shared_experts": 2, "first_k_dense_replace": 1})");
    Command command;
    command.args = {"run",
                    "--part",
                    "moe",
                    "--config",
                    "./config.json",
                    "-n",
                    ranks,
                    "--tokens",
                    "20",
                    "--sequence-length",
                    "10",
                    "--micro-batch",
                    "10",
                    "--link",
                    "none",
                    "--repeat",
                    "1",
                    "--json",
                    "r.json",
                    "--trace",
                    "timeline.json",
                    "--report",
                    "r.html"};
    command.env = kNoGpu;
    command.directory = directory.path();
    const Result result = run(command);
    ASSERT_EQ(result.exit, 0) << ranks << " ranks: " << result.out << result.err;
    Json json;
    ASSERT_NO_FATAL_FAILURE(read_right_result(directory, &json));
    EXPECT_EQ(json.find("part")->as_string(), "moe");
    EXPECT_EQ(json.find("layers")->as_int(), 2) << "those with experts";
    ASSERT_EQ(json.find("sites")->as_array().size(), 1u);
    const Json& moe = json.find("sites")->as_array().front();
    EXPECT_EQ(moe.find("name")->as_string(), "moe");
    EXPECT_EQ(moe.find("m")->as_int(), 10);
    EXPECT_EQ(moe.find("layers")->as_int(), 2);
    EXPECT_GT(moe.find("serial_us")->as_double(), 0);
    EXPECT_TRUE(json.find("total")->find("hidden")->is_null());
    const std::string timeline = directory.read("timeline.json");
    for (const char* span : {"moe router", "moe experts and exchange", "moe shared expert"})
      EXPECT_NE(timeline.find(span), std::string::npos) << span;
    EXPECT_EQ(timeline.find("attention"), std::string::npos);
    EXPECT_NE(result.out.find("router and experts of 2 layers"), std::string::npos) << result.out;
    EXPECT_NE(directory.read("r.html").find("part of a layer"), std::string::npos);
  }
}

TEST(Run, PartMoeIsRefusedWhereItCannotBe) {
  struct Refused {
    std::vector<std::string> more;
    int exit;
    const char* message;
  };
  for (const Refused& refused : std::initializer_list<Refused>{
           {{"--part", "mlp"}, 2, "--part is mlp, wanted all or moe"},
           {{"--part", "moe", "--config", "tiny"},
            2,
            "tiny: --part is moe, but no layer has experts, wanted all, or a model with experts"},
           {{"--part", "moe", "--device-memory", "100MiB"},
            3,
            "device_bytes is 104857600, wanted 0: tiny-moe has experts, and those do not stream"},
           {{"--part", "moe", "--schedule", "serial"},
            2,
            "--schedule is serial, but nothing that --part moe runs takes one, wanted auto"},
           {{"--part", "moe", "--config", "DeepSeek-V3", "--layers", "59"},
            2,
            "layers is 59, wanted 1 to 58, the layers with experts of DeepSeek-V3"},
           {{"--config", "DeepSeek-V3"},
            3,
            "DeepSeek-V3: key \"kv_lora_rank\" is 512; supported: model_type deepseek_v3 with `overlace run --part "
            "moe` "
            "alone, its router and experts"}}) {
    Directory directory;
    Command command;
    command.args = {"run", "--backend", "cpu"};
    command.args.insert(command.args.end(), refused.more.begin(), refused.more.end());
    command.env = kNoGpu;
    command.directory = directory.path();
    const Result result = run(command);
    EXPECT_EQ(result.exit, refused.exit) << result.err;
    EXPECT_NE(result.err.find(refused.message), std::string::npos) << result.err;
  }
}

TEST(Run, TheTimelineHasThePartsOfTheExperts) {
  Directory directory;
  directory.write("config.json", R"({"model_type": "qwen2_moe", "hidden_size": 16, "intermediate_size": 8,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 3,
      "num_experts_per_tok": 2,
      "moe_intermediate_size": 6, "shared_expert_intermediate_size": 10, "mlp_only_layers": [0]})");
  Command command;
  command.args = {"run",      "--config", "./config.json", "-n",     "2",       "--tokens",     "16",
                  "--repeat", "1",        "--json",        "r.json", "--trace", "timeline.json"};
  command.env = kNoGpu;
  command.directory = directory.path();
  const Result result = run(command);
  ASSERT_EQ(result.exit, 0) << result.out << result.err;
  const Json json = Json::parse(directory.read("r.json")).value();
  std::string sites;
  for (const Json& site : json.find("sites")->as_array())
    sites += site.find("name")->as_string() + base::format(" {} ", site.find("layers")->as_int());
  EXPECT_EQ(sites, "qkv 2 o_proj 2 gate_up 1 down 1 moe 1 ");
  const std::string timeline = directory.read("timeline.json");
  for (const char* span : {"moe router", "moe experts and exchange", "moe shared expert"}) {
    size_t found = 0;
    for (size_t at = timeline.find(span); at != std::string::npos; at = timeline.find(span, at + 1)) ++found;
    EXPECT_EQ(found, 4u) << span << ": two ranks, serial and overlapped, one layer";
  }
}

TEST(Run, TakesWhatThePlanCacheKeeps) {
  Directory directory;
  const auto reasons = [&](std::map<std::string, std::string> env, const char* link = "none") {
    Command command = small_run(directory, {"-n", "2", "--json", "r.json", "--link", link});
    command.env.insert(env.begin(), env.end());
    const Result result = run(command);
    EXPECT_EQ(result.exit, 0) << result.err;
    return Json::parse(directory.read("r.json")).value();
  };
  std::map<std::string, std::string> env = {{"OVERLACE_PLAN_CACHE", directory.path() + "/plans.jsonl"}};
  const Json before = reasons(env);
  const Json& first = before.find("sites")->as_array().front();
  auto plan_env = env;
  plan_env.insert(kNoGpu.begin(), kNoGpu.end());
  const Result planned = plan_for(directory, first, plan_env);
  ASSERT_EQ(planned.exit, 0) << planned.err;
  const auto count_kept = [](const Json& json) {
    size_t kept = 0;
    for (const Json& site : json.find("sites")->as_array())
      kept += site.find("reason")->as_string().find("plans.jsonl") != std::string::npos ? 1 : 0;
    return kept;
  };
  EXPECT_EQ(count_kept(before), 0u);
  EXPECT_EQ(count_kept(reasons(env)), 0u) << "the machine of CPU ranks is only known by OVERLACE_MACHINE";
  env["OVERLACE_MACHINE"] = "cpu2";
  const Json after = reasons(env);
  EXPECT_GE(count_kept(after), 1u);
  const std::string reason = after.find("sites")->as_array().front().find("reason")->as_string();
  EXPECT_TRUE(reason.starts_with("simulation: ")) << reason;
  EXPECT_EQ(count_kept(reasons(env, "200MB/s,20us")), 0u) << "the machine's link is another one";
  env["OVERLACE_MACHINE"] = "h200x4";
  EXPECT_EQ(count_kept(reasons(env)), 0u) << "a machine of GPUs says nothing of CPU ranks";
}

TEST(Run, ExplainsEachChoiceOnce) {
  Directory directory;
  Command command = small_run(directory, {"-n", "2", "--quiet", "--link", "none"});
  command.env["OVERLACE_EXPLAIN"] = "1";
  directory.write("mine.json", spec::to_json(spec::find_machine("cpu2")));
  for (const std::string machine : {"cpu2", "mine.json"}) {
    command.env["OVERLACE_MACHINE"] = machine;
    const Result result = run(command);
    ASSERT_EQ(result.exit, 0) << result.err;
    std::map<std::string, int> lines;
    for (size_t at = result.err.find("overlace: "); at != std::string::npos; at = result.err.find("overlace: ", at + 1))
      ++lines[result.err.substr(at, result.err.find('\n', at) - at)];
    EXPECT_GE(lines.size(), 2u) << result.err;
    for (const auto& [line, count] : lines) {
      EXPECT_EQ(count, 1) << line;
      EXPECT_TRUE(line.ends_with("[" + machine + ", OVERLACE_MACHINE]")) << line;
      EXPECT_NE(line.find(" G 2 "), std::string::npos) << line;
    }
  }
  command.env["OVERLACE_EXPLAIN"] = "0";
  EXPECT_EQ(run(command).err.find("overlace: "), std::string::npos);
}

TEST(Run, GivesTheSameHiddenStatesOverAnyRanks) {
  Directory directory;
  directory.write("x.npy", npy("(24, 16)", floats(24 * 16, -0.04f)));
  std::vector<std::vector<float>> outputs;
  const std::vector<std::vector<std::string>> ways = {
      {"-n", "1"}, {"-n", "2"}, {"-n", "2", "--threads"}, {"-n", "2", "--schedule", "uniform_fused_1d:3"}};
  for (size_t i = 0; i < ways.size(); ++i) {
    const std::string file = "y" + std::to_string(i) + ".npy";
    std::vector<std::string> args = ways[i];
    args.insert(args.end(), {"--input", "x.npy", "--output", file, "--quiet", "--link", "none"});
    const Result result = run(small_run(directory, args));
    ASSERT_EQ(result.exit, 0) << result.err;
    EXPECT_EQ(result.out, "");
    outputs.push_back(npy_values(directory.read(file)));
    ASSERT_EQ(outputs.back().size(), 24u * 16);
  }
  for (size_t i = 1; i < outputs.size(); ++i) EXPECT_LT(largest_difference(outputs[0], outputs[i]), 1e-5) << i;
  EXPECT_EQ(outputs[1], outputs[2]) << "threads and processes run the same schedules";
  EXPECT_GT(largest_difference(outputs[0], std::vector<float>(24 * 16)), 0.01);
}

TEST(Run, TakesEveryScheduleFamily) {
  Directory directory;
  for (const char* family : {"serial", "library", "shard_p2p", "uniform_fused_1d:2", "hetero_fused_1d:2",
                             "hetero_unfused_1d:2", "uniform_fused_2d:2"}) {
    const Result result = run(small_run(directory, {"--threads", "-n", "2", "--schedule", family, "--json", "-"}));
    ASSERT_EQ(result.exit, 0) << family << ": " << result.err;
    const auto json = Json::parse(result.out);
    ASSERT_TRUE(json.ok()) << result.out;
    for (const Json& site : json->find("sites")->as_array()) {
      EXPECT_EQ(site.find("schedule")->as_string(), family);
      EXPECT_EQ(site.find("reason")->as_string(), std::string("asked for: --schedule ") + family);
    }
  }
}

TEST(Run, TakesAScheduleForEachOperator) {
  Directory directory;
  const char* const asked = "ag_gemm=serial,gemm_rs=tracked";
  const Result result = run(small_run(directory, {"--threads", "-n", "2", "--schedule", asked, "--json", "-"}));
  ASSERT_EQ(result.exit, 0) << result.err;
  const auto json = Json::parse(result.out);
  ASSERT_TRUE(json.ok()) << result.out;
  for (const Json& site : json->find("sites")->as_array())
    EXPECT_EQ(site.find("schedule")->as_string(), site.find("op")->as_string() == "ag_gemm" ? "serial" : "tracked");
}

TEST(Run, ReadsACheckpoint) {
  Directory directory;
  directory.write("ckpt/config.json", small_config());
  directory.write("ckpt/model.safetensors", safetensors(small_tensors()));
  Command command;
  command.args = {"run", "--checkpoint", "ckpt", "--tokens", "8", "-n", "2", "--repeat", "1", "--quiet"};
  command.env = kNoGpu;
  command.directory = directory.path();
  const Result result = run(command);
  EXPECT_EQ(result.exit, 0) << result.err;
}

TEST(Run, WritesTimelineAndReport) {
  Directory directory;
  const Result result = run(small_run(directory, {"-n", "2", "--trace", "t.json", "--report", "r.html", "--quiet"}));
  ASSERT_EQ(result.exit, 0) << result.err;
  const auto trace = Json::parse(directory.read("t.json"));
  ASSERT_TRUE(trace.ok());
  ASSERT_NE(trace->find("traceEvents"), nullptr);
  EXPECT_GT(trace->find("traceEvents")->as_array().size(), 20u);
  const std::string page = directory.read("r.html");
  EXPECT_NE(page.find("{\"part\":\"timelines\","), std::string::npos);
  EXPECT_NE(page.find("{\"badge\":\"emulated link "), std::string::npos);
  EXPECT_EQ(directory.entries(), (std::set<std::string>{"config.json", "t.json", "r.html"}));
  Command convert;
  convert.args = {"trace", "convert", "t.json", "t.pftrace"};
  convert.directory = directory.path();
  EXPECT_EQ(run(convert).exit, 0);
  Command info;
  info.args = {"trace", "info", "t.pftrace"};
  info.directory = directory.path();
  EXPECT_NE(run(info).out.find("2 ranks"), std::string::npos);
}

TEST(Run, JoinsRanksThatSomebodyElseStarted) {
  Directory directory;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Command command = small_run(directory, {"--json", "r.json", "--quiet"});
    command.env["RANK"] = command.env["LOCAL_RANK"] = std::to_string(rank);
    command.env["WORLD_SIZE"] = "2";
    // NOTE: g++ 12's LeakSanitizer crashes here in the thread-local storage of oneDNN, which is opened at run time. The
    // same ranks under our own launcher are checked for leaks by the other tests.
    command.env["ASAN_OPTIONS"] = "detect_leaks=0";
    command.env["MASTER_ADDR"] = "127.0.0.1";
    command.env["MASTER_PORT"] = std::to_string(20000 + ::getpid() % 20000);
    ranks.push_back(std::make_unique<Process>(command));
  }
  for (auto& rank : ranks) {
    const Result result = rank->wait();
    EXPECT_EQ(result.exit, 0) << result.err;
  }
  EXPECT_TRUE(Json::parse(directory.read("r.json"))->find("ok")->as_bool());
}

TEST(Run, StartsAProgramOnEmulatedHosts) {
  Command command;
  command.args = {"run",
                  "-n",
                  "4",
                  "--emulate-hosts",
                  "2",
                  "--",
                  "/bin/sh",
                  "-c",
                  "echo rank $RANK: $OVERLACE_HOST_ID, $NCCL_HOSTID, $NCCL_IB_DISABLE"};
  const Result result = run(command);
  EXPECT_EQ(result.exit, 0) << result.err;
  for (const char* line : {"rank 0: emulated host 0, overlace-emulated-0, 1", "rank 1: emulated host 0,",
                           "rank 2: emulated host 1, overlace-emulated-1, 1", "rank 3: emulated host 1,"})
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out;
  command.args[4] = "3";
  const Result refused = run(command);
  EXPECT_EQ(refused.exit, 2);
  EXPECT_NE(refused.err.find("--emulate-hosts is 3, wanted a divisor of the 4 ranks"), std::string::npos)
      << refused.err;
}

TEST(Run, StartsAnyProgram) {
  Command command;
  command.args = {"run", "-n", "3", "--", "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"};
  const Result result = run(command);
  EXPECT_EQ(result.exit, 0) << result.err;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_NE(result.out.find("rank " + std::to_string(rank) + " of 3\n"), std::string::npos) << result.out;
  command.args = {"run", "-n", "2", "--", "/bin/sh", "-c", "test $RANK = 0 || exit 7; exec sleep 100"};
  const Result failed = run(command);
  EXPECT_EQ(failed.exit, 7);
  EXPECT_LT(failed.seconds, 30);
}

TEST(CommandLine, KnowsItsVersionAndHelp) {
  Command command;
  command.args = {"--version"};
  const Result version = run(command);
  EXPECT_EQ(version.exit, 0);
  // The version of a release, or with the commit, where it was built in a checkout.
  const std::regex form("overlace \\d+\\.\\d+\\.\\d+(\\.dev\\d+(\\+g[0-9a-f]{12}(\\.dirty)?)?)?\n");
  EXPECT_TRUE(std::regex_match(version.out, form)) << version.out;
  command.args = {"run", "--help"};
  const Result help = run(command);
  EXPECT_EQ(help.exit, 0);
  for (const char* option : {"--ranks", "--config", "--checkpoint", "--layers", "--tokens", "--sequence-length",
                             "--dtype", "--schedule", "--backend", "--seed", "--link", "--input", "--output", "--json",
                             "--trace", "--report", "--repeat", "--quiet", "--threads"})
    EXPECT_NE(help.out.find(option), std::string::npos) << option;
  EXPECT_EQ(help.out.find("--error-fd"), std::string::npos);
}

}  // namespace
}  // namespace overlace::cli_test
