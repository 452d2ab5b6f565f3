#include "src/model/traced_device.h"

#include <gtest/gtest.h>

#include <vector>

namespace overlace::model {
namespace {

/// Counts calls; attention fails.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(int* calls) : calls_(calls) {}
  base::Result<void*> alloc(int64_t, std::string_view) override { return static_cast<void*>(calls_); }
  void free(void*) override { ++*calls_; }
  base::Status upload(const void*, void*, int64_t) override { return count(); }
  base::Status download(const void*, void*, int64_t) override { return count(); }
  base::Status copy(const void*, void*, int64_t) override { return count(); }
  base::Status synchronize() override { return count(); }
  base::Status fill(const SeededMatrix&, const TensorView&) override { return count(); }
  base::Status add_norm(const AddNormArgs&) override { return count(); }
  base::Status rope(const RopeArgs&) override { return count(); }
  base::Status attention(const AttentionArgs&) override {
    ++*calls_;
    return base::error(Errc::internal, "attention failed");
  }
  base::Status activation(const ActivationArgs&) override { return count(); }

 private:
  base::Status count() { return ++*calls_, base::Status(); }
  int* calls_;
};

TEST(TracedDevice, WritesDownWorkWhileATraceIsSet) {
  int calls = 0;
  TracedDevice device(std::make_unique<FakeDevice>(&calls), 3);
  EXPECT_TRUE(device.add_norm({}).ok());
  base::Trace trace;
  device.set_trace(&trace);
  EXPECT_TRUE(device.copy(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device.add_norm({}).ok());
  EXPECT_TRUE(device.rope({}).ok());
  EXPECT_EQ(device.attention({}).message(), "attention failed");
  EXPECT_TRUE(device.activation({}).ok());
  EXPECT_TRUE(device.synchronize().ok());
  device.set_trace(nullptr);
  EXPECT_TRUE(device.activation({}).ok());
  EXPECT_EQ(calls, 8);
  const std::vector<std::string> want = {"copy input", "add, norm", "rope", "attention", "activation"};
  ASSERT_EQ(trace.spans.size(), want.size());
  int64_t before = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const base::Span& span = trace.spans[i];
    EXPECT_EQ(span.name, want[i]);
    EXPECT_EQ(span.rank, 3);
    EXPECT_EQ(span.lane, "sm 0");
    EXPECT_EQ(span.category, "other");
    EXPECT_GE(span.begin_ns, before);
    EXPECT_GE(span.end_ns, span.begin_ns);
    before = span.end_ns;
  }
}

TEST(TracedDevice, PassesTheRestThrough) {
  int calls = 0;
  TracedDevice device(std::make_unique<FakeDevice>(&calls), 0);
  EXPECT_EQ(*device.alloc(8, "x"), &calls);
  device.free(nullptr);
  EXPECT_TRUE(device.upload(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device.download(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device.fill({}, {}).ok());
  EXPECT_EQ(calls, 4);
}

}  // namespace
}  // namespace overlace::model
