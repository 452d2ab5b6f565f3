// manifest.json of an artefact: whatever is accepted is written and read again as the same.
// Sources: src/gnn/store/manifest src/gnn/json_members
#include "src/gnn/store/manifest.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  const base::Result<gnn::Manifest> manifest = gnn::parse_manifest(input, "manifest.json");
  if (!manifest.ok()) return;
  const std::string text = gnn::manifest_json(*manifest);
  const base::Result<gnn::Manifest> again = gnn::parse_manifest(text, "written");
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(gnn::manifest_json(*again) == text);
}

}  // namespace overlace::fuzz
