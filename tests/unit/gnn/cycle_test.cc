// Several sampled epochs in one artefact, and packs of ranks: taken in turn, begun anywhere, killed, verified.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <set>

#include "src/base/file.h"
#include "src/gnn/pipeline/loader.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEpochs = 3, kRanks = 3;
using Place = std::pair<int64_t, int64_t>;  // sampled epoch, number of the batch in it

SampleRequest sample_of(int64_t epochs) {
  SampleRequest request = test::small_sample();
  request.epochs = epochs;
  return request;
}

/// One dataset and its artefacts for all tests of this file: each order alone and for ranks.
struct Cycles {
  Cycles() : dataset(test::small_dataset(scratch.path("data"))), matrix(dataset) {
    sample_artefact(dataset, path(), sample_of(kEpochs)).status().or_throw();
    for (const auto& [order, policy] : {std::pair{OrderChoice{BatchOrder::fixed, 0}, CachePolicy::belady},
                                        {{BatchOrder::segments, 7}, CachePolicy::belady},
                                        {{BatchOrder::shuffle, 0}, CachePolicy::hottest}})
      for (const int64_t ranks : {int64_t{1}, kRanks}) {
        ArtefactPackRequest request = test::small_pack(dataset, order, policy);
        request.ranks = ranks;
        pack_artefact(dataset, path(), request).status().or_throw();
      }
    manifest = *read_manifest(path());
    for (int64_t e = 0; e < kEpochs; ++e)
      traces.push_back(std::move(ArtefactTrace::open(path(), *manifest.trace(Split::train, e), true)).value());
  }
  std::string path() const { return scratch.path("a.ovg"); }
  Scratch scratch;
  Dataset dataset;
  test::Matrix matrix;
  Manifest manifest;
  std::vector<ArtefactTrace> traces;
};

const Cycles& cycles() {
  static const Cycles made;
  return made;
}

void check_cycled(const LoadedBatch& batch) {
  ASSERT_LT(batch.sampled_epoch, kEpochs);
  const BatchView wanted = cycles().traces[static_cast<size_t>(batch.sampled_epoch)].trace().batch(batch.number);
  const auto same = [](auto a, auto b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); };
  ASSERT_TRUE(same(batch.blocks.inputs, wanted.inputs)) << batch.sampled_epoch << " " << batch.number;
  ASSERT_TRUE(same(batch.blocks.indptr, wanted.indptr));
  ASSERT_TRUE(same(batch.blocks.indices, wanted.indices));
  const auto row_bytes = static_cast<size_t>(cycles().dataset.description().features.row_bytes);
  for (size_t i = 0; i < wanted.inputs.size(); ++i)
    ASSERT_TRUE(same(batch.rows.subspan(i * row_bytes, row_bytes), cycles().matrix.row(wanted.inputs[i])))
        << "batch " << batch.number << ", input " << i;
}

std::vector<Place> run_cycle(Loader* loader, int64_t most = 1 << 20) {
  std::vector<Place> seen;
  while (std::ssize(seen) < most) {
    const auto batch = loader->next();
    EXPECT_TRUE(batch.ok()) << batch.status().message();
    if (!batch.ok() || !batch->has_value()) break;
    check_cycled(**batch);
    if (::testing::Test::HasFatalFailure()) break;
    seen.push_back({(*batch)->sampled_epoch, (*batch)->number});
    loader->release();
  }
  return seen;
}

std::unique_ptr<Loader> open_cycle(LoaderOptions options) {
  return std::move(Loader::open(cycles().path(), std::move(options))).value();
}

TEST(Cycle, SampledEpochsAreDrawnAnew) {
  const int64_t steps = cycles().traces[0].trace().num_batches();
  std::set<std::vector<uint32_t>> first;
  for (const ArtefactTrace& trace : cycles().traces) {
    ASSERT_EQ(trace.trace().num_batches(), steps);
    const auto inputs = trace.trace().inputs(0);
    first.insert({inputs.begin(), inputs.end()});
    std::set<uint32_t> seeds;
    for (int64_t b = 0; b < steps; ++b) {
      const BatchView batch = trace.trace().batch(b);
      for (int64_t i = 0; i < batch.num_seeds(); ++i) seeds.insert(batch.inputs[static_cast<size_t>(i)]);
    }
    EXPECT_EQ(std::ssize(seeds),
              std::visit([](auto ids) { return std::ssize(ids); }, cycles().dataset.split(Split::train)));
  }
  EXPECT_EQ(std::ssize(first), kEpochs);
}

TEST(Cycle, TrainingEpochsTakeTheSampledOnesInTurn) {
  for (const char* packs : {"fixed", "segments", "shuffle"}) {
    const auto loader = open_cycle({.packs = packs, .order_seed = 4});
    const int64_t steps = loader->num_batches();
    ASSERT_EQ(steps, cycles().traces[0].trace().num_batches());
    int64_t bytes = 0, rows = 0;
    for (int64_t epoch = 0; epoch < 2 * kEpochs; ++epoch) {
      loader->start(epoch).or_throw();
      std::vector<Place> seen = run_cycle(loader.get());
      ASSERT_FALSE(HasFatalFailure()) << packs << " " << epoch;
      ASSERT_EQ(std::ssize(seen), steps);
      std::sort(seen.begin(), seen.end());
      for (int64_t b = 0; b < steps; ++b) ASSERT_EQ(seen[static_cast<size_t>(b)], Place(epoch % kEpochs, b)) << packs;
      const LoaderStats stats = loader->stats();
      bytes += stats.bytes_read;
      rows += stats.gpu_rows + stats.cpu_rows + stats.ring_rows;
    }
    EXPECT_EQ(bytes, 2 * cycles().manifest.pack(packs)->bytes_read) << packs;
    int64_t wanted = 0;
    for (const TraceEntry& entry : cycles().manifest.traces)
      if (entry.split == Split::train) wanted += entry.input_rows;
    EXPECT_EQ(rows, 2 * wanted) << packs;
  }
}

TEST(Cycle, BeginsAnywhereAfterABreak) {
  for (const char* packs : {"fixed", "segments", "shuffle"}) {
    const auto loader = open_cycle({.packs = packs});
    const int64_t steps = loader->num_batches();
    std::vector<std::vector<Place>> whole;
    for (int64_t epoch = 0; epoch < kEpochs + 1; ++epoch) {
      loader->start(epoch).or_throw();
      whole.push_back(run_cycle(loader.get()));
    }
    for (const int64_t epoch : {2, 1, 3, 0, 1, 2})
      for (const int64_t position : {int64_t{0}, int64_t{1}, steps / 2, steps - 1, steps}) {
        loader->start(epoch, position).or_throw();
        const std::vector<Place> some = run_cycle(loader.get(), position % 3 == 0 ? 1 << 20 : 4);
        const std::vector<Place>& all = whole[static_cast<size_t>(epoch)];
        const auto end = position % 3 == 0 ? all.end() : all.begin() + std::min(position + 4, steps);
        ASSERT_EQ(some, std::vector<Place>(all.begin() + position, end)) << packs << " " << epoch << " " << position;
      }
    EXPECT_EQ(loader->start(0, steps + 1).code(), Errc::invalid_argument);
  }
}

/// A disk cache, whose segments know nothing of sampled epochs, and a policy that does not look ahead.
TEST(Cycle, HoldsForOtherLevelsAndPolicies) {
  const Scratch scratch;
  for (const auto& [name, policy, order, disk_share] :
       {std::tuple{"disk", CachePolicy::belady, OrderChoice{BatchOrder::fixed, 0}, 1.5},
        {"segments", CachePolicy::belady, {BatchOrder::segments, 5}, 1.5},
        {"lru", CachePolicy::lru, {BatchOrder::fixed, 0}, 0.0}}) {
    sample_artefact(cycles().dataset, scratch.path(name), sample_of(kEpochs)).status().or_throw();
    ArtefactPackRequest request = test::small_pack(cycles().dataset, order, policy);
    request.disk_bytes =
        static_cast<int64_t>(disk_share * static_cast<double>(cycles().dataset.description().features.bytes));
    const Manifest manifest = *pack_artefact(cycles().dataset, scratch.path(name), request);
    EXPECT_EQ(manifest.packs[0].disk_cache_bytes > 0, disk_share > 0) << name;
    const auto loader = std::move(Loader::open(scratch.path(name))).value();
    int64_t bytes = 0;
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      loader->start(epoch).or_throw();
      EXPECT_EQ(std::ssize(run_cycle(loader.get())), loader->num_batches());
      ASSERT_FALSE(HasFatalFailure()) << name << " " << epoch;
      bytes += loader->stats().bytes_read;
    }
    EXPECT_EQ(bytes, manifest.packs[0].bytes_read) << name;
    for (const int64_t epoch : {1, 2, 4}) {
      loader->start(epoch, loader->num_batches() / 2).or_throw();
      EXPECT_EQ(std::ssize(run_cycle(loader.get())), loader->num_batches() - loader->num_batches() / 2);
      ASSERT_FALSE(HasFatalFailure()) << name << " " << epoch;
    }
    EXPECT_TRUE(verify_artefact(scratch.path(name), &cycles().dataset).ok());
  }
}

TEST(Cycle, KnowsWhatTheNextSampledEpochUses) {
  const Scratch scratch;
  const ArtefactPackRequest request = test::small_pack(cycles().dataset, {BatchOrder::fixed, 0});
  const auto bytes_of = [&](const std::string& name, int64_t epochs) {
    sample_artefact(cycles().dataset, scratch.path(name), sample_of(epochs)).status().or_throw();
    return pack_artefact(cycles().dataset, scratch.path(name), request)->pack("fixed")->feature_bytes;
  };
  // Row by row as often as the first epoch alone, which repeats itself: no worse than a tenth more per epoch.
  const int64_t one = bytes_of("one", 1), three = bytes_of("three", kEpochs);
  EXPECT_GT(three, 2 * one);
  EXPECT_LT(three, one * kEpochs * 11 / 10);
}

TEST(Ranks, SharesAreDisjointAndTogetherTheWhole) {
  for (const char* packs : {"fixed", "segments", "shuffle"}) {
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      std::vector<Place> own;
      int64_t steps = 0, repeated = 0;
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        const auto loader = open_cycle({.packs = packs, .rank = rank, .ranks = kRanks});
        loader->start(epoch).or_throw();
        EXPECT_TRUE(rank == 0 || loader->num_batches() == steps) << rank;
        steps = loader->num_batches();
        while (true) {
          const auto batch = loader->next();
          ASSERT_TRUE(batch.ok()) << batch.status().message();
          if (!batch->has_value()) break;
          check_cycled(**batch);
          ASSERT_FALSE(HasFatalFailure());
          EXPECT_EQ((*batch)->sampled_epoch, epoch);
          repeated += (*batch)->is_repeated;
          if (!(*batch)->is_repeated) {
            EXPECT_EQ((*batch)->number % kRanks, rank);
            own.push_back({(*batch)->sampled_epoch, (*batch)->number});
          }
          loader->release();
        }
      }
      const int64_t whole = cycles().traces[0].trace().num_batches();
      EXPECT_EQ(steps, (whole + kRanks - 1) / kRanks);
      EXPECT_EQ(repeated, steps * kRanks - whole);
      std::sort(own.begin(), own.end());
      ASSERT_EQ(std::ssize(own), whole) << packs;
      for (int64_t b = 0; b < whole; ++b) ASSERT_EQ(own[static_cast<size_t>(b)], Place(epoch, b));
    }
  }
}

TEST(Ranks, OtherSplitsAreSharedToo) {
  const int64_t whole = cycles().manifest.trace(Split::valid)->batches;
  std::set<int64_t> seen;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const auto loader = open_cycle({.split = Split::valid, .rank = rank, .ranks = kRanks});
    EXPECT_EQ(loader->packs(), base::format("fixed-valid-r{}of{}", rank, kRanks));
    loader->start(0).or_throw();
    while (true) {
      const auto batch = loader->next();
      ASSERT_TRUE(batch.ok()) << batch.status().message();
      if (!batch->has_value()) break;
      EXPECT_EQ((*batch)->sampled_epoch, 0);
      EXPECT_EQ(seen.insert((*batch)->number).second, !(*batch)->is_repeated);
      loader->release();
    }
  }
  EXPECT_EQ(std::ssize(seen), whole);
}

TEST(Ranks, ArtefactIsTheSameHoweverOftenThePackerIsKilled) {
  const Scratch scratch;
  const Dataset& dataset = cycles().dataset;
  ArtefactPackRequest request = test::small_pack(dataset, {BatchOrder::fixed, 0});
  request.ranks = 2;
  request.disk_bytes = dataset.description().features.bytes * 2 / 3;
  for (const char* name : {"whole", "killed"})
    sample_artefact(dataset, scratch.path(name), sample_of(2)).status().or_throw();
  pack_artefact(dataset, scratch.path("whole"), request).status().or_throw();
  int killed = 0;
  for (int delay_us = 500; delay_us < 5'000'000; delay_us += delay_us / 3) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(pack_artefact(dataset, scratch.path("killed"), request).ok() ? 0 : 1);
    ::usleep(static_cast<useconds_t>(delay_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      break;
    }
    ++killed;
  }
  EXPECT_GE(killed, 3);
  pack_artefact(dataset, scratch.path("killed"), request).status().or_throw();
  const auto whole = test::files_of(scratch.path("whole")), again = test::files_of(scratch.path("killed"));
  EXPECT_FALSE(whole.at("dcache-fixed-r0of2.ovd").empty());
  EXPECT_EQ(whole.size(), 1u + 3 + 4 * 4);  // a manifest, three traces, four files for each rank and split
  ASSERT_EQ(again.size(), whole.size());
  for (const auto& [name, bytes] : whole) EXPECT_TRUE(again.at(name) == bytes) << name;
}

TEST(Ranks, EveryPackIsVerifiedAndDamageIsFound) {
  const auto report = verify_artefact(cycles().path(), &cycles().dataset);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->files, 4 + 3 * 2 * (1 + kRanks) * 4);
  const Scratch scratch;
  fs::copy(cycles().path(), scratch.path("b"));
  const std::string path = scratch.path("b/trace-train-2.ovt");
  std::string bytes = *base::read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  base::write_file(path, bytes).or_throw();
  const base::Status status = verify_artefact(scratch.path("b"), nullptr).status();
  EXPECT_EQ(status.code(), Errc::corrupt);
  EXPECT_NE(status.message().find("trace-train-2.ovt: checksum is"), std::string::npos) << status.message();
}

TEST(Cycle, MoreEpochsLeavePacksOfFewerAlone) {
  const Scratch scratch;
  const Dataset& dataset = cycles().dataset;
  const ArtefactPackRequest request = test::small_pack(dataset, {BatchOrder::fixed, 0});
  sample_artefact(dataset, scratch.path("a"), sample_of(1)).status().or_throw();
  pack_artefact(dataset, scratch.path("a"), request).status().or_throw();
  const auto before = test::files_of(scratch.path("a"));
  sample_artefact(dataset, scratch.path("a"), sample_of(2)).status().or_throw();
  EXPECT_EQ(std::move(Loader::open(scratch.path("a"))).value()->plan().sampled_epochs(), 1);
  EXPECT_TRUE(verify_artefact(scratch.path("a"), &dataset).ok());
  const Manifest both = *pack_artefact(dataset, scratch.path("a"), request);
  EXPECT_EQ(both.pack("fixed")->epochs, 2);
  EXPECT_EQ(std::move(Loader::open(scratch.path("a"))).value()->plan().sampled_epochs(), 2);
  const auto after = test::files_of(scratch.path("a"));
  EXPECT_EQ(after.at("trace-train-0.ovt"), before.at("trace-train-0.ovt"));
  EXPECT_NE(after.at("packs-fixed.ovk"), before.at("packs-fixed.ovk"));
  EXPECT_EQ(manifest_json(*parse_manifest(manifest_json(both), "m")), manifest_json(both));
}

TEST(Ranks, WhatDoesNotFitIsRefused) {
  const auto message = [](LoaderOptions options) {
    return Loader::open(cycles().path(), std::move(options)).status().message();
  };
  EXPECT_EQ(message({.rank = 3, .ranks = 3}), "rank is 3 of 3, wanted one of 1 to 1024 ranks");
  EXPECT_NE(message({.rank = 1, .ranks = 2}).find("no packs of train for rank 1 of 2, there are: fixed, fixed-valid, "),
            std::string::npos)
      << message({.rank = 1, .ranks = 2});
  const Scratch scratch;
  SampleRequest sample = sample_of(0);
  EXPECT_EQ(sample_artefact(cycles().dataset, scratch.path("a"), sample).status().message(),
            "epochs is 0, wanted 1 to 4096");
  EXPECT_FALSE(fs::exists(scratch.path("a")));
  ArtefactPackRequest request = test::small_pack(cycles().dataset);
  for (const int64_t ranks : {int64_t{0}, kMaxRanks + 1}) {
    request.ranks = ranks;
    EXPECT_EQ(pack_artefact(cycles().dataset, cycles().path(), request).status().message(),
              base::format("ranks is {}, wanted 1 to 1024", ranks));
  }
}

}  // namespace
}  // namespace overlace::gnn
