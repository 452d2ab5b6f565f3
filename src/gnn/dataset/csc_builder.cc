#include "src/gnn/dataset/csc_builder.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>

#include "src/base/ceil_div_pod.h"
#include "src/base/file.h"
#include "src/base/npy.h"
#include "src/gnn/parallel.h"
#include "src/io/stream.h"

namespace overlace::gnn {
namespace {

constexpr int64_t kVerticesPerBlock = 1 << 14;

/// Calls fn(owner, neighbour) for each stored direction of each edge.
template <class Fn>
base::Status for_each_entry(const std::vector<Edge>& edges, int64_t block, const CscOptions& options, Fn fn) {
  for (size_t i = 0; i < edges.size(); ++i) {
    const Edge& e = edges[i];
    for (const int64_t v : {e.source, e.destination})
      if (v < 0 || v >= options.num_vertices)
        return base::invalid_argument("edge {} of block {} is {} -> {}, wanted vertices in [0, {})", i, block, e.source,
                                      e.destination, options.num_vertices);
    if (options.drop_loops && e.source == e.destination) continue;
    fn(e.destination, e.source);
    if (options.both_directions) fn(e.source, e.destination);
  }
  return {};
}

/// A .npy file written in order, past the page cache.
class ArrayWriter {
 public:
  base::Status open(const std::string& path, DType dtype, int64_t elements) {
    auto engine = io::IoEngine::open();
    if (!engine.ok()) return engine.status();
    engine_ = std::move(*engine);
    auto file = engine_->open_file(path, io::FileMode::create);
    if (!file.ok()) return file.status();
    const std::string header = base::npy_header(dtype, {elements}, kDataOffset);
    OVERLACE_TRY(
        (*file)->allocate(static_cast<int64_t>(header.size()) + elements * static_cast<int64_t>(dtype_bytes(dtype))));
    auto writer = io::StreamWriter::open(engine_.get(), *file);
    if (!writer.ok()) return writer.status();
    writer_ = std::move(*writer);
    return writer_->append(std::as_bytes(std::span(header)));
  }
  template <class T>
  base::Status append(std::span<const T> values) {
    return writer_->append(std::as_bytes(values));
  }
  base::Status finish() { return writer_->finish(); }

 private:
  std::unique_ptr<io::IoEngine> engine_;
  std::unique_ptr<io::StreamWriter> writer_;
};

class Builder {
 public:
  Builder(const EdgeBlocks& blocks, const CscOptions& options)
      : blocks_(blocks), options_(options), indptr_(static_cast<size_t>(options.num_vertices) + 1) {}

  base::Status count() {
    const auto count_block = [&](int64_t block, int) -> base::Status {
      std::vector<Edge> edges;
      OVERLACE_TRY(blocks_.edges_of(block, &edges));
      return for_each_entry(edges, block, options_, [&](int64_t owner, int64_t) {
        std::atomic_ref(indptr_[static_cast<size_t>(owner) + 1]).fetch_add(1, std::memory_order_relaxed);
      });
    };
    OVERLACE_TRY(parallel_each(blocks_.num_blocks, thread_count(options_.threads), count_block));
    for (size_t v = 1; v < indptr_.size(); ++v) indptr_[v] += indptr_[v - 1];
    return {};
  }

  base::Status write_indptr(const std::string& path) {
    ArrayWriter writer;
    OVERLACE_TRY(writer.open(path, DType::i64, static_cast<int64_t>(indptr_.size())));
    OVERLACE_TRY(writer.append(std::span<const int64_t>(indptr_)));
    return writer.finish();
  }

  template <class Index>
  base::Status write_indices(const std::string& path) {
    ArrayWriter writer;
    OVERLACE_TRY(writer.open(path, sizeof(Index) == 4 ? DType::i32 : DType::i64, num_edges()));
    const int64_t most = std::max<int64_t>(options_.memory_bytes / static_cast<int64_t>(sizeof(Index)), 1);
    for (int64_t first = 0; first < options_.num_vertices;) {
      // As many vertices as fit, at least one.
      const auto begin = indptr_.begin() + first + 1;
      const auto end = std::upper_bound(begin + 1, indptr_.end(), indptr_[static_cast<size_t>(first)] + most);
      const int64_t last = first + (end - begin);
      std::vector<Index> indices(
          static_cast<size_t>(indptr_[static_cast<size_t>(last)] - indptr_[static_cast<size_t>(first)]));
      OVERLACE_TRY(fill<Index>(first, last, indices));
      OVERLACE_TRY(writer.append(std::span<const Index>(indices)));
      first = last;
    }
    return writer.finish();
  }

  int64_t num_edges() const { return indptr_.back(); }

 private:
  /// In-neighbours of [first, last), sorted.
  template <class Index>
  base::Status fill(int64_t first, int64_t last, std::vector<Index>& indices) {
    const int64_t base = indptr_[static_cast<size_t>(first)];
    std::vector<uint32_t> used(static_cast<size_t>(last - first));
    const auto fill_block = [&](int64_t block, int) -> base::Status {
      std::vector<Edge> edges;
      OVERLACE_TRY(blocks_.edges_of(block, &edges));
      bool is_same = true;
      OVERLACE_TRY(for_each_entry(edges, block, options_, [&](int64_t owner, int64_t neighbour) {
        if (owner < first || owner >= last) return;
        const int64_t at = std::atomic_ref(used[static_cast<size_t>(owner - first)]).fetch_add(1);
        const int64_t place = indptr_[static_cast<size_t>(owner)] + at;
        if (place < indptr_[static_cast<size_t>(owner) + 1])
          indices[static_cast<size_t>(place - base)] = static_cast<Index>(neighbour);
        else
          is_same = false;
      }));
      if (!is_same) return base::error(Errc::stale, "edges of block {} changed while they were read", block);
      return {};
    };
    OVERLACE_TRY(parallel_each(blocks_.num_blocks, thread_count(options_.threads), fill_block));
    const int64_t sorts = base::ceil_div(last - first, kVerticesPerBlock);
    return parallel_each(sorts, thread_count(options_.threads), [&](int64_t block, int) -> base::Status {
      const int64_t until = std::min(first + (block + 1) * kVerticesPerBlock, last);
      for (int64_t v = first + block * kVerticesPerBlock; v < until; ++v)
        std::sort(indices.begin() + (indptr_[static_cast<size_t>(v)] - base),
                  indices.begin() + (indptr_[static_cast<size_t>(v) + 1] - base));
      return {};
    });
  }

  const EdgeBlocks& blocks_;
  const CscOptions& options_;
  std::vector<int64_t> indptr_;
};

}  // namespace

base::Result<int64_t> build_csc(const EdgeBlocks& blocks, const CscOptions& options, const std::string& directory) {
  if (options.num_vertices < 1)
    return base::invalid_argument("graph: {} vertices, wanted at least one", options.num_vertices);
  Builder builder(blocks, options);
  OVERLACE_TRY(builder.count());
  OVERLACE_TRY(builder.write_indptr(directory + "/indptr.npy"));
  if (options.num_vertices <= std::numeric_limits<int32_t>::max())
    OVERLACE_TRY(builder.write_indices<int32_t>(directory + "/indices.npy"));
  else
    OVERLACE_TRY(builder.write_indices<int64_t>(directory + "/indices.npy"));
  OVERLACE_TRY(base::sync_directory(directory));
  return builder.num_edges();
}

}  // namespace overlace::gnn
