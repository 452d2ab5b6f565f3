// What the GEMM is compiled for. What the compiler makes of it: tools/ci/device_units.py, job cubin.
#include "src/ops/fused/instances.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace overlace::ops::fused {
namespace {

struct Listed {
  const char* name;
  ConfigSpec spec;
};
constexpr Listed kConfigs[] = {
#define CONFIG(name, ...) {#name, kSpec_##name},
#include "src/gemm_core/configs.def"
#undef CONFIG
};
constexpr size_t kMostInstances = 65;  // of the compile budget: 25, and 26 of few tokens take half; 14 of experts

TEST(GemmCoreInstances, NoRowIsThereTwice) {
  std::set<std::pair<Kernel, std::string_view>> rows;
  for (const InstanceSpec& i : kInstances)
    EXPECT_TRUE(rows.emplace(i.kernel, i.name).second) << i.name << " is there twice";
  EXPECT_LE(rows.size(), kMostInstances);
}

TEST(GemmCoreInstances, RowsOfAKernelAreAllOfThem) {
  size_t rows = 0;
  for (const Kernel kernel : {Kernel::gather, Kernel::scatter, Kernel::one_shot, Kernel::gather_one_shot,
                              Kernel::grouped, Kernel::moe, Kernel::wgrad}) {
    EXPECT_FALSE(specs_of(kernel).empty());
    for (const InstanceSpec& one : specs_of(kernel)) EXPECT_EQ(one.kernel, kernel) << one.name;
    rows += specs_of(kernel).size();
  }
  EXPECT_EQ(rows, std::size(kInstances));
}

TEST(GemmCoreInstances, NamesSayWhatTheSpecIs) {
  for (const Listed& i : kConfigs) {
    const ConfigSpec& s = i.spec;
    const std::string want = std::string(dtype_name(s.dtype)) + (s.b_major == BMajor::k ? "_k_" : "_n_") +
                             std::to_string(s.tile_m) + "x" + std::to_string(s.tile_n) + "_c" +
                             std::to_string(s.cluster_m) + std::to_string(s.cluster_n) + "_s" +
                             std::to_string(s.stages) + (s.split_k == 1 ? "" : "_k" + std::to_string(s.split_k)) +
                             (s.pingpong() == 1 ? "" : "_t") + (s.halves == 0 ? "" : "_e" + std::to_string(s.halves)) +
                             (s.groups_k ? "_g" : "") + (s.stores_fp32 ? "_f32" : "") + (s.chained ? "_chain" : "");
    EXPECT_EQ(std::string(i.name).substr(0, want.size()), want);
    EXPECT_TRUE(is_valid(s)) << i.name;
  }
}

TEST(GemmCoreInstances, SharedMemoryFitsAndOperandsAreAligned) {
  for (const Listed& i : kConfigs) {
    const SharedLayout s = shared_layout(i.spec);
    EXPECT_LE(dynamic_shared_bytes(i.spec), kSharedLimit) << i.name;
    EXPECT_EQ(s.b % 1024, 0u) << i.name;
    EXPECT_EQ(s.out % 1024, 0u) << i.name;
    EXPECT_EQ(i.spec.a_bytes() % 1024, 0u) << i.name;
    EXPECT_EQ(i.spec.b_bytes() % 1024, 0u) << i.name;
    EXPECT_EQ(s.half % 1024, 0u) << i.name;
    EXPECT_EQ(s.tickets % 16, 0u) << i.name << ": an item is stored as 16 bytes";
    EXPECT_EQ(s.handed - s.tickets, kTicketSlots * 16) << i.name;
    EXPECT_EQ(s.full - s.handed, kTicketSlots * 16) << i.name;
    EXPECT_EQ(s.full % 8, 0u) << i.name;
    EXPECT_EQ(s.handed_barriers % 8, 0u) << i.name;
    EXPECT_LE(s.words + 16, s.bytes) << i.name;
    EXPECT_EQ(s.bytes - s.depths, i.spec.groups_k ? kTicketSlots * 4u : 0u) << i.name;
    EXPECT_EQ(s.tickets - s.half, i.spec.split_k == 1 ? 0u : static_cast<uint32_t>(64 * i.spec.tile_n * 4)) << i.name;
  }
}

/// Sources that are added to a tile come through the stages: boxes of 64 rows by staging columns. Tiles of swapped
/// operands get none.
TEST(GemmCoreInstances, BoxesOfSourcesFillAStage) {
  for (const Listed& i : kConfigs) {
    if (i.spec.swaps_ab) continue;
    const auto box = i.spec.store_bytes();
    EXPECT_EQ(i.spec.a_bytes() % box, 0u) << i.name;
    EXPECT_EQ(i.spec.b_bytes() % box, 0u) << i.name;
    EXPECT_EQ(static_cast<uint32_t>(i.spec.stage_boxes()) * box, i.spec.a_bytes() + i.spec.b_bytes()) << i.name;
    EXPECT_GE(i.spec.stages * i.spec.stage_boxes(), 8 * kConsumerGroups) << i.name << ": no room for 8 ranks";
  }
  for (const InstanceSpec& i : specs_of(Kernel::scatter))
    EXPECT_EQ(i.spec.split_k, 1) << i.name << ": they would meet the other half's sums";
}

TEST(GemmCoreInstances, RefusesTilesOfSwappedOperandsThatTheKernelCannotDo) {
  ConfigSpec s;
  s.tile_m = 64;
  s.tile_n = 16;
  s.store_buffers = s.groups_per_tile = 1;
  EXPECT_FALSE(is_valid(s)) << "narrow tiles are for swapped operands";
  s.swaps_ab = true;
  EXPECT_TRUE(is_valid(s));
  s.split_k = 2;
  EXPECT_TRUE(is_valid(s));
  s.split_k = 1;
  s.b_major = BMajor::n;  // tokens have K contiguous
  EXPECT_FALSE(is_valid(s));
  s.b_major = BMajor::k;
  s.tile_n = 32;
  EXPECT_FALSE(is_valid(s));
  s.tile_n = 256;
  EXPECT_TRUE(is_valid(s));
  s.cluster_m = 2;  // which share loads of tokens
  EXPECT_TRUE(is_valid(s));
  s.cluster_m = 1;
  s.cluster_n = 2;  // all tokens are in one tile
  EXPECT_FALSE(is_valid(s));
  s.cluster_n = 1;
  s.split_k = 2;  // sums of the other half beside staging buffers: no room for four stages
  EXPECT_FALSE(is_valid(s));
}

TEST(GemmCoreInstances, RefusesWhatTheKernelCannotDo) {
  ConfigSpec s;
  EXPECT_TRUE(is_valid(s));
  s.stages = 5;  // 240 KB of operands
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.tile_n = 240;
  EXPECT_FALSE(is_valid(s));
  s.tile_n = 224;
  EXPECT_TRUE(is_valid(s));
  s.b_major = BMajor::n;  // boxes of 64 columns
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.cluster_m = s.cluster_n = 2;
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.tile_n = 128;
  s.split_k = 2;
  EXPECT_TRUE(is_valid(s));
  s.cluster_m = 2;  // four CTAs
  EXPECT_FALSE(is_valid(s));
  s.cluster_m = 1;
  s.tile_m = 256;  // two blocks of rows per warpgroup
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.tile_n = 160;
  s.b_major = BMajor::n;  // boxes of 64 columns
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.tile_n = 160;
  s.groups_per_tile = 1;
  EXPECT_TRUE(is_valid(s));
  s.split_k = 2;  // whose CTAs keep a warpgroup's rows each
  EXPECT_FALSE(is_valid(s));
  s.split_k = 1;
  s.tile_n = 192;  // 192 sums a thread
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.groups_k = true;  // whose B has N contiguous
  EXPECT_FALSE(is_valid(s));
  s.b_major = BMajor::n;
  EXPECT_TRUE(is_valid(s));
  s.cluster_m = 2;  // loads of A are not shared
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.halves = 2;
  EXPECT_TRUE(is_valid(s));
  s.stores_fp32 = true;  // what is gated is rounded
  EXPECT_FALSE(is_valid(s));
  s.halves = 1;
  EXPECT_TRUE(is_valid(s));
  s.b_major = BMajor::n;
  EXPECT_TRUE(is_valid(s));
  s.halves = 2;
  s.stores_fp32 = false;
  EXPECT_FALSE(is_valid(s));
  s = ConfigSpec{};
  s.dtype = DType::fp32;
  EXPECT_FALSE(is_valid(s));
}

}  // namespace
}  // namespace overlace::ops::fused
