// A loader on a GPU: rows and arrays of every batch are those of the trace and the dataset, however far the caller's
// stream is behind, also after breaks.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/gnn/pipeline/loader.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

struct Case {
  const char* name;
  BatchOrder order;
  CachePolicy policy;
  int64_t dim;
  int depth;
  bool has_pages;
};

/// Batches that a stream has copied to the host behind work of a millisecond, to be compared once it is done.
class Copies {
 public:
  Copies() { EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Copies() {
    (void)cudaStreamSynchronize(stream_);
    for (const Copy& copy : copies_) (void)cudaFreeHost(copy.host);
    (void)cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }

  void take(const LoadedBatch& batch) {
    Copy copy{batch, nullptr};
    EXPECT_CUDA(cudaHostAlloc(&copy.host, static_cast<size_t>(batch.bytes), cudaHostAllocDefault));
    EXPECT_CUDA(cudaLaunchHostFunc(stream_, &Copies::pause, nullptr));
    EXPECT_CUDA(cudaMemcpyAsync(copy.host, batch.rows.data(), static_cast<size_t>(batch.bytes), cudaMemcpyDeviceToHost,
                                stream_));
    copies_.push_back(copy);
  }

  void check(const TraceFile& trace, const Dataset& dataset) {
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const test::Matrix matrix(dataset);
    const auto labels = dataset.labels();
    for (const Copy& copy : copies_) {
      const BatchView wanted = trace.batch(copy.batch.number);
      const auto* bytes = static_cast<const std::byte*>(copy.host);
      const auto at = [&](std::span<const int64_t> there) {
        const auto* data = bytes + (reinterpret_cast<const std::byte*>(there.data()) - copy.batch.rows.data());
        return std::span(reinterpret_cast<const int64_t*>(data), there.size());
      };
      const auto ids = at(copy.batch.ids), edges = at(copy.batch.edges), classes = at(copy.batch.classes);
      ASSERT_TRUE(std::equal(ids.begin(), ids.end(), wanted.inputs.begin(), wanted.inputs.end()));
      ASSERT_EQ(edges.size(), 2 * wanted.indices.size());
      ASSERT_TRUE(std::equal(wanted.indices.begin(), wanted.indices.end(), edges.begin()));
      for (size_t i = 0; i < classes.size(); ++i) ASSERT_EQ(classes[i], labels[wanted.inputs[i]]);
      for (size_t i = 0; i < wanted.inputs.size(); ++i) {
        const auto row = matrix.row(wanted.inputs[i]);
        ASSERT_EQ(std::memcmp(bytes + i * row.size(), row.data(), row.size()), 0)
            << "batch " << copy.batch.number << ", input " << i;
      }
    }
  }

 private:
  struct Copy {
    LoadedBatch batch;
    void* host;
  };
  static void pause(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

  cudaStream_t stream_ = nullptr;
  std::vector<Copy> copies_;
};

class PackedLoaderTest : public testing::TestWithParam<Case> {};

TEST_P(PackedLoaderTest, DeliversTheDatasetToAStreamThatIsBehind) {
  OVERLACE_NEED_GPUS(1);
  const Case& c = GetParam();
  const Scratch scratch;
  const Dataset dataset = test::small_dataset(scratch.path("data"), 1 << 11, c.dim);
  const std::string path = scratch.path("a.ovg");
  sample_artefact(dataset, path, test::small_sample()).status().or_throw();
  const int64_t segment = c.order == BatchOrder::segments ? 9 : 0;
  ArtefactPackRequest request = test::small_pack(dataset, {c.order, segment}, c.policy);
  request.depth = c.depth;
  if (c.has_pages) request.disk_bytes = dataset.description().features.bytes * 2 / 3;
  pack_artefact(dataset, path, request).status().or_throw();
  const ArtefactTrace trace =
      std::move(ArtefactTrace::open(path, *read_manifest(path)->trace(Split::train), true)).value();

  Copies copies;
  auto gpu = open_gpu(0);
  ASSERT_TRUE(gpu.ok()) << gpu.status().message();
  const auto loader = std::move(Loader::open(path, {.order_seed = 4, .device = std::move(*gpu)})).value();
  loader->use_stream(copies.stream());
  int64_t taken = 0;
  for (const int64_t most : {int64_t{5}, int64_t{1} << 20, int64_t{1} << 20}) {  // the first epoch is left early
    loader->start(taken == 0 ? 0 : 1).or_throw();
    for (int64_t i = 0; i < most; ++i) {
      const auto batch = loader->next();
      ASSERT_TRUE(batch.ok()) << batch.status().message();
      if (!batch->has_value()) break;
      copies.take(**batch);
      ++taken;
      if (i % 4 != 3) loader->release();
      if (i % 4 == 0 && i > 0) loader->release();  // one was held for a while
    }
  }
  EXPECT_EQ(taken, 5 + 2 * loader->num_batches());
  copies.check(trace.trace(), dataset);
}

INSTANTIATE_TEST_SUITE_P(Cases, PackedLoaderTest,
                         testing::Values(Case{"fixed_narrow", BatchOrder::fixed, CachePolicy::belady, 25, 2, false},
                                         Case{"fixed_short", BatchOrder::fixed, CachePolicy::belady, 40, 2, false},
                                         Case{"fixed_wide", BatchOrder::fixed, CachePolicy::belady, 160, 2, false},
                                         Case{"fixed_odd", BatchOrder::fixed, CachePolicy::belady, 129, 6, false},
                                         Case{"segments", BatchOrder::segments, CachePolicy::belady, 129, 3, false},
                                         Case{"lru", BatchOrder::fixed, CachePolicy::lru, 160, 2, false},
                                         Case{"shuffle", BatchOrder::shuffle, CachePolicy::hottest, 25, 3, false},
                                         Case{"pages_narrow", BatchOrder::segments, CachePolicy::belady, 25, 2, true},
                                         Case{"pages_wide", BatchOrder::segments, CachePolicy::belady, 160, 2, true}),
                         [](const testing::TestParamInfo<Case>& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace overlace::gnn
