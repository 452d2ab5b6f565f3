#include "src/gnn/sample/sampler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/gnn/parallel.h"
#include "src/gnn/sample/local_ids.h"
#include "src/gnn/sample/random.h"

namespace overlace::gnn {
namespace {

constexpr uint64_t kMaxIds = std::numeric_limits<uint32_t>::max();  // the last one stands for "none"

/// Key of everything that is drawn in an epoch of a split.
uint64_t epoch_key(uint64_t seed, SampledEpoch epoch) {
  return random_word(random_word(seed, static_cast<uint64_t>(epoch.split)), epoch.epoch);
}

/// A subset of [0, n) of k elements, all subsets alike (Floyd's algorithm, CACM 1987).
class DistinctDraws {
 public:
  /// Appends offset + each element to `out`. Precondition: 0 <= k < n.
  void draw(uint64_t key, uint64_t n, uint64_t k, int64_t offset, std::vector<int64_t>* out) {
    const size_t first = out->size();
    const bool is_linear = k <= kLinear;
    if (!is_linear) clear(k);
    for (uint64_t i = 0; i < k; ++i) {
      const uint64_t last = n - k + i;
      const auto t = static_cast<int64_t>(random_below(random_word(key, i), last + 1));
      const bool is_taken =
          is_linear ? std::find(out->begin() + static_cast<int64_t>(first), out->end(), offset + t) != out->end()
                    : !insert(t);
      const int64_t element = is_taken ? static_cast<int64_t>(last) : t;
      if (is_taken && !is_linear) insert(element);
      out->push_back(offset + element);
    }
  }

 private:
  static constexpr uint64_t kLinear = 32;

  void clear(uint64_t k) {
    size_t size = 1;
    while (size < 2 * k) size *= 2;
    table_.assign(size, -1);
  }
  bool insert(int64_t x) {
    size_t i = static_cast<size_t>(random_word(0, static_cast<uint64_t>(x))) & (table_.size() - 1);
    while (table_[i] >= 0 && table_[i] != x) i = (i + 1) & (table_.size() - 1);
    return std::exchange(table_[i], x) < 0;
  }

  std::vector<int64_t> table_;
};

}  // namespace

struct SamplerScratch::State {
  LocalIds ids;
  DistinctDraws draws;
  std::vector<int64_t> edges;   // positions in the graph's indices that a few vertices drew
  std::vector<uint32_t> drawn;  // the vertices there
};

SamplerScratch::SamplerScratch() : state_(std::make_unique<State>()) {}
SamplerScratch::~SamplerScratch() = default;
SamplerScratch::SamplerScratch(SamplerScratch&&) noexcept = default;
SamplerScratch& SamplerScratch::operator=(SamplerScratch&&) noexcept = default;

base::Result<Sampler> Sampler::make(const CscView& graph, SamplerOptions options) {
  if (options.fanouts.empty() || options.fanouts.size() > kMaxHops)
    return base::invalid_argument("fanouts: {} of them, wanted 1 to {}", options.fanouts.size(), kMaxHops);
  for (size_t hop = 0; hop < options.fanouts.size(); ++hop)
    if (options.fanouts[hop] < -1 || options.fanouts[hop] > kMaxFanout)
      return base::invalid_argument("fanouts[{}] is {}, wanted -1 (all in-neighbours) or at most {} of them", hop,
                                    options.fanouts[hop], kMaxFanout);
  if (options.batch_size < 1 || options.batch_size > kMaxBatchSize)
    return base::invalid_argument("batch_size is {}, wanted 1 to {}", options.batch_size, kMaxBatchSize);
  if (graph.indptr.empty()) return base::invalid_argument("graph: indptr is empty, wanted N + 1 offsets");
  if (static_cast<uint64_t>(graph.num_vertices()) > kMaxIds)
    return base::invalid_argument("graph: {} vertices, wanted at most {}: sampled ids have 4 bytes",
                                  graph.num_vertices(), kMaxIds);
  return Sampler(graph, std::move(options));
}

base::Result<std::vector<uint32_t>> Sampler::check_seeds(const VertexSpan& seeds, const char* name) const {
  return std::visit(
      [&](auto span) -> base::Result<std::vector<uint32_t>> {
        if (span.empty()) return base::invalid_argument("{}: no seeds, wanted at least one", name);
        std::vector<uint32_t> out(span.size());
        std::vector<bool> is_seen(static_cast<size_t>(num_vertices()));
        for (size_t i = 0; i < span.size(); ++i) {
          const auto v = static_cast<int64_t>(span[i]);
          if (v < 0 || v >= num_vertices())
            return base::invalid_argument("{}[{}] is {}, wanted a vertex in [0, {})", name, i, v, num_vertices());
          if (is_seen[static_cast<size_t>(v)])
            return base::invalid_argument("{}[{}] is {}, which is a seed already; wanted each once", name, i, v);
          is_seen[static_cast<size_t>(v)] = true;
          out[i] = static_cast<uint32_t>(v);
        }
        return out;
      },
      seeds);
}

template <class Index>
base::Status Sampler::sample_hop(std::span<const Index> indices, size_t hop, uint64_t key, SamplerScratch::State* state,
                                 SampledBatch* out) const {
  constexpr size_t kAtOnce = 16;  // vertices whose reads of the graph are under way together
  const auto fanout = options_.fanouts[hop];
  const auto num_edges = static_cast<int64_t>(indices.size());
  const size_t begin = hop == 0 ? 0 : out->reached[hop - 1], end = out->reached[hop];
  for (size_t first = begin; first < end; first += kAtOnce) {
    const size_t last = std::min(first + kAtOnce, end);
    for (size_t i = last; i < std::min(last + kAtOnce, end); ++i) __builtin_prefetch(&graph_.indptr[out->inputs[i]]);

    // Draw positions, ask for what lies there.
    state->edges.clear();
    for (size_t i = first; i < last; ++i) {
      const uint32_t v = out->inputs[i];
      const int64_t offset = graph_.indptr[v], after = graph_.indptr[size_t{v} + 1];
      if (offset < 0 || after < offset || after > num_edges)
        return base::invalid_argument(
            "graph: indptr[{}] is {} and the next {}, wanted neither to fall nor to leave [0, {}]", v, offset, after,
            num_edges);
      const auto degree = static_cast<uint64_t>(after - offset), wanted = static_cast<uint64_t>(fanout);
      const uint64_t own = random_word(key, v);
      if (fanout >= 0 && options_.replace) {
        for (uint64_t draw = 0; draw < wanted && degree > 0; ++draw)
          state->edges.push_back(offset + static_cast<int64_t>(random_below(random_word(own, draw), degree)));
      } else if (fanout >= 0 && wanted < degree) {
        state->draws.draw(own, degree, wanted, offset, &state->edges);
      } else {
        for (int64_t e = offset; e < after; ++e) state->edges.push_back(e);
      }
      if (out->indices.size() + state->edges.size() > kMaxIds)
        return base::invalid_argument(
            "fanouts: a batch has more than {} sampled edges, wanted fewer or a smaller batch", kMaxIds);
      out->indptr.push_back(static_cast<uint32_t>(out->indices.size() + state->edges.size()));
    }
    for (const int64_t e : state->edges) __builtin_prefetch(&indices[static_cast<size_t>(e)]);

    state->drawn.clear();
    for (const int64_t e : state->edges) {
      const auto u = static_cast<int64_t>(indices[static_cast<size_t>(e)]);
      if (u < 0 || u >= num_vertices())
        return base::invalid_argument("graph: indices[{}] is {}, wanted a vertex in [0, {})", e, u, num_vertices());
      state->drawn.push_back(static_cast<uint32_t>(u));
      state->ids.prefetch(static_cast<uint32_t>(u));
    }
    for (const uint32_t u : state->drawn) {
      const uint32_t known = state->ids.size(), local = state->ids.insert(u);
      if (local == known) out->inputs.push_back(u);
      out->indices.push_back(local);
    }
  }
  out->reached.push_back(state->ids.size());
  return {};
}

base::Status Sampler::sample(std::span<const uint32_t> seeds, SampledEpoch epoch, int64_t number,
                             SamplerScratch* scratch, SampledBatch* out) const {
  SamplerScratch::State* state = scratch->state_.get();
  state->ids.clear();
  out->inputs.assign(seeds.begin(), seeds.end());
  out->reached.assign(1, static_cast<uint32_t>(seeds.size()));
  out->indptr.assign(1, 0);
  out->indices.clear();
  for (size_t i = 0; i < seeds.size(); ++i)
    if (seeds[i] >= num_vertices() || state->ids.insert(seeds[i]) != i)
      return base::invalid_argument("seeds: number {} of batch {} is {}, wanted each once and in [0, {})", i, number,
                                    seeds[i], num_vertices());

  const uint64_t batch_key = random_word(epoch_key(options_.seed, epoch), static_cast<uint64_t>(number) + 1);
  for (size_t hop = 0; hop < options_.fanouts.size(); ++hop) {
    const uint64_t key = random_word(batch_key, hop);
    OVERLACE_TRY(std::visit([&](auto indices) { return sample_hop(indices, hop, key, state, out); }, graph_.indices));
  }
  return {};
}

std::vector<uint32_t> order_seeds(std::vector<uint32_t> seeds, uint64_t seed, SampledEpoch epoch) {
  if (epoch.split != Split::train) return seeds;
  // NOTE: word 0 of an epoch's key is for its seeds, the others for its batches.
  const uint64_t key = random_word(epoch_key(seed, epoch), 0);
  for (size_t i = seeds.size(); i > 1; --i) std::swap(seeds[i - 1], seeds[random_below(random_word(key, i), i)]);
  return seeds;
}

base::Status sample_epoch(const Sampler& sampler, std::span<const uint32_t> seeds, SampledEpoch epoch, int threads,
                          const BatchSink& sink) {
  if (threads < 1) return base::invalid_argument("threads is {}, wanted at least 1", threads);
  constexpr int64_t kPerThread = 16;  // batches between two turns of the sink
  const int64_t batch_size = sampler.options().batch_size, nb = num_batches(seeds.size(), batch_size);
  const int64_t window = std::min<int64_t>(nb, threads * kPerThread);
  std::vector<SampledBatch> batches(static_cast<size_t>(window));
  std::vector<SamplerScratch> scratch(static_cast<size_t>(threads));
  for (int64_t first = 0; first < nb; first += window) {
    const int64_t count = std::min(window, nb - first);
    OVERLACE_TRY(parallel_each(count, threads, [&](int64_t i, int thread) {
      const auto begin = static_cast<size_t>((first + i) * batch_size);
      const auto part = seeds.subspan(begin, std::min(static_cast<size_t>(batch_size), seeds.size() - begin));
      return sampler.sample(part, epoch, first + i, &scratch[static_cast<size_t>(thread)],
                            &batches[static_cast<size_t>(i)]);
    }));
    for (int64_t i = 0; i < count; ++i) OVERLACE_TRY(sink(first + i, batches[static_cast<size_t>(i)]));
  }
  return {};
}

}  // namespace overlace::gnn
