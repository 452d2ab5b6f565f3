// A line of the planner's file: what is taken makes sense, the rest is passed over.
// Sources: src/plan/cache.cc
#include <cmath>

#include "src/base/json.h"
#include "src/plan/cache.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  static const spec::Machine machine;
  static const std::string digest = spec::digest(machine);
  const std::string text(input);
  (void)plan::decision_of(text, "key", machine);
  base::Result<base::Json> line = base::Json::parse(text, "fuzz");
  if (!line.ok() || !line->is_object()) return;
  // The line is changed as if it were meant for this call.
  line->set("overlace_plan", plan::kPlanVersion).set("key", "key").set("digest", digest);
  const auto decision = plan::decision_of(line->dump(), "key", machine);
  if (!decision) return;
  FUZZ_REQUIRE(decision->candidate.degree >= 1 && !decision->candidate.family.empty());
  for (const plan::Alternative& other : decision->others) {
    FUZZ_REQUIRE(other.candidate.degree >= 1 && !other.candidate.family.empty());
    FUZZ_REQUIRE(std::isfinite(other.us) && other.us > 0 && other.lo_us > 0 && other.hi_us > 0);
  }
}

}  // namespace overlace::fuzz
