// The operands of bench_dense on one CPU rank.
#include "bench/dense/workload.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/runtime.h"
#include "overlace/team.h"

namespace overlace::bench {
namespace {

class WorkloadTest : public testing::Test {
 protected:
  WorkloadTest() : runtime_(Runtime::open(*bootstraps_[0], {.backend = Backend::cpu, .heap_bytes = size_t{1} << 24})) {}
  ~WorkloadTest() override { runtime_.close(); }
  Workload made(const Case& c) {
    return Workload::create(c, channel_, *device_, Normal{.seed = 1, .scale = 1}).value();
  }

  std::vector<std::unique_ptr<Bootstrap>> bootstraps_ = thread_bootstraps(1);
  Runtime runtime_;
  Channel& channel_ = runtime_.world().channel(StreamRef::cpu());
  std::unique_ptr<Device> device_ = cpu_device();
};

/// A replayed graph writes where the call was when it was captured.
TEST_F(WorkloadTest, OutputsStayWhereCapturedCallsWrite) {
  const Case one{.name = "few", .op = "gemm_ar", .m = 4, .n = 16, .k = 2048, .dtype = DType::bf16};
  Workload workload = made(one);
  const spec::Schedule schedule = spec::make_schedule(workload.op(), "compute");

  const TensorView captured = workload.output(0);
  const Check before = workload.verify([&] { return workload.enqueue(schedule, 0); }).value();
  ASSERT_TRUE(before.finite);
  const std::string written(static_cast<const char*>(captured.data), static_cast<size_t>(captured.numel()) * 2);
  ASSERT_TRUE(workload.keep_reference().ok());

  const auto replay = [&] {
    std::memcpy(captured.data, written.data(), written.size());
    return base::Status();
  };
  const Check after = workload.verify(replay).value();
  EXPECT_TRUE(after.finite);
  EXPECT_EQ(after.rms_error, before.rms_error);
  EXPECT_TRUE(workload.difference()->same_bits);
  ASSERT_TRUE(workload.damage(0).ok());
  EXPECT_FALSE(workload.difference()->same_bits) << "what is compared with is a copy";
}

/// Both results of an operator that normalizes its sums are looked at, whatever the other one is.
TEST_F(WorkloadTest, ANormIsCheckedAndComparedToo) {
  const Case one{.name = "one row", .op = "gemm_ar_norm", .m = 1, .n = 16, .k = 64, .dtype = DType::fp32};
  Workload workload = made(one);
  const spec::Schedule schedule = spec::make_schedule(workload.op(), "serial");
  const auto call = [&] { return workload.enqueue(schedule, 0); };
  const auto spoilt = [&](int byte) {
    return workload.verify([&] {
      OVERLACE_TRY(call());
      return byte < 0 ? workload.damage(0) : device_->memset(workload.output(0).data, byte, 4);
    });
  };
  const Check good = workload.verify(call).value();
  EXPECT_TRUE(good.finite);
  EXPECT_LT(good.max_error, 1e-5);
  ASSERT_TRUE(workload.keep_reference().ok());
  EXPECT_TRUE(workload.difference()->same_bits);

  EXPECT_GT(spoilt(-1)->max_error, 1.0) << "an element of the norm";
  EXPECT_FALSE(workload.difference()->same_bits);
  EXPECT_GT(spoilt(0)->max_error, 0.01) << "an element of the sums";
  EXPECT_FALSE(spoilt(0xff)->finite) << "a NaN among the sums";
}

}  // namespace
}  // namespace overlace::bench
