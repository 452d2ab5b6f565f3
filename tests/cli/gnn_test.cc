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
  for (const char* key : {"read_kIOPS", "write_GBps", "start_us"}) EXPECT_GT(storage.find(key)->as_double(), 0) << key;
  for (const char* bytes : {"4096", "65536", "1048576"})
    EXPECT_GT(storage.find("read_GBps")->find(bytes)->as_double(), 0) << bytes;
  EXPECT_EQ(figures.find("points")->as_array().size(), 8u);
  EXPECT_TRUE(directory.entries().empty());
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
       "import: none has neither edge_index.npy (pyg) nor processed/paper/node_feat.npy (igb)"},
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
  const Json first = Json::parse(planned.out)->as_array()[0];
  EXPECT_EQ(first.find("binds")->as_string(), "compute");

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
