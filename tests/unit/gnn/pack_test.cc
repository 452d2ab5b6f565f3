// Packs against the matrix row by row, and training epochs replayed from the bytes of the files alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <functional>
#include <numeric>

#include "src/base/mapped_file.h"
#include "src/gnn/dataset/dataset.h"
#include "src/gnn/generate/generate.h"
#include "src/gnn/pack/extent.h"
#include "src/gnn/pack/files.h"
#include "src/gnn/pack/packer.h"
#include "src/gnn/plan/predict.h"
#include "src/gnn/store/plan_file.h"
#include "tests/unit/gnn/scratch.h"
#include "tests/unit/gnn/support/traces.h"

namespace overlace::gnn {
namespace {

using Bytes = std::vector<std::byte>;

std::byte feature(int64_t vertex, int64_t at) {
  return static_cast<std::byte>(random_word(static_cast<uint64_t>(vertex), static_cast<uint64_t>(at)));
}

class Features final : public RowSource {
 public:
  explicit Features(int64_t row_bytes) : row_bytes_(row_bytes) {}
  base::Status read(int64_t first, int64_t count, std::span<std::byte> out) override {
    EXPECT_EQ(std::ssize(out), count * row_bytes_);
    EXPECT_EQ(first, next_) << "rows are read in sequence";
    next_ = first + count;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < row_bytes_; ++k) out[static_cast<size_t>(i * row_bytes_ + k)] = feature(first + i, k);
    return fails_at_ > 0 && next_ >= fails_at_ ? base::error(Errc::io, "features: gone") : base::Status();
  }
  void fail_at(int64_t row) { fails_at_ = row; }

 private:
  int64_t row_bytes_, next_ = 0, fails_at_ = 0;
};

class Files final : public PackStore {
 public:
  base::Status write(PackFile file, int64_t offset, std::span<const std::byte> bytes) override {
    if (--writes_left_ == 0) return base::error(Errc::io, "disk full");
    Bytes& to = files[static_cast<size_t>(file)];
    to.resize(std::max(to.size(), static_cast<size_t>(offset) + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), to.begin() + offset);
    return {};
  }
  void fail_after(int64_t writes) { writes_left_ = writes; }
  std::array<std::span<const std::byte>, 3> spans() const { return {files[0], files[1], files[2]}; }
  std::array<Bytes, 3> files;

 private:
  int64_t writes_left_ = -1;
};

using IsRow = std::function<bool(std::span<const std::byte> bytes, int64_t vertex)>;
bool is_row(std::span<const std::byte> bytes, int64_t vertex) {
  for (size_t k = 0; k < bytes.size(); ++k)
    if (bytes[k] != feature(vertex, static_cast<int64_t>(k))) return false;
  return true;
}

/// A loader without threads: gathers batches from the bytes of an artefact.
class BatchReader {
 public:
  BatchReader(const InputTrace& trace, const PackRequest& request, const PackResult& packed,
              const std::array<std::span<const std::byte>, 3>& files, IsRow is_right = is_row)
      : trace_(trace),
        request_(request),
        packed_(packed),
        files_(files),
        is_right_(std::move(is_right)),
        row_(request.options.row_bytes) {
    const CachedRows& start = packed.plan.start;
    const auto load = [&](const std::vector<uint32_t>& rows) {
      Bytes out;
      for (const uint32_t v : rows) {
        const auto place = std::lower_bound(packed.hot.begin(), packed.hot.end(), v) - packed.hot.begin();
        append(&out, at(PackFile::hot, place * row_, row_));
      }
      return out;
    };
    gpu_ = load(start.gpu);
    cpu_ = load(start.cpu);
    cpu_.resize(cpu_.size() + static_cast<size_t>(row_));
  }

  void run_epoch(uint64_t epoch) {
    const int64_t nb = trace_.num_batches();
    for (const int64_t b : epoch_sequence(request_.options.order, nb, 3, epoch)) {
      const ExtentView view = open(packed_.extents[static_cast<size_t>(b)], b);
      read(b, view);
      gather(b, view);
      if (::testing::Test::HasFatalFailure()) return;
      for (const Admission& a : view.admissions) put(a.slot, row_of(ring_.front(), a.ring_row));
      if ((b + 1) % packed_.plan.segment_batches == 0 || b + 1 == nb) restore(b / packed_.plan.segment_batches);
    }
  }

 private:
  std::span<const std::byte> at(PackFile file, int64_t offset, int64_t bytes) const {
    return files_[static_cast<size_t>(file)].subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes));
  }
  ExtentView open(const ExtentPlace& place, int64_t number) const {
    const ExtentLimits limits = plan_of(request_, packed_, trace_.num_vertices()).limits(number);
    return std::move(open_extent(at(PackFile::packs, place.offset, place.bytes), limits, "packs")).value();
  }
  static void append(Bytes* to, std::span<const std::byte> bytes) { to->insert(to->end(), bytes.begin(), bytes.end()); }
  std::span<const std::byte> row_of(const Bytes& rows, uint32_t i) const {
    return std::span(rows).subspan(static_cast<size_t>(i * row_), static_cast<size_t>(row_));
  }
  void put(uint32_t slot, std::span<const std::byte> row) {
    const Bytes copy(row.begin(), row.end());
    std::copy(copy.begin(), copy.end(), cpu_.begin() + slot * row_);
  }

  void read(int64_t b, const ExtentView& view) {
    Bytes rows(view.rows.begin(), view.rows.end());
    const PageShape& shape = packed_.plan.page;
    for (const uint32_t page : view.pages) {
      const int64_t first = packed_.first_page[static_cast<size_t>(b / packed_.plan.disk_segment_batches)];
      append(&rows, at(PackFile::disk_cache, (first + page) * shape.bytes, shape.rows * row_));
    }
    ring_.push_front(std::move(rows));
    if (ring_.size() > static_cast<size_t>(request_.options.depth) + 1) ring_.pop_back();
  }
  void gather(int64_t b, const ExtentView& view) {
    const BatchView wanted = trace_.batch(b);
    ASSERT_TRUE(
        std::equal(wanted.inputs.begin(), wanted.inputs.end(), view.batch.inputs.begin(), view.batch.inputs.end()));
    ASSERT_TRUE(
        std::equal(wanted.indptr.begin(), wanted.indptr.end(), view.batch.indptr.begin(), view.batch.indptr.end()));
    ASSERT_TRUE(
        std::equal(wanted.indices.begin(), wanted.indices.end(), view.batch.indices.begin(), view.batch.indices.end()));
    const auto depth = static_cast<uint32_t>(request_.options.depth);
    for (size_t i = 0; i < view.program.size(); ++i) {
      const uint32_t word = view.program[i], index = row_index(word);
      const Bytes& level = row_level(word) == RowLevel::gpu   ? gpu_
                           : row_level(word) == RowLevel::cpu ? cpu_
                                                              : ring_.at(ring_age(index, depth));
      const uint32_t row = row_level(word) == RowLevel::ring ? ring_row(index, depth) : index;
      ASSERT_TRUE(is_right_(row_of(level, row), wanted.inputs[i])) << "batch " << b << ", input " << i;
    }
    for (size_t i = 0; i < view.labels.size(); ++i) ASSERT_EQ(view.labels[i], request_.labels[wanted.inputs[i]]);
  }
  void restore(int64_t segment) {
    ring_.clear();
    const ExtentPlace& place = packed_.restores[static_cast<size_t>(segment)];
    if (place.bytes == 0) return;
    const ExtentView view = open(place, -1 - segment);
    for (const SlotMove& move : view.moves) put(move.to, row_of(cpu_, move.from));
    const Bytes rows(view.rows.begin(), view.rows.end());
    for (const Admission& load : view.admissions) put(load.slot, row_of(rows, load.ring_row));
  }

  const InputTrace& trace_;
  const PackRequest& request_;
  const PackResult& packed_;
  std::array<std::span<const std::byte>, 3> files_;
  IsRow is_right_;
  int64_t row_;
  Bytes gpu_, cpu_;
  std::deque<Bytes> ring_;
};

const MemoryTrace& trace() {
  static const MemoryTrace made = test::sampled_trace(1 << 10, 8, 4);
  return made;
}

const std::vector<int32_t>& labels() {
  static const std::vector<int32_t> made = [] {
    std::vector<int32_t> out(1 << 10);
    for (size_t v = 0; v < out.size(); ++v) out[v] = static_cast<int32_t>(v * 7 % 33) - 1;
    return out;
  }();
  return made;
}

PackRequest request_of(int64_t row_bytes, OrderChoice order = {}, int64_t disk_rows = 0) {
  PackRequest request;
  request.options = {.gpu_rows = 40, .cpu_rows = 60, .order = order, .depth = 2, .row_bytes = row_bytes};
  request.options.disk.max_rows = disk_rows;
  request.labels = labels();
  request.generation[5] = 9;
  return request;
}

struct Packed {
  PackResult result;
  Files files;
};

Packed pack(const PackRequest& request) {
  Packed out;
  Features features(request.options.row_bytes);
  out.result = std::move(pack_batches(trace(), request, &features, &out.files)).value();
  return out;
}

TEST(Packer, DeliversTheMatrixForAnyWidthAndOrder) {
  for (const int64_t dim : {1, 3, 25, 32, 100, 128, 256, 768, 1024, 1500})
    for (const int64_t element : {1, 2, 4}) {
      // Not each with each: the case changes with the width.
      const bool has_segments = (dim + element) % 2 == 0, has_disk_cache = dim % 4 == 0;
      const PackRequest request =
          request_of(dim * element, {has_segments ? BatchOrder::segments : BatchOrder::fixed, 6},
                     has_disk_cache ? (1 << 10) * 3 / 2 : 0);
      const Packed packed = pack(request);
      EXPECT_EQ(packed.result.first_page.back() > 0, has_disk_cache);
      BatchReader loader(trace(), request, packed.result, packed.files.spans());
      for (uint64_t epoch = 0; epoch < 2; ++epoch) {
        loader.run_epoch(epoch);
        ASSERT_FALSE(HasFatalFailure()) << dim << " elements of " << element << " bytes";
      }
    }
}

TEST(Packer, WritesTheSameBytesInAnyMemoryAndReadsFeaturesOnce) {
  for (const int64_t disk_rows : {0, (1 << 10) * 3 / 2}) {
    PackRequest request = request_of(100, {BatchOrder::segments, 6}, disk_rows);
    const Packed whole = pack(request);
    EXPECT_EQ(whole.result.passes, 1);
    for (const int64_t rows : {300, 1}) {
      request.memory_bytes = 2 * 100 * rows;
      const Packed parts = pack(request);
      EXPECT_EQ(parts.result.passes, ((1 << 10) + rows - 1) / rows);
      EXPECT_EQ(parts.result.bytes_read, 100 << 10);
      for (size_t f = 0; f < 3; ++f) EXPECT_TRUE(parts.files.files[f] == whole.files.files[f]) << rows << " " << f;
    }
  }
}

TEST(Packer, WritesAsManyBytesAsPredicted) {
  for (const int64_t disk_rows : {0, (1 << 10) * 3 / 2}) {
    const PackRequest request = request_of(512, {BatchOrder::segments, 6}, disk_rows);
    const Packed packed = pack(request);
    const Prediction predicted = std::move(predict(trace(), request.options)).value();
    EXPECT_EQ(std::ssize(packed.files.files[0]) + std::ssize(packed.files.files[1]), predicted.bytes_on_disk);
    int64_t read = packed.result.plan.bytes.pages;
    for (const ExtentPlace& place : packed.result.extents) read += place.bytes;
    for (const ExtentPlace& place : packed.result.restores) read += place.bytes;
    EXPECT_EQ(read, predicted.bytes_read);
    for (size_t f = 0; f < 3; ++f) EXPECT_EQ(packed.result.file_bytes[f], std::ssize(packed.files.files[f]));
    EXPECT_EQ(packed.result.file_bytes[2], 100 * 512);
  }
}

TEST(Packer, EndsWithTheErrorOfSourceOrStore) {
  const PackRequest request = request_of(100);
  Features features(100);
  features.fail_at(1 << 10);
  Files files;
  EXPECT_EQ(pack_batches(trace(), request, &features, &files).status().message(), "features: gone");
  for (const int64_t writes : {1, 5, 40}) {
    Features again(100);
    files.fail_after(writes);
    EXPECT_EQ(pack_batches(trace(), request, &again, &files).status().message(), "disk full");
  }
  PackRequest bad = request_of(100);
  bad.memory_bytes = 199;
  EXPECT_EQ(pack_batches(trace(), bad, &features, &files).status().message(),
            "memory_bytes is 199, wanted at least 200, two rows");
  bad = request_of(100);
  bad.labels = bad.labels.first(5);
  EXPECT_EQ(pack_batches(trace(), bad, &features, &files).status().message(), "labels: 5 of them, wanted 1024");
}

std::span<const std::byte> bytes_of(const base::MappedFile& file, size_t offset = 0) {
  return std::as_bytes(std::span(file.data(), file.size())).subspan(offset);
}

// The whole way, from a dataset on disk to batches: generated, sampled, packed, each step from the files of the last.
TEST(Chain, DeliversTheRowsOfADatasetFromItsFiles) {
  const Scratch scratch;
  GenerateOptions made;
  made.num_vertices = 1 << 12;
  made.dim = 25;
  made.threads = 2;
  generate(made, scratch.path("data")).status().or_throw();
  const Dataset dataset = std::move(Dataset::open(scratch.path("data"))).value();
  const auto& features = dataset.description().features;

  const SamplerOptions options{.fanouts = {10, 5}, .batch_size = 4, .seed = 2};
  const Sampler sampler = std::move(Sampler::make(dataset.graph(), options)).value();
  const auto seeds = order_seeds(*sampler.check_seeds(dataset.split(Split::train), "train"), options.seed, {});
  const auto engine = std::move(io::IoEngine::open()).value();
  TraceHeader header;
  header.num_vertices = made.num_vertices;
  header.num_batches = num_batches(seeds.size(), options.batch_size);
  header.options = options;
  auto sink = std::move(FileSink::create(engine.get(), scratch.path("trace-train-0.ovt"))).value();
  TraceWriter writer(header, sink.get());
  sample_epoch(sampler, seeds, {}, 2, [&](int64_t, const SampledBatch& b) { return writer.append(b); }).or_throw();
  writer.finish().or_throw();
  EXPECT_FALSE(std::filesystem::exists(scratch.path("trace-train-0.ovt")));
  sink->finish().or_throw();

  const auto mapped = std::move(base::MappedFile::open(scratch.path("trace-train-0.ovt"))).value();
  const TraceFile read_back = std::move(TraceFile::open(bytes_of(*mapped), mapped->path())).value();
  ASSERT_TRUE(read_back.verify().ok());
  std::vector<int32_t> classes(dataset.labels().begin(), dataset.labels().end());
  PackRequest request = request_of(features.row_bytes, {BatchOrder::segments, 12}, made.num_vertices * 3 / 2);
  request.options.gpu_rows = 160;
  request.options.cpu_rows = 240;
  request.labels = classes;
  request.memory_bytes = 200'000;  // two parts of the features
  auto rows =
      std::move(FeatureFile::open(engine.get(), dataset.feature_path(), features.data_offset, features.row_bytes))
          .value();
  auto files = std::move(PackFiles::create(scratch.path(), "segments")).value();
  const PackResult packed = std::move(pack_batches(read_back, request, rows.get(), files.get())).value();
  EXPECT_GT(packed.passes, 1);
  EXPECT_GT(packed.file_bytes[1], 0);
  files->finish(packed).or_throw();

  std::array<std::shared_ptr<base::MappedFile>, 3> maps;
  std::array<std::span<const std::byte>, 3> spans;
  for (size_t f = 0; f < 3; ++f) {
    const std::string path = PackFiles::path(scratch.path(), static_cast<PackFile>(f), "segments");
    maps[f] = std::move(base::MappedFile::open(path)).value();
    spans[f] = bytes_of(*maps[f]);
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  }
  const auto matrix = std::move(base::MappedFile::open(dataset.feature_path())).value();
  BatchReader loader(read_back, request, packed, spans, [&](std::span<const std::byte> row, int64_t vertex) {
    const auto wanted =
        bytes_of(*matrix, static_cast<size_t>(features.data_offset + vertex * features.row_bytes)).first(row.size());
    return std::equal(row.begin(), row.end(), wanted.begin());
  });
  for (uint64_t epoch = 0; epoch < 2; ++epoch) loader.run_epoch(epoch);
}

TEST(Packer, RefusesBlocksThatDoNotFitTheirInputs) {
  MemoryTrace wrong(1 << 10);
  SampledBatch batch;
  batch.inputs = {3, 4};
  batch.reached = {9, 9};  // nine seeds, of two inputs
  batch.indptr = {0};
  wrong.append(batch);
  PackRequest request = request_of(100);
  Features features(100);
  Files files;
  const base::Status status = pack_batches(wrong, request, &features, &files).status();
  EXPECT_EQ(status.code(), Errc::corrupt);
  EXPECT_EQ(status.message(), "trace: batch 0: 1 hops, 2 inputs and 1 offsets do not belong together");
}

class Extent : public ::testing::Test {
 protected:
  Extent() : request_(request_of(20)), packed_(pack(request_)) {
    const ExtentPlace& place = packed_.result.extents[3];
    const auto begin = packed_.files.files[0].begin() + place.offset;
    bytes_.assign(begin, begin + place.bytes);
    limits_ = plan_of(request_, packed_.result, 1 << 10).limits(3);
  }
  base::Status opened() const { return open_extent(bytes_, limits_, "packs").status(); }

  PackRequest request_;
  Packed packed_;
  Bytes bytes_;
  ExtentLimits limits_;
};

TEST_F(Extent, FindsEachFlippedByte) {
  ASSERT_TRUE(opened().ok()) << opened().message();
  const ExtentLayout layout = [&] {
    const ExtentView view = *open_extent(bytes_, limits_, "packs");
    ExtentCounts counts;
    counts.reached = std::ssize(view.batch.reached);
    counts.indptr = std::ssize(view.batch.indptr);
    counts.indices = std::ssize(view.batch.indices);
    counts.seeds = std::ssize(view.labels);
    counts.inputs = std::ssize(view.program);
    counts.admissions = std::ssize(view.admissions);
    counts.rows = std::ssize(view.rows) / 20;
    return extent_layout(counts, 20);
  }();
  ASSERT_EQ(layout.bytes, std::ssize(bytes_));
  for (size_t i = 0; i < bytes_.size(); ++i) {
    bool is_used = i < static_cast<size_t>(kExtentPage);
    for (const ExtentPart& part : layout.parts)
      is_used |= static_cast<int64_t>(i) >= part.offset && static_cast<int64_t>(i) < part.offset + part.bytes;
    bytes_[i] ^= std::byte{0x04};
    const base::Status seen = opened();
    if (is_used)
      ASSERT_EQ(seen.code(), Errc::corrupt) << i << seen.message();
    else
      ASSERT_TRUE(seen.ok());
    bytes_[i] ^= std::byte{0x04};
  }
}

TEST_F(Extent, NamesWhatIsWrong) {
  limits_.generation[0] = 1;
  EXPECT_EQ(opened().code(), Errc::stale);
  EXPECT_EQ(opened().message(), "packs: extent 3 was made for another dataset, trace or plan");
  limits_ = plan_of(request_, packed_.result, 1 << 10).limits(4);
  EXPECT_EQ(opened().message(), "packs: extent 4: it is number 3 with rows of 20 bytes, wanted rows of 20");
  limits_ = plan_of(request_, packed_.result, 1 << 10).limits(3);
  limits_.gpu_rows = 0;
  EXPECT_EQ(opened().code(), Errc::corrupt);
  EXPECT_NE(opened().message().find(" of level 0, wanted one below 0"), std::string::npos) << opened().message();
  limits_ = plan_of(request_, packed_.result, 1 << 10).limits(3);
  limits_.num_vertices = 3;
  EXPECT_NE(opened().message().find(", wanted below 3"), std::string::npos) << opened().message();
  limits_ = plan_of(request_, packed_.result, 1 << 10).limits(3);
  const int64_t size = std::ssize(bytes_);
  bytes_.resize(bytes_.size() - 4096);
  EXPECT_EQ(opened().message(), base::format("packs: extent 3: {} bytes, wanted {}", size - 4096, size));
  bytes_.resize(100);
  EXPECT_EQ(opened().message(), "packs: extent 3: 100 bytes, no header fits");
}

/// An extent as a writer would write it, of plans that no planner makes.
Bytes extent_of(int64_t number, const ExtentLayout& layout, const Bytes& sections, const ExtentSums& sums) {
  Bytes bytes = encode_header({}, number, 20, layout, sums);
  bytes.insert(bytes.end(), sections.begin(), sections.end());
  bytes.resize(static_cast<size_t>(layout.bytes));
  return bytes;
}

TEST(WrongExtent, NoRowOrPageLiesOutsideOfWhatIsThere) {
  ExtentLimits limits{.number = -1, .row_bytes = 20, .num_vertices = 9, .cpu_rows = 4};
  Restore restore;
  restore.loads = {{0, 1}};  // of a row that it does not have
  ExtentSums sums;
  ExtentLayout layout = extent_layout(counts_of(restore), 20);
  Bytes bytes = extent_of(-1, layout, encode_sections(restore, layout, &sums), sums);
  EXPECT_EQ(open_extent(bytes, limits, "packs").status().message(),
            "packs: extent -1: an admission of row 0 to slot 1, wanted below 0 and 4");

  limits.number = 0;
  limits.num_pages = 3;
  BatchPlan plan;
  for (const uint32_t page : {2u, 3u}) {
    plan.pages = {page};
    layout = extent_layout(counts_of(BatchView(), plan), 20);
    bytes = extent_of(0, layout, encode_sections(BatchView(), {}, plan, layout, &sums), sums);
    EXPECT_EQ(open_extent(bytes, limits, "packs").status().message(),
              page == 2 ? "" : "packs: extent 0: page 3, wanted one below 3");
  }
}

}  // namespace
}  // namespace overlace::gnn
