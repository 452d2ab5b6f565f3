// A timeline in any of its formats, then what `overlace trace info` and `overlace trace convert` do with it.
// Sources: src/base/trace cli/trace/
#include "cli/trace/trace.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<base::Trace> trace = base::parse_trace(input, "input");
  if (!trace.ok()) return;
  (void)cli::describe_trace(*trace);
  for (const std::string& text : {base::to_perfetto(*trace), base::to_chrome_json(*trace), trace->to_json()}) {
    const base::Result<base::Trace> again = base::parse_trace(text, "output");
    FUZZ_REQUIRE(again.ok());
    FUZZ_REQUIRE(again->spans.size() == trace->spans.size() && again->arrows.size() == trace->arrows.size());
  }
}

}  // namespace overlace::fuzz
