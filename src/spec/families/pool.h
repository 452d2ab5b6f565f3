// What tasks of kind pool of embedding_a2a compute on CPU ranks, and which bags they take on all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "overlace/operator.h"
#include "src/spec/families/bad_bag_pod.h"

namespace overlace::spec {

/// What becomes of an index outside its table: `error` refuses the call, `ignore` leaves the entry out, `clamp` takes
/// the nearest row, `zero_row` takes row 0, `none` does not look.
bool is_bounds(std::string_view name);

/// What a message says of a rank's bad bag, on every backend.
std::string text_of(const BadBag& bad, int rank);

/// OperatorDef::check_data: types and lengths of weights, indices, offsets and per_sample_weights; with bounds `error`
/// also each offset and index, of which the first bad one is named by rank, feature, bag, position, value and rows.
std::string check_bags(const OpSpec& op, int rank, std::span<const TensorView> tensors, bool reads_memory);

/// OperatorDef::compute: bags of the rows that the task writes, summed in fp64 in the order of their entries and
/// rounded once. An empty bag gives zeros.
void pool_bags(const HostTask& task);

}  // namespace overlace::spec
