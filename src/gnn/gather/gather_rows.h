// Rows of a table in memory by their numbers, on CPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "src/base/status.h"

namespace overlace::gnn {

/// Rows of any size, one behind the other.
struct RowTable {
  const std::byte* data = nullptr;
  int64_t num_rows = 0, row_bytes = 0;
};
using RowIds = std::variant<std::span<const int32_t>, std::span<const int64_t>>;

/// Row i of `out` becomes row ids[i] of the table, on `threads` threads (0: the cores). Nothing is written where this
/// fails. invalid_argument: the first id out of range with its place, sizes that do not belong together, an `out` that
/// lies in the table.
base::Status gather_rows(const RowTable& table, const RowIds& ids, int threads, std::span<std::byte> out);

}  // namespace overlace::gnn
