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
  base::Result<void*> alloc_host(int64_t, std::string_view) override { return static_cast<void*>(calls_); }
  void free_host(void*) override { ++*calls_; }
  base::Result<std::unique_ptr<CopyLane>> make_copy_lane(int events) override {
    return base::error(Errc::internal, "no lane with {} events", events);
  }
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
  std::string attention_by() const override { return "nobody"; }
  base::Status activation(const ActivationArgs&) override { return count(); }

 private:
  base::Status count() { return ++*calls_, base::Status(); }
  int* calls_;
};

/// Writes down the names it was given, and runs the work.
RunTraced recorder(std::vector<std::string>* names) {
  return [names](const char* name, const std::function<base::Status()>& work) {
    names->push_back(name);
    return work();
  };
}

TEST(TracedDevice, NamesTheWorkThatItQueues) {
  int calls = 0;
  std::vector<std::string> names;
  TracedDevice device(std::make_unique<FakeDevice>(&calls), recorder(&names));
  EXPECT_TRUE(device.copy(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device.add_norm({}).ok());
  EXPECT_TRUE(device.rope({}).ok());
  EXPECT_EQ(device.attention({}).message(), "attention failed");
  EXPECT_EQ(device.attention_by(), "nobody");
  EXPECT_TRUE(device.activation({}).ok());
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(names, (std::vector<std::string>{"copy input", "add, norm", "rope", "attention", "activation"}));
}

TEST(TracedDevice, PassesTheRestThrough) {
  int calls = 0;
  std::vector<std::string> names;
  TracedDevice device(std::make_unique<FakeDevice>(&calls), recorder(&names));
  EXPECT_EQ(*device.alloc(8, "x"), &calls);
  device.free(nullptr);
  EXPECT_EQ(*device.alloc_host(8, "x"), &calls);
  device.free_host(nullptr);
  EXPECT_EQ(device.make_copy_lane(3).status().message(), "no lane with 3 events");
  EXPECT_TRUE(device.upload(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device.download(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device.fill({}, {}).ok());
  EXPECT_TRUE(device.synchronize().ok());
  EXPECT_EQ(calls, 6);
  EXPECT_TRUE(names.empty());
}

}  // namespace
}  // namespace overlace::model
