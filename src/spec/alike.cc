// What expressions have in common on all ranks, read off their steps with values in place of numbers.
#include "src/spec/alike.h"

#include <algorithm>

#include "src/spec/expander.h"

namespace overlace::spec {
namespace {

/// What is known of an expression's value on all ranks, with loop variables that are the same: it is
/// coef * (a number that may differ from rank to rank) + what is the same on all of them.
struct Form {
  enum class Turn : uint8_t { none, shifted, rank };
  uint64_t hash = 0;     // of the expression: equal where the value is, on each rank
  uint64_t differs = 0;  // hash of the number that differs; 0: none does
  int64_t coef = 0;
  Turn turn = Turn::none;  // shifted: r plus what is the same on all ranks, modulo G; rank: besides in [0, G)
  bool is_known = false;   // the same on all ranks, and `value`
  int64_t value = 0;
  bool is_same() const { return differs == 0; }
};

uint64_t mixed(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u) * 0xbf58476d1ce4e5b9u ^ c * 0x94d049bb133111ebu;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93u;
  return (x ^ x >> 29) | 1;  // 0 is for none
}

Form known(uint64_t hash, int64_t value) { return {hash, 0, 0, Form::Turn::none, true, value}; }
Form same(uint64_t hash) { return {.hash = hash}; }
Form different(uint64_t hash, Form::Turn turn = Form::Turn::none) { return {hash, hash, 1, turn}; }

/// a + sign * b
Form sum(uint64_t hash, const Form& a, const Form& b, int sign) {
  Form out = same(hash);
  if (a.is_known && b.is_known) {
    out.is_known = !(sign > 0 ? __builtin_add_overflow(a.value, b.value, &out.value)
                              : __builtin_sub_overflow(a.value, b.value, &out.value));
    return out;
  }
  if (!a.is_same() && !b.is_same() && a.differs != b.differs) return different(hash);
  if (__builtin_add_overflow(a.coef, sign * b.coef, &out.coef)) return different(hash);
  if (out.coef != 0) out.differs = a.is_same() ? b.differs : a.differs;
  const bool turns = b.is_same() ? a.turn != Form::Turn::none : a.is_same() && sign > 0 && b.turn != Form::Turn::none;
  if (turns) out.turn = Form::Turn::shifted;
  return out;
}

Form product(uint64_t hash, const Form& a, const Form& b) {
  Form out = same(hash);
  if (a.is_same() && b.is_same()) {
    out.is_known = a.is_known && b.is_known && !__builtin_mul_overflow(a.value, b.value, &out.value);
    return out;
  }
  const Form& factor = a.is_known ? a : b;
  const Form& line = a.is_known ? b : a;
  if (!factor.is_known || __builtin_mul_overflow(line.coef, factor.value, &out.coef)) return different(hash);
  if (out.coef != 0) out.differs = line.differs;
  return out;
}

/// table[i + step] - table[i] is one number for all i.
bool has_period(const std::vector<int64_t>& table, int64_t step, int64_t* growth) {
  const auto size = static_cast<int64_t>(table.size());
  if (step <= 0 || step >= size) return false;
  const int64_t* cells = table.data();
  *growth = cells[step] - cells[0];
  for (int64_t i = 1; i + step < size; ++i)
    if (cells[i + step] - cells[i] != *growth) return false;
  return true;
}

class Alike {
 public:
  Alike(int ranks, const Symbols& symbols, int num_fixed) : ranks_(ranks) {
    for (int slot = 0; slot < symbols.size(); ++slot) {
      const uint64_t hash = mixed(1, static_cast<uint64_t>(slot), 0);
      forms_.push_back(slot < num_fixed ? known(hash, *(symbols.values() + slot)) : same(hash));  // loops: the same
    }
    const int r = symbols.find("r");
    for (const char* name : {"host", "local"}) turn(symbols.find(name), Form::Turn::none);
    turn(r, Form::Turn::rank);
    rank_hash_ = forms_[static_cast<size_t>(r)].hash;
  }

  /// A constant: rank 0's value is in its slot already.
  void define(int slot, const RankExpr& value) {
    const Form found = form(value.expr);
    if (!found.is_same()) forms_[static_cast<size_t>(slot)] = found;
  }
  bool is_same(const RankExpr& expr) { return form(expr.expr).is_same(); }
  bool is_task(const BoundTask& task);

 private:
  using Turn = Form::Turn;
  void turn(int slot, Turn turn) {
    Form& form = forms_[static_cast<size_t>(slot)];
    form = different(form.hash, turn);
  }
  Form form(const BoundExpr& expr);
  Form step(const ExprStep& step, const Form& a, const Form& b) const;
  Form cell(uint64_t hash, const std::vector<int64_t>& table, const Form& index);
  bool is_peer(const RankExpr& expr) { return form(expr.expr).turn == Turn::rank; }
  bool is_loop(const std::optional<BoundLoop>& loop) { return !loop || (is_same(loop->begin) && is_same(loop->end)); }
  bool has_same_boxes(const BoundRegion& region, bool with_begins);
  bool are_all_but_mine(const BoundRegion& below, const BoundRegion& above);
  bool are_reads(const BoundTask& task);

  const int ranks_;
  uint64_t rank_hash_ = 0;
  std::vector<Form> forms_;  // by slot
  std::vector<Form> stack_ = std::vector<Form>(kMaxExprDepth);
};

Form Alike::cell(uint64_t hash, const std::vector<int64_t>& table, const Form& index) {
  if (index.is_same()) return same(hash);
  Form out = same(hash);
  int64_t growth = 0;
  if (!has_period(table, index.coef < 0 ? -index.coef : index.coef, &growth)) return different(hash);
  out.coef = index.coef < 0 ? -growth : growth;
  if (out.coef != 0) out.differs = index.differs;
  return out;
}

Form Alike::step(const ExprStep& step, const Form& a, const Form& b) const {
  const uint64_t hash = mixed(static_cast<uint64_t>(step.op) + 16, a.hash, b.hash);
  switch (step.op) {
    case ExprOp::add:
      return sum(hash, a, b, 1);
    case ExprOp::sub:
      return sum(hash, a, b, -1);
    case ExprOp::mul:
      return product(hash, a, b);
    case ExprOp::mod:
      if (a.turn != Turn::none && b.is_known && b.value == ranks_) return different(hash, Turn::rank);
      break;
    default:
      break;
  }
  return a.is_same() && b.is_same() ? same(hash) : different(hash);
}

Form Alike::form(const BoundExpr& expr) {
  Form* const stack = stack_.data();
  int top = -1;
  for (const ExprStep& s : expr.steps()) {
    const auto index = static_cast<size_t>(s.value);
    switch (s.op) {
      case ExprOp::literal:
        stack[++top] = known(mixed(2, static_cast<uint64_t>(s.value), 0), s.value);
        break;
      case ExprOp::name:
        stack[++top] = forms_[static_cast<size_t>(expr.slots()[index])];
        break;
      case ExprOp::table: {
        const std::vector<int64_t>& table = *expr.tables()[index];
        stack[top] = cell(mixed(3, stack[top].hash, reinterpret_cast<uintptr_t>(&table)), table, stack[top]);
        break;
      }
      case ExprOp::neg:
        stack[top] = sum(mixed(4, stack[top].hash, 0), known(0, 0), stack[top], -1);
        break;
      default:
        stack[top - 1] = step(s, stack[top - 1], stack[top]);
        --top;
    }
  }
  return stack[0];
}

bool Alike::has_same_boxes(const BoundRegion& region, bool with_begins) {
  return is_peer(region.at) && std::all_of(region.dims.begin(), region.dims.end(), [&](const auto& dim) {
           return is_same(dim.second) && (!with_begins || is_same(dim.first));
         });
}

/// One box for each rank below mine, and the same for each above: as many on all ranks.
bool Alike::are_all_but_mine(const BoundRegion& below, const BoundRegion& above) {
  const Form zero = form(below.each->begin.expr), mine = form(below.each->end.expr);
  const Form next = form(above.each->begin.expr), end = form(above.each->end.expr);
  const uint64_t behind_mine = mixed(static_cast<uint64_t>(ExprOp::add) + 16, rank_hash_, mixed(2, 1, 0));
  bool is = zero.is_known && zero.value == 0 && mine.hash == rank_hash_ && next.hash == behind_mine && end.is_known &&
            end.value == ranks_ && below.buffer == above.buffer;
  for (size_t d = 0; d < below.dims.size(); ++d)
    is = is && form(below.dims[d].second.expr).hash == form(above.dims[d].second.expr).hash;
  return is;
}

bool Alike::are_reads(const BoundTask& task) {
  const Kind kind = task.task->kind;
  const BoundRegion* below = nullptr;
  for (size_t i = 0; i < task.reads.size(); ++i) {
    const BoundRegion& region = task.reads[i];
    if (!has_same_boxes(region, kind == Kind::gemm && region.each)) return false;
    if (is_loop(region.each)) continue;
    // What such a task takes depends on how many boxes there are together, or not on them at all.
    if (kind != Kind::reduce && (kind != Kind::tiles || i < 2)) return false;
    if (below != nullptr && !are_all_but_mine(*below, region)) return false;
    below = below == nullptr ? &region : nullptr;
  }
  return below == nullptr;
}

bool Alike::is_task(const BoundTask& task) {
  for (const BoundLoop& loop : task.loops)
    if (!is_same(loop.begin) || !is_same(loop.end)) return false;
  if (!is_same(task.queue) || !is_same(task.order) || !are_reads(task)) return false;
  for (const BoundRegion& region : task.writes)
    if (!is_loop(region.each) || !has_same_boxes(region, task.task->kind == Kind::gemm && region.each)) return false;
  for (const BoundWait& wait : task.waits) {
    if (!is_loop(wait.each) || !is_same(wait.slot) || !is_same(wait.at_least) || !is_peer(wait.from)) return false;
  }
  return std::all_of(task.sets.begin(), task.sets.end(),
                     [&](const BoundSet& set) { return is_loop(set.each) && is_same(set.slot) && is_peer(set.at); });
}

}  // namespace

bool Expander::are_ranks_alike() const {
  if (!is_bound_ || ranks_ < 2) return false;
  Alike alike(ranks_, symbols_, num_fixed_);
  for (const auto& [slot, value] : consts_) alike.define(slot, value);
  const auto is_same = [&](const RankExpr& expr) { return alike.is_same(expr); };
  return std::all_of(extents_.begin(), extents_.end(), is_same) &&
         std::all_of(slot_counts_.begin(), slot_counts_.end(), is_same) &&
         std::all_of(tasks_.begin(), tasks_.end(), [&](const BoundTask& task) { return alike.is_task(task); });
}

}  // namespace overlace::spec
