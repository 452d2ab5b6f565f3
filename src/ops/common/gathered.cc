#include "src/ops/common/gathered.h"

#include <string>
#include <variant>

namespace overlace::ops {

std::vector<exec::CopyOut> copies_of_gathered(const TensorView& shard, const TensorView& all,
                                              const spec::Schedule& schedule, int rank) {
  const std::vector<int64_t>& off = schedule.tables.at("off");
  const int64_t begin = off[static_cast<size_t>(rank)], end = off[static_cast<size_t>(rank) + 1], m = off.back();
  std::vector<exec::CopyOut> out = {{.from = shard, .to = all.rows(begin, end - begin)}};
  if (begin == 0 && end == m) return out;
  const std::string buffer = std::get<std::string>(schedule.params.at("gathered"));
  out.push_back({.buffer = buffer, .first_row = 0, .to = all.rows(0, begin)});
  out.push_back({.buffer = buffer, .first_row = end, .to = all.rows(end, m - end)});
  return out;
}

}  // namespace overlace::ops
