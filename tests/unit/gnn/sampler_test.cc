// The sampler against a slow twin, its distribution against all subsets, and the same batches for any number of
// threads.
#include "src/gnn/sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "src/gnn/sample/random.h"
#include "tests/unit/gnn/support/graphs.h"

namespace overlace::gnn {
namespace {

using test::TestGraph;

Sampler make_sampler(const TestGraph& graph, SamplerOptions options) {
  return std::move(Sampler::make(graph.view(), std::move(options))).value();
}

Sampler make_sampler(TestGraph&&, SamplerOptions) = delete;  // a sampler does not own its graph

SampledBatch sample_one(const Sampler& sampler, const std::vector<uint32_t>& seeds, SampledEpoch epoch = {},
                        int64_t number = 0) {
  SamplerScratch scratch;
  SampledBatch batch;
  sampler.sample(seeds, epoch, number, &scratch, &batch).or_throw();
  return batch;
}

std::vector<SampledBatch> sample_all(const Sampler& sampler, const std::vector<uint32_t>& seeds, int threads,
                                     SampledEpoch epoch = {}) {
  std::vector<SampledBatch> all;
  sample_epoch(sampler, seeds, epoch, threads, [&](int64_t number, const SampledBatch& batch) {
    EXPECT_EQ(number, static_cast<int64_t>(all.size()));
    all.push_back(batch);
    return base::Status();
  }).or_throw();
  return all;
}

/// In-neighbours of a local vertex, as vertices of the graph, in the order of the batch.
std::vector<uint32_t> drawn(const SampledBatch& batch, size_t i) {
  std::vector<uint32_t> out;
  for (uint32_t e = batch.indptr[i]; e < batch.indptr[i + 1]; ++e) out.push_back(batch.inputs[batch.indices[e]]);
  return out;
}

/// What must hold of any batch, whatever was drawn: renumbering, hops, counts and edges that the graph has.
void check_batch(const TestGraph& graph, const SamplerOptions& options, const std::vector<uint32_t>& seeds,
                 const SampledBatch& batch) {
  const size_t hops = options.fanouts.size();
  ASSERT_EQ(batch.reached.size(), hops + 1);
  ASSERT_EQ(batch.reached[hops], batch.inputs.size());
  ASSERT_EQ(batch.indptr.size(), batch.reached[hops - 1] + 1u);
  ASSERT_EQ(batch.indptr.back(), batch.indices.size());
  ASSERT_TRUE(std::equal(seeds.begin(), seeds.end(), batch.inputs.begin()));

  // The slow twin renumbers what the batch says was drawn, by search.
  std::vector<uint32_t> known = seeds, reached = {static_cast<uint32_t>(seeds.size())};
  for (size_t hop = 0; hop < hops; ++hop) {
    for (size_t i = hop == 0 ? 0 : reached[hop - 1]; i < reached[hop]; ++i) {
      const std::vector<uint32_t> got = drawn(batch, i), all = graph.neighbours(known[i]);
      std::vector<uint32_t> sorted = got;
      std::sort(sorted.begin(), sorted.end());
      ASSERT_TRUE(std::includes(all.begin(), all.end(), sorted.begin(), sorted.end()) || options.replace);
      const auto fanout = static_cast<size_t>(options.fanouts[hop]);
      if (options.fanouts[hop] < 0)
        ASSERT_EQ(got.size(), all.size());
      else if (options.replace)
        ASSERT_EQ(got.size(), all.empty() ? 0 : fanout);
      else
        ASSERT_EQ(got.size(), std::min(all.size(), fanout));
      for (size_t j = 0; j < got.size(); ++j) {
        ASSERT_TRUE(std::binary_search(all.begin(), all.end(), got[j]));
        auto found = std::find(known.begin(), known.end(), got[j]);
        ASSERT_EQ(batch.indices[batch.indptr[i] + j], found - known.begin());
        if (found == known.end()) known.push_back(got[j]);
      }
    }
    reached.push_back(static_cast<uint32_t>(known.size()));
  }
  EXPECT_EQ(batch.inputs, known);
  EXPECT_EQ(batch.reached, reached);
}

TEST(Sampler, AgreesWithASlowTwin) {
  const TestGraph graph = test::skewed_graph({.num_vertices = 2000, .edges_per_vertex = 8, .seed = 3});
  for (const bool replace : {false, true})
    for (const std::vector<int32_t>& fanouts :
         {std::vector<int32_t>{10, 5, 5}, {-1, 2}, {3}, {0, 4}, {4, 0}, {100, 1}, {1, 1, 1, 1}}) {
      const SamplerOptions options{.fanouts = fanouts, .batch_size = 32, .seed = 11, .replace = replace};
      const Sampler sampler = make_sampler(graph, options);
      for (int64_t number = 0; number < 4; ++number) {
        std::vector<uint32_t> seeds(32);
        std::iota(seeds.begin(), seeds.end(), static_cast<uint32_t>(number * 450));
        check_batch(graph, options, seeds, sample_one(sampler, seeds, {}, number));
      }
    }
}

TEST(Sampler, ReadsIndicesOfFourAndOfEightBytes) {
  TestGraph graph = test::skewed_graph({.num_vertices = 500, .edges_per_vertex = 8, .seed = 4});
  const SamplerOptions options{.fanouts = {4, 4}, .batch_size = 16, .seed = 5};
  const std::vector<uint32_t> seeds = {1, 7, 400, 33};
  const SampledBatch wide = sample_one(make_sampler(graph, options), seeds);
  CscView view = graph.view();
  view.indices = std::span<const int32_t>(graph.narrow());
  EXPECT_EQ(sample_one(std::move(Sampler::make(view, options)).value(), seeds), wide);
}

TEST(Sampler, IsTheSameForAnyNumberOfThreads) {
  const TestGraph graph = test::skewed_graph({.num_vertices = 4000, .edges_per_vertex = 10, .seed = 1});
  const Sampler sampler = make_sampler(graph, {.fanouts = {5, 5}, .batch_size = 8, .seed = 9});
  std::vector<uint32_t> seeds(1003);
  std::iota(seeds.begin(), seeds.end(), 700u);
  const std::vector<SampledBatch> one = sample_all(sampler, seeds, 1);
  ASSERT_EQ(one.size(), 126u);
  EXPECT_EQ(one.back().reached[0], 3u);
  for (const int threads : {2, 3, 7}) EXPECT_EQ(sample_all(sampler, seeds, threads), one) << threads;
}

// What every machine must draw: changing it changes all traces, so it is written down.
TEST(Sampler, DrawsWhatIsWrittenDown) {
  EXPECT_EQ(random_word(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(random_word(7, 1), random_word(7 + 0x9e3779b97f4a7c15u, 0));
  EXPECT_EQ(random_below(0xffffffffffffffffu, 10), 9u);
  EXPECT_EQ(random_below(0, 10), 0u);
  TestGraph ring;  // v has the in-neighbours v + 1 to v + 20
  ring.indptr.resize(101);
  for (int64_t v = 0; v < 100; ++v) {
    ring.indptr[static_cast<size_t>(v) + 1] = 20 * (v + 1);
    for (int64_t i = 1; i <= 20; ++i) ring.indices.push_back((v + i) % 100);
  }
  const Sampler sampler = make_sampler(ring, {.fanouts = {3}, .batch_size = 1, .seed = 1});
  const SampledBatch batch = sample_one(sampler, {50}, {Split::train, 2}, 4);
  EXPECT_EQ(batch.inputs, (std::vector<uint32_t>{50, 56, 59, 52}));
}

TEST(Sampler, DiffersByEpochSplitBatchAndSeed) {
  const TestGraph graph = test::skewed_graph({.num_vertices = 2000, .edges_per_vertex = 30, .seed = 2});
  const std::vector<uint32_t> seeds = {1, 2, 3, 4, 5, 6, 7, 8};
  std::set<std::vector<uint32_t>> all;
  for (const uint64_t seed : {1, 2}) {
    const Sampler sampler = make_sampler(graph, {.fanouts = {5, 5}, .batch_size = 8, .seed = seed});
    for (const SampledEpoch epoch : {SampledEpoch{Split::train, 0}, SampledEpoch{Split::train, 1},
                                     SampledEpoch{Split::valid, 0}, SampledEpoch{Split::test, 0}})
      for (const int64_t number : {0, 1}) all.insert(sample_one(sampler, seeds, epoch, number).inputs);
  }
  EXPECT_EQ(all.size(), 16u);
}

/// One vertex with `degree` in-neighbours, drawn many times.
TestGraph star(int64_t degree) {
  TestGraph graph;
  graph.indptr.assign(static_cast<size_t>(degree) + 2, degree);
  graph.indptr[0] = 0;
  graph.indices.resize(static_cast<size_t>(degree));
  std::iota(graph.indices.begin(), graph.indices.end(), 1);
  return graph;
}

/// Chi-square of counts that should be equal, as a number of standard deviations of its distribution.
double excess(const std::vector<double>& counts) {
  const double mean = std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double chi2 = 0;
  for (const double c : counts) chi2 += (c - mean) * (c - mean) / mean;
  const double freedom = static_cast<double>(counts.size()) - 1;
  return (chi2 - freedom) / std::sqrt(2 * freedom);
}

TEST(Sampler, DrawsAllSubsetsAlike) {
  const TestGraph graph = star(7);
  const Sampler sampler = make_sampler(graph, {.fanouts = {3}, .batch_size = 1, .seed = 77});
  std::map<std::vector<uint32_t>, double> subsets;
  for (int64_t number = 0; number < 35'000; ++number) {
    std::vector<uint32_t> got = drawn(sample_one(sampler, {0}, {}, number), 0);
    std::sort(got.begin(), got.end());
    subsets[got] += 1;
  }
  ASSERT_EQ(subsets.size(), 35u);  // 7 over 3
  std::vector<double> counts;
  for (const auto& [subset, count] : subsets) counts.push_back(count);
  EXPECT_LT(std::abs(excess(counts)), 4);
}

TEST(Sampler, DrawsAllTuplesAlikeWithReplacement) {
  const TestGraph graph = star(4);
  const Sampler sampler = make_sampler(graph, {.fanouts = {3}, .batch_size = 1, .seed = 78, .replace = true});
  std::map<std::vector<uint32_t>, double> tuples;
  for (int64_t number = 0; number < 64'000; ++number) tuples[drawn(sample_one(sampler, {0}, {}, number), 0)] += 1;
  ASSERT_EQ(tuples.size(), 64u);
  std::vector<double> counts;
  for (const auto& [tuple, count] : tuples) counts.push_back(count);
  EXPECT_LT(std::abs(excess(counts)), 4);
}

TEST(Sampler, DrawsManyNeighboursAlike) {
  constexpr int64_t degree = 300;
  const TestGraph graph = star(degree);
  const Sampler sampler = make_sampler(graph, {.fanouts = {100}, .batch_size = 1, .seed = 79});
  std::vector<double> counts(degree + 1);
  for (int64_t number = 0; number < 3000; ++number) {
    const std::vector<uint32_t> got = drawn(sample_one(sampler, {0}, {}, number), 0);
    ASSERT_EQ(std::set<uint32_t>(got.begin(), got.end()).size(), 100u);
    for (const uint32_t v : got) counts[v] += 1;
  }
  counts.erase(counts.begin());
  // NOTE: without replacement a count varies by 1 - 100/300 of the variance that independent draws have.
  double variance = 0;
  for (const double c : counts) variance += (c - 1000) * (c - 1000) / degree;
  EXPECT_NEAR(variance / (1000 * (1 - 100.0 / degree)), 1, 4 * std::sqrt(2.0 / degree));
}

TEST(Sampler, ShufflesSeedsAlikeAndOnlyOfTraining) {
  const std::vector<uint32_t> seeds = {10, 11, 12, 13};
  std::map<std::vector<uint32_t>, double> orders;
  for (uint32_t epoch = 0; epoch < 24'000; ++epoch) orders[order_seeds(seeds, 5, {Split::train, epoch})] += 1;
  ASSERT_EQ(orders.size(), 24u);
  std::vector<double> counts;
  for (const auto& [order, count] : orders) counts.push_back(count);
  EXPECT_LT(std::abs(excess(counts)), 4);
  EXPECT_EQ(order_seeds(seeds, 5, {Split::valid, 0}), seeds);
  EXPECT_EQ(order_seeds(seeds, 5, {Split::test, 0}), seeds);
}

TEST(Sampler, TakesIsolatedSeeds) {
  const TestGraph graph = star(3);
  const Sampler sampler = make_sampler(graph, {.fanouts = {2, 2}, .batch_size = 2, .seed = 1});
  const SampledBatch batch = sample_one(sampler, {1, 2});
  EXPECT_EQ(batch.inputs, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(batch.reached, (std::vector<uint32_t>{2, 2, 2}));
  EXPECT_EQ(batch.indptr, (std::vector<uint32_t>{0, 0, 0}));
}

TEST(Sampler, RefusesBadArguments) {
  const TestGraph graph = star(3);
  const auto text = [&](SamplerOptions options) {
    const auto made = Sampler::make(graph.view(), std::move(options));
    return made.ok() ? "" : made.status().message();
  };
  EXPECT_EQ(text({.fanouts = {}}), "fanouts: 0 of them, wanted 1 to 16");
  EXPECT_EQ(text({.fanouts = {5, -2}}), "fanouts[1] is -2, wanted -1 (all in-neighbours) or at most 1048576 of them");
  EXPECT_EQ(text({.fanouts = {1 << 30}}),
            "fanouts[0] is 1073741824, wanted -1 (all in-neighbours) or at most 1048576 of them");
  EXPECT_EQ(text({.fanouts = {5}, .batch_size = 0}), "batch_size is 0, wanted 1 to 16777216");
  EXPECT_EQ(text({.fanouts = {5}, .batch_size = 1 << 25}), "batch_size is 33554432, wanted 1 to 16777216");
  EXPECT_EQ(Sampler::make(CscView{}, {.fanouts = {1}}).status().message(),
            "graph: indptr is empty, wanted N + 1 offsets");

  const Sampler sampler = make_sampler(graph, {.fanouts = {5}});
  const auto seeds = [&](std::vector<int64_t> ids) {
    return sampler.check_seeds(std::span<const int64_t>(ids), "train").status().message();
  };
  EXPECT_EQ(seeds({}), "train: no seeds, wanted at least one");
  EXPECT_EQ(seeds({0, 4}), "train[1] is 4, wanted a vertex in [0, 4)");
  EXPECT_EQ(seeds({-1}), "train[0] is -1, wanted a vertex in [0, 4)");
  EXPECT_EQ(seeds({0, 2, 0}), "train[2] is 0, which is a seed already; wanted each once");
  EXPECT_EQ(seeds({0, 2}), "");
  const auto nothing = [](int64_t, const SampledBatch&) { return base::Status(); };
  EXPECT_EQ(sample_epoch(sampler, std::vector<uint32_t>{0}, {}, 0, nothing).message(),
            "threads is 0, wanted at least 1");
}

TEST(Sampler, ChecksTheGraphWhereItReads) {
  TestGraph graph = star(3);
  graph.indices[1] = 4;
  const auto sampled = [&] {
    SamplerScratch scratch;
    SampledBatch batch;
    const Sampler sampler = make_sampler(graph, {.fanouts = {-1}});
    return sampler.sample(std::vector<uint32_t>{0}, {}, 0, &scratch, &batch).message();
  };
  EXPECT_EQ(sampled(), "graph: indices[1] is 4, wanted a vertex in [0, 4)");
  graph.indptr[1] = 9;
  EXPECT_EQ(sampled(), "graph: indptr[0] is 0 and the next 9, wanted neither to fall nor to leave [0, 3]");
}

TEST(Sampler, ChecksTheSeedsOfABatch) {
  const TestGraph graph = star(3);
  const Sampler sampler = make_sampler(graph, {.fanouts = {2}});
  const auto text = [&](std::vector<uint32_t> seeds) {
    SamplerScratch scratch;
    SampledBatch batch;
    return sampler.sample(seeds, {}, 7, &scratch, &batch).message();
  };
  EXPECT_EQ(text({0, 4}), "seeds: number 1 of batch 7 is 4, wanted each once and in [0, 4)");
  EXPECT_EQ(text({0, 2, 0}), "seeds: number 2 of batch 7 is 0, wanted each once and in [0, 4)");
  EXPECT_EQ(text({3, 0}), "");
}

TEST(Sampler, EndsWithTheErrorOfTheSink) {
  const TestGraph graph = star(3);
  const Sampler sampler = make_sampler(graph, {.fanouts = {2}, .batch_size = 1});
  int64_t taken = 0;
  const base::Status status =
      sample_epoch(sampler, std::vector<uint32_t>{0, 1, 2, 3}, {}, 2, [&](int64_t number, const SampledBatch&) {
        ++taken;
        return number == 1 ? base::error(Errc::io, "disk full") : base::Status();
      });
  EXPECT_EQ(status.code(), Errc::io);
  EXPECT_EQ(taken, 2);
}

}  // namespace
}  // namespace overlace::gnn
