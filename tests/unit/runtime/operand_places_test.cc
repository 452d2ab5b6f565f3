#include "src/runtime/operand_places.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace overlace::runtime {
namespace {

const void* at(uintptr_t address) { return reinterpret_cast<const void*>(address); }

/// A machine whose memory lies where the table says; counts what it is asked.
struct FakeMachine {
  std::map<uintptr_t, int> places;
  int asked = 0;

  OperandPlaces seen_from(int gpu) {
    return OperandPlaces(gpu, [this](const void* address) -> base::Result<int> {
      ++asked;
      const auto found = places.find(reinterpret_cast<uintptr_t>(address));
      if (found == places.end()) return base::error(Errc::cuda, "no answer");
      return found->second;
    });
  }
};

TEST(OperandPlaces, OfTheHostAloneAskNothing) {
  OperandPlaces places;
  EXPECT_TRUE(places.check("op", "a", at(64), 0).ok());
}

TEST(OperandPlaces, RefuseAnotherGpuAndTheHostWithBothPlaces) {
  FakeMachine machine{{{0x100, 0}, {0x200, 1}, {0x300, kHostMemory}, {0x400, kManagedMemory}}};
  OperandPlaces places = machine.seen_from(0);
  EXPECT_TRUE(places.check("gemm_rs", "a", at(0x100), 3).ok());
  EXPECT_TRUE(places.check("gemm_rs", "a", at(0x400), 3).ok());
  for (int again = 0; again < 2; ++again) {
    const base::Status other = places.check("gemm_rs", "b", at(0x200), 3);
    EXPECT_EQ(other.code(), Errc::invalid_argument);
    EXPECT_EQ(other.message(), "gemm_rs: b is on GPU 1, wanted GPU 0 of this context; rank 3");
    const base::Status host = places.check("gemm_rs", "out", at(0x300), 3);
    EXPECT_EQ(host.code(), Errc::invalid_argument);
    EXPECT_EQ(host.message(), "gemm_rs: out is in host memory, wanted GPU 0 of this context; rank 3");
  }
  OperandPlaces from_one = machine.seen_from(1);
  EXPECT_TRUE(from_one.check("gemm_rs", "b", at(0x200), 1).ok());
  EXPECT_EQ(from_one.check("gemm_rs", "a", at(0x100), 1).code(), Errc::invalid_argument);
}

TEST(OperandPlaces, PassOnThatThereIsNoAnswer) {
  FakeMachine machine;
  EXPECT_EQ(machine.seen_from(0).check("op", "a", at(64), 0).code(), Errc::cuda);
}

TEST(OperandPlaces, AskOncePerAddressAndAnewAfterSoMany) {
  FakeMachine machine;
  std::vector<uintptr_t> addresses;
  for (uintptr_t i = 0; i < 64; ++i) machine.places[addresses.emplace_back(0x7f0000000000 + (i << 21))] = 0;
  OperandPlaces places = machine.seen_from(0);
  uint32_t checked = 0;
  const auto check_all = [&] {
    for (const uintptr_t address : addresses) {
      ASSERT_TRUE(places.check("op", "a", at(address), 0).ok());
      ++checked;
    }
  };
  check_all();
  EXPECT_EQ(machine.asked, 64);
  check_all();
  EXPECT_LT(machine.asked, 64 + 16) << "more than a few of the addresses take each other's slot";
  // Freed, and its address given to another GPU: seen after so many checks at the latest.
  machine.places[addresses[7]] = 1;
  const auto moved = [&] { return places.check("op", "a", at(addresses[7]), 0); };
  while (checked++ < OperandPlaces::kTrusted && moved().ok()) continue;
  EXPECT_EQ(moved().code(), Errc::invalid_argument);
}

}  // namespace
}  // namespace overlace::runtime
