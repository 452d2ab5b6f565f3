// S9: runs the schedule on provenance instead of numbers. Each piece of a buffer knows which rows and columns of the
// problem it holds and which (rank, range of K) products were added into it; at the end every output element must
// hold each contribution exactly once.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "src/base/format.h"
#include "src/spec/checks/graph.h"
#include "src/spec/checks/task_form.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

/// A rectangle of one matrix and what it holds. Its first element is (origin_row, origin_column) of the problem: of an
/// input where is_operand, else of the result. Where is_activated, columns are those of the result, else those of the
/// sums that it is made of.
struct Piece {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int64_t origin_row = 0, origin_column = 0;
  bool is_operand = false;
  bool is_activated = false;
  int num_biases = 0;
  std::vector<Term> terms = {};  // sorted; touching ranges of a source are one
  int num_residuals = 0;
  bool is_normed = false;

  /// The part inside the window, moved so that the window's corner becomes (0, 0).
  bool cut(int64_t r, int64_t nr, int64_t c, int64_t nc, Piece* out) const {
    const int64_t r0 = std::max(row, r), r1 = std::min(row + rows, r + nr);
    const int64_t c0 = std::max(column, c), c1 = std::min(column + columns, c + nc);
    if (r0 >= r1 || c0 >= c1) return false;
    *out = *this;
    out->origin_row += r0 - row;
    out->origin_column += c0 - column;
    out->row = r0 - r, out->rows = r1 - r0;
    out->column = c0 - c, out->columns = c1 - c0;
    return true;
  }
  int64_t area() const { return rows * columns; }
  void transpose() {
    std::swap(row, column);
    std::swap(rows, columns);
    std::swap(origin_row, origin_column);
  }
};
using Pieces = std::vector<Piece>;

void add_terms(std::vector<Term>* to, const std::vector<Term>& more) {
  to->insert(to->end(), more.begin(), more.end());
  std::sort(to->begin(), to->end());
  std::vector<Term> merged;
  for (const Term& term : *to) {
    if (!merged.empty() && merged.back().source == term.source && merged.back().end == term.begin) {
      merged.back().end = term.end;
    } else {
      merged.push_back(term);
    }
  }
  *to = std::move(merged);
}

int64_t area_of(const Pieces& pieces) {
  int64_t out = 0;
  for (const Piece& piece : pieces) out += piece.area();
  return out;
}

/// Whether a schedule or a task makes something else of its sums.
bool has_activation(const Params& params) {
  const auto it = params.find("activation");
  return it != params.end() && it->second != Param(std::string(name_of(Activation::none)));
}

class Provenance {
 public:
  /// `meanings`: of each rank.
  Provenance(const AllRanks& team, const std::vector<Meaning>& meanings, Findings* out)
      : team_(team), meanings_(meanings), out_(out) {
    for (int rank = 0; rank < team.size(); ++rank)
      for (const Held& input : meanings[static_cast<size_t>(rank)].inputs) bind(rank, input);
  }
  bool ok() const { return ok_; }

  void step(const Graph::Step& step) {
    const Instance& in = team_.at(step.rank, step.instance);
    const Task& task = team_.schedule->tasks[static_cast<size_t>(in.task)];
    at_ = {step.rank, step.instance};
    if (task.kind == Kind::gemm || task.kind == Kind::tiles) gemm(in, task);
    if (task.kind == Kind::copy) copy(in);
    if (task.kind == Kind::reduce) reduce(in, task);
    if (task.kind == Kind::pool) pool(in);
    if (task.kind == Kind::collective) step.is_start ? send(in) : receive(in, task);
  }

  void check_outputs() {
    for (int rank = 0; rank < team_.size() && ok_; ++rank) {
      at_ = {rank, -1};
      for (const Held& output : meanings_[static_cast<size_t>(rank)].outputs) {
        const Rect whole = rect(rank, output);
        for (const Piece& piece : read(whole)) check_output(piece, whole, output);
      }
    }
  }

 private:
  using Key = std::tuple<int, int, int64_t>;  // buffer, rank, layer

  int find(std::string_view name) const {
    const auto& buffers = team_.schedule->buffers;
    const auto it = std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.name == name; });
    return it == buffers.end() ? -1 : static_cast<int>(it - buffers.begin());
  }
  void fail(const std::string& why) {
    ok_ = false;
    out_->error("S9", at_.second < 0 ? "the result" : team_.id(at_.first, at_.second), at_.first, why);
  }

  /// Where it lies in its buffer, which check_coverage() has found.
  Rect rect(int rank, const Held& held) const {
    const int buffer = find(held.buffer);
    const auto& shape = team_.ranks[static_cast<size_t>(rank)].buffer_shapes[static_cast<size_t>(buffer)];
    const int64_t rows = held.rows == Held::kAll ? shape[0] - held.row : held.rows;
    const int64_t columns = held.columns == Held::kAll ? shape[1] - held.column : held.columns;
    return {buffer, rank, 0, 1, held.row, rows, held.column, columns};
  }

  void bind(int rank, const Held& input) {
    if (find(input.buffer) < 0) return;
    const Rect at = rect(rank, input);
    if (at.rows * at.columns == 0) return;
    store_[{at.buffer, rank, 0}].push_back({at.row,
                                            at.rows,
                                            at.column,
                                            at.columns,
                                            input.origin_row,
                                            input.origin_column,
                                            input.num_residuals == 0,
                                            false,
                                            0,
                                            {},
                                            input.num_residuals});
  }

  Pieces read(const Rect& rect) {
    Pieces out;
    for (const Piece& piece : store_[{rect.buffer, rect.rank, rect.layer}]) {
      if (Piece part; piece.cut(rect.row, rect.rows, rect.column, rect.columns, &part)) out.push_back(std::move(part));
    }
    if (area_of(out) != rect.rows * rect.columns && ok_) {
      fail(base::format("{} of the {} elements of {}@{} rows {}:{} columns {}:{} were never written",
                        rect.rows * rect.columns - area_of(out), rect.rows * rect.columns,
                        team_.schedule->buffers[static_cast<size_t>(rect.buffer)].name, rect.rank, rect.row,
                        rect.row + rect.rows, rect.column, rect.column + rect.columns));
    }
    return out;
  }

  /// Replaces the rectangle's contents by `pieces` (relative to its corner).
  void write(const Rect& rect, Pieces pieces) {
    Pieces& list = store_[{rect.buffer, rect.rank, rect.layer}];
    Pieces kept;
    const int64_t r0 = rect.row, r1 = rect.row + rect.rows, c0 = rect.column, c1 = rect.column + rect.columns;
    for (const Piece& old : list) {
      const int64_t top = std::max(old.row, r0), bottom = std::min(old.row + old.rows, r1);
      const int64_t left = std::max(old.column, c0), right = std::min(old.column + old.columns, c1);
      if (top >= bottom || left >= right) {
        kept.push_back(old);
        continue;
      }
      auto keep = [&](int64_t from_row, int64_t to_row, int64_t from_column, int64_t to_column) {
        Piece part;
        if (!old.cut(from_row, to_row - from_row, from_column, to_column - from_column, &part)) return;
        part.row += from_row;
        part.column += from_column;
        kept.push_back(std::move(part));
      };
      keep(old.row, top, old.column, old.column + old.columns);
      keep(bottom, old.row + old.rows, old.column, old.column + old.columns);
      keep(top, bottom, old.column, left);
      keep(top, bottom, right, old.column + old.columns);
    }
    for (Piece& piece : pieces) {
      piece.row += rect.row;
      piece.column += rect.column;
      kept.push_back(std::move(piece));
    }
    list = std::move(kept);
  }

  /// Sum of contents of one extent, element by element.
  Pieces sum(const Pieces& a, const Pieces& b) {
    Pieces out;
    for (const Piece& x : a) {
      for (const Piece& y : b) {
        Piece part, other;
        if (!x.cut(y.row, y.rows, y.column, y.columns, &part)) continue;
        part.row += y.row;
        part.column += y.column;
        y.cut(part.row, part.rows, part.column, part.columns, &other);
        if (part.origin_row != other.origin_row || part.origin_column != other.origin_column || part.is_operand ||
            other.is_operand) {
          fail(base::format("adds element ({}, {}) of the problem to element ({}, {})", other.origin_row,
                            other.origin_column, part.origin_row, part.origin_column));
          return out;
        }
        if (part.is_activated != other.is_activated) fail("adds what an activation made to what none made");
        part.num_biases += other.num_biases;
        part.num_residuals += other.num_residuals;
        add_terms(&part.terms, other.terms);
        out.push_back(std::move(part));
      }
    }
    return out;
  }

  /// Rows of the result from pieces of a; b begins at (k, n) of the problem.
  Pieces product(const Pieces& a, int64_t rows, int64_t depth, int64_t k, int64_t n, int64_t columns, int biases) {
    std::vector<int64_t> cuts = {0, rows};
    for (const Piece& piece : a) cuts.push_back(piece.row), cuts.push_back(piece.row + piece.rows);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    Pieces out;
    for (size_t i = 0; i + 1 < cuts.size() && ok_; ++i) {
      Piece result{cuts[i], cuts[i + 1] - cuts[i], 0, columns, -1, n, false, false, biases, {}};
      for (const Piece& piece : a) {
        Piece part;
        if (!piece.cut(result.row, result.rows, 0, depth, &part)) continue;
        if (!part.is_operand) fail("multiplies what is no part of a");
        if (result.origin_row >= 0 && part.origin_row != result.origin_row) fail("multiplies a row made of several");
        if (part.origin_column != k + part.column) {
          fail(base::format("multiplies column {} of a by row {} of b", part.origin_column, k + part.column));
        }
        result.origin_row = part.origin_row;
        add_terms(&result.terms, {{at_.first, part.origin_column, part.origin_column + part.columns}});
      }
      out.push_back(std::move(result));
    }
    return out;
  }

  /// The product with a transposed. No rows give zeros, of the rows that the columns of the box say.
  Pieces product_of_rows(const Rect& a, int64_t k, int64_t n, int64_t columns) {
    if (a.rows == 0) return {{0, a.columns, 0, columns, a.column, n, false, false, 0, {}}};
    Pieces pieces = read(a);
    for (Piece& piece : pieces) piece.transpose();
    return product(pieces, a.columns, a.rows, k, n, columns, 0);
  }

  /// Also `tiles`.
  void gemm(const Instance& in, const Task& task) {
    const Rect b = rect_of(in.reads[1][0]);
    const bool is_nk = is_b_nk(task);
    const int64_t k = is_nk ? b.column : b.row, n = is_nk ? b.row : b.column;
    const bool adds_bias = in.reads.size() - num_scales(task) == 3 && !in.reads[2].empty();
    const bool has_row_scales = scales_of(task.params) == Scales::rows;
    if (has_row_scales && rect_of(in.reads.back()[0]).column != n) fail("scales columns by those of others");
    for (size_t i = 0; i < in.reads[0].size() && ok_; ++i) {
      if (in.writes[0][i].empty()) continue;
      const Rect a = rect_of(in.reads[0][i]), c = rect_of(in.writes[0][i]);
      const bool is_add = task.combine == Combine::add;
      if (has_row_scales) check_scales(read(a), read(rect_of(in.reads[in.reads.size() - 2][i])));
      Pieces result;
      if (is_add && in.reads[0][i].empty()) {  // the bias alone
        result = read(c);
        if (adds_bias) add_bias(&result, n / columns_per_result(task.params));
      } else {
        const int64_t columns = sums_of(task, in.writes[0][i]).columns;
        result = sums_rows(task) ? product_of_rows(a, k, n, columns)
                                 : product(read(a), a.rows, a.columns, k, n, columns, adds_bias ? 1 : 0);
        activate(task, &result);  // the sums stay in registers: what is added to the result is added to them
        if (is_add && ok_) result = sum(read(c), result);
      }
      if (ok_) write(c, std::move(result));
    }
  }

  /// Scales are those of the rows that they stand beside.
  void check_scales(const Pieces& rows, const Pieces& scales) {
    for (const Piece& scale : scales) {
      if (!scale.is_operand || scale.origin_column != 0) return fail("scales rows by what is no scale");
      for (const Piece& piece : rows) {
        const bool meets = piece.row < scale.row + scale.rows && scale.row < piece.row + piece.rows;
        if (meets && piece.origin_row - piece.row != scale.origin_row - scale.row)
          return fail(base::format("scales row {} of the problem by the scale of row {}", piece.origin_row,
                                   scale.origin_row + piece.row - scale.row));
      }
    }
  }

  void copy(const Instance& in) {
    for (size_t i = 0; i < in.reads[0].size() && ok_; ++i) {
      if (in.reads[0][i].empty()) continue;
      Rect from = rect_of(in.reads[0][i]), to = rect_of(in.writes[0][i]);
      for (int64_t layer = 0; layer < from.layers && ok_; ++layer, ++from.layer, ++to.layer) write(to, read(from));
    }
  }

  /// Rows and columns of its buffer are those of the rank's bags, each summed once and whole.
  void pool(const Instance& in) {
    const Box& target = in.writes[0][0];
    if (target.empty()) return;
    const Rect to = rect_of(target);
    write(to, {{0, to.rows, 0, to.columns, to.row, to.column, false, false, 0, {{at_.first, 0, 1}}}});
  }

  void reduce(const Instance& in, const Task& task) {
    const Box& target = in.writes[0][0];
    if (target.empty()) return;
    Pieces total;
    bool is_first = true;
    const size_t num_sources = in.reads.size() - (has_bias(task) ? 1 : 0) - (has_norm(task) ? 1 : 0);
    for (size_t i = 0; i < num_sources && ok_; ++i) {
      for (const Box& box : in.reads[i]) {
        Pieces next = read(rect_of(box));
        for (const Piece& piece : next)
          if (piece.is_activated || piece.is_normed)
            fail(base::format("adds what {} made", piece.is_normed ? "a norm" : "an activation"));
        total = is_first ? std::move(next) : sum(total, next);
        is_first = false;
        if (!ok_) return;
      }
    }
    if (has_bias(task)) add_bias(&total, rect_of(in.reads[num_sources][0]).column);
    activate(task, &total);
    if (task.combine == Combine::add && ok_) total = sum(read(rect_of(target)), total);
    if (!ok_) return;
    if (has_norm(task)) norm(in, total);
    write(rect_of(target), std::move(total));
  }
  /// A row of the result needs all of its columns.
  void norm(const Instance& in, Pieces pieces) {
    const Box& weight = in.reads.back()[0];
    const auto& columns = team_.ranks[static_cast<size_t>(at_.first)].buffer_shapes[static_cast<size_t>(weight.buffer)];
    if (rect_of(weight).columns != columns.back()) fail("normalizes a part of each row");
    for (Piece& piece : pieces) {
      if (piece.origin_column != piece.column) fail("normalizes rows whose columns are not in their place");
      piece.is_normed = true;
    }
    if (ok_) write(rect_of(in.writes[1][0]), std::move(pieces));
  }
  /// Makes one column of `columns_per_result` each.
  void activate(const Task& task, Pieces* pieces) {
    const int64_t pair = columns_per_result(task.params);
    const bool is_made = has_activation(task.params);
    for (Piece& piece : *pieces) {
      if (piece.column % pair != 0 || piece.columns % pair != 0 || piece.origin_column % pair != 0)
        fail("activates half of a pair of columns");
      piece.column /= pair;
      piece.columns /= pair;
      piece.origin_column /= pair;
      piece.is_activated = is_made;
    }
  }
  void add_bias(Pieces* pieces, int64_t first_column) {
    for (Piece& piece : *pieces) {
      ++piece.num_biases;
      if (piece.origin_column != first_column + piece.column) fail("adds the bias of other columns");
    }
  }

  void send(const Instance& in) { sent_[{in.task, in.loop_values, at_.first}] = read(rect_of(in.reads[0][0])); }

  void receive(const Instance& in, const Task& task) {
    const std::string name = collective_of(task);
    Rect to = rect_of(in.writes[0][0]);
    if (name == "all_gather") {
      for (int rank = 0; rank < team_.size(); ++rank) {
        Pieces part = sent_[{in.task, in.loop_values, rank}];
        to.rows = 0;
        for (const Piece& piece : part) to.rows = std::max(to.rows, piece.row + piece.rows);
        write(to, std::move(part));
        to.row += to.rows;
      }
      return;
    }
    if (name == "all_to_all") {
      const std::vector<int64_t>* splits = splits_table(*team_.schedule, task, team_.size());
      const int64_t even = to.rows / team_.size();
      const auto rows = [&](int from, int dest) {
        return splits == nullptr ? even : (*splits)[static_cast<size_t>(from * team_.size() + dest)];
      };
      for (int rank = 0; rank < team_.size(); ++rank, to.row += to.rows) {
        int64_t first = 0;
        for (int dest = 0; dest < at_.first; ++dest) first += rows(rank, dest);
        to.rows = rows(rank, at_.first);
        Pieces mine;
        for (const Piece& piece : sent_[{in.task, in.loop_values, rank}]) {
          if (Piece part; piece.cut(first, to.rows, 0, to.columns, &part)) mine.push_back(std::move(part));
        }
        write(to, std::move(mine));
      }
      return;
    }
    Pieces total = sent_[{in.task, in.loop_values, 0}];
    for (int rank = 1; rank < team_.size() && ok_; ++rank) total = sum(total, sent_[{in.task, in.loop_values, rank}]);
    if (name == "reduce_scatter") {
      Pieces mine;
      for (const Piece& piece : total) {
        if (Piece part; piece.cut(rows_before(in), to.rows, 0, to.columns, &part)) mine.push_back(std::move(part));
      }
      total = std::move(mine);
    }
    if (ok_) write(to, std::move(total));
  }
  /// Rows that go to lower ranks in a reduce-scatter.
  int64_t rows_before(const Instance& in) const {
    int64_t out = 0;
    for (int rank = 0; rank < at_.first; ++rank) {
      for (const Instance& other : team_.ranks[static_cast<size_t>(rank)].instances) {
        if (other.task == in.task && other.loop_values == in.loop_values) out += rect_of(other.writes[0][0]).rows;
      }
    }
    return out;
  }

  /// `piece` lies relative to the corner of `whole`, which must hold `want`.
  void check_output(const Piece& piece, const Rect& whole, const Held& want) {
    if (!ok_) return;
    const int64_t row = whole.row + piece.row, column = whole.column + piece.column;
    const std::string where =
        base::format("rows {}:{} columns {}:{}", row, row + piece.rows, column, column + piece.columns);
    const int64_t origin_row = want.origin_row + piece.row, origin_column = want.origin_column + piece.column;
    if (piece.origin_row != origin_row || piece.origin_column != origin_column) {
      return fail(base::format("{} hold element ({}, {}) of the product, wanted ({}, {})", where, piece.origin_row,
                               piece.origin_column, origin_row, origin_column));
    }
    if (piece.is_operand != want.is_operand)
      return fail(base::format("{} are {}, wanted {}", where, kinds(piece.is_operand), kinds(want.is_operand)));
    if (piece.terms != want.terms) {
      std::string got;
      for (const Term& term : piece.terms) got += base::format(" rank {} k {}:{}", term.source, term.begin, term.end);
      return fail(base::format("{} are the sum of{}, wanted each of {} sources once over k 0:{}", where,
                               got.empty() ? " nothing" : got, want.terms.size(),
                               want.terms.empty() ? 0 : want.terms.front().end));
    }
    if (piece.is_activated != want.is_activated)
      return fail(base::format("{} have passed {} activation", where, piece.is_activated ? "an" : "no"));
    if (piece.is_normed != want.is_normed)
      return fail(base::format("{} have passed {} norm", where, piece.is_normed ? "a" : "no"));
    if (piece.num_residuals != want.num_residuals) {
      return fail(
          base::format("{} hold the residual {} times, wanted {}", where, piece.num_residuals, want.num_residuals));
    }
    if (piece.num_biases != want.num_biases) {
      fail(base::format("{} hold the bias {} times, wanted {}", where, piece.num_biases, want.num_biases));
    }
  }
  static const char* kinds(bool is_operand) { return is_operand ? "elements of an input" : "sums of products"; }

  const AllRanks& team_;
  const std::vector<Meaning>& meanings_;
  Findings* out_;
  bool ok_ = true;
  std::pair<int, int> at_ = {0, -1};
  std::map<Key, Pieces> store_;
  std::map<std::tuple<int, std::vector<int64_t>, int>, Pieces> sent_;
};

}  // namespace

void check_coverage(const AllRanks& team, const Graph& graph, Findings* out) {
  const Schedule& schedule = *team.schedule;
  const OperatorDef* const op = find_operator(schedule.op);
  if (op == nullptr)
    return out->warn("S9", schedule.family, 0, base::format("needs an operator known here: {}", operator_names()));
  const auto off = schedule.tables.find("off");
  if (off == schedule.tables.end() || off->second.size() != static_cast<size_t>(team.size()) + 1)
    return out->warn("S9", schedule.family, 0, "needs the table off");
  for (const Arg& arg : op->args) {
    if (arg.role != Role::output) continue;
    if (std::none_of(schedule.buffers.begin(), schedule.buffers.end(),
                     [&](const Buffer& b) { return b.name == arg.name && b.shape.size() == 2; }))
      return out->warn("S9", schedule.family, 0, base::format("needs the result {} of {}", arg.name, op->name));
  }
  std::vector<Meaning> meanings;
  for (int rank = 0; rank < team.size(); ++rank) meanings.push_back(op->meaning(schedule, rank, team.size()));
  const auto holds_nothing = [](const Meaning& meaning) {
    return std::all_of(meaning.outputs.begin(), meaning.outputs.end(),
                       [](const Held& held) { return held.terms.empty() && !held.is_operand; });
  };
  if (std::all_of(meanings.begin(), meanings.end(), holds_nothing)) return;  // nothing to contribute
  Provenance provenance(team, meanings, out);
  for (const Graph::Step& step : graph.steps()) {
    provenance.step(step);
    if (!provenance.ok()) return;
  }
  provenance.check_outputs();
}

}  // namespace overlace::spec
