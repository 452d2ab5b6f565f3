#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "src/runtime/names.h"
#include "src/spec/layout_pod.h"

namespace overlace {
namespace {

static_assert(runtime_layout(4, 4096, kSlotPitchCuda, 1 << 30, 2 << 20).user.offset % (2 << 20) == 0);
static_assert(runtime_layout(2, 64, kSlotPitchCpu, 1, 4096).user.bytes == 4096);

TEST(Layout, RegionsFollowEachOther) {
  for (const uint32_t world : {1u, 2u, 9u, 64u}) {
    const RuntimeLayout layout = runtime_layout(world, 512, kSlotPitchCpu, 12345, 4096, world * 1000);
    EXPECT_EQ(layout.control.offset, 0u);
    EXPECT_GE(layout.slots.offset, layout.control.bytes);
    EXPECT_EQ(layout.slots.bytes, uint64_t{512} * world * kSlotPitchCpu);
    EXPECT_GE(layout.staging.offset, layout.slots.offset + layout.slots.bytes);
    EXPECT_GE(layout.user.offset, layout.staging.offset + layout.staging.bytes);
    EXPECT_EQ(layout.user.bytes % 4096, 0u);
    EXPECT_EQ(layout.total_bytes, layout.user.offset + layout.user.bytes);
  }
}

TEST(Layout, SlotsAreDistinctAndInside) {
  const RuntimeLayout layout = runtime_layout(5, 64, kSlotPitchCpu, 4096, 4096);
  std::set<uint64_t> seen;
  for (uint32_t id = 0; id < 64; ++id)
    for (uint32_t sender = 0; sender < 5; ++sender) {
      const uint64_t offset = layout.slot_offset(id, sender);
      EXPECT_GE(offset, layout.slots.offset);
      EXPECT_LE(offset + 8, layout.slots.offset + layout.slots.bytes);
      EXPECT_TRUE(seen.insert(offset).second);
    }
}

TEST(Layout, HashTellsEveryParameter) {
  std::set<uint64_t> hashes;
  EXPECT_TRUE(hashes.insert(runtime_layout(2, 64, 64, 4096, 4096).hash()).second);
  EXPECT_TRUE(hashes.insert(runtime_layout(3, 64, 64, 4096, 4096).hash()).second);
  EXPECT_TRUE(hashes.insert(runtime_layout(2, 65, 64, 4096, 4096).hash()).second);
  EXPECT_TRUE(hashes.insert(runtime_layout(2, 64, 32, 4096, 4096).hash()).second);
  EXPECT_TRUE(hashes.insert(runtime_layout(2, 64, 64, 8192, 4096).hash()).second);
  EXPECT_TRUE(hashes.insert(runtime_layout(2, 64, 64, 4096, 4096, 512).hash()).second);
}

/// Credits count epochs: with k buffers the last k may be missing, and epochs in which nothing was sent owe none.
TEST(Inbox, CreditNeededIsThatOfKEpochsAgo) {
  for (const uint64_t base : {uint64_t{0}, uint64_t{100}, ~uint64_t{0} - 3}) {  // what the slot had before
    const auto needed = [&](uint64_t epoch, uint64_t sent, uint32_t k) {
      return static_cast<int64_t>(credit_needed(base + sent, epoch, sent, k) - base);
    };
    EXPECT_LE(needed(1, 0, 2), 0);
    EXPECT_LE(needed(2, 1, 2), 0);
    EXPECT_EQ(needed(3, 2, 2), 1);
    EXPECT_EQ(needed(9, 8, 2), 7);
    EXPECT_EQ(needed(9, 8, 1), 8);
    EXPECT_LE(needed(9, 0, 2), 0) << "never sent";
    EXPECT_EQ(needed(9, 3, 2), 3) << "all that I sent";
    EXPECT_EQ(needed(9, 7, 4), 5);
  }
  const InboxPod inbox{
      .offset = 1000, .pitch = 256, .cells = nullptr, .buffers = 3, .ranks = 2, .data_id = 0, .credit_id = 1};
  EXPECT_EQ(inbox.buffer_offset(1), 1000u);
  EXPECT_EQ(inbox.buffer_offset(3), 1512u);
  EXPECT_EQ(inbox.buffer_offset(4), 1000u);
}

TEST(Names, WordsATimeoutAsDocumented) {
  runtime::Names names;
  names.set_team(3, "tp", {4, 5, 6});
  names.set_ids(30, 8, "gemm_rs.arrive");
  TimeoutRecord record;
  record.rank = 2;
  record.peer = 1;
  record.team = 3;
  record.id = 37;
  record.block = 5;
  record.call = 412;
  record.kind = WaitKind::signal;
  record.expected = 8192;
  record.seen = 8176;
  record.waited_ns = 300000000000;
  record.last_change_ns = 299800000000;
  EXPECT_EQ(names.timeout_text(record, "alive"),
            "timeout after 300.0 s: rank 2 waited for rank 1, team \"tp\", signal 37 (gemm_rs.arrive, block 5): "
            "expected >= 8192, seen 8176, last change 299.8 s ago; gemm_rs call 412; peer state alive");
  EXPECT_EQ(names.world_rank(3, 1), 5);
  EXPECT_EQ(names.world_rank(3, 9), -1);
  EXPECT_EQ(names.id(38), "");
  names.clear_ids(30);
  EXPECT_EQ(names.id(37), "");
  record.extra = names.add_counters("mlp.tiles");
  record.kind = WaitKind::counter;
  EXPECT_NE(names.timeout_text(record, "alive").find("counter 37 (mlp.tiles, block 5): expected >= 8192"),
            std::string::npos);
}

TEST(Names, WordsAPipelineThatStoodStill) {
  EXPECT_EQ(
      runtime::pipeline_text(3, 6'000'000'000),
      "timeout after 14.0 s: rank 3: a stage of a fused kernel's own pipeline has not come, wanted at once; results "
      "of fused kernels of this rank are wrong since then");
  EXPECT_GT(runtime::pipeline_timeout_ns(6'000'000'000), uint64_t{12'000'000'000})
      << "threads of the kernel wait for a peer first, and then for what that keeps from coming";
}

}  // namespace
}  // namespace overlace
