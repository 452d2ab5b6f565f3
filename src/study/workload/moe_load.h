// Who sends how much to whom in an expert-parallel layer: copies of tokens for experts, and the rows that carry them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::study {

struct MoeModel {
  int64_t hidden = 7168, intermediate = 2048;
  int experts = 256, top_k = 8;
  int64_t tokens = 4096;  // of a rank
  double element_bytes = 2;
  int shared_experts = 0;  // every token goes through them, on its own rank: one expert of so many times the width
};

/// Which experts tokens choose, and where these lie. A token chooses an expert at most once.
struct MoeRouting {
  double zipf = 0;    // popularity of the experts ~ 1 / place^zipf; 0: all alike
  uint64_t seed = 1;  // which experts are the popular ones
  /// Copies of tokens that a rank of a group sends to an expert: [rank * experts + expert], tokens * top_k of each
  /// rank; empty: as zipf says.
  std::vector<int64_t> counts = {};
  /// Tokens of a rank that have an expert on a rank of the group: [from * group + to]; empty: what is expected.
  std::vector<int64_t> rows = {};
  /// Rank r owns the experts begin[r] .. begin[r + 1] - 1, maybe none; empty: begin[r] = floor(r experts / group).
  std::vector<int64_t> begin = {};
  bool is_row_per_copy = false;  // a row for each expert of a token, where else one carries it to all of a rank
};

struct MoeLoad {
  std::vector<size_t> begin;    // (group + 1), of experts
  std::vector<int64_t> expert;  // (experts) copies for it from all ranks
  std::vector<int64_t> copies;  // [from * group + to]
  std::vector<double> rows;     // the same; expected ones need not be whole
  int ranks() const { return static_cast<int>(begin.size()) - 1; }
  size_t local(size_t rank) const { return begin[rank + 1] - begin[rank]; }
  double sent(size_t rank) const;      // rows to all ranks, itself too
  double received(size_t rank) const;  // rows from all ranks, itself too
  int64_t load(size_t rank) const;     // copies from all ranks
};

/// Copies of each rank for each expert: shares of the popularity, but at most one of a token, rounded so that each rank
/// sends tokens * top_k.
std::vector<int64_t> moe_counts(const MoeModel& model, int group, double zipf, uint64_t seed);

/// Errc::invalid_argument for sizes out of range, and for more than kMostTasks counts or pairs of ranks.
base::Status check_moe_sizes(const MoeModel& model, const MoeRouting& routing, int group);

/// {"counts": [[..], ..], "rows": [[..], ..], "expert_begin": [..]}, the last two optional: what they say replaces that
/// of `routing`. Errc::corrupt with `source` and the place where one has another form. Precondition: sizes that
/// `check_moe_sizes` accepts.
base::Status read_moe_counts(const base::Json& json, int group, int experts, std::string_view source,
                             MoeRouting* routing);

/// Shares of the sets of `choose` elements that have none of a part, [begin[i], begin[i + 1]) of the elements. The sets
/// are as random as can be while element e is in a share `inclusion[e]` of them (maximum entropy): between 0 and 1,
/// together `choose`. Errc::internal where no such sets are found.
base::Result<std::vector<double>> shares_without(const std::vector<double>& inclusion, const std::vector<size_t>& begin,
                                                 int choose);

/// Rows that nobody gives are expected of choices as random as the counts of their rank allow: `shares_without` of its
/// experts. Errc::invalid_argument as `check_moe_sizes`, for counts, rows and begins that cannot be, and for more than
/// 8 kMostTasks steps.
base::Result<MoeLoad> moe_load(const MoeModel& model, const MoeRouting& routing, int group);

}  // namespace overlace::study
