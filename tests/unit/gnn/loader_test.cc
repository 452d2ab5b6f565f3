// Batches of a loader against the matrix and the trace, for all orders, under delays, faults, breaks and resumes.
#include "src/gnn/pipeline/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "src/gnn/pack/files.h"
#include "src/io/faults.h"
#include "tests/unit/gnn/support/artefacts.h"
#include "tests/unit/io/test_size.h"

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
      request.disk_bytes = disk * dataset.description().features.bytes * 2 / 3;
      const Manifest packed = *pack_artefact(dataset, path(name), request);
      EXPECT_EQ(packed.packs[0].disk_cache_bytes > 0, disk > 0) << name;
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
void check_loaded(const LoadedBatch& batch, const TraceFile& trace) {
  const BatchView wanted = trace.batch(batch.number);
  const auto same = [](auto a, auto b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); };
  ASSERT_TRUE(same(batch.blocks.inputs, wanted.inputs)) << batch.number;
  ASSERT_TRUE(same(batch.blocks.reached, wanted.reached));
  ASSERT_TRUE(same(batch.blocks.indptr, wanted.indptr));
  ASSERT_TRUE(same(batch.blocks.indices, wanted.indices));
  const auto labels = world().dataset.labels();
  for (size_t i = 0; i < batch.labels.size(); ++i) ASSERT_EQ(batch.labels[i], labels[wanted.inputs[i]]);
  ASSERT_TRUE(same(batch.ids, wanted.inputs));
  ASSERT_TRUE(same(batch.classes, batch.labels));
  ASSERT_EQ(batch.edges.size(), 2 * wanted.indices.size());
  for (size_t v = 0; v + 1 < wanted.indptr.size(); ++v)
    for (size_t k = wanted.indptr[v]; k < wanted.indptr[v + 1]; ++k) {
      ASSERT_EQ(batch.edges[k], wanted.indices[k]);
      ASSERT_EQ(batch.edges[wanted.indices.size() + k], static_cast<int64_t>(v));
    }
  EXPECT_GE(batch.bytes, static_cast<int64_t>(batch.rows.size_bytes() + batch.ids.size_bytes()));
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

int64_t trace_rows(const ArtefactTrace& trace) {
  int64_t rows = 0;
  for (int64_t b = 0; b < trace.trace().num_batches(); ++b) rows += std::ssize(trace.trace().batch(b).inputs);
  return rows;
}

/// Numbers of the batches, all checked; at most `most`.
std::vector<int64_t> run(Loader* loader, const TraceFile& trace, int64_t most = 1 << 20) {
  std::vector<int64_t> seen;
  while (std::ssize(seen) < most) {
    const auto batch = loader->next();
    EXPECT_TRUE(batch.ok()) << batch.status().message();
    if (!batch.ok() || !batch->has_value()) break;
    check_loaded(**batch, trace);
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

/// When what began and ended, from a loader's timeline; reads by when they were asked for.
class StageTimes {
 public:
  StageTimes(const Loader& loader, const std::map<int64_t, int64_t>& asked, const std::vector<int64_t>& released)
      : asked_(asked), released_(released), depth_(loader.plan().depth), slots_(2 * depth_ + 2) {
    for (const base::Span& span : loader.timeline().spans) {
      spans_.emplace(span.name, span);
      lanes_[span.lane] += span.end_ns - span.begin_ns;
      bytes_[span.lane] += span.bytes;
    }
    while (find("gather", items_) != nullptr) ++items_;
  }

  /// Nothing of an item came before what R1 to R5 let it wait for.
  void expect_rules() const {
    int64_t ordinal = 0, last_train = 0;
    for (int64_t i = 0; i < items_; ++i) {
      const bool is_restore = spans_.contains(base::format("restore_gather[{}]", i));
      const base::Span& gather = *find("gather", i);
      for (const char* checked : {"check", "page_check"})
        if (const base::Span* check = find(checked, i)) {
          EXPECT_GE(gather.begin_ns, check->end_ns) << "R1 " << i;
        }
      if (const int64_t before = is_restore ? i - 1 : i - depth_ - 1; before >= 0) {
        EXPECT_GE(gather.begin_ns, find("admit", before)->end_ns) << "R1 " << i;
      }
      EXPECT_GE(find("admit", i)->begin_ns, gather.end_ns) << "R2 " << i;
      if (i >= slots_ && asked_.contains(i)) {
        EXPECT_GE(asked_.at(i), find("admit", i - slots_)->end_ns) << "R3 " << i;
        EXPECT_GE(asked_.at(i), find("gather", i - slots_ + depth_)->end_ns) << "R3 " << i;
      }
      if (is_restore) continue;
      if (ordinal >= LoaderBuffers::kOutputs) {
        EXPECT_GE(gather.begin_ns, released_[static_cast<size_t>(ordinal - LoaderBuffers::kOutputs)]) << "R4 " << i;
      }
      const base::Span& train = *find("train", i);
      EXPECT_GE(train.begin_ns, std::max(gather.end_ns, last_train)) << "R5 " << i;
      last_train = train.end_ns;
      ++ordinal;
    }
    EXPECT_EQ(ordinal, std::ssize(released_));
  }
  double lane_s(const std::string& lane) const { return static_cast<double>(lanes_.at(lane)) * 1e-9; }
  int64_t lane_bytes(const std::string& lane) const { return bytes_.at(lane); }

 private:
  const base::Span* find(const char* part, int64_t item) const {
    for (const char* prefix : {"", "restore_"})
      if (const auto found = spans_.find(base::format("{}{}[{}]", prefix, part, item)); found != spans_.end())
        return &found->second;
    return nullptr;
  }
  const std::map<int64_t, int64_t>& asked_;
  const std::vector<int64_t>& released_;
  int64_t depth_, slots_, items_ = 0;
  std::map<std::string, base::Span> spans_;
  std::map<std::string, int64_t> lanes_, bytes_;
};

TEST(Loader, HoldsUnderDelaysOfAnyStage) {
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); };
  std::atomic<uint64_t> draw = 1;
  std::map<int64_t, int64_t> asked;
  LoaderOptions options;
  options.io.engine = "pread";
  options.before = [&](Stage stage, int64_t item) {
    if (stage == Stage::read) asked.emplace(item, now());
    const uint64_t word = draw.fetch_add(0x9E3779B97F4A7C15ull) ^ static_cast<uint64_t>(item) * 31;
    if ((word >> 13) % 5 == static_cast<uint64_t>(stage))
      std::this_thread::sleep_for(std::chrono::microseconds(word % 400));
  };
  for (const char* name : {"segments", "disk", "fixed"}) {
    const ArtefactTrace trace = trace_of(name);
    const auto loader = open(name, options);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      asked.clear();
      loader->start(epoch).or_throw();
      std::vector<int64_t> released;
      while (true) {
        const auto batch = loader->next();
        ASSERT_TRUE(batch.ok()) << batch.status().message();
        if (!batch->has_value()) break;
        check_loaded(**batch, trace.trace());
        if (std::ssize(released) % 3 == 1) std::this_thread::sleep_for(std::chrono::microseconds(300));
        released.push_back(now());
        loader->release();
      }
      ASSERT_EQ(std::ssize(released), loader->plan().num_batches());
      const StageTimes times(*loader, asked, released);
      times.expect_rules();
      ASSERT_FALSE(HasFailure()) << name << " " << epoch;
      const LoaderStats stats = loader->stats();
      EXPECT_NEAR(times.lane_s("check"), stats.verify_s, 1e-6);
      EXPECT_NEAR(times.lane_s("disk"), stats.read_s, 1e-6);
      EXPECT_NEAR(times.lane_s("gather"), stats.gather_s, 1e-3);
      EXPECT_EQ(times.lane_bytes("disk"), stats.bytes_read);
      EXPECT_EQ(times.lane_bytes("gather"), trace_rows(trace) * loader->plan().row_bytes);
      EXPECT_EQ(times.lane_bytes("admit"), stats.admitted * loader->plan().row_bytes);
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

/// Three starts and breaks of each loader, then it is closed.
TEST(Loader, LeavesNothingBehindWhereverItStops) {
  const auto count = [](const char* folder) {
    const std::filesystem::directory_iterator entries(folder);
    return std::distance(begin(entries), end(entries));
  };
  const auto descriptors = [&] { return count("/proc/self/fd"); };
  const auto threads = [&] { return count("/proc/self/task"); };
  const ArtefactTrace trace = trace_of("segments");
  { const auto warm = open("segments"); }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto descriptors_before = descriptors(), threads_before = threads();
  for (int i = 0; i < 340; ++i) {
    const auto loader = open("segments", {.io = {.engine = i % 3 == 0 ? "pread" : "auto", .depth = 1 + i % 5}});
    for (int k = 0; k < 3; ++k) {
      loader->start(i, i % 20).or_throw();
      run(loader.get(), trace.trace(), (i + k) % 5);
    }
  }
  EXPECT_EQ(descriptors(), descriptors_before);
  // A thread that was joined may be seen for a moment.
  for (int i = 0; i < 1000 && threads() > threads_before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(threads(), threads_before);
}

/// Errors that a bad disk may end a training epoch with.
bool is_of_the_disk(const base::Status& status) { return status.code() == Errc::corrupt || status.code() == Errc::io; }

/// Takes batches from a loader, begun anywhere and left anywhere, and checks all rows.
struct BadDisk {
  int64_t delivered = 0, failed = 0, again = 0;
  std::mt19937_64 random{5};

  void run_epoch(Loader* loader, int64_t epoch, const TraceFile& trace) {
    const int64_t steps = loader->num_batches();
    const auto position = static_cast<int64_t>(random() % 2 * (random() % static_cast<uint64_t>(steps)));
    const base::Status started = loader->start(epoch, position);
    if (!started.ok()) {
      EXPECT_TRUE(is_of_the_disk(started)) << started.message();
      ++failed;
      return;
    }
    auto left = static_cast<int64_t>(random() % 2 == 0 ? steps : random() % static_cast<uint64_t>(steps));
    for (; left > 0; --left) {
      const auto batch = loader->next();
      if (!batch.ok()) {
        EXPECT_TRUE(is_of_the_disk(batch.status())) << batch.status().message();
        EXPECT_EQ(loader->next().status().message(), batch.status().message());  // it stays the first cause
        ++failed;
        break;
      }
      if (!batch->has_value()) break;
      check_loaded(**batch, trace);
      if (::testing::Test::HasFatalFailure()) return;
      ++delivered;
      loader->release();
    }
    again += loader->stats().read_again;
  }
};

/// The first disk as bad as always, then others, up to ten times as bad, until so many requests met a bad disk.
TEST(Loader, NeverGivesAWrongRowThroughABadDisk) {
  const int64_t wanted = io::test_size("OVERLACE_TEST_FAULTY_READS", 10000);
  io::FaultCounts counts;
  BadDisk bad;
  for (uint64_t disk = 0; counts.requests < wanted || disk < 4; ++disk) {
    const double worse = disk == 0 ? 1 : 1 + static_cast<double>(disk * 7 % 19) / 2;
    LoaderOptions options;
    options.io.request_bytes = 8192;
    options.io.wrap = io::with_faults({.seed = 9 + disk,
                                       .short_moves = 0.03 * worse,
                                       .eio = disk % 3 == 0 ? 0 : 0.0005 * worse,
                                       .eagain = 0.03 * worse,
                                       .flipped = 0.004 * worse,
                                       .late = 0.03 * worse,
                                       .reorder = true},
                                      &counts);
    options.io.engine = disk % 2 == 0 ? "pread" : "auto";
    for (const char* name : {"fixed", "segments", "shuffle", "disk"}) {
      const ArtefactTrace trace = trace_of(name);
      auto opened = Loader::open(world().path(name), options);
      if (!opened.ok()) {  // the hot rows were flipped, and seen to be
        EXPECT_TRUE(is_of_the_disk(opened.status())) << opened.status().message();
        continue;
      }
      for (int64_t epoch = 0; epoch < 6; ++epoch) {
        bad.run_epoch(opened->get(), epoch, trace.trace());
        ASSERT_FALSE(HasFailure()) << name << ", epoch " << epoch << " on disk " << disk;
      }
    }
  }
  EXPECT_GT(counts.flipped, 20);
  EXPECT_GT(bad.again, 5);
  EXPECT_GT(bad.failed, 0);
  EXPECT_GT(bad.delivered, 500);
  if (wanted > 10000)
    std::printf("%lld requests, %lld batches right, %lld errors\n", static_cast<long long>(counts.requests),
                static_cast<long long>(bad.delivered), static_cast<long long>(bad.failed));
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
      if (status.ok()) check_loaded(**batch, trace.trace());
      loader->release();
    }
    EXPECT_EQ(status.code(), Errc::corrupt);
    EXPECT_NE(status.message().find("packs-fixed.ovk: extent 3: checksum of rows"), std::string::npos)
        << status.message();
    EXPECT_EQ(loader->stats().read_again, 1);
  }
}

TEST(Loader, UsesNoHotRowsThatItCouldNotCheck) {
  const Scratch scratch;
  std::filesystem::copy(world().path("segments"), scratch.path("a.ovg"));
  const auto loader = std::move(Loader::open(scratch.path("a.ovg"))).value();
  const ArtefactTrace trace = trace_of("segments");
  const auto flip = [&] {
    std::fstream file(PackFiles::path(scratch.path("a.ovg"), PackFile::hot, "segments"),
                      std::ios::in | std::ios::out | std::ios::binary);
    const int byte = file.peek();
    file.seekp(0);
    file.put(static_cast<char>(byte ^ 1));
  };
  loader->start(0).or_throw();
  run(loader.get(), trace.trace(), 3);  // a break: the caches are read anew
  flip();
  for (int again = 0; again < 3; ++again) {
    const base::Status status = loader->start(again);
    EXPECT_EQ(status.code(), Errc::corrupt) << again;
    EXPECT_NE(status.message().find("hot-segments"), std::string::npos) << status.message();
  }
  flip();
  loader->start(1).or_throw();
  EXPECT_EQ(std::ssize(run(loader.get(), trace.trace())), loader->plan().num_batches());
}

/// A read of hot rows whose time is over still writes into memory: nobody gives that memory back before it has ended,
/// and no later training epoch takes its completion for one of its own.
TEST(Loader, LeavesNoReadBehindWhereTheDiskStalls) {
  io::FaultCounts counts;
  LoaderOptions options;
  options.io.engine = "pread";
  options.io.request_bytes = 4096;
  options.io.timeout_ms = 40;
  options.io.wrap = io::with_faults({.seed = 12, .stalled = 0.01, .stall_ms = 120}, &counts);
  const ArtefactTrace trace = trace_of("segments");
  std::unique_ptr<Loader> loader;
  int refused = 0, ended = 0, delivered = 0;
  for (int64_t i = 0; i < 40 || (refused == 0 && i < 400); ++i) {
    if (!loader) {
      counts.under_way = 0;
      auto opened = Loader::open(world().path("segments"), options);
      if (!opened.ok()) continue;
      loader = std::move(*opened);
    }
    const base::Status started = loader->start(i);
    if (!started.ok()) {
      ++refused;
      EXPECT_EQ(started.code(), Errc::timeout) << started.message();
      EXPECT_EQ(counts.under_way, 0);
      continue;
    }
    for (int k = 0; k < 6; ++k) {  // a break then: hot rows are read anew
      const auto batch = loader->next();
      if (!batch.ok()) {
        EXPECT_EQ(batch.status().code(), Errc::timeout) << batch.status().message();
        ++ended;
        break;
      }
      check_loaded(**batch, trace.trace());
      ASSERT_FALSE(HasFatalFailure()) << i;
      ++delivered;
      loader->release();
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(ended, 0);
  EXPECT_GT(delivered, 50);
}

TEST(Loader, RefusesWhatDoesNotFit) {
  LoaderOptions options;
  options.memory_bytes = 1000;
  const base::Status little = Loader::open(world().path("fixed"), options).status();
  EXPECT_EQ(little.code(), Errc::out_of_memory);
  EXPECT_NE(little.message().find("memory_bytes is 1000. Pack again with smaller caches, which overlace gnn plan "),
            std::string::npos)
      << little.message();
  EXPECT_NE(Loader::open(world().path("fixed"), {.packs = "segments"})
                .status()
                .message()
                .find("no packs segments, there are: fixed, fixed-valid"),
            std::string::npos);
  const auto loader = open("fixed");
  EXPECT_EQ(loader->next().status().message(), "loader: next() before start(), wanted: start() first");
  EXPECT_EQ(loader->start(-1).code(), Errc::invalid_argument);
  loader->start(0).or_throw();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(loader->next().ok());
  EXPECT_EQ(loader->next().status().message(), "3 batches are held, wanted at most 2: release one first");
}

}  // namespace
}  // namespace overlace::gnn
