#include "src/ops/common/gathered.h"

#include <string>
#include <variant>

#include "src/spec/operators.h"

namespace overlace::ops {

std::vector<exec::CopyOut> copies_of_gathered(const TensorView& shard, const TensorView& all,
                                              const spec::Schedule& schedule, int rank) {
  const auto table = [&](const char* name) -> const std::vector<int64_t>& { return schedule.tables.at(name); };
  const auto r = static_cast<size_t>(rank);
  const bool is_cols = spec::exchange_of(schedule.params) == spec::Exchange::cols;
  if (is_cols && table("off").size() > 2)  // mine are among them
    return {{.buffer = std::get<std::string>(schedule.params.at("gathered")), .first_row = 0, .to = all}};
  int64_t begin = table("off")[r], end = table("off")[r + 1], m = table("off").back(), first = 0;
  if (spec::exchanges(schedule.op) && !is_cols) {  // my block for myself, at its place among the others'
    const size_t ranks = table("off").size() - 1, own = r * ranks + r, q = table("place").size() / (ranks * ranks);
    first = table("cut")[own * q] - begin;
    begin = table("place")[own * q];
    end = begin + table("splits")[own];
    m = table("got")[r + 1] - table("got")[r];
  }
  std::vector<exec::CopyOut> out = {{.from = shard.rows(first, end - begin), .to = all.rows(begin, end - begin)}};
  if (begin == 0 && end == m) return out;
  const std::string buffer = std::get<std::string>(schedule.params.at("gathered"));
  out.push_back({.buffer = buffer, .first_row = 0, .to = all.rows(0, begin)});
  out.push_back({.buffer = buffer, .first_row = end, .to = all.rows(end, m - end)});
  return out;
}

}  // namespace overlace::ops
