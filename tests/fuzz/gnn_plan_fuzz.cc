// Plans of packs, whose checksum is made anew so that mutations reach what lies behind it.
// Sources: src/gnn/store/plan_file
#include <cstring>

#include "src/base/crc32c.h"
#include "src/gnn/store/plan_file.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  constexpr size_t kSum = 12, kSummed = 16;  // where the checksum is, and what it is of
  std::vector<std::byte> bytes(input.size());
  if (!input.empty()) std::memcpy(bytes.data(), input.data(), input.size());
  if (bytes.size() > kSummed) {
    const uint32_t sum = base::crc32c(std::span(bytes).subspan(kSummed));
    std::memcpy(bytes.data() + kSum, &sum, sizeof(sum));
  }
  const base::Result<gnn::PackPlan> plan = gnn::parse_plan(bytes, "plan");
  if (!plan.ok()) return;
  const std::vector<std::byte> written = gnn::encode_plan(*plan);
  const base::Result<gnn::PackPlan> again = gnn::parse_plan(written, "written");
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(gnn::encode_plan(*again) == written);
  for (int64_t b = 0; b < plan->num_batches(); ++b) FUZZ_REQUIRE(plan->limits(b).num_pages >= 0);
}

}  // namespace overlace::fuzz
