// From the boxes of a gemm instance to as few products as possible: what executors launch and the simulator times.
#pragma once

#include <cstdint>
#include <vector>

#include "src/spec/expand.h"

namespace overlace::spec {

/// One launch: `batch` blocks of rows at equal distances that share b and bias.
struct ProductRows {
  Box a, c;  // of the first block
  int64_t batch = 1;
  int64_t step_a = 0, step_c = 0;  // rows from one block to the next
};

/// Boxes whose rows touch, in a and in c, are one block; blocks of one size at equal distances, in a and in c, are one
/// launch. Boxes of c without an element, or without a box of a, are left out. Precondition: the instance reads and
/// writes.
std::vector<ProductRows> product_rows(const Schedule& schedule, const Expansion& expansion, const Instance& instance);

}  // namespace overlace::spec
