// A machine as JSON: what is taken comes back from its text, and simulates or is refused.
// Sources: src/spec/machine_json.cc src/sim/schedule src/sim/resource
#include "overlace/sim.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  accepted([&] {
    const spec::Machine machine = spec::machine_from_json(input, "fuzz");
    FUZZ_REQUIRE(spec::machine_from_json(spec::to_json(machine), "again") == machine);
    FUZZ_REQUIRE(spec::digest(machine).size() == 32);
    spec::OpSpec op;
    op.op = "gemm_rs";
    op.m = 96;
    op.n = 64;
    op.k = 32;
    op.ranks = 2;
    sim::SimOptions options;
    options.seed = 1;
    options.calls = 2;
    for (const char* family : {"hetero_unfused_1d", "tma_slot", "library"}) {
      accepted([&] {
        const sim::SimResult result = sim::simulate(spec::make_schedule(op, family, 2), machine, options);
        FUZZ_REQUIRE(result.bytes == result.static_bytes);
      });
    }
  });
}

}  // namespace overlace::fuzz
