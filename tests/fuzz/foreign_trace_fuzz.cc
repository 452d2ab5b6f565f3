// Traces of others: Chakra files or a Chrome trace; by the first byte.
// Sources: src/sim/trace/chakra src/sim/trace/kineto
#include "src/base/json.h"
#include "src/sim/trace/chakra.h"
#include "src/sim/trace/kineto.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {
namespace {

/// What was read survives being written in both forms.
void use(const base::Trace& trace) {
  const base::Result<base::Trace> ours = base::parse_trace(trace.to_json(), "output");
  FUZZ_REQUIRE(ours.ok() && ours->spans.size() == trace.spans.size());
  const base::Result<base::Trace> again = sim::from_chakra(sim::to_chakra(trace), "output");
  FUZZ_REQUIRE(again.ok() && again->spans.size() == trace.spans.size());
}

}  // namespace

void run(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  input.remove_prefix(1);
  if (kind == 'k') {
    const base::Result<base::Json> json = base::Json::parse(input);
    if (!json.ok() || !sim::is_foreign_chrome(*json)) return;
    if (const base::Result<base::Trace> trace = sim::parse_kineto(*json, "input"); trace.ok()) use(*trace);
    return;
  }
  // Two ranks, of which the first byte says where the second begins.
  const size_t at = std::min<size_t>(static_cast<unsigned char>(kind), input.size());
  std::vector<std::string> files = {std::string(input.substr(0, at)), std::string(input.substr(at))};
  if (kind == 'c') files = {std::string(input)};
  if (const base::Result<base::Trace> trace = sim::from_chakra(files, "input"); trace.ok()) use(*trace);
}

}  // namespace overlace::fuzz
