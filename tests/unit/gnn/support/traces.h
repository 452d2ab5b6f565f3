// Small traces: made by hand, at random, or sampled from a skewed graph.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "src/gnn/sample/random.h"
#include "src/gnn/sample/trace.h"
#include "tests/unit/gnn/support/graphs.h"

namespace overlace::gnn::test {

inline MemoryTrace trace_of(int64_t num_vertices, std::initializer_list<std::vector<uint32_t>> batches) {
  MemoryTrace trace(num_vertices);
  for (const auto& batch : batches) trace.append(batch);
  return trace;
}

/// Batches of 1 to `most` different vertices in any order; small ids are used more often.
inline MemoryTrace random_trace(int64_t num_vertices, int64_t num_batches, int64_t most, uint64_t seed) {
  MemoryTrace trace(num_vertices);
  uint64_t draw = 0;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random_below(random_word(seed, draw++), static_cast<uint64_t>(n)));
  };
  for (int64_t b = 0; b < num_batches; ++b) {
    std::vector<uint32_t> inputs;
    const int64_t wanted = 1 + below(most);
    while (static_cast<int64_t>(inputs.size()) < wanted) {
      const auto v = static_cast<uint32_t>(below(below(2) == 0 ? num_vertices : num_vertices / 2 + 1));
      if (std::find(inputs.begin(), inputs.end(), v) == inputs.end()) inputs.push_back(v);
    }
    trace.append(inputs);
  }
  return trace;
}

/// One training epoch of a skewed graph: 15 % of the vertices are seeds.
inline MemoryTrace sampled_trace(int64_t num_vertices, int64_t batch_size, uint64_t seed) {
  const TestGraph graph = skewed_graph({.num_vertices = num_vertices, .edges_per_vertex = 16, .seed = seed});
  const SamplerOptions options{.fanouts = {10, 5, 5}, .batch_size = batch_size, .seed = seed};
  const auto sampler = Sampler::make(graph.view(), options);
  std::vector<uint32_t> seeds;
  for (uint32_t v = 0; v < static_cast<uint32_t>(num_vertices); ++v)
    if (graph.view().degree(v) > 0 && uniform_at(seed + 99, v) < 0.15) seeds.push_back(v);
  MemoryTrace trace(num_vertices);
  sample_epoch(*sampler, order_seeds(seeds, seed, {}), {}, 2, [&](int64_t, const SampledBatch& batch) {
    trace.append(batch);
    return base::Status();
  }).or_throw();
  return trace;
}

}  // namespace overlace::gnn::test
