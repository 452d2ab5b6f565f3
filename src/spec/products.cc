#include "src/spec/products.h"

#include <algorithm>

#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

int row_dim(const Box& box) { return box.ndim - 2; }

/// Rows of a box, of the buffer as one matrix: those of leading dimensions follow each other.
int64_t first_row_of_box(const Expansion& expansion, const Box& box) {
  int64_t row = 0;
  for (int d = 0; d <= row_dim(box); ++d)
    row = row * expansion.buffer_shapes[static_cast<size_t>(box.buffer)][static_cast<size_t>(d)] + box.begin[d];
  return row;
}

/// Whether both are rows of the same columns of one matrix.
bool share_columns(const Box& one, const Box& other) {
  const int last = one.ndim - 1;
  return one.buffer == other.buffer && one.rank == other.rank && one.ndim == other.ndim && one.ndim >= 2 &&
         one.begin[last] == other.begin[last] && one.count[last] == other.count[last];
}

/// Whether rows of both are rows of a matrix: leading dimensions have one element, as those that executors drop.
bool is_matrix(const Box& box) {
  return box.ndim >= 2 && !box.empty() &&
         std::all_of(box.count, box.count + row_dim(box), [](int64_t count) { return count == 1; });
}

int64_t rows_of(const Box& box) { return box.count[row_dim(box)]; }

/// From the first row of a block to that of the next, in a and in c; 0 where both cannot be one launch.
struct Distance {
  int64_t a = 0, c = 0;
};
Distance distance(const Expansion& expansion, const ProductRows& block, const Box& a, const Box& c) {
  const bool are_matrices = is_matrix(block.a) && is_matrix(block.c) && is_matrix(a) && is_matrix(c);
  if (!are_matrices || rows_of(block.a) != rows_of(block.c) || rows_of(a) != rows_of(c)) return {};
  if (!share_columns(block.a, a) || !share_columns(block.c, c)) return {};
  return {first_row_of_box(expansion, a) - first_row_of_box(expansion, block.a),
          first_row_of_box(expansion, c) - first_row_of_box(expansion, block.c)};
}

/// Whether `next` became a part of `last`.
bool touches(const Expansion& expansion, ProductRows* last, const ProductRows& next) {
  const Distance to = distance(expansion, *last, next.a, next.c);
  if (to.a <= 0 || to.a != rows_of(last->a) || to.c != to.a) return false;
  last->a.count[row_dim(last->a)] += rows_of(next.a);
  last->c.count[row_dim(last->c)] += rows_of(next.c);
  return true;
}
bool continues(const Expansion& expansion, ProductRows* run, const ProductRows& next) {
  const Distance to = distance(expansion, *run, next.a, next.c);
  if (to.a <= 0 || to.c <= 0 || rows_of(run->c) != rows_of(next.c)) return false;
  if (run->batch == 1) run->step_a = to.a, run->step_c = to.c;
  if (to.a != run->batch * run->step_a || to.c != run->batch * run->step_c) return false;
  ++run->batch;
  return true;
}

}  // namespace

std::vector<ProductRows> product_rows(const Schedule& schedule, const Expansion& expansion, const Instance& instance) {
  const std::vector<Box>&a = instance.reads[0], &c = instance.writes[0];
  const bool can_join = !sums_rows(schedule.tasks[static_cast<size_t>(instance.task)]);  // else a is (depth, rows)
  std::vector<ProductRows> blocks, out;
  for (size_t i = 0; i < std::min(a.size(), c.size()); ++i) {
    if (c[i].empty()) continue;
    const ProductRows next = {.a = a[i], .c = c[i]};
    if (blocks.empty() || !can_join || !touches(expansion, &blocks.back(), next)) blocks.push_back(next);
  }
  for (const ProductRows& next : blocks)
    if (out.empty() || !can_join || !continues(expansion, &out.back(), next)) out.push_back(next);
  return out;
}

}  // namespace overlace::spec
