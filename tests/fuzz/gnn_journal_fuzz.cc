// Journals of packers: what is read of any bytes is a whole prefix, and is read again as the same.
// Sources: src/gnn/store/journal
#include "src/gnn/store/journal.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const std::array<uint8_t, 16> digest{};
  const auto bytes = std::as_bytes(std::span(input.data(), input.size()));
  const gnn::JournalContent content = gnn::parse_journal(bytes, digest);
  FUZZ_REQUIRE(content.whole_bytes <= bytes.size());
  const gnn::JournalContent again = gnn::parse_journal(bytes.first(content.whole_bytes), digest);
  FUZZ_REQUIRE(again.is_ours == content.is_ours && again.records.size() == content.records.size());
}

}  // namespace overlace::fuzz
