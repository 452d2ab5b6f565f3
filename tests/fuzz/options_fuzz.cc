// Short texts of options: links, adversaries, checks, names of schedules and of data types. The first byte chooses.
// Sources: src/runtime/options src/spec/names
#include "overlace/runtime.h"
#include "src/base/half.h"
#include "src/spec/names.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  input.remove_prefix(1);
  if (kind == 'l') {
    LinkOptions link;
    if (!accepted([&] { link = LinkOptions::parse(input); })) return;
    FUZZ_REQUIRE(!link.enabled || (link.bytes_per_s >= 1e3 && link.latency_s >= 0));
    FUZZ_REQUIRE(LinkOptions::parse(link.to_string()).enabled == link.enabled);
  } else if (kind == 'a') {
    accepted([&] { FUZZ_REQUIRE(AdversaryOptions::parse(input).max_pieces >= 1); });
  } else if (kind == 'c') {
    accepted([&] {
      const std::string text = CheckOptions::parse(input).to_string();
      FUZZ_REQUIRE(CheckOptions::parse(text).to_string() == text);
    });
  } else if (kind == 's') {
    const auto name = spec::parse_family(input);
    if (name) FUZZ_REQUIRE(name->degree >= 1 && !name->family.empty());
  } else {
    DType dtype{};
    if (base::parse_dtype(std::string(input).c_str(), &dtype)) FUZZ_REQUIRE(dtype_bytes(dtype) > 0);
  }
}

}  // namespace overlace::fuzz
