#include "src/exec/lt_gemm.h"

#include <gtest/gtest.h>

#include <set>

namespace overlace::exec {
namespace {

const void* address(uintptr_t value) { return reinterpret_cast<const void*>(value); }

TEST(LtAlignment, IsTheLargestPowerOfTwoUpToTheLimit) {
  for (uint32_t bytes = 1; bytes <= kMaxLtAlignment; bytes *= 2) {
    EXPECT_EQ(lt_alignment(address(0x7f0000000000 + bytes)), bytes);
    EXPECT_EQ(lt_alignment(address(0x7f0000000000 + 3 * bytes)), bytes);
  }
  EXPECT_EQ(lt_alignment(address(0x7f0000000200)), kMaxLtAlignment);
  EXPECT_EQ(lt_alignment(nullptr), kMaxLtAlignment);
}

/// A plan that was made for aligned operands is not taken for others, of which any of the three may be the one.
TEST(LtGemm, PlansAreToldApartByWhereOperandsLie) {
  LtGemm gemm;
  gemm.m = gemm.n = gemm.k = gemm.lda = gemm.ldb = gemm.ldc = 64;
  const void *whole = address(0x10000), *part = address(0x10010);
  const std::set<LtGemm> plans = {gemm.at(whole, whole, whole), gemm.at(part, whole, whole),
                                  gemm.at(whole, part, whole), gemm.at(whole, whole, part)};
  EXPECT_EQ(plans.size(), 4u);
  EXPECT_EQ(gemm.at(part, whole, whole), gemm.at(address(0x20010), address(0x30000), whole));
  EXPECT_EQ(gemm.at(whole, whole, whole), gemm) << "what prepare() makes without operands";
  EXPECT_EQ(gemm.at(address(0x10002), whole, whole).align_a, 2u);
}

}  // namespace
}  // namespace overlace::exec
