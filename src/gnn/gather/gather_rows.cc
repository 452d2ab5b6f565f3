#include "src/gnn/gather/gather_rows.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "src/gnn/parallel.h"

namespace overlace::gnn {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 18;  // of the output, that one thread takes at a time
constexpr int64_t kAhead = 8;                      // rows that are asked for before they are copied

base::Status check(const RowTable& table, int64_t count, int threads, std::span<std::byte> out) {
  if (threads < 0) return base::invalid_argument("threads is {}, wanted at least 0", threads);
  if (table.num_rows < 0 || table.row_bytes < 1 ||
      table.num_rows > std::numeric_limits<int64_t>::max() / table.row_bytes ||
      count > std::numeric_limits<int64_t>::max() / table.row_bytes)
    return base::invalid_argument("table has {} rows of {} bytes, wanted rows of at least 1 within 64 bits",
                                  table.num_rows, table.row_bytes);
  if (std::ssize(out) != count * table.row_bytes)
    return base::invalid_argument("out has {} bytes, wanted {} for {} rows of {}", out.size(), count * table.row_bytes,
                                  count, table.row_bytes);
  const std::less<const std::byte*> before;
  const std::byte* end = table.data + table.num_rows * table.row_bytes;
  if (!out.empty() && table.num_rows > 0 && before(out.data(), end) && before(table.data, out.data() + out.size()))
    return base::invalid_argument("out lies in the table, wanted memory of its own");
  return {};
}

/// A size that the compiler knows makes a copy of a few instructions.
template <class Id, size_t kBytes>
void copy_rows(const RowTable& table, std::span<const Id> ids, std::byte* to) {
  const auto bytes = kBytes > 0 ? kBytes : static_cast<size_t>(table.row_bytes);
  const auto row = [&](Id id) { return table.data + static_cast<size_t>(id) * bytes; };
  for (size_t i = 0; i < ids.size(); ++i, to += bytes) {
    if (i + kAhead < ids.size()) __builtin_prefetch(row(ids[i + kAhead]));
    std::memcpy(to, row(ids[i]), bytes);
  }
}

template <class Id>
void copy_any(const RowTable& table, std::span<const Id> ids, std::byte* to) {
  switch (table.row_bytes) {
    case 1:
      return copy_rows<Id, 1>(table, ids, to);
    case 2:
      return copy_rows<Id, 2>(table, ids, to);
    case 4:
      return copy_rows<Id, 4>(table, ids, to);
    case 8:
      return copy_rows<Id, 8>(table, ids, to);
    case 16:
      return copy_rows<Id, 16>(table, ids, to);
    default:
      return copy_rows<Id, 0>(table, ids, to);
  }
}

template <class Id>
base::Status gather(const RowTable& table, std::span<const Id> ids, int threads, std::span<std::byte> out) {
  const auto count = std::ssize(ids);
  OVERLACE_TRY(check(table, count, threads, out));
  const int64_t rows = std::max<int64_t>(1, kPieceBytes / table.row_bytes);
  const int64_t pieces = count / rows + (count % rows != 0 ? 1 : 0);
  const auto piece_of = [&](int64_t i) {
    return ids.subspan(static_cast<size_t>(i * rows), static_cast<size_t>(std::min(rows, count - i * rows)));
  };
  const int workers = static_cast<int>(std::clamp<int64_t>(pieces, 1, thread_count(threads)));
  OVERLACE_TRY(parallel_each(pieces, workers, [&](int64_t i, int) {
    const auto piece = piece_of(i);
    const auto bad = std::find_if(piece.begin(), piece.end(), [&](Id id) { return id < 0 || id >= table.num_rows; });
    if (bad == piece.end()) return base::Status();
    const int64_t at = i * rows + (bad - piece.begin());
    if (table.num_rows == 0) return base::invalid_argument("ids[{}] is {}, wanted none: the table is empty", at, *bad);
    return base::invalid_argument("ids[{}] is {}, wanted 0 to {}", at, *bad, table.num_rows - 1);
  }));
  return parallel_each(pieces, workers, [&](int64_t i, int) {
    copy_any(table, piece_of(i), out.data() + i * rows * table.row_bytes);
    return base::Status();
  });
}

}  // namespace

base::Status gather_rows(const RowTable& table, const RowIds& ids, int threads, std::span<std::byte> out) {
  return std::visit([&](auto span) { return gather(table, span, threads, out); }, ids);
}

}  // namespace overlace::gnn
