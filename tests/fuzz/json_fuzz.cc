// JSON, under every reader of JSON: what was read is written and read back as the same value.
// Sources: src/base/json
#include <cmath>

#include "src/base/json.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<base::Json> json = base::Json::parse(input, "input");
  if (!json.ok()) return;
  for (const int indent : {-1, 2}) {
    const base::Result<base::Json> again = base::Json::parse(json->dump(indent), "output");
    FUZZ_REQUIRE(again.ok());
    // Numbers beyond double are read as infinity and written as null, so that texts are compared from then on.
    FUZZ_REQUIRE(again->dump() == json->dump());
  }
}

}  // namespace overlace::fuzz
