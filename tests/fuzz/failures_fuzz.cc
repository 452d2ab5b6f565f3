// What the ranks write into the launcher's pipe when they fail.
// Sources: cli/run/failures
#include "cli/run/failures.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const std::vector<cli::RankFailure> failures = cli::decode_failures(input);
  const std::optional<cli::RankFailure> cause = cli::first_cause(failures);
  FUZZ_REQUIRE(cause.has_value() == !failures.empty());
  if (!cause) return;
  FUZZ_REQUIRE(!cli::failure_text(*cause, failures).empty() || cause->status.message().empty());
  for (const cli::RankFailure& failure : failures) {
    FUZZ_REQUIRE(exit_code(failure.status.code()) != 0 && errc_name(failure.status.code()) != "unknown");
    FUZZ_REQUIRE(failure.rank >= 0);
  }
  FUZZ_REQUIRE(cli::encode_failure(*cause).size() <= 4096);
}

}  // namespace overlace::fuzz
