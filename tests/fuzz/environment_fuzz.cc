// An environment, one variable per line.
// Sources: src/base/env
#include "src/base/env.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<base::Env> env = base::Env::parse(split(input, '\n'));
  if (!env.ok()) return;
  FUZZ_REQUIRE(env->timeout_s >= 1 && env->heap_bytes >= 0 && env->rank >= -1);
  FUZZ_REQUIRE(!env->values().empty());
  (void)env->unknown();
}

}  // namespace overlace::fuzz
