// What the operators check and compute alike.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "python/csrc/group.h"

namespace overlace_torch {

/// The first of those with the most columns; there is one at least.
inline size_t widest_of(const std::vector<Tensor>& all) {
  size_t widest = 0;
  for (size_t i = 1; i < all.size(); ++i)
    if (all[i].size(1) > all[widest].size(1)) widest = i;
  return widest;
}
/// Two dimensions, floating.
void check_matrix(const Argument& argument, const Tensor& t);
/// b, the argument, fits a, which has one of `parts` equal parts of K: K, dtype.
void check_factors(const Group& group, const Tensor& a, std::string_view a_name, const Argument& argument,
                   const Tensor& b, int64_t parts = 1);
/// One dtype.
void check_alike(const Group& group, const Tensor& a, std::string_view a_name, const Argument& argument,
                 const Tensor& b);
/// row_offsets, if there are any, are fit and give this rank the rows of `t`.
void check_my_rows(const Group& group, const Argument& argument, const Tensor& t,
                   const std::vector<int64_t>& row_offsets);
/// (N).
void check_bias(const Argument& argument, const Tensor& bias, int64_t n);
/// a (M, K), b (K, N) and bias (N) or none, as `op` names them, are where the rank is and fit each other. parts: as
/// in check_factors.
void check_operands(const Group& group, std::string_view op, const Tensor& a, const Tensor& b,
                    const std::optional<Tensor>& bias, int64_t parts = 1);
/// Rows of a's product that are this rank's: those of row_offsets, else an equal part.
int64_t rows_of_rank(const Group& group, std::string_view op, const Tensor& a, const std::vector<int64_t>& row_offsets);
/// What is not there yet is refused, not ignored: all but "none", and "swiglu" where the operator `has_swiglu`.
void check_activation(std::string_view op, std::string_view activation, bool has_swiglu);
/// Whether it is "avg"; else it must be "sum".
bool is_average(std::string_view op, std::string_view reduce_op);
/// t *= factor, which is rounded to t's dtype or finer.
void scale_in_place(Tensor& t, double factor);
Tensor scaled(const Tensor& t, double factor);

}  // namespace overlace_torch
