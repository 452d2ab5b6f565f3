#include "src/ops/moe/exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "overlace/net_engine.h"
#include "overlace/team.h"
#include "src/base/half.h"
#include "src/base/nvtx.h"
#include "src/exec/agree.h"
#include "src/exec/collective.h"
#include "src/exec/cpu/copy.h"

namespace overlace::ops::moe {
namespace {

constexpr char kEndOfWords = '\n';

template <class T>
TensorView column_of(std::vector<T>& values) {
  static_assert(sizeof(T) == 4);
  return TensorView::contiguous(values.data(), DType::i32, {static_cast<int64_t>(values.size()), 1});
}

/// Rows as exec::exchange_rows; a team of one rank needs no engine.
base::Status exchange(Channel& channel, const TensorView& in, const TensorView& out,
                      const std::vector<int64_t>& table) {
  const base::NvtxRange range("copy", [] { return "exchange"; });
  const exec::CopyRows copy = [](const TensorView& from, const TensorView& to) {
    exec::copy_tensor(from, to);
    return base::Status();
  };
  Team& team = channel.team();
  if (std::all_of(table.begin(), table.end(), [](int64_t rows) { return rows == 0; })) return {};
  if (team.size() == 1) return copy(in, out);
  return exec::exchange_rows(team, *team.net(), in, out, table, channel.stream(), copy);
}

/// 32-bit words of a Shipment on the wire: row and weight of each copy, sum_begin, sum_copies.
int64_t shipment_words(int64_t copies, int64_t rows) { return copies == 0 ? 0 : 3 * copies + rows + 1; }

void append_words(const Shipment& to, std::vector<int32_t>& out) {
  if (to.copies.empty()) return;
  for (const Copy& copy : to.copies) {
    out.push_back(copy.row);
    out.push_back(std::bit_cast<int32_t>(copy.weight));
  }
  out.insert(out.end(), to.sum_begin.begin(), to.sum_begin.end());
  out.insert(out.end(), to.sum_copies.begin(), to.sum_copies.end());
}

int64_t copies_of(const Traffic& traffic, const Placement& placement, int source, int owner) {
  int64_t copies = 0;
  for (int64_t e = placement.first(owner); e < placement.first(owner + 1); ++e)
    copies += traffic.counts[at(source * placement.num_experts() + e)];
  return copies;
}

/// The lists of all ranks for this one, one after the other.
base::Result<std::vector<int32_t>> exchange_lists(Channel& channel, const Placement& placement, const Routes& routes,
                                                  const Traffic& traffic) {
  const int ranks = placement.ranks(), me = channel.team().rank();
  std::vector<int64_t> table(at(ranks * ranks));
  int64_t received = 0;
  for (int s = 0; s < ranks; ++s)
    for (int d = 0; d < ranks; ++d) {
      table[at(s * ranks + d)] = shipment_words(copies_of(traffic, placement, s, d), traffic.rows[at(s * ranks + d)]);
      if (d == me) received += table[at(s * ranks + d)];
    }
  std::vector<int32_t> sent, out(at(received));
  for (const Shipment& to : routes.to) append_words(to, sent);
  OVERLACE_TRY(exchange(channel, column_of(sent), column_of(out), table));
  return out;
}

base::Result<Rows> exchange_tokens(Channel& channel, const Routes& routes, const Traffic& traffic,
                                   const TensorView& x) {
  const int ranks = channel.team().size(), me = channel.team().rank();
  int64_t going = 0, coming = 0;
  for (int p = 0; p < ranks; ++p) {
    going += traffic.rows[at(me * ranks + p)];
    coming += traffic.rows[at(p * ranks + me)];
  }
  Rows sent(x.dtype, going, x.dim(1)), out(x.dtype, coming, x.dim(1));
  int64_t row = 0;
  for (const Shipment& to : routes.to)
    for (const int32_t token : to.tokens) std::memcpy(sent.row(row++), x.rows(token, 1).data, sent.row_bytes());
  OVERLACE_TRY(exchange(channel, sent.view(), out.view(), traffic.rows));
  return out;
}

/// Adds the copies of sum `q` in the order of choices. sum (H).
void add_copies(const Arrival& from, size_t q, Rows& y, DType dtype, std::vector<float>& row, float* sum) {
  std::fill(sum, sum + row.size(), 0.0F);
  for (auto i = at(from.sum_begin[q]); i < at(from.sum_begin[q + 1]); ++i) {
    base::convert_to_float(y.row(from.pool_rows[at(from.sum_copies[i])]), dtype, row.data(),
                           static_cast<int64_t>(row.size()));
    for (size_t h = 0; h < row.size(); ++h) sum[h] += row[h];
  }
}

}  // namespace

base::Result<Traffic> meet(Channel& channel, const base::Status& mine, const std::string& words, const Routes& routes) {
  const base::NvtxRange range("other", [] { return "meet"; });
  std::vector<int32_t> numbers;  // each at most the choices of a rank
  for (const int64_t count : routes.counts) numbers.push_back(static_cast<int32_t>(count));
  for (const Shipment& to : routes.to) numbers.push_back(static_cast<int32_t>(to.tokens.size()));
  std::string text = words + kEndOfWords;
  text.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int32_t));
  const exec::Agreement all = exec::agree_texts(channel.team(), mine, text);
  OVERLACE_TRY(all.status);
  exec::Agreement of_words = all;
  for (std::string& other : of_words.texts) other.resize(std::min(other.size(), other.find(kEndOfWords)));
  OVERLACE_TRY(exec::agree_outcome(of_words, "the moe layer", channel.team().name()));
  Traffic out;
  for (const std::string& other : all.texts) {
    std::memcpy(numbers.data(), other.data() + words.size() + 1, numbers.size() * sizeof(int32_t));
    const auto rows = numbers.begin() + static_cast<std::ptrdiff_t>(routes.counts.size());
    out.counts.insert(out.counts.end(), numbers.begin(), rows);
    out.rows.insert(out.rows.end(), rows, numbers.end());
  }
  return out;
}

base::Result<Dispatched> dispatch(Channel& channel, const Placement& placement, const Routes& routes, Traffic traffic,
                                  const TensorView& x) {
  const int ranks = placement.ranks(), me = channel.team().rank();
  base::Result<std::vector<int32_t>> lists = exchange_lists(channel, placement, routes, traffic);
  if (!lists.ok()) return lists.status();
  Dispatched out{.traffic = std::move(traffic)};
  out.pool = make_pool_layout(out.traffic.counts, placement, me, 1);
  out.weights.resize(at(out.pool.rows()));
  auto word = lists->begin();
  for (int s = 0; s < ranks; ++s) {
    Arrival from{.pool_rows = pool_rows(out.traffic.counts, placement, me, out.pool, s)};
    for (const int64_t to : from.pool_rows) {
      from.rows.push_back(*word++);
      out.weights[at(to)] = std::bit_cast<float>(*word++);
    }
    const int64_t rows = out.traffic.rows[at(s * ranks + me)];
    if (rows > 0) {
      from.sum_begin.assign(word, word + rows + 1);
      word += rows + 1;
      from.sum_copies.assign(word, word + from.sum_begin.back());
      word += from.sum_begin.back();
    }
    out.from.push_back(std::move(from));
  }
  base::Result<Rows> rows = dispatch_more(channel, routes, out, x);
  if (!rows.ok()) return rows.status();
  out.x = std::move(rows).value();
  return out;
}

base::Result<Rows> dispatch_more(Channel& channel, const Routes& routes, const Dispatched& dispatched,
                                 const TensorView& tokens) {
  const int ranks = channel.team().size(), me = channel.team().rank();
  base::Result<Rows> came = exchange_tokens(channel, routes, dispatched.traffic, tokens);
  if (!came.ok()) return came.status();
  Rows out(tokens.dtype, dispatched.pool.rows(), tokens.dim(1));
  int64_t first = 0;  // of this source among the rows that came
  for (int s = 0; s < ranks; ++s) {
    const Arrival& from = dispatched.from[at(s)];
    for (size_t i = 0; i < from.rows.size(); ++i)
      std::memcpy(out.row(from.pool_rows[i]), came->row(first + from.rows[i]), out.row_bytes());
    first += dispatched.traffic.rows[at(s * ranks + me)];
  }
  return out;
}

base::Status return_numbers(Channel& channel, const Placement& placement, const Routes& routes,
                            const Dispatched& dispatched, const std::vector<float>& numbers, const TensorView& out) {
  const int ranks = placement.ranks();
  std::vector<int64_t> table(at(ranks * ranks));  // copies, the other way
  for (int s = 0; s < ranks; ++s)
    for (int d = 0; d < ranks; ++d) table[at(d * ranks + s)] = copies_of(dispatched.traffic, placement, s, d);
  std::vector<int32_t> sent, came;
  for (const Arrival& from : dispatched.from)
    for (const int64_t row : from.pool_rows) sent.push_back(std::bit_cast<int32_t>(numbers[at(row)]));
  for (const Shipment& to : routes.to) came.resize(came.size() + to.copies.size());
  OVERLACE_TRY(exchange(channel, column_of(sent), column_of(came), table));

  if (!out.defined()) return {};
  const int64_t k = out.dim(1);
  for (int64_t t = 0; t < out.dim(0); ++t) std::memset(out.rows(t, 1).data, 0, at(k) * sizeof(float));
  auto next = came.begin();
  for (const Shipment& to : routes.to)
    for (const int32_t choice : to.choices)
      static_cast<float*>(out.rows(choice / k, 1).data)[choice % k] = std::bit_cast<float>(*next++);
  return {};
}

base::Status combine(Channel& channel, const Routes& routes, const Dispatched& dispatched, Rows y,
                     const TensorView& out) {
  const int ranks = channel.team().size(), me = channel.team().rank();
  const DType dtype = y.view().dtype;
  const int64_t hidden = out.dim(1);
  std::vector<int64_t> table(at(ranks * ranks));  // sums: as many as rows, the other way; own ones stay
  int64_t going = 0, coming = 0;
  for (int p = 0; p < ranks; ++p)
    for (int s = 0; s < ranks; ++s) {
      const int64_t sums = s == p ? 0 : dispatched.traffic.rows[at(s * ranks + p)];
      table[at(p * ranks + s)] = sums;
      going += p == me ? sums : 0;
      coming += s == me ? sums : 0;
    }

  Rows sent(dtype, going, hidden), returned(dtype, coming, hidden);
  Rows own(DType::fp32, dispatched.traffic.rows[at(me * ranks + me)], hidden);
  std::vector<float> row(at(hidden)), sum(at(hidden));
  int64_t next = 0;
  for (int s = 0; s < ranks; ++s)
    for (int64_t q = 0; q < dispatched.traffic.rows[at(s * ranks + me)]; ++q) {
      add_copies(dispatched.from[at(s)], at(q), y, dtype, row, sum.data());
      if (s == me)
        std::memcpy(own.row(q), sum.data(), own.row_bytes());
      else
        base::convert_from_float(sum.data(), sent.row(next++), dtype, hidden);
    }
  OVERLACE_TRY(exchange(channel, sent.view(), returned.view(), table));

  std::vector<int64_t> first(at(ranks));  // of the sums from each rank
  for (int p = 1; p < ranks; ++p) first[at(p)] = first[at(p - 1)] + table[at((p - 1) * ranks + me)];
  for (int64_t t = 0; t < out.dim(0); ++t) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (int p = 0; p < ranks; ++p) {
      const int64_t q = routes.sum_of[at(t * ranks + p)];
      if (q < 0) continue;
      if (p == me)
        std::memcpy(row.data(), own.row(q), own.row_bytes());
      else
        base::convert_to_float(returned.row(first[at(p)] + q), dtype, row.data(), hidden);
      for (size_t h = 0; h < row.size(); ++h) sum[h] += row[h];
    }
    base::convert_from_float(sum.data(), out.rows(t, 1).data, out.dtype, hidden);
  }
  return {};
}

}  // namespace overlace::ops::moe
