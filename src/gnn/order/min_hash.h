// HashOrder of DiskGNN: rows that the same batches use come to lie on the same pages.
#pragma once

#include <cstdint>
#include <vector>

#include "src/gnn/levels/next_use.h"
#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

/// The vertices in `rows`, sorted by the smallest and the second smallest of two random numbers of the batches of the
/// range that use them: (min h1(b), min h2(b), id). Equal sets of batches get equal numbers, similar sets often.
/// Precondition: each of `rows` is used in the range.
std::vector<uint32_t> hash_order(const InputTrace& uses, BatchRange range, std::vector<uint32_t> rows, uint64_t seed);

}  // namespace overlace::gnn
