// Batches of a loader against the matrix and the trace, for all orders, under delays, faults, breaks and resumes.
#include "src/gnn/pipeline/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "src/gnn/pack/files.h"
#include "src/io/faults.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

/// One dataset and its artefacts for all tests of this file.
struct World {
  World() : dataset(test::small_dataset(scratch.path("data"))), matrix(dataset) {
    for (const auto& [name, order, policy, disk] :
         {std::tuple{"fixed", OrderChoice{BatchOrder::fixed, 0}, CachePolicy::belady, 0},
          {"segments", {BatchOrder::segments, 9}, CachePolicy::belady, 0},
          {"shuffle", {BatchOrder::shuffle, 0}, CachePolicy::hottest, 0},
          {"lru", {BatchOrder::fixed, 0}, CachePolicy::lru, 0},
          {"disk", {BatchOrder::segments, 9}, CachePolicy::belady, 1}}) {
      sample_artefact(dataset, path(name), test::small_sample()).status().or_throw();
      ArtefactPackRequest request = test::small_pack(dataset, order, policy);
      request.disk_bytes = disk * dataset.description().features.bytes * 3 / 2;
      pack_artefact(dataset, path(name), request).status().or_throw();
    }
  }
  std::string path(const std::string& name) const { return scratch.path(name + ".ovg"); }
  Scratch scratch;
  Dataset dataset;
  test::Matrix matrix;
};

const World& world() {
  static const World made;
  return made;
}

/// The batch is what the trace says, with the rows of the dataset.
void check(const LoadedBatch& batch, const TraceFile& trace) {
  const BatchView wanted = trace.batch(batch.number);
  const auto same = [](auto a, auto b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); };
  ASSERT_TRUE(same(batch.blocks.inputs, wanted.inputs)) << batch.number;
  ASSERT_TRUE(same(batch.blocks.reached, wanted.reached));
  ASSERT_TRUE(same(batch.blocks.indptr, wanted.indptr));
  ASSERT_TRUE(same(batch.blocks.indices, wanted.indices));
  const auto labels = world().dataset.labels();
  for (size_t i = 0; i < batch.labels.size(); ++i) ASSERT_EQ(batch.labels[i], labels[wanted.inputs[i]]);
  const auto row_bytes = static_cast<size_t>(world().dataset.description().features.row_bytes);
  ASSERT_EQ(batch.rows.size(), wanted.inputs.size() * row_bytes);
  for (size_t i = 0; i < wanted.inputs.size(); ++i)
    ASSERT_TRUE(same(batch.rows.subspan(i * row_bytes, row_bytes), world().matrix.row(wanted.inputs[i])))
        << "batch " << batch.number << ", input " << i;
}

ArtefactTrace trace_of(const std::string& name, Split split = Split::train) {
  const Manifest manifest = *read_manifest(world().path(name));
  return std::move(ArtefactTrace::open(world().path(name), *manifest.trace(split), true)).value();
}

/// Numbers of the batches, all checked; at most `most`.
std::vector<int64_t> run(Loader* loader, const TraceFile& trace, int64_t most = 1 << 20) {
  std::vector<int64_t> seen;
  while (std::ssize(seen) < most) {
    const auto batch = loader->next();
    EXPECT_TRUE(batch.ok()) << batch.status().message();
    if (!batch.ok() || !batch->has_value()) break;
    check(**batch, trace);
    if (::testing::Test::HasFatalFailure()) break;
    seen.push_back((*batch)->number);
    loader->release();
  }
  return seen;
}

std::unique_ptr<Loader> open(const std::string& name, LoaderOptions options = {}) {
  return std::move(Loader::open(world().path(name), std::move(options))).value();
}

TEST(Loader, DeliversTheDatasetInEveryOrder) {
  for (const char* name : {"fixed", "segments", "shuffle", "lru", "disk"})
    for (const Split split : {Split::train, Split::valid}) {
      const ArtefactTrace trace = trace_of(name, split);
      const auto loader = open(name, {.split = split, .order_seed = 4});
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        loader->start(epoch).or_throw();
        std::vector<int64_t> seen = run(loader.get(), trace.trace());
        ASSERT_FALSE(HasFatalFailure()) << name << " " << split_name(split) << " " << epoch;
        EXPECT_EQ(seen,
                  epoch_sequence(loader->plan().order, loader->plan().num_batches(), 4, static_cast<uint64_t>(epoch)));
        const LoaderStats stats = loader->stats();
        EXPECT_EQ(stats.gpu_rows + stats.cpu_rows + stats.ring_rows, loader->manifest().trace(split)->input_rows);
        EXPECT_GT(stats.gpu_rows, 0);
        EXPECT_GT(stats.cpu_rows, 0);
        EXPECT_EQ(stats.bytes_read, loader->manifest()
                                        .pack(loader->plan().order.order == BatchOrder::fixed && split == Split::valid
                                                  ? loader->manifest().packs[1].name
                                                  : loader->manifest().packs[0].name)
                                        ->bytes_read)
            << name;
      }
    }
}

TEST(Loader, HoldsUnderDelaysOfAnyStage) {
  std::atomic<uint64_t> draw = 1;
  LoaderOptions options;
  options.io.engine = "pread";
  options.before = [&](Stage stage, int64_t item) {
    const uint64_t word = draw.fetch_add(0x9E3779B97F4A7C15ull) ^ static_cast<uint64_t>(item) * 31;
    if ((word >> 13) % 5 == static_cast<uint64_t>(stage))
      std::this_thread::sleep_for(std::chrono::microseconds(word % 400));
  };
  for (const char* name : {"segments", "disk"}) {
    const ArtefactTrace trace = trace_of(name);
    const auto loader = open(name, options);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loader->start(epoch).or_throw();
      EXPECT_EQ(std::ssize(run(loader.get(), trace.trace())), loader->plan().num_batches());
    }
  }
}

TEST(Loader, BeginsAgainAfterABreakAndInTheMiddle) {
  for (const char* name : {"fixed", "segments", "shuffle", "disk"}) {
    const ArtefactTrace trace = trace_of(name);
    const auto loader = open(name);
    loader->start(5).or_throw();
    const std::vector<int64_t> whole = run(loader.get(), trace.trace());
    for (const int64_t position : {int64_t{1}, int64_t{10}, std::ssize(whole) - 1, std::ssize(whole)}) {
      loader->start(5, position).or_throw();
      const std::vector<int64_t> some = run(loader.get(), trace.trace(), 7);
      const auto end = whole.begin() + std::min(position + 7, std::ssize(whole));
      EXPECT_EQ(some, std::vector<int64_t>(whole.begin() + position, end)) << name << " " << position;
    }
  }
}

TEST(Loader, LeavesNothingBehindWhereverItStops) {
  const auto count = [] {
    const std::filesystem::directory_iterator descriptors("/proc/self/fd"), threads("/proc/self/task");
    return std::distance(begin(descriptors), end(descriptors)) * 1000 + std::distance(begin(threads), end(threads));
  };
  { const auto warm = open("segments"); }
  const auto before = count();
  const ArtefactTrace trace = trace_of("segments");
  for (int i = 0; i < 30; ++i) {
    const auto loader = open("segments");
    for (int k = 0; k < 3; ++k) {
      loader->start(i, i % 20).or_throw();
      run(loader.get(), trace.trace(), (i + k) % 5);
    }
  }
  EXPECT_LE(count(), before + 1000);  // the trace's mapping has no descriptor; one may be the walk's own
}

TEST(Loader, NeverGivesAWrongRowThroughABadDisk) {
  io::FaultCounts counts;
  LoaderOptions options;
  options.io.request_bytes = 8192;
  options.io.wrap = io::with_faults(
      {.seed = 9, .short_moves = 0.05, .eagain = 0.05, .flipped = 0.002, .late = 0.1, .reorder = true}, &counts);
  options.io.engine = "pread";
  int64_t delivered = 0, failed = 0, again = 0;
  for (const char* name : {"segments", "disk"}) {
    const ArtefactTrace trace = trace_of(name);
    auto opened = Loader::open(world().path(name), options);
    if (!opened.ok()) continue;  // the hot rows were flipped, and seen to be
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      const base::Status started = (*opened)->start(epoch);
      if (!started.ok()) {
        EXPECT_EQ(started.code(), Errc::corrupt);
        continue;
      }
      while (true) {
        const auto batch = (*opened)->next();
        if (!batch.ok()) {
          EXPECT_EQ(batch.status().code(), Errc::corrupt) << batch.status().message();
          ++failed;
          break;
        }
        if (!batch->has_value()) break;
        check(**batch, trace.trace());
        ASSERT_FALSE(HasFatalFailure());
        ++delivered;
        (*opened)->release();
      }
      again += (*opened)->stats().read_again;
    }
  }
  EXPECT_GT(counts.flipped, 0);
  EXPECT_GT(again + failed, 0);
  EXPECT_GT(delivered, 100);
}

TEST(Loader, NamesADamagedExtentAndGoesOnElsewhere) {
  const Scratch scratch;
  std::filesystem::copy(world().path("fixed"), scratch.path("a.ovg"));
  const auto loader = std::move(Loader::open(scratch.path("a.ovg"))).value();
  const ExtentPlace place = loader->plan().extents[3];
  {
    std::fstream file(PackFiles::path(scratch.path("a.ovg"), PackFile::packs, "fixed"),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(place.offset + place.bytes - 4096);
    file.put('!');
  }
  const ArtefactTrace trace = trace_of("fixed");
  for (int again = 0; again < 2; ++again) {
    loader->start(0).or_throw();
    base::Status status;
    for (int64_t i = 0; status.ok(); ++i) {
      ASSERT_LE(i, 3);
      const auto batch = loader->next();
      status = batch.status();
      if (status.ok()) check(**batch, trace.trace());
      loader->release();
    }
    EXPECT_EQ(status.code(), Errc::corrupt);
    EXPECT_NE(status.message().find("packs-fixed.ovk: extent 3: checksum of rows"), std::string::npos)
        << status.message();
    EXPECT_EQ(loader->stats().read_again, 1);
  }
}

TEST(Loader, RefusesWhatDoesNotFit) {
  LoaderOptions options;
  options.memory_bytes = 1000;
  const base::Status little = Loader::open(world().path("fixed"), options).status();
  EXPECT_EQ(little.code(), Errc::out_of_memory);
  EXPECT_NE(little.message().find("memory_bytes is 1000. Pack again with smaller caches: overlace gnn pack"),
            std::string::npos)
      << little.message();
  EXPECT_NE(Loader::open(world().path("fixed"), {.packs = "segments"})
                .status()
                .message()
                .find("no packs segments, there are: fixed, fixed-valid"),
            std::string::npos);
  const auto loader = open("fixed");
  EXPECT_EQ(loader->next().status().message(), "loader: next() before start()");
  EXPECT_EQ(loader->start(-1).code(), Errc::invalid_argument);
  loader->start(0).or_throw();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(loader->next().ok());
  EXPECT_EQ(loader->next().status().message(), "3 batches are held, wanted at most 2: release one first");
}

}  // namespace
}  // namespace overlace::gnn
