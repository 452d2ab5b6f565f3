#include "src/gnn/generate/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "src/gnn/generate/draws.h"
#include "tests/unit/gnn/scratch.h"

namespace overlace::gnn {
namespace {

GenerateOptions small(const std::string& model = "dcsbm") {
  GenerateOptions options;
  options.model = model;
  options.num_vertices = 1 << 13;
  options.dim = 25;
  return options;
}

std::string all_bytes(const std::string& directory) {
  std::string bytes;
  for (const char* name : {"dataset.json", "features.npy", "indptr.npy", "indices.npy", "labels.npy", "train.npy",
                           "valid.npy", "test.npy"})
    bytes += base::read_file(directory + "/" + name).value();
  return bytes;
}

TEST(Generate, TheSameFilesForAnyThreadsAndMemory) {
  for (const char* model : {"dcsbm", "rmat"}) {
    std::string first;
    for (const auto& [threads, memory] : {std::pair<int, int64_t>{1, 1 << 30}, {5, 1 << 30}, {3, 1 << 20}}) {
      Scratch scratch;
      GenerateOptions options = small(model);
      options.threads = threads;
      options.memory_bytes = memory;
      const auto made = generate(options, scratch.path("d"));
      ASSERT_TRUE(made.ok()) << made.status().message();
      const std::string bytes = all_bytes(scratch.path("d"));
      if (first.empty()) first = bytes;
      EXPECT_TRUE(bytes == first) << model << " " << threads;
    }
    Scratch scratch;
    GenerateOptions other = small(model);
    other.seed = 2;
    ASSERT_TRUE(generate(other, scratch.path("d")).ok());
    EXPECT_FALSE(all_bytes(scratch.path("d")) == first);
  }
}

/// Shares of edge ends that the most popular vertices own.
double share_of_top(const CscView& graph, double part) {
  std::vector<int64_t> degrees;
  for (int64_t v = 0; v < graph.num_vertices(); ++v) degrees.push_back(graph.degree(v));
  std::sort(degrees.rbegin(), degrees.rend());
  const auto n = static_cast<ptrdiff_t>(part * static_cast<double>(degrees.size()));
  return static_cast<double>(std::accumulate(degrees.begin(), degrees.begin() + n, int64_t{0})) /
         static_cast<double>(graph.num_edges());
}

TEST(Generate, DcsbmHasTheSkewAndHomophilyThatWereMeasured) {
  Scratch scratch;
  GenerateOptions options = small();
  options.num_vertices = 1 << 17;
  options.dim = 4;
  ASSERT_TRUE(generate(options, scratch.path("d")).ok());
  const Dataset dataset = Dataset::open(scratch.path("d")).value();
  const CscView graph = dataset.graph();
  // Loops are dropped: 4 % here, 1.3 % of 2^20 vertices.
  EXPECT_NEAR(static_cast<double>(graph.num_edges()) / (2.0 * 16 * (1 << 17)), 0.96, 0.01);
  // With 2^20 vertices .497 and .750; fewer vertices are less skewed, as the cap of weights is lower.
  EXPECT_NEAR(share_of_top(graph, 0.01), 0.44, 0.05);
  EXPECT_NEAR(share_of_top(graph, 0.10), 0.72, 0.05);
  const auto indices = std::get<std::span<const int32_t>>(graph.indices);
  const auto labels = dataset.labels();
  int64_t equal = 0;
  for (int64_t v = 0; v < graph.num_vertices(); ++v)
    for (int64_t e = graph.indptr[static_cast<size_t>(v)]; e < graph.indptr[static_cast<size_t>(v) + 1]; ++e)
      equal += labels[static_cast<size_t>(v)] == labels[static_cast<size_t>(indices[static_cast<size_t>(e)])];
  EXPECT_NEAR(static_cast<double>(equal) / static_cast<double>(graph.num_edges()), 0.609, 0.03);
  const auto train = std::get<std::span<const int64_t>>(dataset.split(Split::train));
  EXPECT_NEAR(static_cast<double>(train.size()) / (1 << 17), 0.15, 0.01);
  for (const int64_t v : train) ASSERT_GT(graph.degree(v), 0);
}

TEST(Generate, FeaturesStandAroundTheCentreOfTheirClass) {
  Scratch scratch;
  GenerateOptions options = small();
  options.dim = 33;
  options.num_classes = 4;
  ASSERT_TRUE(generate(options, scratch.path("d")).ok());
  const Dataset dataset = Dataset::open(scratch.path("d")).value();
  const auto file = base::NpyFile::open(dataset.feature_path()).value();
  const auto values = file.values<float>();
  // Means and variances by class and column: noise is N(0, 1), centres are 1.36 long on average.
  constexpr size_t kDim = 33;
  std::vector<double> sum(4 * kDim), square(4 * kDim), count(4);
  for (size_t v = 0; v < dataset.labels().size(); ++v) {
    const auto c = static_cast<size_t>(dataset.labels()[v]);
    ++count[c];
    for (size_t d = 0; d < kDim; ++d) {
      sum[c * kDim + d] += values[v * kDim + d];
      square[c * kDim + d] += static_cast<double>(values[v * kDim + d]) * values[v * kDim + d];
    }
  }
  double length = 0;
  for (size_t c = 0; c < 4; ++c)
    for (size_t d = 0; d < kDim; ++d) {
      const double mean = sum[c * kDim + d] / count[c];
      EXPECT_NEAR(square[c * kDim + d] / count[c] - mean * mean, 1, 0.15);
      length += mean * mean / 4;
    }
  EXPECT_NEAR(std::sqrt(length), 1.36, 0.3);
}

TEST(Generate, RmatLeavesManyVerticesAlone) {
  Scratch scratch;
  GenerateOptions options = small("rmat");
  options.num_vertices = 1 << 14;
  options.dim = 2;
  const auto made = generate(options, scratch.path("d"));
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_NEAR(static_cast<double>(made->isolated) / (1 << 14), 0.30, 0.08);
}

TEST(Generate, PresetsHaveTheRowsAndClassesOfTheirGraphs) {
  for (const auto& [name, row_bytes, classes] : {std::tuple<const char*, int64_t, int64_t>{"papers", 512, 172},
                                                 {"mag", 3072, 153},
                                                 {"friendster", 512, 100},
                                                 {"igb", 4096, 19},
                                                 {"products", 400, 47}}) {
    Scratch scratch;
    GenerateOptions options = like(name).value();
    EXPECT_EQ(options.num_vertices, 1 << 20);
    options.num_vertices = 1 << 10;
    const auto made = generate(options, scratch.path("d"));
    ASSERT_TRUE(made.ok()) << name << ": " << made.status().message();
    EXPECT_EQ(made->description.features.row_bytes, row_bytes) << name;
    EXPECT_EQ(made->description.num_classes, classes) << name;
    EXPECT_TRUE(Dataset::open(scratch.path("d")).ok());
  }
}

TEST(Generate, RefusesBeforeAnythingIsWritten) {
  Scratch scratch;
  const auto message = [&](const auto& change) {
    GenerateOptions options = small();
    change(options);
    const std::string text = generate(options, scratch.path("d")).status().message();
    EXPECT_FALSE(std::filesystem::exists(scratch.path("d")));
    return text;
  };
  EXPECT_EQ(message([](GenerateOptions& o) { o.model = "er"; }), "generate: model is \"er\", wanted dcsbm or rmat");
  EXPECT_EQ(message([](GenerateOptions& o) { o.num_vertices = 1; }),
            "generate: num_vertices is 1, wanted 2 to 2147483647");
  EXPECT_EQ(message([](GenerateOptions& o) { o.model = "rmat", o.num_vertices = 1000; }),
            "generate: num_vertices is 1000, wanted a power of two for rmat");
  EXPECT_EQ(message([](GenerateOptions& o) { o.dim = 0; }), "generate: dim is 0, wanted 1 to 65536");
  EXPECT_EQ(message([](GenerateOptions& o) { o.train = 0.9; }),
            "generate: train 0.9, valid 0.05, test 0.1; wanted shares > 0, >= 0, >= 0, at most 1 together");
  EXPECT_EQ(like("ogbn").status().message(),
            "generate: like is \"ogbn\", wanted papers, mag, friendster, igb or products");
  ASSERT_TRUE(generate(small(), scratch.path("d")).ok());
  EXPECT_EQ(generate(small(), scratch.path("d")).status().message(),
            "generate: " + scratch.path("d") + " has a dataset, wanted another directory");
}

TEST(Draws, AreEvenAndIndependentOfOrder) {
  const Draws draws(7, Stream::edge), other(7, Stream::weight);
  int64_t bins[16] = {};
  double sum = 0, square = 0;
  for (uint64_t i = 0; i < 160000; ++i) {
    ++bins[draws.below(i, 16)];
    const auto [a, b] = draws.normals(i);
    sum += a + b;
    square += static_cast<double>(a) * a + static_cast<double>(b) * b;
  }
  for (const int64_t bin : bins) EXPECT_NEAR(static_cast<double>(bin), 10000, 500);
  EXPECT_NEAR(sum / 320000, 0, 0.01);
  EXPECT_NEAR(square / 320000, 1, 0.02);
  EXPECT_NE(draws.bits(3), other.bits(3));
  EXPECT_EQ(draws.bits(3), Draws(7, Stream::edge).bits(3));
}

}  // namespace
}  // namespace overlace::gnn
