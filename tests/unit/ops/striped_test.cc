// Where the blocks of striped matrices lie.
#include <gtest/gtest.h>

#include "src/ops/striped/geometry.h"

namespace overlace::test {
namespace {

using ops::StripedSpec;
using ops::striped::Geometry;
using Runs = std::vector<ops::striped::Run>;

constexpr uint64_t kPage = 2 << 20;

StripedSpec spec_of(const StripedSpec& spec, int ranks) {
  const StripedSpec full = ops::striped::with_defaults(spec, ranks);
  EXPECT_EQ(ops::striped::check_spec(full, ranks).message(), "");
  return full;
}

Geometry geometry_of(const StripedSpec& spec) {
  base::Result<Geometry> geometry = ops::striped::place_blocks(spec, kPage);
  EXPECT_EQ(geometry.status().message(), "");
  return geometry.value();
}

std::string refusal(const StripedSpec& spec, int ranks) {
  return ops::striped::check_spec(ops::striped::with_defaults(spec, ranks), ranks).message();
}

TEST(StripedGeometry, BlocksOfWholePagesHaveNoGaps) {
  const StripedSpec spec = spec_of({.rows = 512, .cols = 8192}, 2);
  const Geometry g = geometry_of(spec);
  EXPECT_EQ(spec.blocks, 2);
  EXPECT_EQ(g.pitch, 8192);
  EXPECT_EQ(g.block_bytes, uint64_t{8} << 20);
  ASSERT_EQ(g.parts.size(), 2U);
  EXPECT_EQ(g.parts[1].rank, 1);
  EXPECT_EQ(g.parts[1].bytes, g.block_bytes);
}

TEST(StripedGeometry, RowsAreApartByWhatPagesAsk) {
  // 24 rows of bf16 have 48 bytes a column: 16 of them divide the page, so that 131072 columns are whole pages.
  const StripedSpec wide = spec_of({.rows = 24, .cols = 100000}, 2);
  EXPECT_EQ(geometry_of(wide).pitch, 131072);
  EXPECT_EQ(geometry_of(wide).block_bytes % kPage, 0U);
  // One page is never too much.
  const StripedSpec small = spec_of({.rows = 16, .cols = 3}, 2);
  EXPECT_EQ(geometry_of(small).block_bytes, kPage);
  const StripedSpec bad = spec_of({.rows = 1000, .cols = 8192}, 2);
  const base::Status status = ops::striped::place_blocks(bad, kPage).status();
  EXPECT_EQ(status.code(), Errc::not_supported);
  EXPECT_EQ(status.message(),
            "blocks of 1000 rows of bf16 end at edges of pages of 2097152 bytes where rows are a multiple of 131072 "
            "elements apart: 131072 for 8192 columns, 262144000 bytes for 16384000; wanted at most twice as many, or a "
            "batch, whose blocks have pages of their own");
}

TEST(StripedGeometry, BlocksOfABatchHavePagesOfTheirOwn) {
  StripedSpec spec = spec_of({.blocks = 4, .rows = 1000, .cols = 8192, .is_batched = true}, 2);
  EXPECT_EQ(spec.owners, (std::vector<int>{0, 0, 1, 1}));
  const Geometry g = geometry_of(spec);
  EXPECT_EQ(g.pitch, 8192);
  EXPECT_EQ(g.block_bytes, 8 * kPage);
  ASSERT_EQ(g.parts.size(), 2U) << "blocks of one owner that follow each other are one part";
  EXPECT_EQ(g.parts[0].bytes, 16 * kPage);
  EXPECT_EQ(g.blocks[3].part, 1);
  EXPECT_EQ(g.blocks[3].offset, 8 * kPage);
  EXPECT_EQ(ops::striped::runs_of(spec, g, 1).size(), 2U) << "a gap of pages lies between them";
}

TEST(StripedGeometry, RowsOfAnOwnerAreRuns) {
  const StripedSpec whole = spec_of({.blocks = 4, .rows = 256, .cols = 4096}, 2);
  const Runs one = ops::striped::runs_of(whole, geometry_of(whole), 1);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].rows, 512);

  const StripedSpec dealt = spec_of({.rows = 256, .cols = 4096, .owners = {0, 1, 0, 1}, .used = {256, 0, 7, 256}}, 2);
  const Geometry g = geometry_of(dealt);
  EXPECT_EQ(g.parts.size(), 4U);
  const Runs first = ops::striped::runs_of(dealt, g, 0), second = ops::striped::runs_of(dealt, g, 1);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[1].part, 2);
  EXPECT_EQ(first[1].rows, 7);
  ASSERT_EQ(second.size(), 1U) << "an empty block is none";
  EXPECT_EQ(second[0].part, 3);

  const StripedSpec ragged = spec_of({.blocks = 2, .rows = 512, .cols = 4096, .used = {100, 512}}, 1);
  EXPECT_EQ(ops::striped::runs_of(ragged, geometry_of(ragged), 0).size(), 2U) << "rows that are not used lie between";
}

TEST(StripedGeometry, BadSpecsAreNamed) {
  EXPECT_EQ(refusal({.rows = 0, .cols = 4}, 2), "rows is 0, wanted at least 1");
  EXPECT_EQ(refusal({.rows = 4, .cols = -1}, 2), "cols is -1, wanted at least 1");
  EXPECT_EQ(refusal({.blocks = -1, .rows = 4, .cols = 4}, 2), "blocks is -1, wanted at least 1");
  EXPECT_EQ(refusal({.blocks = 4096, .rows = 4, .cols = 4}, 2), "blocks is 4096, wanted at most 2048");
  EXPECT_EQ(refusal({.blocks = 3, .rows = 4, .cols = 4}, 2), "blocks is 3, wanted a multiple of 2 ranks, or owners");
  EXPECT_EQ(refusal({.blocks = 2, .rows = 4, .cols = 4, .owners = {0}}, 2),
            "owners has 1 entries, wanted 2: one for each block");
  EXPECT_EQ(refusal({.rows = 4, .cols = 4, .owners = {0, 2}}, 2), "owners[1] is 2, wanted 0 to 1");
  EXPECT_EQ(refusal({.rows = 4, .cols = 4, .used = {4, 5}}, 2), "used[1] is 5, wanted 0 to 4 rows");
  EXPECT_EQ(refusal({.rows = 4, .cols = 4, .used = {4}}, 2), "used has 1 entries, wanted 2: one for each block");
  EXPECT_EQ(refusal({.rows = int64_t{1} << 40, .cols = 4}, 2),
            "2 blocks of 1099511627776 rows of 4 elements, wanted at most 1099511627776 elements");
}

}  // namespace
}  // namespace overlace::test
