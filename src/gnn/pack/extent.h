// An extent as bytes: all that one batch needs, or one restore, read at once and checked before it is used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/levels/restore.h"
#include "src/gnn/levels/sweep.h"
#include "src/gnn/pack/extent_layout.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

ExtentCounts counts_of(const BatchView& view, const BatchPlan& plan);
ExtentCounts counts_of(const Restore& restore);
/// 0 where there is nothing to restore: then there is no extent.
int64_t restore_extent_bytes(const Restore& restore, int64_t row_bytes);

/// Says of what an extent is a part: digest of dataset, trace and plan.
using Generation = std::array<uint8_t, 16>;

/// Checksums of the sections of an extent, filled while it is written.
struct ExtentSums {
  std::array<uint32_t, kExtentSections> crc{};
};

/// The bytes between header page and rows, and their checksums.
std::vector<std::byte> encode_sections(const BatchView& view, std::span<const int32_t> labels, const BatchPlan& plan,
                                       const ExtentLayout& layout, ExtentSums* sums);
std::vector<std::byte> encode_sections(const Restore& restore, const ExtentLayout& layout, ExtentSums* sums);
/// The header page. `number` is that of the batch, or -1 - segment of a restore.
std::vector<std::byte> encode_header(const Generation& generation, int64_t number, int64_t row_bytes,
                                     const ExtentLayout& layout, const ExtentSums& sums);

/// What the indices of an extent must stay below, and what it must be.
struct ExtentLimits {
  Generation generation{};
  int64_t number = 0;
  int64_t row_bytes = 0, num_vertices = 0, gpu_rows = 0, cpu_rows = 0;
  int64_t page_rows = 1;      // of the disk cache
  int64_t num_pages = 0;      // that its segment has there
  int64_t max_ring_rows = 0;  // of any batch
  int depth = 0;
};

struct ExtentView {
  BatchView batch;
  std::span<const int32_t> labels;
  std::span<const uint32_t> program;
  std::span<const Admission> admissions;
  std::span<const SlotMove> moves;
  std::span<const uint32_t> pages;
  std::span<const std::byte> rows;
};

/// Which checksums are looked at.
enum class ExtentSumsChecked { all, all_but_rows, none };

/// Checks checksums and every index. `bytes` begin at a multiple of 8. Errors, all with `name` and the extent's number:
/// version_mismatch, stale (of another generation), corrupt (anything else, with section, place and both values).
base::Result<ExtentView> open_extent(std::span<const std::byte> bytes, const ExtentLimits& limits,
                                     const std::string& name, ExtentSumsChecked checked = ExtentSumsChecked::all);

}  // namespace overlace::gnn
