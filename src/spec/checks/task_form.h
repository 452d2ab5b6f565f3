// How the regions of a task kind are read: boxes as matrices, and parameters. Internal to the checks.
#pragma once

#include <string>

#include "src/spec/expand.h"

namespace overlace::spec {

/// A box as a stack of matrices: the last two dimensions are rows and columns.
struct Rect {
  int buffer = 0, rank = 0;
  int64_t layer = 0, layers = 1, row = 0, rows = 1, column = 0, columns = 1;
};
Rect rect_of(const Box& box);
/// Rows and columns of the sums of which the task makes `result`: of swiglu twice as many columns.
Rect sums_of(const Task& task, const Box& result);
bool same_extent(const Rect& a, const Rect& b);

bool is_b_nk(const Task& task);
bool has_bias(const Task& task);
std::string collective_of(const Task& task);

}  // namespace overlace::spec
