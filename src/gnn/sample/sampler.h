// Neighbour sampling of minibatches, before training: the same batches for any number of threads, on any machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "overlace/gnn.h"
#include "src/base/status.h"
#include "src/gnn/graph.h"

namespace overlace::gnn {

/// A pass over the seeds of a split. Only `train` is sampled more than once.
struct SampledEpoch {
  Split split = Split::train;
  uint32_t epoch = 0;
};

/// A batch in local ids: vertex i of it is inputs[i] of the graph. Seeds come first, then all others in order of first
/// appearance. Hop k samples the in-neighbours of the vertices that hop k - 1 reached first, each vertex once; so the
/// block of the k hops next to the seeds is a prefix: reached[k - 1] destinations, reached[k] sources, and the edges
/// before indptr[reached[k - 1]].
struct SampledBatch {
  std::vector<uint32_t> inputs;   // reached[hops]
  std::vector<uint32_t> reached;  // hops + 1: vertices known after so many hops; reached[0] seeds
  std::vector<uint32_t> indptr;   // reached[hops - 1] + 1: where the in-neighbours of a local vertex begin
  std::vector<uint32_t> indices;  // local ids
  bool operator==(const SampledBatch&) const = default;
};

/// What sampling a batch needs beside the graph; one per thread.
class SamplerScratch {
 public:
  SamplerScratch();
  ~SamplerScratch();
  SamplerScratch(SamplerScratch&&) noexcept;
  SamplerScratch& operator=(SamplerScratch&&) noexcept;

 private:
  friend class Sampler;
  struct State;
  std::unique_ptr<State> state_;
};

class Sampler {
 public:
  /// The graph's arrays must outlive the sampler; what is read of them is checked while it is read. invalid_argument:
  /// no fanout, more than kMaxHops, one below -1 or beyond kMaxFanout, a batch size outside 1 to kMaxBatchSize, more
  /// vertices than 32-bit ids have.
  static base::Result<Sampler> make(const CscView& graph, SamplerOptions options);
  static constexpr size_t kMaxHops = 16;
  static constexpr int32_t kMaxFanout = 1 << 20;
  static constexpr int64_t kMaxBatchSize = int64_t{1} << 24;

  /// Vertex ids of a split as 32-bit ids; invalid_argument: none, one out of range, one repeated.
  base::Result<std::vector<uint32_t>> check_seeds(const VertexSpan& seeds, const char* name) const;

  /// Batch `number` of `epoch`, any thread. invalid_argument: a seed out of range or repeated in the batch, or the
  /// graph is wrong where it is read.
  base::Status sample(std::span<const uint32_t> seeds, SampledEpoch epoch, int64_t number, SamplerScratch* scratch,
                      SampledBatch* out) const;

  int64_t num_vertices() const { return graph_.num_vertices(); }
  const SamplerOptions& options() const { return options_; }

 private:
  Sampler(const CscView& graph, SamplerOptions options) : graph_(graph), options_(std::move(options)) {}
  template <class Index>
  base::Status sample_hop(std::span<const Index> indices, size_t hop, uint64_t key, SamplerScratch::State* state,
                          SampledBatch* out) const;

  CscView graph_;
  SamplerOptions options_;
};

/// Seeds of a training epoch in the sequence in which batches take them: shuffled by (seed, epoch). Those of other
/// splits stay as they are.
std::vector<uint32_t> order_seeds(std::vector<uint32_t> seeds, uint64_t seed, SampledEpoch epoch);

inline int64_t num_batches(size_t num_seeds, int64_t batch_size) {
  const auto seeds = static_cast<int64_t>(num_seeds);
  return seeds / batch_size + (seeds % batch_size != 0 ? 1 : 0);
}

/// Takes batches in their order, on the thread that called sample_epoch(). An error ends the epoch with it.
using BatchSink = std::function<base::Status(int64_t number, const SampledBatch& batch)>;

/// All batches of an epoch on `threads` threads; a few batches per thread are in memory at a time.
base::Status sample_epoch(const Sampler& sampler, std::span<const uint32_t> seeds, SampledEpoch epoch, int threads,
                          const BatchSink& sink);

}  // namespace overlace::gnn
