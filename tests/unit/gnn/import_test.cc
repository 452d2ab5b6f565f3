#include "src/gnn/dataset/import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "tests/unit/gnn/scratch.h"

namespace overlace::gnn {
namespace {

constexpr int64_t kVertices = 50, kDim = 7;

/// Edges i -> (i * 7 + 3) % N, twice as many as vertices; in-neighbours by a plain count.
std::vector<std::pair<int64_t, int64_t>> edge_list() {
  std::vector<std::pair<int64_t, int64_t>> edges;
  for (int64_t i = 0; i < 2 * kVertices; ++i) edges.emplace_back(i % kVertices, (i * 7 + 3) % kVertices);
  return edges;
}

std::vector<float> features() {
  std::vector<float> values(static_cast<size_t>(kVertices * kDim));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  return values;
}

class Import : public testing::Test {
 protected:
  void pyg() {
    std::vector<int64_t> rows, columns;
    for (const auto& [from, to] : edge_list()) rows.push_back(from), columns.push_back(to);
    rows.insert(rows.end(), columns.begin(), columns.end());
    write_array<int64_t>(in("edge_index.npy"), DType::i64, {2, 2 * kVertices}, rows);
    write_array<float>(in("x.npy"), DType::fp32, {kVertices, kDim}, features());
    std::vector<int64_t> labels;
    for (int64_t v = 0; v < kVertices; ++v) labels.push_back(v % 5);
    write_array<int64_t>(in("y.npy"), DType::i64, {kVertices}, labels);
    std::vector<uint8_t> mask(kVertices);
    mask[3] = mask[10] = mask[49] = 1;
    write_array<uint8_t>(in("train_mask.npy"), DType::u8, {kVertices}, mask);
    write_array<int32_t>(in("test.npy"), DType::i32, {2}, {7, 1});
  }
  std::string in(const std::string& name) { return source_.path(name); }
  void expect_same(const Dataset& dataset) {
    std::vector<std::vector<int64_t>> wanted(kVertices);
    for (const auto& [from, to] : edge_list()) wanted[static_cast<size_t>(to)].push_back(from);
    const CscView graph = dataset.graph();
    const auto indices = std::get<std::span<const int32_t>>(graph.indices);
    for (int64_t v = 0; v < kVertices; ++v) {
      auto& neighbours = wanted[static_cast<size_t>(v)];
      std::sort(neighbours.begin(), neighbours.end());
      const auto part = indices.subspan(static_cast<size_t>(graph.indptr[static_cast<size_t>(v)]),
                                        static_cast<size_t>(graph.degree(v)));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), neighbours.begin(), neighbours.end())) << v;
    }
    const auto file = base::NpyFile::open(dataset.feature_path()).value();
    EXPECT_EQ(file.array().data_offset, 4096);
    const std::vector<float> right = features();
    EXPECT_TRUE(std::equal(right.begin(), right.end(), file.values<float>().begin(), file.values<float>().end()));
  }
  std::string refusal(const ImportOptions& options = {}) {
    const auto made = import_dataset(source_.path(), out_.path("d"), options);
    EXPECT_EQ(made.status().code(), Errc::invalid_argument) << made.status().message();
    EXPECT_FALSE(std::filesystem::exists(out_.path("d")));
    std::string text = made.status().message();
    for (size_t at = 0; (at = text.find(source_.path())) != std::string::npos;)
      text.replace(at, source_.path().size(), "S");
    return text;
  }
  Scratch source_, out_;
};

/// An import that failed behind its labels leaves none to the next one, of another source.
TEST_F(Import, TakesNothingThatAnEarlierImportLeft) {
  pyg();
  ImportOptions few;
  few.num_classes = 2;
  const base::Status failed = import_dataset(source_.path(), out_.path("d"), few).status();
  ASSERT_EQ(failed.code(), Errc::invalid_argument);
  ASSERT_TRUE(std::filesystem::exists(out_.path("d/labels.npy"))) << failed.message();
  for (const char* name : {"y.npy", "train_mask.npy"}) {
    std::filesystem::remove(in(name));
    const base::Status left = import_dataset(source_.path(), out_.path("d")).status();
    EXPECT_EQ(left.code(), Errc::invalid_argument);
    EXPECT_EQ(left.message(), base::format("import: {}/{} is there already and not of the source, wanted it gone or "
                                           "another directory",
                                           out_.path("d"), name[0] == 'y' ? "labels.npy" : "train.npy"));
    std::filesystem::remove(out_.path("d/labels.npy"));
  }
  std::filesystem::remove(out_.path("d/train.npy"));
  ASSERT_TRUE(import_dataset(source_.path(), out_.path("d")).ok());
  const Dataset dataset = std::move(Dataset::open(out_.path("d"))).value();
  expect_same(dataset);
  EXPECT_TRUE(dataset.labels().empty());
}

TEST_F(Import, AttributesOfAPygData) {
  pyg();
  const auto made = import_dataset(source_.path(), out_.path("d"));
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto opened = Dataset::open(out_.path("d"));
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  expect_same(*opened);
  EXPECT_EQ(opened->description().num_classes, 5);
  EXPECT_EQ(opened->labels()[13], 3);
  const auto train = std::get<std::span<const int64_t>>(opened->split(Split::train));
  EXPECT_EQ(std::vector<int64_t>(train.begin(), train.end()), (std::vector<int64_t>{3, 10, 49}));
  const auto test = std::get<std::span<const int64_t>>(opened->split(Split::test));
  EXPECT_EQ(std::vector<int64_t>(test.begin(), test.end()), (std::vector<int64_t>{7, 1}));
}

TEST_F(Import, TheLayoutOfIgb) {
  std::filesystem::create_directories(in("processed/paper"));
  std::filesystem::create_directories(in("processed/paper__cites__paper"));
  std::vector<int32_t> pairs;
  for (const auto& [from, to] : edge_list())
    pairs.push_back(static_cast<int32_t>(from)), pairs.push_back(static_cast<int32_t>(to));
  write_array<int32_t>(in("processed/paper__cites__paper/edge_index.npy"), DType::i32, {2 * kVertices, 2}, pairs);
  write_array<float>(in("processed/paper/node_feat.npy"), DType::fp32, {kVertices, kDim}, features());
  std::vector<float> labels(kVertices, 18);
  labels[4] = std::numeric_limits<float>::quiet_NaN();
  write_array<float>(in("processed/paper/node_label_19.npy"), DType::fp32, {kVertices, 1}, labels);
  ImportOptions options;
  options.num_classes = 19;
  const auto made = import_dataset(source_.path(), out_.path("d"), options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->unlabelled, 1);
  const Dataset dataset = Dataset::open(out_.path("d")).value();
  expect_same(dataset);
  EXPECT_EQ(dataset.labels()[5], 18);
  EXPECT_EQ(std::get<std::span<const int64_t>>(dataset.split(Split::train)).size(), 30u);
  EXPECT_EQ(std::get<std::span<const int64_t>>(dataset.split(Split::valid))[0], 30);
}

TEST_F(Import, OtherTypesAndBothDirections) {
  pyg();
  std::vector<uint16_t> halves(static_cast<size_t>(kVertices * kDim), 0x3f80);
  write_array<uint16_t>(in("x.npy"), DType::bf16, {kVertices, kDim}, halves);
  EXPECT_NE(import_dataset(source_.path(), out_.path("no")).status().message().find("16-bit words said to be bf16"),
            std::string::npos);
  ImportOptions options;
  options.bf16 = options.both_directions = true;
  const auto made = import_dataset(source_.path(), out_.path("d"), options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->description.features.dtype, DType::bf16);
  EXPECT_EQ(made->description.num_edges, 4 * kVertices);
  EXPECT_TRUE(Dataset::open(out_.path("d")).ok());
}

TEST_F(Import, InPlaceWritesTheDescriptionAlone) {
  pyg();
  ASSERT_TRUE(import_dataset(source_.path(), out_.path("d")).ok());
  const std::string made = base::read_file(out_.path("d") + "/dataset.json").value();
  std::filesystem::remove(out_.path("d") + "/dataset.json");
  ASSERT_TRUE(describe(out_.path("d")).ok());
  EXPECT_EQ(base::read_file(out_.path("d") + "/dataset.json").value(), made);
}

TEST_F(Import, RefusesBeforeAnythingIsWritten) {
  EXPECT_EQ(refusal(),
            "import: S has none of edge_index.npy (pyg), processed/paper/node_feat.npy (igb), raw/data.npz and"
            " raw/edge.csv.gz (ogb)");
  EXPECT_EQ(refusal({.layout = "ogb"}), "import: layout is \"ogb\", wanted auto, pyg, igb, or ogb once it is unpacked");
  pyg();
  write_array<int64_t>(in("edge_index.npy"), DType::i64, {2, 3}, {0, 1, 2, 3, 50, 5});
  EXPECT_EQ(refusal(), "edge 1 of block 0 is 1 -> 50, wanted vertices in [0, 50)");
  write_array<int64_t>(in("edge_index.npy"), DType::i64, {3, 3}, std::vector<int64_t>(9));
  EXPECT_EQ(refusal(), "S/edge_index.npy: shape is (3, 3), wanted (2, edges) or (edges, 2)");
  write_array<float>(in("edge_index.npy"), DType::fp32, {2, 3}, std::vector<float>(6));
  EXPECT_EQ(refusal(), "S/edge_index.npy: dtype is fp32, wanted i32 or i64");
  pyg();
  write_array<float>(in("y.npy"), DType::fp32, {kVertices}, std::vector<float>(kVertices, 1.5f));
  EXPECT_EQ(refusal(), "S/y.npy: element 0 is 1.5, wanted a whole number");
  write_array<int64_t>(in("y.npy"), DType::i64, {3}, {0, 1, 2});
  EXPECT_EQ(refusal(), "S/y.npy: shape is (3,), wanted (50,)");
  std::filesystem::remove(in("x.npy"));
  EXPECT_EQ(refusal(), "S/x.npy: open for reading: No such file or directory");
}

}  // namespace
}  // namespace overlace::gnn
