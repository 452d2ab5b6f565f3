// Packs with other bytes than were written: rows from the dataset while somebody trains, and packs made anew.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "src/gnn/pack/files.h"
#include "src/gnn/pipeline/loader.h"
#include "src/gnn/store/plan_file.h"
#include "src/io/alignment.h"
#include "tests/unit/gnn/support/artefacts.h"

namespace overlace::gnn {
namespace {

/// An artefact with packs of train and valid, with restores or with a disk cache.
class Repair : public ::testing::TestWithParam<const char*> {
 protected:
  Repair() : dataset_(test::small_dataset(scratch_.path("data"))), matrix_(dataset_) {
    sample_artefact(dataset_, artefact(), test::small_sample()).status().or_throw();
    const bool has_segments = GetParam() == std::string("segments");
    const OrderChoice order = has_segments ? OrderChoice{BatchOrder::segments, 8} : OrderChoice{};
    ArtefactPackRequest request = test::small_pack(dataset_, order);
    if (GetParam() == std::string("disk")) request.disk_bytes = dataset_.description().features.bytes * 2 / 3;
    pack_artefact(dataset_, artefact(), request).status().or_throw();
    name_ = has_segments ? "segments" : "fixed";
  }
  std::string artefact() const { return scratch_.path("a.ovg"); }
  std::string path(PackFile file) const { return PackFiles::path(artefact(), file, name_); }
  PackPlan plan() const {
    const Manifest manifest = *read_manifest(artefact());
    return std::move(open_plan(artefact(), manifest, *manifest.pack(name_))).value();
  }
  /// Turns a bit of a byte.
  static void flip(const std::string& path, int64_t at) {
    std::string bytes = *base::read_file(path);
    bytes[static_cast<size_t>(at)] ^= 4;
    base::write_file(path, bytes).or_throw();
  }
  /// Where the rows of an extent begin; -1: it has none.
  int64_t rows_at(const PackPlan& plan, const ExtentPlace& place, int64_t number) const {
    if (place.bytes == 0) return -1;
    const std::string file = *base::read_file(path(PackFile::packs));
    auto buffer = std::move(io::AlignedBuffer::allocate(static_cast<size_t>(place.bytes))).value();
    std::memcpy(buffer.data(), file.data() + place.offset, static_cast<size_t>(place.bytes));
    const ExtentView view = *open_extent({buffer.data(), static_cast<size_t>(place.bytes)}, plan.limits(number), "p");
    return view.rows.empty() ? -1 : place.offset + (view.rows.data() - buffer.data());
  }
  /// Batches until the end or an error, and rows that are not those of the dataset.
  struct Seen {
    int64_t batches = 0, wrong = 0;
    base::Status status;
    LoaderStats stats;
  };
  Seen train(LoaderOptions options) const {
    Seen seen;
    const auto loader = std::move(Loader::open(artefact(), std::move(options))).value();
    const auto bytes = static_cast<size_t>(loader->manifest().row_bytes);
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      loader->start(epoch).or_throw();
      while (true) {
        auto batch = loader->next();
        seen.status = batch.status();
        if (!batch.ok() || !batch->has_value()) break;
        ++seen.batches;
        for (size_t i = 0; i < (*batch)->ids.size(); ++i) {
          const auto row = matrix_.row((*batch)->ids[i]);
          seen.wrong += std::memcmp((*batch)->rows.data() + i * bytes, row.data(), bytes) != 0;
        }
        loader->release();
      }
      seen.stats = loader->stats();
      if (!seen.status.ok()) break;
    }
    return seen;
  }

  Scratch scratch_;
  Dataset dataset_;
  test::Matrix matrix_;
  std::string name_;
};

TEST_P(Repair, RowsThatAreDamagedComeFromTheDataset) {
  const PackPlan packs = plan();
  int64_t damaged = 0;
  for (int64_t b = 0; b < packs.num_batches(); b += 3)
    if (const int64_t at = rows_at(packs, packs.extents[static_cast<size_t>(b)], b); at >= 0) {
      flip(path(PackFile::packs), at);
      ++damaged;
    }
  for (int64_t s = 0; s < std::ssize(packs.restores); ++s)
    if (const int64_t at = rows_at(packs, packs.restores[static_cast<size_t>(s)], -1 - s); at >= 0) {
      flip(path(PackFile::packs), at);
      ++damaged;
    }
  for (int64_t page = 0; page < std::ssize(packs.page_sums); page += 2)
    flip(path(PackFile::disk_cache), page * packs.page.bytes);
  ASSERT_GT(damaged, 4);
  const Seen refused = train({});
  EXPECT_EQ(refused.status.code(), Errc::corrupt);
  EXPECT_EQ(refused.wrong, 0);
  const Seen mended = train({.source = dataset_.directory()});
  EXPECT_TRUE(mended.status.ok()) << mended.status.message();
  EXPECT_EQ(mended.batches, 2 * packs.epoch_batches);
  EXPECT_EQ(mended.wrong, 0);
  EXPECT_GE(mended.stats.mended_rows, damaged);
  EXPECT_GT(mended.stats.read_again, 0);
  // Nobody looks: wrong rows, but no index goes astray.
  const Seen blind = train({.checks_sums = false});
  EXPECT_TRUE(blind.status.ok()) << blind.status.message();
  EXPECT_GT(blind.wrong, 0);
  EXPECT_EQ(blind.stats.mended_rows, 0);
}

TEST_P(Repair, OnlyRowsCanComeFromTheDataset) {
  const PackPlan packs = plan();
  EXPECT_EQ(train({.source = dataset_.directory()}).stats.mended_rows, 0);
  flip(path(PackFile::packs), packs.extents[1].offset + kExtentPage);  // blocks
  const Seen refused = train({.source = dataset_.directory()});
  EXPECT_EQ(refused.status.code(), Errc::corrupt);
  EXPECT_NE(refused.status.message().find("checksum of"), std::string::npos) << refused.status.message();
  const Dataset other = test::small_dataset(scratch_.path("other"), 1 << 11, 25, 2);
  EXPECT_EQ(Loader::open(artefact(), {.source = other.directory()}).status().code(), Errc::stale);
  EXPECT_FALSE(Loader::open(artefact(), {.source = scratch_.path("none")}).ok());
}

TEST_P(Repair, MakesWhatIsDamagedAsItWas) {
  const auto before = test::files_of(artefact());
  const PackPlan packs = plan();
  EXPECT_TRUE(repair_artefact(dataset_, artefact())->empty());
  for (const PackFile file : {PackFile::packs, PackFile::disk_cache, PackFile::hot}) {
    const int64_t bytes = std::ssize(*base::read_file(path(file)));
    if (bytes == 0) continue;
    // No checksum has the gaps between sections.
    int64_t at = bytes / 2;
    for (int64_t b = packs.num_batches() - 1; b >= 0 && file == PackFile::packs; --b)
      if (const int64_t rows = rows_at(packs, packs.extents[static_cast<size_t>(b)], b); rows >= 0) at = rows;
    for (const char* how : {"flipped", "cut", "missing"}) {
      if (how == std::string("flipped")) flip(path(file), at);
      if (how == std::string("cut")) std::filesystem::resize_file(path(file), static_cast<uintmax_t>(bytes / 2));
      if (how == std::string("missing")) std::filesystem::remove(path(file));
      EXPECT_FALSE(verify_artefact(artefact(), nullptr).ok()) << how;
      const auto names = repair_artefact(dataset_, artefact(), 1 << 20);
      ASSERT_TRUE(names.ok()) << how << ": " << names.status().message();
      EXPECT_EQ(*names, std::vector<std::string>{name_}) << how;
      EXPECT_TRUE(test::files_of(artefact()) == before) << how << " " << path(file);
    }
  }
  flip(plan_path(artefact(), name_ + "-valid"), 100);
  EXPECT_EQ(*repair_artefact(dataset_, artefact()), std::vector<std::string>{name_ + "-valid"});
  EXPECT_TRUE(test::files_of(artefact()) == before);
  EXPECT_TRUE(verify_artefact(artefact(), &dataset_).ok());
}

TEST_P(Repair, LeavesSamplesThatAreDamagedAlone) {
  const std::string trace = artefact() + "/trace-train-0.ovt";
  flip(trace, std::ssize(*base::read_file(trace)) / 2);
  flip(path(PackFile::packs), 0);
  const auto before = test::files_of(artefact());
  const base::Status status = repair_artefact(dataset_, artefact()).status();
  EXPECT_EQ(status.code(), Errc::corrupt);
  EXPECT_NE(status.message().find("trace-train-0.ovt"), std::string::npos) << status.message();
  const Dataset other = test::small_dataset(scratch_.path("other"), 1 << 11, 25, 2);
  EXPECT_EQ(repair_artefact(other, artefact()).status().code(), Errc::stale);
  EXPECT_TRUE(test::files_of(artefact()) == before);
}

INSTANTIATE_TEST_SUITE_P(Packs, Repair, ::testing::Values("fixed", "segments", "disk"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace overlace::gnn
