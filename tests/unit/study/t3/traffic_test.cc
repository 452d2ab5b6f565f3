// What a rank reads, writes and sends, beside the closed forms of docs/results/t3.md.
#include <gtest/gtest.h>

#include "overlace/sim.h"
#include "src/study/t3/t3.h"
#include "tests/unit/sim/schedule/problem.h"

namespace overlace::study::t3 {
namespace {

constexpr int64_t kM = 6144, kN = 1536, kK = 1024, kElement = 2;

/// Bytes of rank 0 over those of the whole product of one rank; operands, which each rank reads once, left out.
struct Shares {
  double memory, egress, ingress;
};

Shares shares_of(const std::string& family, int degree, int ranks) {
  const spec::OpSpec op = sim::op_of("gemm_rs", ranks, kM, kN, kK);
  const sim::SimResult r = sim::simulate(sim::build(op, family, degree), spec::find_machine("h200x4"), {});
  const sim::RankBytes& bytes = r.bytes.at(0);
  const double product = static_cast<double>(kM * kN * kElement);
  const double operands = static_cast<double>((kM * kK + kN * kK) * kElement);
  return {(static_cast<double>(bytes.memory) - operands) / product, static_cast<double>(bytes.egress) / product,
          static_cast<double>(bytes.ingress) / product};
}

TEST(Traffic, OfSchedulesIsTheClosedForm) {
  for (const int ranks : {2, 3, 4}) {
    const double g = ranks;
    const auto expect = [&](const std::string& family, int degree, double memory) {
      SCOPED_TRACE(family + ":" + std::to_string(degree) + ", ranks " + std::to_string(ranks));
      const Shares is = shares_of(family, degree, ranks);
      EXPECT_NEAR(is.memory, memory, 1e-9);
      EXPECT_NEAR(is.egress, (g - 1) / g, 1e-9);
      EXPECT_NEAR(is.ingress, (g - 1) / g, 1e-9);
    };
    // The product is written and, but for the own shard, read again; what arrives is written, added up and written.
    const double stays_first = 2 + (2 * g - 1) / g;
    expect("serial", 1, stays_first);
    for (const int degree : {1, 2, 4}) expect("tracked", degree, stays_first);
    // Each shard of all ranks is written once, by whoever computes it, read once, and its sum is written.
    for (const int degree : {1, 4}) expect("tma_slot", degree, (g + 1) / g + 1);
  }
}

/// T3's hardware adds where the bytes arrive: nothing is read but for what a ring passes on.
TEST(Traffic, OfMemoryThatAddsIsLeast) {
  for (const int ranks : {2, 3, 4, 8}) {
    const double g = ranks;
    SubLayer layer{.model = "", .name = "", .m = kM, .n = kN, .k = kK, .ranks = ranks};
    const auto share = [&](double bytes) { return bytes / layer.output_bytes(); };
    const Traffic fused = fused_traffic(layer, {}, {}), apart = unfused_traffic(layer, {});
    EXPECT_NEAR(share(fused.gemm_wr + fused.rs_wr), (2 * g - 2) / g, 1e-12);
    EXPECT_NEAR(share(fused.rs_rd), (g - 2) / g, 1e-12);
    EXPECT_NEAR(share(apart.gemm_wr + apart.rs_wr + apart.rs_rd), 2 + (2 * g - 1) / g, 1e-12);
  }
}

}  // namespace
}  // namespace overlace::study::t3
