// `overlace gnn`: each subcommand as a user runs it, its data, and what is refused.
#include <gtest/gtest.h>

#include "src/base/json.h"
#include "tests/cli/support/command.h"
#include "tests/cli/support/files.h"

namespace overlace::cli_test {
namespace {

using base::Json;

Result run(const Directory& directory, std::vector<std::string> args, std::map<std::string, std::string> env = {}) {
  Command command;
  command.args = {"gnn"};
  command.args.insert(command.args.end(), args.begin(), args.end());
  command.directory = directory.path();
  command.env = std::move(env);
  return Process(command).wait();
}

TEST(Gnn, GeneratesDescribesAndImportsInPlace) {
  const Directory directory;
  const Result made = run(directory, {"generate", "--out", "g", "--vertices", "2048", "--dim", "3", "--seed", "5",
                                      "--memory", "2MiB", "--json", "made.json"});
  ASSERT_EQ(made.exit, 0) << made.err;
  EXPECT_EQ(made.err, "");  // stderr is no terminal: no bar
  EXPECT_NE(made.out.find("vertices         2048"), std::string::npos) << made.out;
  const Json description = *Json::parse(directory.read("made.json"));
  const Result info = run(directory, {"info", "g", "--json", "-"});
  ASSERT_EQ(info.exit, 0) << info.err;
  const Json shown = *Json::parse(info.out);
  for (const char* key : {"id", "num_edges", "features", "fingerprint"})
    EXPECT_EQ(*shown.find(key), *description.find(key)) << key;
  EXPECT_GT(shown.find("splits")->find("train")->as_int(), 100);
  // The description is made anew from the files alone.
  const std::string before = directory.read("g/dataset.json");
  directory.write("g/dataset.json", "");
  const Result described = run(directory, {"import", "g", "--in-place", "--classes", "32"});
  ASSERT_EQ(described.exit, 0) << described.err;
  EXPECT_EQ(directory.read("g/dataset.json"), before);
}

TEST(Gnn, TheEngineDoesNotChangeTheFiles) {
  const Directory directory;
  std::string first;
  for (const char* engine : {"auto", "pread", "buffered"}) {
    const Result made = run(directory, {"generate", "--out", engine, "--vertices", "1024", "--model", "rmat"},
                            {{"OVERLACE_IO", engine}});
    ASSERT_EQ(made.exit, 0) << made.err;
    const std::string file = directory.read(std::string(engine) + "/features.npy");
    if (first.empty()) first = file;
    EXPECT_TRUE(file == first) << engine;
  }
}

TEST(Gnn, DiskbenchGivesTheFiguresOfAMachine) {
  const Directory directory;
  const Result bench = run(directory, {"diskbench", ".", "--size", "4MiB", "--seconds", "0.01", "--json", "-"});
  ASSERT_EQ(bench.exit, 0) << bench.err;
  const Json figures = *Json::parse(bench.out);
  const Json& storage = *figures.find("storage");
  for (const char* key : {"read_kIOPS", "write_GBps", "start_us"})
    EXPECT_GT(storage.find(key)->as_array()[0].as_double(), 0) << key;
  const Json::Array& read = storage.find("read_GBps")->find("points")->as_array();
  ASSERT_EQ(read.size(), 3u);
  constexpr double kBytes[] = {4096, 65536, 1048576};
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].as_array()[0].as_double(), kBytes[i]);
    EXPECT_GT(read[i].as_array()[1].as_double(), 0);
  }
  EXPECT_EQ(figures.find("points")->as_array().size(), 8u);
  EXPECT_TRUE(directory.entries().empty());
  // They go into a machine file, and stay what they are.
  const std::vector<std::string> merged = {"diskbench", ".",         "--size",    "4MiB",   "--seconds",
                                           "0.01",      "--machine", "disk.json", "--json", "-"};
  for (const char* attempt : {"made", "there"}) {
    const Result result = run(directory, merged);
    ASSERT_EQ(result.exit, 0) << attempt << result.err;
    EXPECT_EQ(*Json::parse(directory.read("disk.json"))->find("storage"), *Json::parse(result.out)->find("storage"));
  }
  directory.write("disk.json", "{}");
  const Result refused = run(directory, merged);
  EXPECT_EQ(refused.exit, 2);
  EXPECT_NE(refused.err.find("disk.json: /overlace_machine: got null, wanted 1"), std::string::npos) << refused.err;
}

TEST(Gnn, BadWordsAreRefusedAndNothingIsLeft) {
  struct Case {
    std::vector<std::string> args;
    int exit;
    std::string message;
  };
  const Case cases[] = {
      {{"info", "none"}, 2, "none: no dataset: cannot open none/dataset.json: No such file or directory"},
      {{"generate", "--out", "g", "--memory", "5x"}, 2, "--memory is 5x, wanted bytes such as 8GiB, 512MiB or 1000000"},
      {{"generate", "--out", "g", "--like", "ogbn"},
       2,
       "generate: like is \"ogbn\", wanted papers, mag, friendster, igb or products"},
      {{"generate", "--out", "g", "--vertices", "1"}, 2, "generate: num_vertices is 1, wanted 2 to 2147483647"},
      {{"import", "none", "--out", "g"},
       2,
       "import: none has none of edge_index.npy (pyg), processed/paper/node_feat.npy (igb), raw/data.npz and"
       " raw/edge.csv.gz (ogb)"},
      {{"import", "none"}, 2, "--out is \"\", wanted a directory"},
      {{"import", "none", "--in-place"}, 2, "none: No such file or directory"},
      {{"diskbench", "none"}, 5, "open for writing: No such file or directory"},
      {{"diskbench", ".", "--size", "1000"}, 2, "diskbench: file_bytes is 1000, wanted a multiple of 1048576"},
      {{"generate", "--out", "/proc/g"}, 5, "cannot create /proc/g: No such file or directory"},
  };
  for (const Case& c : cases) {
    const Directory directory;
    const Result result = run(directory, c.args);
    EXPECT_EQ(result.exit, c.exit) << result.err;
    EXPECT_NE(result.err.find(c.message), std::string::npos) << result.err;
    EXPECT_TRUE(directory.entries().empty()) << c.message;
  }
  const Directory directory;
  const Result engine = run(directory, {"diskbench", "."}, {{"OVERLACE_IO", "fast"}});
  EXPECT_EQ(engine.exit, 2);
  EXPECT_NE(engine.err.find("OVERLACE_IO is \"fast\", wanted auto, uring, pread, buffered"), std::string::npos);
}

TEST(Gnn, SamplesPlansPacksAndVerifies) {
  const Directory directory;
  ASSERT_EQ(run(directory, {"generate", "--out", "g", "--vertices", "4096", "--dim", "16"}).exit, 0);
  const Result sampled = run(directory, {"sample", "g", "--out", "g.ovg", "--fanouts", "4,3", "--batch-size", "16",
                                         "--splits", "train,valid", "--seed", "18446744073709551615"});
  ASSERT_EQ(sampled.exit, 0) << sampled.err;
  EXPECT_NE(sampled.out.find("valid"), std::string::npos) << sampled.out;
  const Result planned = run(directory, {"plan", "g.ovg", "--gpu-cache", "8MiB", "--cpu-cache", "8MiB", "--json", "-"});
  ASSERT_EQ(planned.exit, 0) << planned.err;
  const Json first = Json::parse(planned.out)->find("rows")->as_array()[0];
  EXPECT_EQ(first.find("binds")->as_string(), "compute");
  const Json none = *Json::parse(planned.out)->find("disk");
  EXPECT_EQ(none.find("GBps")->as_double(), 1);
  EXPECT_NE(none.find("origin")->as_string().find("assumed: machine cpu2 has no figures of the disk"),
            std::string::npos);

  const std::vector<std::string> pack = {"pack",    "g.ovg", "--gpu-cache", "16KiB",  "--cpu-cache", "16KiB",
                                         "--order", "fixed", "--memory",    "128KiB", "--json",      "packed.json"};
  const Result packed = run(directory, pack);
  ASSERT_EQ(packed.exit, 0) << packed.err;
  EXPECT_EQ(packed.err, "");  // no bar where stderr is no terminal
  const Json manifest = *Json::parse(directory.read("packed.json"));
  EXPECT_EQ(manifest.find("packs")->as_array()[1].find("name")->as_string(), "fixed-valid");
  EXPECT_EQ(manifest.find("sampling")->find("seed")->as_string(), "18446744073709551615");
  const Result again = run(directory, pack);
  EXPECT_EQ(again.exit, 0) << again.err;
  EXPECT_EQ(*Json::parse(directory.read("packed.json")), manifest);
  EXPECT_NE(run(directory, {"info", "g.ovg"}).out.find("packs fixed"), std::string::npos);
  EXPECT_EQ(run(directory, {"verify", "g.ovg", "--deep"}).exit, 0);
  std::string rows = directory.read("g/features.npy");
  rows[rows.size() / 2] = static_cast<char>(rows[rows.size() / 2] ^ 1);
  directory.write("g/features.npy", rows);
  const Result changed = run(directory, {"verify", "g.ovg", "--deep"});
  EXPECT_NE(changed.exit, 0);
  EXPECT_EQ(run(directory, {"verify", "g.ovg"}).exit, 0) << "the artefact itself is whole";
}

TEST(Gnn, SamplesEpochsAndPacksForRanks) {
  const Directory directory;
  ASSERT_EQ(run(directory, {"generate", "--out", "g", "--vertices", "2048", "--dim", "8"}).exit, 0);
  const Result sampled = run(directory, {"sample", "g", "--out", "g.ovg", "--fanouts", "3,2", "--batch-size", "16",
                                         "--splits", "train,valid", "--epochs", "2"});
  ASSERT_EQ(sampled.exit, 0) << sampled.err;
  EXPECT_NE(sampled.out.find("train 1"), std::string::npos) << sampled.out;
  const std::vector<std::string> words = {"pack",    "g.ovg", "--gpu-cache", "4KiB", "--cpu-cache", "8KiB",
                                          "--order", "fixed", "--ranks",     "2",    "--json",      "packed.json"};
  std::vector<std::string> dry = words;
  dry.push_back("--dry-run");
  ASSERT_EQ(run(directory, dry).exit, 0);
  const Json counted = *Json::parse(directory.read("packed.json"));
  ASSERT_EQ(run(directory, words).exit, 0);
  const Json packed = *Json::parse(directory.read("packed.json"));
  const auto& packs = packed.find("packs")->as_array();
  ASSERT_EQ(packs.size(), 4u);
  for (size_t i = 0; i < packs.size(); ++i) {
    EXPECT_EQ(packs[i].find("name")->as_string(), base::format("fixed{}-r{}of2", i % 2 == 0 ? "" : "-valid", i / 2));
    EXPECT_EQ(packs[i].find("epochs")->as_int(), 2);
    EXPECT_EQ(packs[i].find("bytes_read")->as_int(), counted.find("packs")->as_array()[i].find("bytes_read")->as_int());
  }
  EXPECT_EQ(run(directory, {"verify", "g.ovg", "--deep"}).exit, 0);
  const auto planned = [&](const std::string& ranks) {
    const Result result = run(
        directory, {"plan", "g.ovg", "--cpu-cache", "1MiB", "--gpu-cache", "1MiB", "--ranks", ranks, "--json", "-"});
    EXPECT_EQ(result.exit, 0) << result.err;
    return Json::parse(result.out)->find("rows")->as_array()[0];
  };
  const Json one = planned("1"), two = planned("2");
  // 1 ms a batch binds, and each of two ranks has half of them.
  EXPECT_NEAR(two.find("epoch_s")->as_double() / one.find("epoch_s")->as_double(), 0.5, 0.1);
  EXPECT_GT(two.find("bytes_read")->as_int(), 0);
  EXPECT_NE(run(directory, {"plan", "g.ovg", "--ranks", "0"}).err.find("--ranks is 0, wanted 1 to 1024"),
            std::string::npos);
  EXPECT_NE(run(directory, {"sample", "g", "--out", "b", "--epochs", "0"}).err.find("epochs is 0, wanted 1 to 4096"),
            std::string::npos);
  EXPECT_NE(run(directory, {"pack", "g.ovg", "--ranks", "0"}).err.find("ranks is 0, wanted 1 to 1024"),
            std::string::npos);
}

TEST(Gnn, RepairsPacks) {
  const Directory directory;
  ASSERT_EQ(run(directory, {"generate", "--out", "g", "--vertices", "2048", "--dim", "16"}).exit, 0);
  ASSERT_EQ(run(directory, {"sample", "g", "--out", "g.ovg", "--fanouts", "4,3", "--batch-size", "16"}).exit, 0);
  ASSERT_EQ(run(directory, {"pack", "g.ovg", "--cpu-cache", "16KiB", "--order", "fixed"}).exit, 0);
  const std::string good = directory.read("g.ovg/packs-fixed.ovk");
  std::string bad = good;
  bad[bad.size() / 2] ^= 1;
  directory.write("g.ovg/packs-fixed.ovk", bad);
  EXPECT_EQ(run(directory, {"verify", "g.ovg"}).exit, 5);
  const Result repaired = run(directory, {"verify", "g.ovg", "--repair", "--deep"});
  ASSERT_EQ(repaired.exit, 0) << repaired.err;
  EXPECT_NE(repaired.out.find("packs fixed were damaged and are made anew\n"), std::string::npos) << repaired.out;
  EXPECT_TRUE(directory.read("g.ovg/packs-fixed.ovk") == good);
  const Result whole = run(directory, {"verify", "g.ovg", "--repair", "--json", "-"});
  EXPECT_TRUE(Json::parse(whole.out)->find("repaired")->as_array().empty()) << whole.out;
}

TEST(Gnn, PlansForTheMemoryThatIsFree) {
  const Directory directory;
  ASSERT_EQ(run(directory, {"generate", "--out", "g", "--vertices", "4096", "--dim", "32"}).exit, 0);
  ASSERT_EQ(run(directory, {"sample", "g", "--out", "g.ovg", "--fanouts", "4,3", "--batch-size", "16"}).exit, 0);
  const std::map<std::string, std::string> no_gpu = {{"CUDA_VISIBLE_DEVICES", ""}};
  const auto planned = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "g.ovg", "--json", "-"});
    const Result result = run(directory, words, no_gpu);
    EXPECT_EQ(result.exit, 0) << result.err;
    return *Json::parse(result.out);
  };
  const auto packs_as_planned = [&](const Json& plan) {
    std::vector<std::string> words;
    for (const Json& word : plan.find("pack")->as_array()) words.push_back(word.as_string());
    ASSERT_GT(words.size(), 2u);
    EXPECT_EQ(words[1], "gnn");
    words.erase(words.begin(), words.begin() + 2);
    words.insert(words.end(), {"--json", "packed.json", "--dry-run"});
    const Result packed = run(directory, words);
    ASSERT_EQ(packed.exit, 0) << packed.err;
    int64_t bytes_read = 0;
    const Json manifest = *Json::parse(directory.read("packed.json"));
    for (const Json& packs : manifest.find("packs")->as_array()) bytes_read += packs.find("bytes_read")->as_int();
    EXPECT_EQ(bytes_read, plan.find("rows")->as_array()[0].find("bytes_read")->as_int());
  };
  // Two megabytes of rows fit into what is free.
  const Json fitted = planned({"--fit"});
  const int64_t free_bytes = fitted.find("memory")->find("cpu_bytes")->as_int();
  const Json& best = fitted.find("rows")->as_array()[0];
  EXPECT_EQ(best.find("cpu_rows")->as_int(), 4096);
  EXPECT_EQ(best.find("gpu_rows")->as_int(), 0);
  EXPECT_GT(best.find("memory_cpu")->as_int(), 4096 * 128);
  EXPECT_LE(best.find("memory_cpu")->as_int(), free_bytes);
  EXPECT_EQ(fitted.find("memory")->find("gpu_bytes")->as_int(), 0);
  packs_as_planned(fitted);
  // Told memory on CPUs, of which caches get what buffers leave.
  const int64_t told_bytes = best.find("memory_cpu")->as_int() - (128 << 10);
  const Json told = planned({"--cpu-cache", std::to_string(told_bytes)});
  const Json& first = told.find("rows")->as_array()[0];
  EXPECT_GT(first.find("cpu_rows")->as_int(), 0);
  EXPECT_LT(first.find("cpu_rows")->as_int(), 4096);
  EXPECT_LE(first.find("memory_cpu")->as_int(), told_bytes);
  packs_as_planned(told);
  EXPECT_TRUE(planned({"--cpu-cache", "1KiB"}).find("pack")->as_array().empty());
  const Result both = run(directory, {"plan", "g.ovg", "--fit", "--cpu-cache", "1MiB"});
  EXPECT_EQ(both.exit, 2);
  EXPECT_NE(both.err.find("--fit with --gpu-cache 0 and --cpu-cache 1MiB, wanted neither of them"), std::string::npos);
}

TEST(Gnn, SimulatesAnEpochFromItsPacks) {
  const Directory directory;
  ASSERT_EQ(run(directory, {"generate", "--out", "g", "--vertices", "4096", "--dim", "32"}).exit, 0);
  ASSERT_EQ(run(directory, {"sample", "g", "--out", "g.ovg", "--fanouts", "4,3", "--batch-size", "16"}).exit, 0);
  const auto simulated = [&](std::vector<std::string> more) {
    Command command;
    command.args = {"sim", "graph", "gnn", "g.ovg"};
    command.args.insert(command.args.end(), more.begin(), more.end());
    command.directory = directory.path();
    return Process(command).wait();
  };
  EXPECT_NE(simulated({}).err.find("wanted packs of train: there are none, overlace gnn pack writes them"),
            std::string::npos);
  for (const char* order : {"fixed", "segments"}) {
    const Result packed = run(directory, {"pack", "g.ovg", "--cpu-cache", "16KiB", "--order", order, "--segment", "8"});
    ASSERT_EQ(packed.exit, 0) << packed.err;
  }
  directory.write("disk.json", R"({"overlace_machine": 1, "name": "slow", "storage": {"read_GBps":
      {"points": [[4096, 0.01], [1048576, 0.05]], "source": "measured", "x": "bytes"}}})");
  const Result all = simulated({"--machine", "disk.json", "--compute-ms", "0.5", "--trace", "t.json", "--json", "-"});
  ASSERT_EQ(all.exit, 0) << all.err;
  const Json rows = *Json::parse(all.out)->find("rows");
  ASSERT_EQ(rows.as_array().size(), 6u);  // two packs, three ways
  const auto number = [&](size_t row, const char* key) { return rows.as_array()[row].find(key)->as_double(); };
  const Json manifest = *Json::parse(run(directory, {"info", "g.ovg", "--json", "-"}).out);
  for (const size_t first : {size_t{0}, size_t{3}}) {
    const Json& packs = manifest.find("packs")->as_array()[first / 3];
    EXPECT_EQ(rows.as_array()[first].find("packs")->as_string(), packs.find("name")->as_string());
    const double disk_s = static_cast<double>(packs.find("bytes_read")->as_int()) / 0.05e9;
    EXPECT_NEAR(number(first + 1, "disk_s"), disk_s, 1e-6);
    EXPECT_NEAR(number(first, "epoch_s"), disk_s + number(first, "train_s"), 1e-6);
    EXPECT_LT(number(first + 1, "epoch_s"), number(first, "epoch_s"));
    EXPECT_GE(number(first + 1, "epoch_s"), number(first + 1, "bound_s") - 1e-9);
    EXPECT_NEAR(number(first + 2, "epoch_s"), number(first, "train_s"), 1e-6);
  }
  EXPECT_NE(directory.read("t.json").find("restore_read["), std::string::npos);
  const Result one = simulated({"--packs", "fixed"});
  EXPECT_EQ(one.exit, 0) << one.err;
  EXPECT_EQ(one.out.find("segments"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("pipelined"), std::string::npos) << one.out;
  const auto refused = [&](std::vector<std::string> more, const std::string& why) {
    const Result result = simulated(std::move(more));
    EXPECT_EQ(result.exit, 2) << result.err;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
  };
  refused({"--packs", "other"}, "g.ovg: packs are \"other\", wanted packs of train: fixed, segments");
  refused({"--link", "-1"}, "--link is -1, wanted 0 to 1000000");
  refused({"--trace", "t.txt"}, "trace file t.txt: wanted a name that ends in .json");
  EXPECT_NE(simulated({"--machine", "disk.json"}).out.find("disk: 0.050 GB/s, pages 0.010 (measured, machine slow)\n"),
            std::string::npos);
  directory.write("bad.json", R"({"storage": {"read_GBps": {"1048576": 1}}})");
  refused({"--machine", "bad.json"}, "bad.json: /overlace_machine: got null, wanted 1");
}

TEST(Gnn, RefusesWordsAndArtefactsThatAreNone) {
  const Directory directory;
  ASSERT_EQ(run(directory, {"generate", "--out", "g", "--vertices", "1024", "--dim", "2"}).exit, 0);
  for (const auto& [args, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"sample", "g", "--out", "a", "--splits", "train,all"},
            "--splits is all, wanted one of train, valid, test"},
           {{"sample", "g", "--out", "a", "--batch-size", "0"}, "batch_size is 0"},
           {{"pack", "g"}, "g/manifest.json"},
           {{"verify", "nowhere"}, "nowhere/manifest.json"}}) {
    const Result refused = run(directory, args);
    EXPECT_NE(refused.exit, 0);
    EXPECT_NE(refused.err.find(why), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace overlace::cli_test
