#include "src/exec/program.h"

#include <gtest/gtest.h>

#include <numeric>

#include "src/exec/arrows.h"
#include "src/exec/cpu/copy.h"
#include "src/runtime/state.h"

namespace overlace::exec {
namespace {

using spec::Range;
using spec::Region;
using spec::Schedule;
using spec::Space;
using spec::Task;

constexpr int64_t kK = 4, kN = 3;

/// Argument buffers only: A (rows, K), B (K, N), C (rows, N), bias (N).
struct Operands {
  explicit Operands(int64_t rows)
      : a(static_cast<size_t>(rows * kK)), b(kK * kN), c(static_cast<size_t>(rows * kN)), bias(kN) {
    bindings = {{"A", TensorView::contiguous(a.data(), DType::fp32, {rows, kK})},
                {"B", TensorView::contiguous(b.data(), DType::fp32, {kK, kN})},
                {"C", TensorView::contiguous(c.data(), DType::fp32, {rows, kN})},
                {"bias", TensorView::contiguous(bias.data(), DType::fp32, {kN})}};
  }
  int64_t a_row(const GemmBlock& block) const { return (static_cast<float*>(block.a.data) - a.data()) / kK; }
  int64_t c_row(const GemmBlock& block) const { return (static_cast<float*>(block.c.data) - c.data()) / kN; }
  std::vector<float> a, b, c, bias;
  Bindings bindings;
};

/// One gemm task whose row boxes are begin[i] .. begin[i] + count[i].
Schedule gemm_over(const std::vector<std::pair<int64_t, int64_t>>& rows, int64_t num_rows) {
  Schedule s;
  s.op = "ag_gemm";
  s.family = "test";
  s.params = {{"M", num_rows}, {"K", kK}, {"N", kN}};
  std::vector<int64_t> begin, count;
  for (const auto& [b, n] : rows) begin.push_back(b), count.push_back(n);
  begin.push_back(0);
  count.push_back(0);
  s.tables = {{"begin", begin}, {"count", count}};
  s.buffers = {{"A", Space::argument, DType::fp32, {"M", "K"}},
               {"B", Space::argument, DType::fp32, {"K", "N"}},
               {"C", Space::argument, DType::fp32, {"M", "N"}},
               {"bias", Space::argument, DType::fp32, {"N"}}};
  const spec::Loop each{"i", 0, static_cast<int64_t>(rows.size())};
  Task task;
  task.id = "gemm";
  task.reads = {Region{"A", "r", {Range{"begin[i]", "count[i]"}, Range{0, "K"}}, each},
                Region{"B", "r", {Range{0, "K"}, Range{0, "N"}}}, Region{"bias", "r", {Range{0, "N"}}}};
  task.writes = {Region{"C", "r", {Range{"begin[i]", "count[i]"}, Range{0, "N"}}, each}};
  s.tasks = {task};
  return s;
}

std::vector<GemmBlock> blocks_of(const Schedule& schedule, const Operands& operands) {
  auto program = expand_program(schedule, "", 0, 1);
  EXPECT_TRUE(program.ok()) << program.status().message();
  const Call call{
      .program = **program, .bindings = operands.bindings, .bodies = {}, .trace = nullptr, .copies_out = {}};
  EXPECT_TRUE(check_bindings(**program, operands.bindings).ok());
  auto blocks = gemm_blocks(call, Team(), (*program)->expansion.instances.at(0));
  EXPECT_TRUE(blocks.ok()) << blocks.status().message();
  return blocks.ok() ? *blocks : std::vector<GemmBlock>();
}

TEST(GemmBlocks, TouchingRowsBecomeOneProduct) {
  const Operands operands(10);
  const std::vector<GemmBlock> blocks = blocks_of(gemm_over({{2, 3}, {5, 1}, {6, 4}}, 10), operands);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(operands.a_row(blocks[0]), 2);
  EXPECT_EQ(operands.c_row(blocks[0]), 2);
  EXPECT_EQ(blocks[0].a.dim(0), 8);
  EXPECT_EQ(blocks[0].c.dim(0), 8);
  EXPECT_EQ(blocks[0].batch, 1);
  EXPECT_TRUE(blocks[0].bias.defined());
  EXPECT_EQ(blocks[0].flops(), 2.0 * 8 * kK * kN);
}

TEST(GemmBlocks, EquallySpacedRowsBecomeABatch) {
  const Operands operands(12);
  const std::vector<GemmBlock> blocks = blocks_of(gemm_over({{0, 2}, {4, 2}, {8, 2}}, 12), operands);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].batch, 3);
  EXPECT_EQ(blocks[0].batch_stride_a, 4 * kK);
  EXPECT_EQ(blocks[0].batch_stride_c, 4 * kN);
}

TEST(GemmBlocks, UnevenSpacingAndSizesStayApart) {
  const Operands operands(16);
  const std::vector<GemmBlock> blocks = blocks_of(gemm_over({{0, 2}, {4, 2}, {10, 2}, {13, 1}}, 16), operands);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].batch, 2);
  EXPECT_EQ(operands.a_row(blocks[1]), 10);
  EXPECT_EQ(blocks[1].batch, 1);
  EXPECT_EQ(operands.a_row(blocks[2]), 13);
  EXPECT_EQ(blocks[2].a.dim(0), 1);
}

TEST(GemmBlocks, DescendingRowsAreNoBatch) {
  const Operands operands(8);
  EXPECT_EQ(blocks_of(gemm_over({{4, 2}, {0, 2}}, 8), operands).size(), 2u);
}

TEST(GemmBlocks, EmptyBoxesAreLeftOut) {
  const Operands operands(8);
  const std::vector<GemmBlock> blocks = blocks_of(gemm_over({{0, 0}, {2, 2}, {4, 0}, {4, 1}}, 8), operands);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(operands.a_row(blocks[0]), 2);
  EXPECT_EQ(blocks[0].a.dim(0), 3);
  EXPECT_TRUE(blocks_of(gemm_over({{0, 0}}, 8), operands).empty());
}

TEST(GemmBlocks, ATransposedWeightIsSeenAsKByN) {
  Operands operands(4);
  operands.bindings["B"] = TensorView::contiguous(operands.b.data(), DType::fp32, {kN, kK});
  Schedule schedule = gemm_over({{0, 4}}, 4);
  schedule.buffers[1].shape = {"N", "K"};
  schedule.tasks[0].reads[1].dims = {Range{0, "N"}, Range{0, "K"}};
  schedule.tasks[0].params = {{"b_layout", std::string("nk")}, {"accumulate", true}};
  const std::vector<GemmBlock> blocks = blocks_of(schedule, operands);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].b.shape(), "(4, 3)");
  EXPECT_EQ(blocks[0].b.stride(0), 1);
  EXPECT_EQ(blocks[0].b.stride(1), kK);
  EXPECT_TRUE(blocks[0].accumulate);
}

TEST(GemmBlocks, AnOddNumberOfRegionsIsABadSchedule) {
  Operands operands(4);
  Schedule schedule = gemm_over({{0, 4}}, 4);
  schedule.tasks[0].reads.resize(1);
  auto program = expand_program(schedule, "", 0, 1);
  ASSERT_TRUE(program.ok());
  const Call call{
      .program = **program, .bindings = operands.bindings, .bodies = {}, .trace = nullptr, .copies_out = {}};
  const base::Status status = gemm_blocks(call, Team(), (*program)->expansion.instances.at(0)).status();
  EXPECT_EQ(status.code(), Errc::bad_schedule);
  EXPECT_NE(status.message().find("gemm: a gemm task reads a, b and perhaps bias"), std::string::npos);
}

TEST(Program, RefusesBindingsOfAnotherShape) {
  Operands operands(4);
  auto program = expand_program(gemm_over({{0, 4}}, 4), "", 0, 1);
  ASSERT_TRUE(program.ok());
  operands.bindings["C"] = operands.bindings["C"].rows(0, 3);
  const base::Status shape = check_bindings(**program, operands.bindings);
  EXPECT_EQ(shape.code(), Errc::plan_mismatch);
  EXPECT_NE(shape.message().find("made for C (4, 3) fp32, the call gives (3, 3) fp32"), std::string::npos);
  Bindings without, undefined = operands.bindings;
  for (const auto& [name, view] : operands.bindings)
    if (name != "C") without[name] = view;
  undefined["C"] = {};
  for (const Bindings& bindings : {without, undefined}) {
    const base::Status missing = check_bindings(**program, bindings);
    EXPECT_EQ(missing.code(), Errc::invalid_argument);
    EXPECT_NE(missing.message().find("buffer C is not bound"), std::string::npos);
  }
}

TEST(Bindings, ANameIsBoundAnewToOtherMemory) {
  std::vector<float> one(6), other(6);
  const auto view = [](std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::fp32, {2, 3});
  };
  Bindings bindings = {{"A", view(one)}, {"B", view(one)}};
  EXPECT_FALSE(bindings.contains("C"));
  EXPECT_EQ(bindings.find("C"), bindings.end());
  bindings["B"] = view(other);
  bindings["C"] = view(other);
  EXPECT_EQ(bindings.end() - bindings.begin(), 3);
  EXPECT_EQ(bindings.find("A")->second.data, one.data());
  EXPECT_EQ(bindings.find("B")->second.data, other.data());
  EXPECT_EQ(bindings.find("C")->second.data, other.data());
}

/// Kernels that tell groups of tiles take most: two shapes of a model and one more fit beside each other.
TEST(Program, FusedKernelsFitIntoTheIdsOfASubTeam) {
  const uint32_t ids = runtime::default_signal_ids(Backend::cuda_peer) / runtime::kSubTeamShare;
  spec::OpSpec op;
  op.op = "gemm_ar";
  op.n = 8192;
  op.k = 2048;
  op.ranks = 2;
  op.dtype = op.out_dtype = DType::bf16;
  for (const int64_t m : {1024, 8192, 32768}) {
    op.m = m;
    const base::Result<Footprint> footprint = exec::footprint(spec::make_schedule(op, "tma_slot", 8), 0, 2);
    ASSERT_TRUE(footprint.ok()) << footprint.status().message();
    EXPECT_LT(3 * footprint->signal_ids + 1, ids) << m;
  }
}

TEST(Program, LaysOutWorkspaceSharedBlockAndIds) {
  spec::OpSpec op;
  op.op = "ag_gemm";
  op.m = 10;
  op.n = 3;
  op.k = 5;
  op.ranks = 3;
  op.dtype = op.out_dtype = DType::fp32;
  auto program = expand_program(spec::make_schedule(op, "hetero_fused_1d", 2), "", 1, 3);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Shared shared = shared_layout(**program);
  EXPECT_EQ(shared.copies, 2);
  EXPECT_EQ(shared.copy_bytes, 256u);  // X: 10 x 5 x 4 bytes, rounded up
  EXPECT_EQ(shared.words, 3u);         // arrived[0..1], credit[0]
  EXPECT_EQ(shared.first_id, (std::vector<uint32_t>{0, 2}));
  const base::Result<Footprint> footprint = exec::footprint((*program)->schedule, 1, 3);
  ASSERT_TRUE(footprint.ok());
  EXPECT_EQ(footprint->heap_bytes, 512u);
  EXPECT_EQ(footprint->workspace_bytes, 0u);
  EXPECT_EQ(footprint->signal_ids, 6u);
  size_t instances = 0;
  bool is_sm_last = true, saw_sm = false;
  for (const spec::LaneQueue& lane : (*program)->lanes) {
    instances += lane.instances.size();
    saw_sm |= lane.lane.engine == spec::Engine::sm;
    is_sm_last &= !saw_sm || lane.lane.engine == spec::Engine::sm;
  }
  EXPECT_EQ(instances, (*program)->expansion.instances.size());
  EXPECT_TRUE(is_sm_last) << "transfers are served first";
}

TEST(CopyTensor, MovesRowsWithPitches) {
  std::vector<float> from(12), to(15, -1);
  std::iota(from.begin(), from.end(), 0.0F);
  TensorView source = TensorView::contiguous(from.data(), DType::fp32, {3, 4});
  TensorView target = TensorView::contiguous(to.data() + 1, DType::fp32, {3, 5});
  source.sizes[1] = target.sizes[1] = 3;
  copy_tensor(source, target);
  EXPECT_EQ(to, (std::vector<float>{-1, 0, 1, 2, -1, -1, 4, 5, 6, -1, -1, 8, 9, 10, -1}));
}

TEST(Arrows, HalvesOfTwoRanksBecomeOneAndTheRestGoes) {
  base::Trace trace;
  trace.arrows.push_back(sent_half("arrived[1]", 3, 0, "ce 0", 100, 1));
  trace.arrows.push_back(sent_half("arrived[1]", 3, 0, "ce 1", 140, 1));  // the second add of the call
  trace.arrows.push_back(sent_half("arrived[1]", 4, 0, "ce 0", 130, 1));  // another call
  trace.arrows.push_back(seen_half("arrived[1]", 3, 0, 1, "sm 0", 150));
  trace.arrows.push_back(seen_half("credit[0]", 3, 0, 1, "ce 0", 150));  // its sender was not traced
  base::Arrow whole{"done", 0, "sm 0", 1, 1, "sm 0", 2};
  trace.arrows.push_back(whole);
  join_arrows(trace);
  ASSERT_EQ(trace.arrows.size(), 2u);
  const base::Arrow& joined = trace.arrows[0];
  EXPECT_EQ(joined.name, "arrived[1]");
  EXPECT_EQ(joined.from_lane, "ce 1");
  EXPECT_EQ(joined.from_ns, 140);
  EXPECT_EQ(joined.to_lane, "sm 0");
  EXPECT_EQ(joined.to_ns, 150);
  EXPECT_EQ(trace.arrows[1].name, "done");
}

}  // namespace
}  // namespace overlace::exec
