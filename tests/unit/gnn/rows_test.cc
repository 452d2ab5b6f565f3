// Rows from the disk against the matrix: widths, caches, pages read once, bad disks, bad ids.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "src/gnn/rows/row_store.h"
#include "src/gnn/sample/random.h"
#include "src/io/faults.h"
#include "tests/unit/gnn/support/artefacts.h"
#include "tests/unit/gnn/support/graphs.h"

namespace overlace::gnn {
namespace {

bool is_right(const test::Matrix& matrix, std::span<const int64_t> ids, std::span<const std::byte> out) {
  const size_t row = ids.empty() ? 0 : out.size() / ids.size();
  for (size_t i = 0; i < ids.size(); ++i)
    if (!std::ranges::equal(out.subspan(i * row, row), matrix.row(ids[i]))) return false;
  return true;
}

TEST(RowStore, GivesTheRowsOfEveryWidth) {
  for (const int64_t dim : {1, 3, 25, 128, 300, 1024, 1500}) {
    const Scratch scratch;
    const Dataset dataset = test::small_dataset(scratch.path("g"), 1 << 10, dim);
    const test::Matrix matrix(dataset);
    for (const char* engine : {"auto", "pread", "buffered"}) {
      const auto store = std::move(RowStore::open(dataset, {.io = {.engine = engine}})).value();
      ASSERT_EQ(store->row_bytes(), 4 * dim);
      for (const int64_t count : {0, 1, 77, 3000}) {
        std::vector<int64_t> ids = test::drawn_rows(count, 1 << 10);
        if (count > 1) ids[0] = 0, ids[1] = (1 << 10) - 1;
        std::vector<std::byte> out(ids.size() * static_cast<size_t>(4 * dim));
        store->read(ids, out).or_throw();
        ASSERT_TRUE(is_right(matrix, ids, out)) << dim << " " << engine << " " << count;
      }
    }
  }
}

TEST(RowStore, ReadsEachPageOnceAndCachedRowsNever) {
  const Scratch scratch;
  const Dataset dataset = test::small_dataset(scratch.path("g"), 1 << 11, 128);  // eight rows on a page
  const test::Matrix matrix(dataset);
  const std::vector<int64_t> cached = {5, 2047, 0, 1024};
  const auto store = std::move(RowStore::open(dataset, {.cached = cached})).value();
  EXPECT_EQ(store->stats().bytes_read, 0);
  std::vector<int64_t> ids = test::drawn_rows(600, 1 << 11);
  ids.insert(ids.end(), cached.begin(), cached.end());
  std::vector<std::byte> out(ids.size() * 512);
  store->read(ids, out).or_throw();
  EXPECT_TRUE(is_right(matrix, ids, out));
  std::set<int64_t> pages;
  int64_t hits = 0;
  for (const int64_t id : ids) {
    if (std::find(cached.begin(), cached.end(), id) == cached.end())
      pages.insert(id / 8);
    else
      ++hits;
  }
  const RowStoreStats stats = store->stats();
  EXPECT_EQ(stats.rows, std::ssize(ids));
  EXPECT_EQ(stats.cached_rows, hits);
  EXPECT_EQ(stats.bytes_read, std::ssize(pages) * 4096);
  EXPECT_LT(stats.reads, std::ssize(pages));
  // All rows: long reads.
  std::vector<int64_t> all(1 << 11);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const auto whole = std::move(RowStore::open(dataset)).value();
  out.resize(all.size() * 512);
  whole->read(all, out).or_throw();
  EXPECT_TRUE(is_right(matrix, all, out));
  EXPECT_EQ(whole->stats().bytes_read, 1 << 20);
  EXPECT_EQ(whole->stats().reads, 8);
}

TEST(RowStore, GivesRightRowsOrAnErrorThroughABadDisk) {
  const Scratch scratch;
  const Dataset dataset = test::small_dataset(scratch.path("g"), 1 << 11, 100);
  const test::Matrix matrix(dataset);
  io::FaultCounts counts;
  RowStoreOptions options;
  options.io.engine = "pread";
  options.io.wrap = io::with_faults(
      {.seed = 4, .short_moves = 0.05, .eio = 0.005, .eagain = 0.05, .late = 0.1, .reorder = true}, &counts);
  const auto store = std::move(RowStore::open(dataset, options)).value();
  int64_t failed = 0, right = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    const std::vector<int64_t> ids = test::drawn_rows(100, 1 << 11, i);
    std::vector<std::byte> out(ids.size() * 400);
    const base::Status status = store->read(ids, out);
    if (status.ok()) {
      ASSERT_TRUE(is_right(matrix, ids, out)) << i;
      ++right;
    } else {
      EXPECT_EQ(status.code(), Errc::io);
      EXPECT_NE(status.message().find("features.npy: read of"), std::string::npos) << status.message();
      ++failed;
    }
  }
  EXPECT_GT(counts.eio, 0);
  EXPECT_GT(failed, 0);
  EXPECT_GT(right, 20);
}

TEST(RowStore, ServesSeveralThreads) {
  const Scratch scratch;
  const Dataset dataset = test::small_dataset(scratch.path("g"), 1 << 11, 33);
  const test::Matrix matrix(dataset);
  const auto store = std::move(RowStore::open(dataset)).value();
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 20; ++i) {
        const std::vector<int64_t> ids = test::drawn_rows(50, 1 << 11, 100 * t + i);
        std::vector<std::byte> out(ids.size() * 132);
        store->read(ids, out).or_throw();
        EXPECT_TRUE(is_right(matrix, ids, out));
      }
    });
}

TEST(RowStore, RefusesBadIdsBeforeItReads) {
  const Scratch scratch;
  const Dataset dataset = test::small_dataset(scratch.path("g"), 1 << 10, 4);
  const auto store = std::move(RowStore::open(dataset)).value();
  std::vector<std::byte> out(32);
  EXPECT_EQ(store->read(std::vector<int64_t>{3, 1024}, out).message(), "ids[1] is 1024, wanted 0 to 1023");
  EXPECT_EQ(store->read(std::vector<int64_t>{-1, 2}, out).message(), "ids[0] is -1, wanted 0 to 1023");
  EXPECT_EQ(store->read(std::vector<int64_t>{1}, out).message(), "out has 32 bytes, wanted 1 rows of 16");
  EXPECT_EQ(store->stats().reads, 0);
  const std::vector<int64_t> twice = {7, 8, 7}, beyond = {1024}, many(1025, 0);
  EXPECT_EQ(RowStore::open(dataset, {.cached = twice}).status().message(),
            "cached[2] is 7, wanted each once and 0 to 1023");
  EXPECT_EQ(RowStore::open(dataset, {.cached = beyond}).status().message(),
            "cached[0] is 1024, wanted each once and 0 to 1023");
  EXPECT_EQ(RowStore::open(dataset, {.cached = many}).status().message(), "cached: 1025 vertices, wanted at most 1024");
}

}  // namespace
}  // namespace overlace::gnn
