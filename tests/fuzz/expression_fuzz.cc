// An expression of a schedule.
// Sources: src/spec/expr
#include "overlace/schedule.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const spec::Tables tables = {{"off", {0, 3, 7}}};
  accepted([&] {
    const spec::Expr expr(input);
    FUZZ_REQUIRE(expr.text() == input);
    (void)expr.eval({{"M", 8}, {"G", 2}, {"r", 1}, {"s", -5}}, tables);
  });
}

}  // namespace overlace::fuzz
