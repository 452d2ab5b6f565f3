// How often rows are used, and which are used most.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/gnn/sample/trace.h"

namespace overlace::gnn {

/// Batches of the trace that use each vertex.
std::vector<uint32_t> use_counts(const InputTrace& trace);

/// The n vertices with the largest counts, of equal counts the smaller ids; most used first. Precondition: n is at most
/// the number of counts.
std::vector<uint32_t> hottest_rows(std::span<const uint32_t> counts, int64_t n);

}  // namespace overlace::gnn
