// dataset.json: whatever is accepted is written and read again as the same.
// Sources: src/gnn/dataset/description
#include "src/gnn/dataset/description.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<gnn::Description> description = gnn::parse_description(input, "dataset.json");
  if (!description.ok()) return;
  const std::string text = gnn::description_json(*description);
  const base::Result<gnn::Description> again = gnn::parse_description(text, "written");
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(gnn::description_json(*again) == text);
}

}  // namespace overlace::fuzz
