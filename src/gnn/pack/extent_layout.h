// Where everything is in the extent of a batch: one function for those who plan, write and read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace overlace::gnn {

inline constexpr int64_t kExtentPage = 4096;      // extents and their rows begin at multiples of it
inline constexpr int64_t kSectionAlignment = 64;  // of all other sections

/// In the order in which they lie behind the header page.
enum class ExtentSection : uint32_t {
  reached,
  indptr,
  indices,
  labels,      // i32 per seed
  inputs,      // u32 vertex per input row, seeds first
  program,     // u32 per input row
  admissions,  // ring row and slot, u32 each
  moves,       // of a restore: from and to, u32 each
  pages,       // u32 page of the disk cache
  rows,        // features of the pack
};
inline constexpr size_t kExtentSections = 10;

/// What an extent has to hold. That of a restore has admissions, moves and rows only.
struct ExtentCounts {
  int64_t reached = 0, indptr = 0, indices = 0, seeds = 0, inputs = 0, admissions = 0, moves = 0, pages = 0, rows = 0;
};

struct ExtentPart {
  int64_t offset = 0, bytes = 0;
};
struct ExtentLayout {
  std::array<ExtentPart, kExtentSections> parts;
  int64_t bytes = 0;  // a multiple of kExtentPage
  /// Blocks, labels and ids, which lie one after the other behind the header page: what a consumer keeps.
  int64_t block_bytes() const { return at(ExtentSection::program).offset - kExtentPage; }
  const ExtentPart& at(ExtentSection section) const { return parts[static_cast<size_t>(section)]; }
};

ExtentLayout extent_layout(const ExtentCounts& counts, int64_t row_bytes);

}  // namespace overlace::gnn
