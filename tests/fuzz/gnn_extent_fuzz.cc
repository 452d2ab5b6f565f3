// Extents, whose checksums are made anew: what is accepted can be gathered without leaving any level.
// Sources: src/gnn/pack/extent src/gnn/pack/extent_layout src/gnn/sample/trace
#include <cstring>

#include "src/base/crc32c.h"
#include "src/gnn/pack/extent.h"
#include "src/io/alignment.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {
namespace {

constexpr size_t kTable = 56, kEntry = 24, kHeadSum = gnn::kExtentPage - 4;

void mend(std::span<std::byte> bytes) {
  if (bytes.size() < static_cast<size_t>(gnn::kExtentPage)) return;
  for (size_t i = 0; i < gnn::kExtentSections; ++i) {
    int64_t part[2];
    std::memcpy(part, bytes.data() + kTable + i * kEntry, sizeof(part));
    const auto size = static_cast<int64_t>(bytes.size());
    if (part[0] < 0 || part[1] < 0 || part[0] > size || part[1] > size - part[0]) continue;
    const uint32_t sum = base::crc32c(bytes.subspan(static_cast<size_t>(part[0]), static_cast<size_t>(part[1])));
    std::memcpy(bytes.data() + kTable + i * kEntry + 16, &sum, sizeof(sum));
  }
  const uint32_t sum = base::crc32c(bytes.first(kHeadSum));
  std::memcpy(bytes.data() + kHeadSum, &sum, sizeof(sum));
}

}  // namespace

void run(std::string_view input) {
  io::AlignedBuffer buffer = io::AlignedBuffer::allocate(input.size() + 1).value();
  std::memcpy(buffer.data(), input.data(), input.size());
  const std::span<std::byte> bytes(buffer.data(), input.size());
  mend(bytes);
  for (const int64_t number : {0, -1}) {
    gnn::ExtentLimits limits{.number = number,
                             .row_bytes = 20,
                             .num_vertices = 64,
                             .gpu_rows = 2,
                             .cpu_rows = 4,
                             .page_rows = 204,
                             .num_pages = 3,
                             .max_ring_rows = 40,
                             .depth = 2};
    if (bytes.size() >= 32) std::memcpy(limits.generation.data(), bytes.data() + 16, limits.generation.size());
    const base::Result<gnn::ExtentView> view = gnn::open_extent(bytes, limits, "packs");
    if (!view.ok()) continue;
    const int64_t own = std::ssize(view->rows) / 20 + 204 * std::ssize(view->pages);
    for (const gnn::Admission& a : view->admissions) FUZZ_REQUIRE(a.slot < 4 && a.ring_row < own);
    for (const uint32_t v : view->batch.inputs) FUZZ_REQUIRE(v < 64);
    for (const uint32_t v : view->batch.indices) FUZZ_REQUIRE(v < view->batch.inputs.size());
    for (const uint32_t page : view->pages) FUZZ_REQUIRE(page < 3);
  }
}

}  // namespace overlace::fuzz
