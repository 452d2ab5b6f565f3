#include "src/spec/costs.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/spec/fused_pod.h"

namespace overlace::spec {
namespace {

Machine small() {
  Machine out;
  out.sms = 4;
  out.gemm.tiles = {{128, 128, {2}, {10}}, {128, 64, {2}, {6}}};
  out.gemm.start_us = {3};
  return out;
}

TEST(Costs, AProductIsWavesOfTheFastestTile) {
  const Machine machine = small();
  // 4 tiles of 128 x 128: one wave of 2 + 1000 * 10 ns. 8 of 128 x 64: two waves of 2 + 6.
  const GemmCost square = gemm_cost(machine, {256, 256, 1000});
  EXPECT_DOUBLE_EQ(square.us, 3 + 12);
  EXPECT_DOUBLE_EQ(square.waves, 1);
  EXPECT_DOUBLE_EQ(square.start_us, 3);
  // 2 of 128 x 128 or 4 of 128 x 64: one wave of the smaller.
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {256, 128, 1000}).us, 3 + 8);
  // One row more is a wave more; in two products of a batch each has rows of its own.
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {257, 256, 1000}).us, 3 + 24);
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {129, 256, 1000, 2}).us, 3 + 24);
  // The first of two tiles alike counts: four of 128 x 128 here, not three of 64 x 256.
  Machine alike = small();
  alike.gemm.tiles = {{128, 128, {2}, {10}}, {64, 256, {2}, {10}}};
  alike.gemm.sustained_TFLOPs = {1e-3};
  EXPECT_DOUBLE_EQ(gemm_cost(alike, {192, 256, 1000}).us, 3 + 4 * 2 * 128 * 128);
  EXPECT_EQ(gemm_cost(machine, {0, 256, 1000}).us, 0);
  EXPECT_EQ(gemm_cost(machine, {256, 256, 0}).us, 0);
  EXPECT_EQ(gemm_cost(machine, {256, 0, 1000}).us, 0);
  EXPECT_EQ(gemm_cost(machine, {256, 256, 1000, 0}).us, 0);
}

/// GPUs: SMs without a tile take part of K, and the parts are added up.
TEST(Costs, OperandsOfOneByteAreMultipliedFasterOnGpus) {
  Machine machine = small();
  GemmWork bytes{256, 256, 1000};
  bytes.in_bytes = 1;
  EXPECT_DOUBLE_EQ(gemm_cost(machine, bytes).us, 3 + 12) << "CPU ranks decode them first";
  machine.is_gpu = true;
  machine.gemm.fp8_speedup = {2, Source::measured};
  EXPECT_DOUBLE_EQ(gemm_cost(machine, bytes).us, 3 + 2 + 5) << "of a wave the part that grows with K";
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {256, 256, 1000}).us, 3 + 12);
  machine.gemm.sustained_TFLOPs = {1e-3};
  const double flops = 2.0 * 256 * 256 * 1000;
  EXPECT_DOUBLE_EQ(gemm_cost(machine, bytes).us, 3 + flops / 2e3);
}

TEST(Costs, OfFewRowsKIsSplit) {
  Machine machine = small();
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {64, 64, 1000}).us, 3 + 8) << "CPU ranks";
  machine.is_gpu = true;
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {64, 64, 1000}).us, 3 + (2 + 6.0 / 4) + 2) << "four parts";
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {64, 192, 1000}).us, 3 + 8) << "one SM is left";
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {65, 64, 1000}).us, 3 + 8) << "not few";
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {33, 64, 1000, 2}).us, 3 + 8) << "not few together";
}

/// An SM streams its own tiles, whatever the others do.
TEST(Costs, OneShotStreamsTheTilesOfAnSm) {
  Machine machine = small();  // four SMs
  machine.few_rows = {{7}, {34}, {4}, {42}};
  machine.gemm.tiles = {{128, 128, {0.01}, {0.01}}};  // products take no time
  const auto stream_us = [&](bool gathers, int64_t n) {
    return one_shot_cost(machine, gathers, {8, n, 1000}).stream_us;
  };
  const double tile = 64 * 1000 * 2 * 1e-3;  // us at 1 GB/s
  for (const bool gathers : {false, true}) {
    EXPECT_DOUBLE_EQ(stream_us(gathers, 512), 2 * stream_us(gathers, 256));
    EXPECT_DOUBLE_EQ(stream_us(gathers, 257), 1.5 * stream_us(gathers, 256)) << "three halves, not two tiles";
    EXPECT_DOUBLE_EQ(stream_us(gathers, 128) * 2, stream_us(gathers, 256)) << "two SMs share a tile";
    EXPECT_DOUBLE_EQ(stream_us(gathers, 192), stream_us(gathers, 256)) << "three tiles of two SMs each are two waves";
  }
  EXPECT_EQ(one_shot_cost(machine, true, {8, 192, 1000}).waves, 1);
  EXPECT_EQ(one_shot_cost(machine, true, {8, 192, 1000}).start_us, 7);
  EXPECT_EQ(one_shot_cost(machine, false, {8, 192, 1000}).start_us, 4);
  EXPECT_DOUBLE_EQ(stream_us(false, 256) * 42, 64 * 1000 * 2 * 1e-3);
  machine.gemm.stream_GBps = {1};
  EXPECT_DOUBLE_EQ(stream_us(false, 256), 4 * tile);
  EXPECT_EQ(one_shot_cost(machine, true, {8, 0, 1000}).stream_us, 0);
  EXPECT_EQ(one_shot_cost(machine, true, {8, 0, 1000}).start_us, 0);
  EXPECT_EQ(one_shot_cost(machine, true, {8, 192, 0}).start_us, 0);
}

/// Tokens of a whole tile are multiplied, however many there are.
TEST(Costs, OneShotMultipliesAllTokensOfATile) {
  Machine machine = small();
  machine.few_rows = {{7}, {1e6}, {4}, {1e6}};  // weights stream in no time
  const auto stream_us = [&](int64_t m, int64_t n) { return one_shot_cost(machine, false, {m, n, 1000}).stream_us; };
  EXPECT_DOUBLE_EQ(stream_us(129, 256), 12) << "64 x 256 is as much as 128 x 128";
  EXPECT_DOUBLE_EQ(stream_us(256, 256), 12);
  EXPECT_DOUBLE_EQ(stream_us(256, 257), 24);
  EXPECT_DOUBLE_EQ(stream_us(65, 256), 6);
  EXPECT_DOUBLE_EQ(stream_us(1, 256), 12.0 / 16);
  EXPECT_DOUBLE_EQ(stream_us(128, 128), (2 + 5.0) / 2) << "two SMs have half of K each";
  EXPECT_DOUBLE_EQ(stream_us(129, 128), 12) << "but not of a tile this wide";
}

TEST(Costs, RatesAreLimits) {
  Machine machine = small();
  const GemmWork work = {256, 256, 1000};
  EXPECT_DOUBLE_EQ(work.flops(), 2.0 * 256 * 256 * 1000);
  EXPECT_DOUBLE_EQ(work.bytes(), 2.0 * (256 * 1000 + 256 * 256 + 256 * 1000));
  machine.gemm.sustained_TFLOPs = {1};
  EXPECT_DOUBLE_EQ(gemm_cost(machine, work).us, 3 + 131.072);
  machine.gemm.stream_GBps = {1};
  EXPECT_DOUBLE_EQ(gemm_cost(machine, work).us, 3 + work.bytes() * 1e-3);
  // Four SMs draw 2 GB/s together.
  machine.gemm.stream_GBps = {100};
  machine.gemm.sm_stream_GBps = {0.5};
  EXPECT_DOUBLE_EQ(gemm_cost(machine, work).us, 3 + work.bytes() * 0.5e-3);
  GemmWork wide = work;
  wide.out_bytes = 4;
  EXPECT_DOUBLE_EQ(wide.bytes() - work.bytes(), 2.0 * 256 * 256);
}

TEST(Costs, SmsMultiplyWholeTilesAndABatchReadsALargeBAgain) {
  Machine machine = small();
  machine.gemm.sustained_TFLOPs = {1};
  EXPECT_DOUBLE_EQ(gemm_cost(machine, {200, 256, 1000}).us, gemm_cost(machine, {256, 256, 1000}).us);
  machine.gemm.sustained_TFLOPs = {0};
  machine.gemm.stream_GBps = {1};
  const GemmWork batch = {256, 256, 1000, 3};
  machine.memory.l2_bytes = 256 * 1000 * 2;
  EXPECT_DOUBLE_EQ(gemm_cost(machine, batch).us, 3 + batch.bytes() * 1e-3);
  machine.memory.l2_bytes -= 1;
  EXPECT_DOUBLE_EQ(gemm_cost(machine, batch).us, 3 + (batch.bytes() + 2 * 256 * 1000 * 2) * 1e-3);
}

TEST(Costs, FusedTilesLieInOneShard) {
  const Machine machine = small();  // two clusters of two SMs
  EXPECT_DOUBLE_EQ(tile_us(machine, 128, 64, 1000), 8);
  EXPECT_DOUBLE_EQ(tile_us(machine, 128, 256, 1000), 24) << "twice the largest";
  // Shards of 300 rows are two tiles of 256: eight of 128 columns, four waves.
  const GemmCost cost = fused_cost(machine, {300, 4, 128, 1000, 128});
  EXPECT_DOUBLE_EQ(cost.waves, 4);
  EXPECT_DOUBLE_EQ(cost.us, 3 + 4 * 12);
  for (const FusedWork& nothing :
       {FusedWork{0, 4, 128, 1000, 128}, {300, 0, 128, 1000, 128}, {300, 4, 0, 1000, 128}, {300, 4, 128, 0, 128}})
    EXPECT_EQ(fused_cost(machine, nothing).us, 0);
}

TEST(Costs, FusedTilesTakeLongerWhereRowsAreUnalignedOrEmpty) {
  Machine machine = small();
  EXPECT_DOUBLE_EQ(fused_slowdown(machine, 64, 1000), 1) << "a machine without these figures";
  machine.gemm.unaligned_rows = {1.5};
  machine.gemm.empty_rows = {0.4};
  EXPECT_DOUBLE_EQ(fused_slowdown(machine, 256, 1000), 1.5) << "rows of 2000 bytes";
  EXPECT_DOUBLE_EQ(fused_slowdown(machine, 512, 1008), 1) << "rows of 63 sectors";
  EXPECT_DOUBLE_EQ(fused_slowdown(machine, 128, 1024), 1.1) << "half of a tile";
  EXPECT_DOUBLE_EQ(fused_slowdown(machine, 384, 1024), 1 + 0.4 / 16) << "a quarter of two";
  EXPECT_DOUBLE_EQ(fused_slowdown(machine, 0, 1000), 1);
}

TEST(Costs, UnequalShardsAreReducedOneByOne) {
  using Offsets = std::vector<int64_t>;
  EXPECT_EQ(unequal_shards(Offsets{0, 4, 8, 12}), 0);
  EXPECT_EQ(unequal_shards(Offsets{0, 5, 8, 12}), 3) << "as many rows, though not in equal shards";
  EXPECT_EQ(unequal_shards(Offsets{0, 1, 1}), 1) << "the other one has no rows";
  EXPECT_EQ(unequal_shards(Offsets{0, 7}), 0);
  EXPECT_EQ(unequal_shards(Offsets{0, 0, 0}), 0);
  Machine machine = small();
  machine.ranks = 2;
  machine.collectives.reduce_scatter_us.points = {{1000, 10}, {4000, 40}};
  EXPECT_DOUBLE_EQ(collective_us(machine, "reduce_scatter", 4000, 2).value(), 40);
  EXPECT_FALSE(collective_us(machine, "reduce_scatter", 4000, 2, 2)) << "there is no all-reduce";
  machine.collectives.all_reduce_us.points = {{1000, 15}, {4000, 60}};
  EXPECT_DOUBLE_EQ(collective_us(machine, "reduce_scatter", 4000, 2, 2).value(), 2 * 30);
  EXPECT_DOUBLE_EQ(collective_us(machine, "reduce_scatter", 1000, 2, 1).value(), 15);
}

TEST(Costs, SizesNearTheLimitsStayPositive) {
  constexpr int64_t kHuge = int64_t{1} << 32;  // products of two of them do not fit 64 bits
  Machine machine = small();
  machine.memory.l2_bytes = 1;
  machine.gemm.stream_GBps = {1};
  const GemmCost narrow = gemm_cost(machine, {256, kHuge, kHuge}), batch = gemm_cost(machine, {256, kHuge, kHuge, 2});
  EXPECT_GT(narrow.us, 2.0 * kHuge * kHuge * 1e-3);
  EXPECT_GT(batch.us, 1.9 * narrow.us);
  const std::vector<int64_t> offsets = {0, kHuge, 2 * kHuge};
  EXPECT_EQ(gather_tile_cols(offsets, kHuge, 132), gather_tile_cols(offsets, 256 * 132, 132));
}

TEST(Costs, TheTileOfTheFewestWavesTimesColumnsAndOfEqualOnesTheWider) {
  const std::vector<int64_t> offsets = {0, 256, 512};  // two tiles of rows
  const ClusterTile narrow = {256, 128, 2}, wide = {256, 256, 2};
  const auto best = [&](std::vector<ClusterTile> tiles, int64_t n) { return choose_tile(tiles, offsets, n, 8); };
  EXPECT_EQ(best({narrow, wide}, 256), 0U) << "four of 128 are one wave, two of 256 are one, too";
  EXPECT_EQ(best({narrow, wide}, 512), 1U) << "eight of 128 are two waves, four of 256 are one: alike";
  EXPECT_EQ(best({wide, narrow}, 512), 0U);
  EXPECT_EQ(best({wide, narrow, wide}, 512), 2U) << "of equal tiles the later";
  EXPECT_TRUE(shares_one_shot_tiles(1, 3, 6));
  EXPECT_FALSE(shares_one_shot_tiles(1, 6, 6));
  EXPECT_TRUE(shares_one_shot_tiles(kOneShotSplitTokens, 3, 6));
  EXPECT_FALSE(shares_one_shot_tiles(kOneShotSplitTokens + 1, 3, 6));
}

TEST(Costs, CopiesSumsAndCollectives) {
  Machine machine;
  machine.copy.start_us = {5};
  machine.copy.peer_GBps = {4};
  machine.copy.local_GBps = {8};
  machine.memory.reduce_GBps = {10};
  machine.collectives.all_gather_us = {{{1000, 20}, {2000, 30}}};
  machine.collectives.reduce_scatter_us = {{{1000, 21}, {2000, 31}}};
  machine.collectives.all_reduce_us = {{{1000, 22}, {2000, 32}}};
  EXPECT_DOUBLE_EQ(copy_us(machine, 4e6), 5 + 1000);
  machine.copy.all_GBps = {2};
  EXPECT_DOUBLE_EQ(copy_us(machine, 4e6), 5 + 2000) << "while all ranks send";
  EXPECT_DOUBLE_EQ(local_copy_us(machine, 8e6), 5 + 1000);
  machine.copy.local_us.points = {{1e6, 60}, {1e7, 900}};
  EXPECT_DOUBLE_EQ(local_copy_us(machine, 1e7), 900) << "as measured";
  EXPECT_DOUBLE_EQ(local_copy_us(machine, 1e6), 60);
  EXPECT_DOUBLE_EQ(local_copy_us(machine, 8e5), 5 + 100) << "less than was measured";
  EXPECT_DOUBLE_EQ(reduce_us(machine, 1e6), 100);
  EXPECT_EQ(copy_us(machine, 0) + local_copy_us(machine, 0) + reduce_us(machine, 0), 0);
  machine.memory.reduce_us.points = {{1e6, 50}, {1e7, 1000}};
  EXPECT_DOUBLE_EQ(reduce_us(machine, 1e6), 50);
  EXPECT_DOUBLE_EQ(reduce_us(machine, 5e5), 25) << "less than was measured, at the rate of the least";
  EXPECT_DOUBLE_EQ(reduce_us(machine, 1e7), 1000);
  machine.ranks = 4;
  EXPECT_DOUBLE_EQ(collective_us(machine, "all_gather", 1000, 4).value(), 20);
  EXPECT_DOUBLE_EQ(collective_us(machine, "reduce_scatter", 2000, 4).value(), 31);
  EXPECT_DOUBLE_EQ(collective_us(machine, "all_reduce", 1500, 2).value(), 22) << "half of the bytes, not 3/4";
  EXPECT_EQ(collective_us(machine, "all_reduce", 0, 4), 0);
  EXPECT_FALSE(collective_us(machine, "all_to_all", 1000, 4).has_value());
  EXPECT_FALSE(collective_us(machine, "broadcast", 1000, 4).has_value());
  machine.contention = {{Load::gemm_tensor, Load::ce_in, {1.25}}};
  EXPECT_DOUBLE_EQ(contention(machine, Load::gemm_tensor, Load::ce_in), 1.25);
  EXPECT_DOUBLE_EQ(contention(machine, Load::gemm_tensor, Load::ce_out), 1);
}

TEST(Costs, TheTileOfASlotIsWideWhereTwoRanksHaveManyTiles) {
  OpSpec op;
  op.op = "gemm_rs";
  op.m = 2048, op.n = 8192, op.k = 2048, op.ranks = 2;
  EXPECT_EQ(slot_tile_cols(op), 128) << "256 tiles";
  op.m = 2049;
  EXPECT_EQ(slot_tile_cols(op), 256);
  op.k = 8;
  EXPECT_EQ(slot_tile_cols(op), 256) << "K may differ between ranks";
  const Schedule schedule = make_schedule(op, "tma_slot", 64);
  EXPECT_EQ(schedule.params.at("tile_n"), Param(int64_t{256}));
  OpSpec other = op;
  other.ranks = 4;
  EXPECT_EQ(slot_tile_cols(other), 128) << "four GPUs were slower with it";
  other = op;
  other.dtype = other.out_dtype = DType::fp16;
  EXPECT_EQ(slot_tile_cols(other), 128) << "no such kernel";
  other = op;
  other.b_layout = BLayout::kn;
  EXPECT_EQ(slot_tile_cols(other), 128) << "no such kernel";
  op.m = 0;
  EXPECT_EQ(slot_tile_cols(op), 128);
}

}  // namespace
}  // namespace overlace::spec
