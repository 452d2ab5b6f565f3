#include "src/runtime/residency.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace overlace::runtime {
namespace {

using Tenant = Residency::Tenant;
constexpr int kSms = 132;

Residency::Lease taken(Residency& gpu, const Tenant& tenant, int sms) {
  auto lease = gpu.take(tenant, "k", sms);
  EXPECT_TRUE(lease.ok()) << lease.status().message();
  return lease.ok() ? std::move(*lease) : Residency::Lease();
}

TEST(Residency, RuntimesThatNeedAllSmsDoNotFitTogether) {
  Residency gpu(kSms);
  const Tenant first{1, 0, kSms}, second{2, 0, kSms};
  std::optional<Residency::Lease> lease = taken(gpu, first, 132);
  const auto refused = gpu.take(second, "one_shot.64", 20);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Errc::co_residency);
  EXPECT_EQ(
      refused.status().message(),
      "one_shot.64: needs 20 SMs at once, of 132 on this GPU, while kernels of other runtimes of this process need "
      "132 at once; give the runtimes SM budgets that fit together, or take a schedule without such a kernel");
  EXPECT_EQ(gpu.held(), 132);
  EXPECT_TRUE(gpu.is_alone(first)) << "who was refused is no tenant";
  lease.reset();
  EXPECT_EQ(gpu.held(), 0);
  const auto late = taken(gpu, second, 132);
  EXPECT_EQ(gpu.held(), 132);
}

TEST(Residency, BudgetsThatFitTogetherAreLet) {
  Residency gpu(kSms);
  const auto a = taken(gpu, {1, 0, kSms}, 66), b = taken(gpu, {2, 0, kSms}, 66);
  EXPECT_EQ(gpu.held(), 132);
  EXPECT_EQ(gpu.take({3, 0, kSms}, "k", 1).status().code(), Errc::co_residency);
  const auto more = taken(gpu, {1, 0, kSms}, 66);  // its calls come one after the other
  EXPECT_EQ(gpu.held(), 132);
  EXPECT_FALSE(gpu.take({1, 0, kSms}, "k", 67).ok());
}

/// Channels of one runtime wait for each other beyond its room: two of 132 SMs are no more than one.
TEST(Residency, ChannelsOfOneRuntimeHoldAtMostItsRoom) {
  Residency gpu(kSms);
  const auto a = taken(gpu, {1, 0, kSms}, 132), b = taken(gpu, {1, 1, kSms}, 100);
  EXPECT_EQ(gpu.held(), 132);
  Residency shared(kSms);
  const auto c = taken(shared, {1, 0, 66}, 66), d = taken(shared, {2, 0, 66}, 66), e = taken(shared, {2, 1, 66}, 40);
  EXPECT_EQ(shared.held(), 132) << "virtual ranks share the SMs";
}

TEST(Residency, TheLargestLeaseOfAChannelCounts) {
  Residency gpu(kSms);
  std::optional<Residency::Lease> small = taken(gpu, {1, 0, kSms}, 10), large = taken(gpu, {1, 0, kSms}, 90),
                                  twin = taken(gpu, {1, 0, kSms}, 90);
  EXPECT_EQ(gpu.held(), 90);
  large.reset();
  EXPECT_EQ(gpu.held(), 90);
  twin.reset();
  EXPECT_EQ(gpu.held(), 10);
  small.reset();
  EXPECT_EQ(gpu.held(), 0);
}

/// A kernel of which any CTA comes to the end needs no room, but its channel may be held up by CTAs set up early.
TEST(Residency, EarlyLaunchesWantThatNoOtherChannelIsThere) {
  Residency gpu(kSms);
  const Tenant channel{1, 0, kSms}, sibling{1, 1, kSms}, other{2, 0, kSms};
  EXPECT_TRUE(gpu.is_alone(channel));
  const auto own = taken(gpu, channel, 132);
  EXPECT_TRUE(gpu.is_alone(channel));
  for (const Tenant& beside : {sibling, other}) {
    std::optional<Residency::Lease> lease = taken(gpu, beside, 0);
    EXPECT_FALSE(gpu.is_alone(channel));
    EXPECT_FALSE(gpu.is_alone(beside));
    lease.reset();
    EXPECT_TRUE(gpu.is_alone(channel));
  }
}

TEST(Residency, MovedLeasesAreGivenBackOnce) {
  Residency gpu(kSms);
  Residency::Lease a = taken(gpu, {1, 0, kSms}, 30);
  Residency::Lease b = std::move(a);
  EXPECT_EQ(gpu.held(), 30);
  b = taken(gpu, {1, 0, kSms}, 50);
  EXPECT_EQ(gpu.held(), 50);
  b = Residency::Lease();
  EXPECT_EQ(gpu.held(), 0);
}

TEST(Residency, AllOfAProcessMeetAtADevice) {
  Residency& gpu = Residency::of_device(1000, 20);
  const auto lease = taken(gpu, {1, 0, 20}, 20);
  EXPECT_EQ(&Residency::of_device(1000, 20), &gpu);
  EXPECT_FALSE(Residency::of_device(1000, 20).take({2, 0, 20}, "k", 1).ok());
  EXPECT_TRUE(Residency::of_device(1001, 20).take({2, 0, 20}, "k", 1).ok());
}

}  // namespace
}  // namespace overlace::runtime
