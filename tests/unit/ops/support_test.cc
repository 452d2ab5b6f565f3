#include <gtest/gtest.h>

#include "overlace/error.h"
#include "overlace/ops/common.h"
#include "src/exec/run.h"

namespace overlace::ops {
namespace {

spec::OpSpec small_op(const std::string& name) {
  spec::OpSpec op;
  op.op = name;
  op.m = 33, op.n = 24, op.k = 40;
  op.ranks = 4;
  return op;
}

TEST(WorkspaceBytes, AreThoseOfTheScheduleOnThatRank) {
  for (const char* name : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    for (const std::string& family : spec::families(name)) {
      const spec::OpSpec op = small_op(name);
      const spec::Schedule schedule = spec::make_schedule(op, family, 2);
      for (int rank : {0, 3}) {
        const exec::Footprint want = exec::footprint(schedule, rank, op.ranks).value();
        EXPECT_EQ(workspace_bytes(op, schedule, rank), want.workspace_bytes) << name << " " << family;
        EXPECT_EQ(heap_bytes(op, schedule), want.heap_bytes) << name << " " << family;
      }
    }
  }
}

TEST(WorkspaceBytes, CountBuffersByTheirShapes) {
  const spec::OpSpec gather = small_op("ag_gemm"), scatter = small_op("gemm_rs");
  const spec::Schedule own_first = spec::make_schedule(gather, "hetero_fused_1d");
  EXPECT_EQ(workspace_bytes(gather, own_first, 0), 0u);
  EXPECT_EQ(heap_bytes(gather, own_first), 2 * 2816u);  // X: 33 x 40 x 2 bytes, to the next 256, twice
  const spec::Schedule sums = spec::make_schedule(scatter, "hetero_fused_1d");
  EXPECT_EQ(workspace_bytes(scatter, sums, 1), 1792u);  // P: 33 x 24 x 2 bytes
  EXPECT_EQ(heap_bytes(scatter, sums), 2 * 1792u);      // S: 4 slots of 9 x 24 x 2 bytes, twice
}

TEST(WorkspaceBytes, RefuseAScheduleOfAnotherProblemAndARankThatIsNone) {
  const spec::OpSpec op = small_op("gemm_rs");
  spec::OpSpec other = op;
  other.m = 34;
  const spec::Schedule schedule = spec::make_schedule(other, "serial");
  try {
    (void)workspace_bytes(op, schedule, 0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PlanMismatch& e) {
    EXPECT_NE(std::string(e.what()).find("made for M 34, the call has 33"), std::string::npos) << e.what();
  }
  EXPECT_THROW((void)heap_bytes(op, schedule), PlanMismatch);
  const spec::Schedule right = spec::make_schedule(op, "serial");
  for (int rank : {-1, 4}) {
    try {
      (void)workspace_bytes(op, right, rank);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find("wanted 0 to 3"), std::string::npos) << e.what();
    }
  }
  spec::Schedule broken = right;
  broken.tasks[0].queue = spec::Expr("1/0");
  EXPECT_THROW((void)workspace_bytes(op, broken, 0), ScheduleError);
}

}  // namespace
}  // namespace overlace::ops
