#include "src/gnn/sample/trace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/unit/gnn/support/graphs.h"

namespace overlace::gnn {
namespace {

class MemorySink final : public ByteSink {
 public:
  base::Status append(std::span<const std::byte> bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return {};
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Trace : public ::testing::Test {
 protected:
  Trace() : graph_(test::skewed_graph({.num_vertices = 3000, .edges_per_vertex = 8, .seed = 6})), seeds_(300) {
    std::iota(seeds_.begin(), seeds_.end(), 100u);
  }

  std::vector<std::byte> written(int threads) {
    const SamplerOptions options{.fanouts = {4, 3}, .batch_size = 16, .seed = 3};
    const Sampler sampler = std::move(Sampler::make(graph_.view(), options)).value();
    const SampledEpoch epoch{Split::train, 1};
    TraceHeader header{
        .num_vertices = 3000, .num_batches = num_batches(seeds_.size(), 16), .options = options, .epoch = epoch};
    header.dataset[3] = 7;
    MemorySink sink;
    TraceWriter writer(header, &sink);
    batches_.clear();
    sample_epoch(sampler, order_seeds(seeds_, 3, epoch), epoch, threads, [&](int64_t, const SampledBatch& batch) {
      batches_.push_back(batch);
      return writer.append(batch);
    }).or_throw();
    writer.finish().or_throw();
    return sink.take();
  }

  test::TestGraph graph_;
  std::vector<uint32_t> seeds_;
  std::vector<SampledBatch> batches_;
};

template <class T>
std::vector<uint32_t> vector_of(T span) {
  return {span.begin(), span.end()};
}

TEST_F(Trace, ReadsBackWhatWasWritten) {
  const std::vector<std::byte> bytes = written(2);
  const TraceFile file = std::move(TraceFile::open(bytes, "t.ovt")).value();
  EXPECT_EQ(file.num_batches(), 19);
  EXPECT_EQ(file.num_vertices(), 3000);
  EXPECT_EQ(file.header().options.fanouts, (std::vector<int32_t>{4, 3}));
  EXPECT_EQ(file.header().options.batch_size, 16);
  EXPECT_EQ(file.header().options.seed, 3u);
  EXPECT_FALSE(file.header().options.replace);
  EXPECT_EQ(file.header().epoch.epoch, 1u);
  EXPECT_EQ(file.header().dataset[3], 7);
  for (int64_t b = 0; b < file.num_batches(); ++b) {
    const BatchView view = std::move(file.read(b)).value();
    const SampledBatch& wanted = batches_[static_cast<size_t>(b)];
    EXPECT_EQ(vector_of(view.inputs), wanted.inputs);
    EXPECT_EQ(vector_of(view.reached), wanted.reached);
    EXPECT_EQ(vector_of(view.indptr), wanted.indptr);
    EXPECT_EQ(vector_of(view.indices), wanted.indices);
    EXPECT_EQ(vector_of(file.inputs(b)), wanted.inputs);
  }
  EXPECT_TRUE(file.verify().ok());
  EXPECT_TRUE(check_inputs(file).ok());
  EXPECT_EQ(file.read(19).status().message(), "t.ovt: batch 19, wanted one in [0, 19)");
}

TEST_F(Trace, HasTheSameBytesForAnyNumberOfThreads) {
  const std::vector<std::byte> one = written(1);
  for (const int threads : {2, 5}) EXPECT_TRUE(written(threads) == one) << threads;
}

TEST_F(Trace, FindsEachFlippedByteAndEachCut) {
  const std::vector<std::byte> bytes = written(1);
  const auto status = [](std::span<const std::byte> changed) {
    const auto file = TraceFile::open(changed, "t.ovt");
    return file.ok() ? file->verify() : file.status();
  };
  ASSERT_TRUE(status(bytes).ok());
  std::vector<std::byte> changed = bytes;
  size_t unseen = 0;
  for (size_t i = 0; i < bytes.size(); i += i < 300 || i + 500 > bytes.size() ? 1 : 13) {
    changed[i] ^= std::byte{0x10};
    const base::Status seen = status(changed);
    if (seen.ok())
      ++unseen;  // the zeros between two batches
    else
      EXPECT_TRUE(seen.code() == Errc::corrupt || seen.code() == Errc::version_mismatch) << seen.message();
    changed[i] = bytes[i];
  }
  EXPECT_LT(unseen, bytes.size() / 13 / 20);
  for (const size_t size : {size_t{0}, size_t{100}, size_t{4096}, size_t{5000}, bytes.size() - 1, bytes.size() - 64})
    EXPECT_EQ(status(std::span(bytes).first(size)).code(), Errc::corrupt);
}

TEST_F(Trace, NamesWhatIsWrong) {
  std::vector<std::byte> bytes = written(1);
  const auto text = [&] {
    const auto file = TraceFile::open(bytes, "t.ovt");
    return (file.ok() ? file->verify() : file.status()).message();
  };
  bytes[8] = std::byte{9};
  EXPECT_EQ(text(), "t.ovt: format 9 of traces, wanted 1");
  bytes[0] = std::byte{0};
  EXPECT_EQ(text(), "t.ovt: this is no trace");
  bytes = written(1);
  bytes[40] ^= std::byte{1};
  EXPECT_EQ(text(), "t.ovt: the checksum of the header is wrong");
  bytes = written(1);
  bytes[4096 + 40] ^= std::byte{1};
  EXPECT_EQ(text().rfind("t.ovt: checksum of batch 0 at byte 4096 is ", 0), 0u) << text();
  bytes.resize(100);
  EXPECT_EQ(text(), "t.ovt: 100 bytes, a trace has at least 4160");
}

TEST_F(Trace, RefusesAWrongNumberOfBatches) {
  MemorySink sink;
  TraceHeader header;
  header.num_vertices = 3;
  header.num_batches = 2;
  header.options.fanouts = {1};
  TraceWriter writer(header, &sink);
  SampledBatch batch;
  batch.inputs = {1};
  batch.reached = {1, 1};
  batch.indptr = {0, 0};
  writer.append(batch).or_throw();
  EXPECT_EQ(writer.finish().message(), "trace: 1 batches were written, wanted 2");
}

TEST_F(Trace, ChecksInputsInMemory) {
  MemoryTrace trace(4);
  trace.append(std::vector<uint32_t>{3, 0});
  trace.append(std::vector<uint32_t>{0, 3});
  EXPECT_TRUE(check_inputs(trace).ok());
  MemoryTrace twice = trace;
  twice.append(std::vector<uint32_t>{1, 2, 1});
  EXPECT_EQ(check_inputs(twice).message(), "trace: input 2 of batch 2 is 1, which is there already; wanted each once");
  trace.append(std::vector<uint32_t>{4});
  EXPECT_EQ(check_inputs(trace).message(), "trace: input 0 of batch 2 is 4, wanted a vertex in [0, 4)");
}

}  // namespace
}  // namespace overlace::gnn
