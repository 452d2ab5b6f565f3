// A schedule as JSON: read, written, checked for two teams, expanded, shown.
// Sources: src/spec/
#include "src/spec/check.h"
#include "src/spec/expand.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  spec::Schedule schedule;
  if (!accepted([&] { schedule = spec::Schedule::from_json(input); })) return;
  const std::string text = schedule.to_json();
  FUZZ_REQUIRE(spec::Schedule::from_json(text).to_json() == text);
  FUZZ_REQUIRE(spec::digest(schedule).size() == 32);
  (void)schedule.to_string();
  for (const int ranks : {1, 3}) {
    const spec::CheckReport report = spec::check(schedule, spec::Machine{}, {.ranks = {ranks}, .coverage = true});
    (void)report.to_string();
    if (!report.ok()) continue;
    for (int rank = 0; rank < ranks; ++rank) FUZZ_REQUIRE(spec::expand(schedule, rank, ranks).ok());
  }
}

}  // namespace overlace::fuzz
