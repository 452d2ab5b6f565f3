// Times and timelines on a fixed machine, to the bit: the same on every compiler. A change of the model changes them,
// and what the test then prints as `got` is the new tests/golden/sim/schedules.csv.
#include <gtest/gtest.h>

#include "overlace/sim.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/sim/trace/trace.h"
#include "src/spec/digest.h"

namespace overlace::sim {
namespace {

struct Golden {
  const char *op, *family;
  int degree;
};
constexpr Golden kCases[] = {{"ag_gemm", "library", 1},
                             {"ag_gemm", "serial", 1},
                             {"ag_gemm", "hetero_unfused_1d", 2},
                             {"ag_gemm", "uniform_fused_2d", 4},
                             {"ag_gemm", "k_slab", 4},
                             {"gemm_rs", "hetero_fused_1d", 2},
                             {"gemm_rs", "tma_slot", 8},
                             {"gemm_rs", "limit", 1},
                             {"gemm_ar", "library", 1},
                             {"gemm_ar", "grouped_unfused_1d", 2},
                             {"gemm_ar", "tma_slot", 4}};

TEST(GoldenTimes, AreTheSameToTheBit) {
  const std::string folder = std::string(OVERLACE_SOURCE_DIR) + "/tests/golden/sim/";
  const spec::Machine machine = spec::find_machine(folder + "machine.json");
  std::string got = "op,family,degree,seed,time_ps,timeline\n";
  for (const Golden& g : kCases) {
    for (const uint64_t seed : {0, 5}) {
      spec::OpSpec op;
      op.op = g.op;
      op.m = 2048;
      op.n = 1536;
      op.k = 1000;
      op.ranks = 4;
      spec::Params align;
      if (std::string_view(g.family) == "tma_slot") align = {{"align", int64_t{256}}, {"align_n", int64_t{128}}};
      SimOptions options;
      options.seed = seed;
      options.calls = 2;
      options.has_spans = options.has_parts = true;
      const SimResult result = simulate(spec::make_schedule(op, g.family, g.degree, align), machine, options);
      const std::string timeline = spec::hash128(base::to_perfetto(to_trace(result, "golden")));
      got += base::format("{},{},{},{},{},{}\n", g.op, g.family, g.degree, seed, result.time_ps, timeline);
    }
  }
  EXPECT_EQ(got, base::read_file(folder + "schedules.csv").value());
}

}  // namespace
}  // namespace overlace::sim
