#include "src/gnn/pack/extent_layout.h"

#include "src/io/alignment.h"

namespace overlace::gnn {
ExtentLayout extent_layout(const ExtentCounts& counts, int64_t row_bytes) {
  const std::array<int64_t, kExtentSections> bytes = {
      4 * counts.reached, 4 * counts.indptr,     4 * counts.indices, 4 * counts.seeds, 4 * counts.inputs,
      4 * counts.inputs,  8 * counts.admissions, 8 * counts.moves,   4 * counts.pages, row_bytes * counts.rows};
  ExtentLayout out;
  int64_t offset = kExtentPage;
  for (size_t i = 0; i < kExtentSections; ++i) {
    const bool is_rows = i == static_cast<size_t>(ExtentSection::rows);
    offset = io::round_up(offset, is_rows ? kExtentPage : kSectionAlignment);
    out.parts[i] = {offset, bytes[i]};
    offset += bytes[i];
  }
  out.bytes = io::round_up(offset, kExtentPage);
  return out;
}

}  // namespace overlace::gnn
