// Layers that do not fit: the bits of a run in which they do, from host memory and from files; what is refused.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "src/base/json.h"
#include "tests/cli/support/command.h"
#include "tests/cli/support/files.h"

namespace overlace::cli_test {
namespace {

using base::Json;

constexpr int kLayers = 5;
constexpr int64_t kHidden = 24, kInner = 36, kHeadDim = 4;

std::string config() {
  return small_config({{"hidden_size", "24"},
                       {"intermediate_size", "36"},
                       {"num_hidden_layers", std::to_string(kLayers)},
                       {"num_attention_heads", "6"},
                       {"num_key_value_heads", "6"},
                       {"head_dim", "4"}});
}

/// All layers; each tensor has other values.
std::string checkpoint() {
  const int64_t heads = 6 * kHeadDim, kv_heads = 6 * kHeadDim;
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {{"input_layernorm", {kHidden}},
                                                                            {"post_attention_layernorm", {kHidden}},
                                                                            {"self_attn.q_proj", {heads, kHidden}},
                                                                            {"self_attn.k_proj", {kv_heads, kHidden}},
                                                                            {"self_attn.v_proj", {kv_heads, kHidden}},
                                                                            {"self_attn.o_proj", {kHidden, heads}},
                                                                            {"mlp.gate_proj", {kInner, kHidden}},
                                                                            {"mlp.up_proj", {kInner, kHidden}},
                                                                            {"mlp.down_proj", {kHidden, kInner}}};
  Tensors out;
  uint32_t state = 1;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const auto& [name, shape] : shapes) {
      std::vector<float> values(static_cast<size_t>(shape.size() == 1 ? shape[0] : shape[0] * shape[1]));
      for (float& value : values) {
        state = state * 1664525u + 1013904223u;
        value = static_cast<float>(state >> 8) / 16777216.0f - (shape.size() == 1 ? 0.0f : 0.5f);
      }
      out["model.layers." + std::to_string(layer) + "." + name + ".weight"] = {
          "F32", shape, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
    }
  }
  return safetensors(out);
}

class Offload : public testing::Test {
 protected:
  void SetUp() override {
    directory_.write("config.json", config());
    directory_.write("ckpt/config.json", config());
    directory_.write("ckpt/model.safetensors", checkpoint());
  }
  Command command(bool is_stored, int ranks, std::vector<std::string> more) const {
    Command out;
    out.args = {"run", "-n", std::to_string(ranks), "--tokens", "36", "--sequence-length", "6", "--link", "none"};
    if (std::find(more.begin(), more.end(), "--repeat") == more.end()) more.insert(more.end(), {"--repeat", "1"});
    const std::vector<std::string> model = is_stored ? std::vector<std::string>{"--checkpoint", "ckpt"}
                                                     : std::vector<std::string>{"--config", "./config.json"};
    out.args.insert(out.args.end(), model.begin(), model.end());
    out.args.insert(out.args.end(), more.begin(), more.end());
    out.env = {{"CUDA_VISIBLE_DEVICES", ""}, {"OVERLACE_TIMEOUT_S", "60"}};
    out.directory = directory_.path();
    return out;
  }
  /// The hidden states after the last layer.
  std::string output(bool is_stored, int ranks, std::vector<std::string> more) {
    more.insert(more.end(), {"--output", "y.npy", "--json", "r.json"});
    const Result result = run(command(is_stored, ranks, more));
    EXPECT_EQ(result.exit, 0) << result.err << result.out;
    table_ = result.out;
    return result.exit == 0 ? directory_.read("y.npy") : "";
  }
  Json json() const { return Json::parse(directory_.read("r.json")).value(); }
  Json weights() const { return *json().find("weights"); }
  /// What two slots and the activations take.
  int64_t smallest(int ranks, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--device-memory", "1"});
    const Result result = run(command(false, ranks, more));
    EXPECT_EQ(result.exit, 7) << result.err;
    const std::string wanted = "wanted ";
    const size_t at = result.err.find(wanted);
    return at == std::string::npos ? 0 : std::stoll(result.err.substr(at + wanted.size()));
  }

  Directory directory_;
  std::string table_;
};

TEST_F(Offload, GivesTheBitsOfAResidentRun) {
  for (const int ranks : {1, 2, 3}) {
    const std::string size = std::to_string(smallest(ranks));
    const std::string seeded = output(false, ranks, {}), stored = output(true, ranks, {});
    EXPECT_NE(seeded, stored);
    EXPECT_TRUE(weights().is_null());
    EXPECT_TRUE(output(false, ranks, {"--device-memory", size}) == seeded) << ranks << " ranks, seeded";
    EXPECT_TRUE(output(true, ranks, {"--device-memory", size}) == stored) << ranks << " ranks, host";
    EXPECT_TRUE(output(true, ranks, {"--device-memory", size, "--weights", "disk"}) == stored)
        << ranks << " ranks, disk";
    const Json of = weights();
    EXPECT_EQ(of.find("source")->as_string(), "disk");
    EXPECT_EQ(of.find("device_bytes")->as_int(), std::stoll(size));
    EXPECT_EQ(of.find("streamed_layers")->as_int(), kLayers);
    EXPECT_EQ(of.find("resident_layers")->as_int(), 0);
    EXPECT_GT(of.find("transfer_us")->as_double(), 0);
    EXPECT_GE(of.find("transfer_us")->as_double(), of.find("disk_us")->as_double());
    EXPECT_LE(of.find("hidden")->as_double(), 1);
    EXPECT_FALSE(of.find("binds")->as_string().empty());
    EXPECT_NE(table_.find("\nweights     disk"), std::string::npos) << table_;
    EXPECT_NE(table_.find("weights: 5 of 5 layers of "), std::string::npos) << table_;
  }
}

TEST_F(Offload, KeepsWhatFits) {
  const std::string resident = output(true, 2, {});
  const int64_t least = smallest(2);
  output(true, 2, {"--device-memory", std::to_string(least)});
  const int64_t layer = weights().find("layer_bytes")->as_int();
  int64_t kept_before = -1;
  for (const auto& [layers, kept] : std::vector<std::pair<int, int>>{{2, 0}, {3, 1}, {4, 2}, {5, 5}}) {
    const std::string size = std::to_string(least + (layers - 2) * layer);
    EXPECT_TRUE(output(true, 2, {"--device-memory", size, "--weights", "disk"}) == resident) << layers;
    EXPECT_EQ(weights().find("resident_layers")->as_int(), kept);
    EXPECT_EQ(weights().find("streamed_layers")->as_int(), kLayers - kept);
    EXPECT_GT(kept, kept_before);
    kept_before = kept;
  }
  EXPECT_NE(table_.find("weights: all 5 layers fit into "), std::string::npos) << table_;
  EXPECT_TRUE(weights().find("hidden")->is_null());
  EXPECT_TRUE(output(true, 2, {"--device-memory", "1TiB"}) == resident);
}

TEST_F(Offload, WalksMicroBatchesThroughALayer) {
  const std::string whole = output(true, 2, {});
  for (const std::string batch : {"6", "24", "36"}) {  // 24 leaves a smaller one
    const std::vector<std::string> more = {"--micro-batch", batch};
    const std::string resident = output(true, 2, more);
    EXPECT_EQ(resident.size(), whole.size());
    EXPECT_EQ(json().find("micro_batch")->as_int(), std::stoi(batch));
    EXPECT_EQ(json().find("sites")->as_array()[0].find("m")->as_int(), std::stoi(batch));
    EXPECT_LT(json().find("error")->as_double(), 1e-4) << "against the oracle of all tokens";
    const std::string size = std::to_string(smallest(2, more));
    EXPECT_TRUE(output(true, 2, {"--micro-batch", batch, "--device-memory", size, "--weights", "disk"}) == resident)
        << batch;
  }
  EXPECT_LT(smallest(2, {"--micro-batch", "6"}), smallest(2)) << "activations are smaller";
  EXPECT_TRUE(output(true, 3, {"--micro-batch", "6", "--schedule", "library"}) ==
              output(true, 3,
                     {"--micro-batch", "6", "--schedule", "library", "--device-memory",
                      std::to_string(smallest(3, {"--micro-batch", "6"}))}));
}

/// Rows of the first rank, by tokens of a micro-batch.
int64_t first_rows(int64_t tokens, int ranks) { return (tokens + ranks - 1) / ranks; }

std::vector<std::string> in_micro_batches(int64_t tokens, int64_t device_bytes = 0) {
  std::vector<std::string> out = {"--micro-batch", std::to_string(tokens)};
  if (device_bytes > 0) out.insert(out.end(), {"--device-memory", std::to_string(device_bytes)});
  return out;
}

TEST_F(Offload, RestsActivationsInHostMemoryIfTheyMust) {
  for (const int ranks : {1, 2, 3})
    for (const int64_t batch : {6, 24}) {  // 24 leaves a smaller one
      const std::string where = std::to_string(ranks) + " ranks, micro-batches of " + std::to_string(batch);
      const int64_t least = smallest(ranks, in_micro_batches(batch));
      const std::string stored = output(true, ranks, in_micro_batches(batch));
      EXPECT_TRUE(json().find("activations")->is_null());
      EXPECT_TRUE(output(true, ranks, in_micro_batches(batch, least)) == stored) << where << ", host";
      std::vector<std::string> from_disk = in_micro_batches(batch, least);
      from_disk.insert(from_disk.end(), {"--weights", "disk"});
      EXPECT_TRUE(output(true, ranks, from_disk) == stored) << where << ", disk";
      const int64_t rows = batch == 6 ? 6 * first_rows(6, ranks) : first_rows(24, ranks) + first_rows(12, ranks);
      const std::string bytes = std::to_string(2 * rows * kHidden * 4);
      const Json activations = *json().find("activations");
      EXPECT_EQ(activations.find("resting_bytes")->as_int(), std::stoll(bytes)) << where;
      EXPECT_GT(activations.find("transfer_us")->as_double(), 0);
      EXPECT_NE(table_.find("\nactivations  host"), std::string::npos) << table_;
      EXPECT_NE(table_.find("activations: " + bytes + " bytes of a rank rest in host memory, "), std::string::npos)
          << table_;
    }
}

/// From there on they stay: three streams of all rows in place of two slots and what one micro-batch lacks.
TEST_F(Offload, KeepsActivationsThatFit) {
  const std::string seeded = output(false, 2, in_micro_batches(24));
  const int64_t least = smallest(2, in_micro_batches(24));
  const int64_t beside = least + 3 * first_rows(12, 2) * kHidden * 4;
  for (const int64_t size : {least, beside - 1, beside}) {
    EXPECT_TRUE(output(false, 2, in_micro_batches(24, size)) == seeded) << size;
    EXPECT_EQ(json().find("activations")->is_null(), size == beside) << size;
    EXPECT_EQ(weights().find("streamed_layers")->as_int(), kLayers) << size;
  }
}

TEST_F(Offload, ShowsWhatMovesInTimelineAndReport) {
  const std::vector<std::string> together = {"--micro-batch", "6"};
  const std::string size = std::to_string(smallest(2, together));
  const std::vector<std::string> more = {"--micro-batch", "6", "--device-memory", size};
  const std::string processes = output(true, 2, more);
  std::vector<std::string> on_threads = more;
  on_threads.insert(on_threads.end(), {"--threads", "--trace", "t.json", "--report", "r.html"});
  EXPECT_TRUE(output(true, 2, on_threads) == processes);
  const std::string timeline = directory_.read("t.json");
  for (const char* what : {"wait for activations", "io 1", "micro-batch 0 in", "micro-batch 5 in", "micro-batch 5 out"})
    EXPECT_NE(timeline.find(what), std::string::npos) << what;
  EXPECT_NE(directory_.read("r.html").find("activations of a rank in host memory"), std::string::npos);
}

TEST_F(Offload, StreamsOnThreadsAndIntoATimeline) {
  const std::string size = std::to_string(smallest(2));
  const std::string processes = output(true, 2, {"--device-memory", size});
  EXPECT_TRUE(output(true, 2, {"--device-memory", size, "--threads", "--trace", "t.json"}) == processes);
  const std::string timeline = directory_.read("t.json");
  EXPECT_NE(timeline.find("wait for weights"), std::string::npos);
  EXPECT_NE(timeline.find("io 0"), std::string::npos) << "the lane of transfers";
  for (const char* layer : {"layers.2", "layers.3"})
    EXPECT_NE(timeline.find(std::string("weights of ") + layer), std::string::npos) << layer;
}

TEST_F(Offload, RefusesWhatCannotBe) {
  const auto refused = [&](bool is_stored, std::vector<std::string> more, int exit, const std::string& text) {
    const Result result = run(command(is_stored, 2, more));
    EXPECT_EQ(result.exit, exit) << result.err;
    EXPECT_NE(result.err.find("overlace: error: " + text), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
  };
  refused(false, {"--device-memory", "8GB"}, 2, "--device-memory is 8GB, wanted bytes such as 8GiB, 512MiB or 1000000");
  refused(false, {"--device-memory", "-1"}, 2, "--device-memory is -1, wanted bytes such as");
  refused(false, {"--device-memory", "0"}, 2, "--device-memory is 0, wanted bytes such as");
  refused(false, {"--device-memory", "1MiB", "--weights", "disk"}, 2,
          "--weights is disk, but there is no --checkpoint, wanted one or --weights host");
  refused(true, {"--weights", "disk"}, 2, "--weights is disk without --device-memory, wanted both");
  refused(true, {"--device-memory", "1MiB", "--weights", "tape"}, 2, "--weights is tape, wanted host or disk");
  refused(false, {"--micro-batch", "7"}, 2,
          "--micro-batch is 7, wanted a multiple of the sequence length 6 and at most 36");
  refused(false, {"--micro-batch", "42"}, 2, "--micro-batch is 42, wanted a multiple of the sequence length 6");
  refused(false, {"--micro-batch", "0"}, 2, "--micro-batch is 0, wanted 1 to ");
  const int64_t least = smallest(2);
  refused(false, {"--device-memory", std::to_string(least - 1)}, 7,
          "--device-memory is " + std::to_string(least - 1) + ": device memory is " + std::to_string(least - 1) +
              " bytes, wanted " + std::to_string(least) + " or more: rank 0 has ");
  const int64_t in_slots = smallest(2, {"--micro-batch", "6"});
  refused(false, {"--micro-batch", "6", "--device-memory", std::to_string(in_slots - 1)}, 7,
          "--device-memory is " + std::to_string(in_slots - 1) + ": device memory is " + std::to_string(in_slots - 1) +
              " bytes, wanted " + std::to_string(in_slots) + " or more: rank 0 has ");
  directory_.write("ckpt/model.safetensors", checkpoint().substr(0, 9000));
  refused(true, {"--device-memory", std::to_string(least), "--weights", "disk"}, 5, "ckpt/model.safetensors: tensor ");
}

TEST_F(Offload, IsPlanned) {
  const auto planned = [&](std::vector<std::string> more) {
    Command command;
    command.args = {"plan", "offload"};
    command.args.insert(command.args.end(), more.begin(), more.end());
    command.directory = directory_.path();
    return run(command);
  };
  const Result text = planned({"--config", "Qwen3-32B", "--device-memory", "16GiB", "--host-memory", "128GiB"});
  EXPECT_EQ(text.exit, 0) << text.err;
  EXPECT_NE(text.out.find("a prediction: "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(" binds; what streams is hidden from "), std::string::npos) << text.out;
  // What is planned is what the run does.
  const int64_t size = smallest(2);
  const Result data = planned({"--config", "./config.json", "--device-memory", std::to_string(size), "--tokens", "36",
                               "--sequence-length", "6", "-n", "2", "--dtype", "fp32", "--json", "-"});
  ASSERT_EQ(data.exit, 0) << data.err;
  const Json plan = Json::parse(data.out).value();
  output(
      false, 2,
      {"--device-memory", std::to_string(size), "--micro-batch", std::to_string(plan.find("micro_batch")->as_int())});
  EXPECT_EQ(plan.find("layer_bytes")->as_int(), weights().find("layer_bytes")->as_int());
  EXPECT_EQ(plan.find("resident_layers")->as_int(), weights().find("resident_layers")->as_int());
  EXPECT_EQ(plan.find("disk_layers")->as_int(), weights().find("streamed_layers")->as_int());
  // The disk as it was measured.
  std::vector<std::string> measured = {"--config",
                                       "./config.json",
                                       "--device-memory",
                                       std::to_string(size),
                                       "--tokens",
                                       "36",
                                       "--sequence-length",
                                       "6",
                                       "--json",
                                       "-",
                                       "--tflops",
                                       "1",
                                       "--machine",
                                       "disk.json"};
  directory_.write("disk.json", R"({"overlace_machine": 1, "name": "mine", "storage": {"read_GBps":
      {"points": [[4096, 0.5], [1048576, 3.25]], "source": "measured", "x": "bytes"}}})");
  const Result by_machine = planned(measured);
  ASSERT_EQ(by_machine.exit, 0) << by_machine.err;
  const Json mine = Json::parse(by_machine.out).value();
  EXPECT_NEAR(mine.find("disk_bytes_per_s")->as_double(), 3.25e9, 1);
  EXPECT_EQ(mine.find("disk_origin")->as_string(), "measured, machine mine");
  EXPECT_EQ(mine.find("host_bytes_per_s")->as_double(), 55e9);
  EXPECT_NE(mine.find("host_origin")->as_string().find("assumed: machine mine has no figures of the host link"),
            std::string::npos);
  // Where activations leave, too.
  const std::string least = std::to_string(smallest(2, {"--micro-batch", "6"}));
  std::vector<std::string> words = {
      "--config", "./config.json", "--device-memory",   least, "--tokens", "36", "-n", "2",
      "--dtype",  "fp32",          "--sequence-length", "6"};
  EXPECT_NE(planned(words).out.find(" of a rank rest in host memory\n"), std::string::npos);
  words.insert(words.end(), {"--json", "-"});
  const Json moved = Json::parse(planned(words).out).value();
  EXPECT_EQ(moved.find("micro_batch")->as_int(), 6);
  output(false, 2, {"--device-memory", least, "--micro-batch", "6"});
  EXPECT_EQ(moved.find("resting_bytes")->as_int(), json().find("activations")->find("resting_bytes")->as_int());
  const auto refused = [&](std::vector<std::string> more, int exit, const std::string& message) {
    const Result result = planned(more);
    EXPECT_EQ(result.exit, exit);
    EXPECT_NE(result.err.find("overlace: error: " + message), std::string::npos) << result.err;
  };
  refused({}, 2, "--device-memory is missing, wanted bytes of a rank such as 16GiB");
  refused({"--device-memory", "16GB"}, 2, "--device-memory is 16GB, wanted bytes such as 8GiB");
  refused({"--device-memory", "1MiB"}, 7, "--device-memory is 1MiB: device memory is 1048576 bytes, wanted ");
  refused({"--device-memory", "1GiB", "--layers", "0"}, 2, "--layers is 0, wanted 1 to 32");
  refused({"--device-memory", "1GiB", "--disk-gbps", "-1"}, 2, "--disk-gbps is -1, wanted more than 0");
  measured.insert(measured.end(), {"--disk-gbps", "2"});
  EXPECT_EQ(Json::parse(planned(measured).out).value().find("disk_bytes_per_s")->as_double(), 2e9);
  refused({"--device-memory", "1GiB", "--tokens", "100", "--sequence-length", "30"}, 2,
          "--tokens is 100 and --sequence-length is 30, wanted a multiple of the latter");
}

TEST_F(Offload, SeesAFileThatChangesWhileItStreams) {
  const std::string size = std::to_string(smallest(2));
  Process process(command(true, 2, {"--device-memory", size, "--weights", "disk", "--repeat", "9"}));
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  std::ofstream(directory_ / "ckpt/model.safetensors", std::ios::app | std::ios::binary) << "x";
  const Result result = process.wait();
  EXPECT_EQ(result.exit, 5) << result.err << result.out;
  EXPECT_NE(result.err.find("model.safetensors"), std::string::npos) << result.err;
  EXPECT_FALSE(result.timed_out);
}

/// While layers stream: nothing that a rank or the disk does may leave the others waiting, or anything behind.
class OffloadEnds : public Offload {
 protected:
  /// Busy until something ends it.
  Command long_run(bool is_disk) {
    std::vector<std::string> more = {
        "--device-memory", std::to_string(smallest(2)), "--repeat", "1000", "--output", "y.npy", "--json", "r.json"};
    if (is_disk) more.insert(more.end(), {"--weights", "disk"});
    Command out = command(true, 2, more);
    out.env["OVERLACE_TIMEOUT_S"] = "20";
    return out;
  }
  static std::vector<pid_t> wait_for_ranks(const Process& process) {
    for (int i = 0; i < 1000; ++i) {
      const auto ranks = descendants(process.pid());
      if (ranks.size() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        return ranks;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return {};
  }
  void expect_nothing_left(const std::vector<pid_t>& ranks) {
    for (const pid_t rank : ranks) EXPECT_FALSE(is_running(rank)) << rank;
    EXPECT_EQ(shared_memory(), memory_);
    EXPECT_FALSE(directory_.has("y.npy"));
    EXPECT_FALSE(directory_.has("r.json"));
  }
  std::set<std::string> memory_ = shared_memory();
};

TEST_F(OffloadEnds, AKilledRankIsNamedByTheOthers) {
  for (const bool is_disk : {false, true}) {
    Process process(long_run(is_disk));
    const auto ranks = wait_for_ranks(process);
    ASSERT_EQ(ranks.size(), 2u);
    ASSERT_EQ(::kill(ranks[1], SIGKILL), 0);
    const Result result = process.wait();
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.exit, 4) << result.err;
    EXPECT_LT(result.seconds, 40);
    EXPECT_EQ(result.err.rfind("overlace: error: ", 0), 0u) << result.err;
    EXPECT_NE(result.err.find("rank 1"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("rank 0: "), std::string::npos) << "the words of the one that is left: " << result.err;
    expect_nothing_left(ranks);
  }
}

TEST_F(OffloadEnds, AStoppedRankIsNamedWithinTheDeadline) {
  Command command = long_run(true);
  command.env["OVERLACE_TIMEOUT_S"] = "3";
  Process process(command);
  const auto ranks = wait_for_ranks(process);
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[0], SIGSTOP), 0);
  const Result result = process.wait();
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit, 4) << result.err;
  EXPECT_NE(result.err.find("rank 0"), std::string::npos) << result.err;
  expect_nothing_left(ranks);
}

TEST_F(OffloadEnds, CtrlCEndsAllRanks) {
  for (const bool is_disk : {false, true}) {
    Process process(long_run(is_disk));
    const auto ranks = wait_for_ranks(process);
    ASSERT_EQ(ranks.size(), 2u);
    process.signal(SIGINT);
    const Result result = process.wait();
    EXPECT_EQ(result.exit, 130) << result.err;
    EXPECT_LT(result.seconds, 40);
    expect_nothing_left(ranks);
  }
}

TEST_F(OffloadEnds, AFullDiskIsNamedWithTheFile) {
  const std::string size = std::to_string(smallest(2));
  for (const std::string option : {"--json", "--output", "--trace", "--report"}) {
    const std::string ending = option == "--json"     ? "json"
                               : option == "--output" ? "npy"
                               : option == "--trace"  ? "json"
                                                      : "html";
    const std::string name = "full." + ending;
    ASSERT_EQ(::symlink("/dev/full", (directory_ / name).c_str()), 0);
    const Result result = run(command(true, 2, {"--device-memory", size, "--weights", "disk", option, name}));
    EXPECT_EQ(result.exit, 5) << option << " " << result.err;
    EXPECT_NE(result.err.find(name), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("No space left on device"), std::string::npos) << result.err;
    ::unlink((directory_ / name).c_str());
  }
  EXPECT_EQ(shared_memory(), memory_);
}

}  // namespace
}  // namespace overlace::cli_test
