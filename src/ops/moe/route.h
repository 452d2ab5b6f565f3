// Where the copies of tokens go: from the choices of one rank to the lists that it sends, and from the counts of all
// ranks to the rows of a rank's pool. Pure functions: every offset follows from counts by prefix sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/ops/moe/router.h"

namespace overlace::ops::moe {

/// Rank r owns the experts [begin[r], begin[r + 1]). A rank may own none.
struct Placement {
  std::vector<int64_t> begin{};  // (R + 1), ascending from 0 to E

  /// begin[r] = floor(r E / R).
  static Placement even(int64_t num_experts, int ranks);
  int ranks() const { return static_cast<int>(begin.size()) - 1; }
  int64_t num_experts() const { return begin.back(); }
  int64_t first(int rank) const { return begin[static_cast<size_t>(rank)]; }
  int64_t local(int rank) const { return first(rank + 1) - first(rank); }
  base::Status check() const;
};

/// A copy of a token for one expert: which of the rows sent to that rank it is, and its weight.
struct Copy {
  int32_t row = 0;
  float weight = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
};

/// What one rank sends to one rank. A token goes there once, however many experts of that rank it chose.
struct Shipment {
  std::vector<int32_t> tokens{};   // (rows) token of a row; rows by (first expert of that rank that needs it, token)
  std::vector<Copy> copies{};      // (copies) by (expert, token, choice)
  std::vector<int32_t> choices{};  // (copies) token * top_k + choice
  // Sums return in the order (last expert of that rank that the token needs, token), so that early ones may leave
  // early:
  std::vector<int32_t> sum_begin{};   // (rows + 1) copies of sum q are sum_copies[sum_begin[q] .. sum_begin[q + 1])
  std::vector<int32_t> sum_copies{};  // (copies) numbers of copies, within a sum in the order of choice
};

struct Routes {
  std::vector<int64_t> counts{};  // (E) copies for each expert
  std::vector<Shipment> to{};     // (R)
  std::vector<int32_t> sum_of{};  // (T, R) the sum that returns for a token from a rank; -1: none
  int64_t dropped = 0;            // copies beyond the capacity
};

/// Copies that each expert takes at most from a rank of T tokens: ceil(factor T k / E). Factor 0, dropless: all T k.
int64_t capacity_of(double factor, int64_t tokens, int top_k, int64_t num_experts);

/// The lists of one rank. Entries -1 make no copy; a token may choose an expert twice, which is two copies. With a
/// capacity, later copies in the order (token, choice) are dropped. InvalidArgument names the first token and choice
/// with an expert that does not exist.
base::Result<Routes> make_routes(const Choices& choices, const Placement& placement, double capacity_factor);

/// The rows of the experts of one rank, from all ranks: expert by expert, from this rank first, then from the ranks
/// behind it in turn. Experts begin at multiples of the alignment.
struct PoolLayout {
  std::vector<int64_t> base{};   // (E_loc + 1)
  std::vector<int64_t> load{};   // (E_loc) rows that are copies; those up to the next base are padding
  std::vector<int64_t> first{};  // (R, E_loc) row of the first copy from a rank
  int64_t rows() const { return base.back(); }
};
/// `counts`: (R, E), Routes::counts of all ranks.
PoolLayout make_pool_layout(std::span<const int64_t> counts, const Placement& placement, int rank, int64_t alignment);

/// The row in the pool of each copy of the Shipment from rank `source`.
std::vector<int64_t> pool_rows(std::span<const int64_t> counts, const Placement& placement, int rank,
                               const PoolLayout& pool, int source);

}  // namespace overlace::ops::moe
