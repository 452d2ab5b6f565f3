#include "src/spec/expander.h"

#include <algorithm>
#include <utility>

namespace overlace::spec {
namespace {

std::string joined(const std::vector<Loop>& loops, const std::vector<int64_t>& values) {
  std::string out;
  for (size_t i = 0; i < loops.size() && i < values.size(); ++i) {
    out += (i == 0 ? "[" : ",") + loops[i].var + "=" + std::to_string(values[i]);
  }
  return out.empty() ? out : out + "]";
}

}  // namespace

std::string Instance::id(const Schedule& schedule) const {
  const Task& t = schedule.tasks[static_cast<size_t>(task)];
  return t.id + joined(t.loops, loop_values);
}

void Expander::fail(std::string_view code, const std::string& why) {
  if (!status_.ok()) return;
  std::string where = where_;
  if (task_ != nullptr) {
    std::vector<int64_t> values;
    for (const BoundLoop& loop : task_->loops) values.push_back(symbols_.value(loop.slot));
    where += joined(task_->task->loops, values);
  }
  status_ = base::error(Errc::bad_schedule, "{}: {}, rank {} of {}: {}", code, where, rank_, ranks_, why);
}

void Expander::move_to(int rank) {
  rank_ = rank;
  stamps_[0] = ++clock_;
  ranges_.clear();
  num_points_ = num_items_ = 0;
}

/// What is different on every rank.
void Expander::name_rank() {
  where_ = "schedule " + schedule_.family;
  symbols_.value(symbols_.slot("r")) = rank_;
  symbols_.value(symbols_.slot("G")) = ranks_;
  const auto given = schedule_.params.find("hosts");
  const int64_t* hosts = given == schedule_.params.end() ? nullptr : std::get_if<int64_t>(&given->second);
  if (hosts != nullptr && (*hosts < 1 || ranks_ % *hosts != 0))
    return fail("S1", base::format("hosts is {}, wanted a divisor of the {} ranks", *hosts, ranks_));
  const int64_t ranks_of_host = hosts == nullptr ? ranks_ : ranks_ / *hosts;
  symbols_.value(symbols_.slot("host")) = rank_ / ranks_of_host;
  symbols_.value(symbols_.slot("local")) = rank_ % ranks_of_host;
  if (rank_ < 0 || rank_ >= ranks_) fail("S1", base::format("rank is {}, wanted 0 to {}", rank_, ranks_ - 1));
}

void Expander::bind_names() {
  name_rank();
  if (is_bound_ || !ok()) return;
  for (const auto& [name, value] : schedule_.params) {
    const int64_t* integer = std::get_if<int64_t>(&value);
    if (integer == nullptr) continue;
    if (name == "G") {
      if (*integer != ranks_) fail("S1", base::format("made for {} ranks, expanded for {}", *integer, ranks_));
    } else if (symbols_.find(name) >= 0) {
      fail("S1", base::format("parameter '{}' hides a name of the language", name));
    } else {
      symbols_.value(symbols_.slot(name)) = *integer;
    }
  }
}

void Expander::bind_consts() {
  where_ = "consts";
  if (is_bound_) {
    for (const auto& [slot, value] : consts_) symbols_.value(slot) = eval(value);
    return;
  }
  std::vector<const std::pair<const std::string, Expr>*> open;
  for (const auto& entry : schedule_.consts) {
    if (symbols_.find(entry.first) >= 0) fail("S1", base::format("constant '{}' hides another name", entry.first));
    open.push_back(&entry);
  }
  while (ok() && !open.empty()) {
    const size_t before = open.size();
    std::string unknown;
    for (auto it = open.begin(); it != open.end() && ok();) {
      RankExpr bound{BoundExpr((*it)->second, symbols_)};
      if (!bound.expr.unknown().empty()) {
        if (unknown.empty()) unknown = (*it)->first + " = " + (*it)->second.text() + ": " + bound.expr.unknown();
        ++it;
        continue;
      }
      const int64_t value = eval(bound);
      const int slot = symbols_.slot((*it)->first);
      symbols_.value(slot) = value;
      consts_.emplace_back(slot, std::move(bound));
      it = open.erase(it);
    }
    if (open.size() == before) return fail("S1", unknown + " is unknown or the constants are cyclic");
  }
}

int64_t Expander::eval(const RankExpr& expr) {
  if (!ok()) return 0;
  const uint64_t stamp = stamps_[static_cast<size_t>(expr.slot)];
  if (expr.stamp == stamp) return expr.value;
  ExprFault fault = ExprFault::none;
  expr.value = expr.expr.eval(symbols_.values(), &fault);
  if (fault != ExprFault::none) fail("S1", base::format("\"{}\": {}", expr.text(), fault_text(fault)));
  expr.stamp = stamp;
  return expr.value;
}

void Expander::set(int slot, int64_t value) {
  symbols_.value(slot) = value;
  stamps_[static_cast<size_t>(slot)] = ++clock_;
}

RankExpr Expander::bind(const Expr& expr, std::string_view what) {
  RankExpr bound{BoundExpr(expr, symbols_)};
  if (!bound.expr.unknown().empty())
    fail("S1", base::format("{} \"{}\": {} is unknown", what, expr.text(), bound.expr.unknown()));
  if (const int slot = bound.expr.last_slot(); slot >= num_fixed_) bound.slot = slot;
  return bound;
}

BoundLoop Expander::bind_loop(const Loop& loop) {
  RankExpr begin = bind(loop.begin, "loop"), end = bind(loop.end, "loop");
  if (symbols_.find(loop.var) >= 0) fail("S1", base::format("loop variable '{}' hides another name", loop.var));
  const int slot = symbols_.slot(loop.var);
  stamps_.resize(static_cast<size_t>(symbols_.size()), 0);
  return {slot, std::move(begin), std::move(end)};
}

std::optional<BoundLoop> Expander::bind_each(const std::optional<Loop>& each) {
  if (!each) return std::nullopt;
  return bind_loop(*each);
}

void Expander::drop(const std::optional<Loop>& each) {
  if (each && ok()) symbols_.erase(each->var);
}

BoundRegion Expander::bind_region(const Region& region) {
  const auto& buffers = schedule_.buffers;
  const auto it =
      std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& b) { return b.name == region.buffer; });
  if (it == buffers.end()) fail("S1", base::format("buffer '{}' is not declared", region.buffer));
  if (it != buffers.end() && it->shape.size() != region.dims.size()) {
    fail("S1", base::format("a region of '{}' has {} dimensions, wanted {}", region.buffer, region.dims.size(),
                            it->shape.size()));
  }
  std::optional<BoundLoop> each = bind_each(region.each);
  BoundRegion out{static_cast<int>(it - buffers.begin()), bind(region.at, "rank"), {}, std::move(each)};
  for (const Range& range : region.dims) out.dims.emplace_back(bind(range.begin, "begin"), bind(range.count, "count"));
  drop(region.each);
  return out;
}

int Expander::signal_index(std::string_view name) {
  const auto& signals = schedule_.signals;
  const auto it = std::find_if(signals.begin(), signals.end(), [&](const SignalDecl& s) { return s.name == name; });
  if (it == signals.end()) fail("S1", base::format("signal '{}' is not declared", name));
  return static_cast<int>(it - signals.begin());
}

BoundTask Expander::bind_task(const Task& task) {
  where_ = "task " + task.id;
  std::vector<BoundLoop> loops;
  for (const Loop& loop : task.loops) loops.push_back(bind_loop(loop));
  BoundTask out{&task, std::move(loops), bind(task.queue, "queue"), bind(task.order, "order"), {}, {}, {}, {}};
  for (const Set& set : task.sets) {
    const int signal = signal_index(set.signal);
    std::optional<BoundLoop> each = bind_each(set.each);
    out.sets.push_back({signal, bind(set.slot, "slot"), bind(set.at, "rank"), set.add, std::move(each)});
    drop(set.each);
  }
  for (const Region& region : task.reads) out.reads.push_back(bind_region(region));
  for (const Region& region : task.writes) out.writes.push_back(bind_region(region));
  for (const Wait& wait : task.waits) {
    const int signal = signal_index(wait.signal);
    std::optional<BoundLoop> each = bind_each(wait.each);
    out.waits.push_back({signal, bind(wait.slot, "slot"), bind(wait.from, "rank"), bind(wait.at_least, "at_least"),
                         std::move(each), wait.previous});
    drop(wait.each);
  }
  return out;
}

void Expander::drop_loops(const Task& task) {
  for (const Loop& loop : task.loops) symbols_.erase(loop.var);
}

template <class Visit>
void Expander::for_each(const std::optional<BoundLoop>& each, Visit visit) {
  const auto visit_one = [&] {
    if (++num_items_ > kMaxItems) return fail("S1", base::format("more than {} regions, waits and sets", kMaxItems));
    visit();
  };
  if (!each) return visit_one();
  const int64_t end = eval(each->end);
  for (int64_t i = eval(each->begin); i < end && ok(); ++i) {
    set(each->slot, i);
    visit_one();
  }
}

template <class Visit>
void Expander::for_points(const BoundTask& task, size_t depth, std::vector<int64_t>* point, const Visit& visit) {
  if (!ok()) return;
  if (depth == task.loops.size()) return visit();
  const BoundLoop& loop = task.loops[depth];
  const int64_t end = eval(loop.end);
  for (int64_t i = eval(loop.begin); i < end && ok(); ++i) {
    if (++num_points_ > kMaxInstances) return fail("S1", base::format("more than {} instances", kMaxInstances));
    set(loop.slot, i);
    point->push_back(i);
    for_points(task, depth + 1, point, visit);
    point->pop_back();
  }
}

int Expander::peer(const RankExpr& expr, std::string_view what) {
  const int64_t rank = eval(expr);
  if (rank < 0 || rank >= ranks_) {
    fail("S2", base::format("{} \"{}\" is rank {}, wanted 0 to {}", what, expr.text(), rank, ranks_ - 1));
    return 0;
  }
  return static_cast<int>(rank);
}

int64_t Expander::checked_slot(const RankExpr& expr, int signal) {
  const int64_t slot = eval(expr), slots = ok() ? slots_[static_cast<size_t>(signal)] : 0;
  if (ok() && (slot < 0 || slot >= slots)) {
    fail("S2", base::format("slot \"{}\" of signal '{}' is {}, wanted 0 to {}", expr.text(),
                            schedule_.signals[static_cast<size_t>(signal)].name, slot, slots - 1));
  }
  return slot;
}

Box Expander::resolve(const BoundRegion& region, const Expansion& out) {
  Box box;
  const Buffer& buffer = schedule_.buffers[static_cast<size_t>(region.buffer)];
  const std::vector<int64_t>& shape = out.buffer_shapes[static_cast<size_t>(region.buffer)];
  box.buffer = region.buffer;
  box.rank = peer(region.at, "region of");
  box.ndim = static_cast<int>(shape.size());
  if (ok() && box.rank != rank_ && buffer.space != Space::symmetric) {
    fail("S2", base::format("buffer '{}' of rank {} cannot be reached: it is not symmetric", buffer.name, box.rank));
  }
  for (size_t d = 0; d < shape.size() && ok(); ++d) {
    box.begin[d] = eval(region.dims[d].first);
    box.count[d] = eval(region.dims[d].second);
    if (box.count[d] < 0) {
      fail("S2", base::format("count \"{}\" of '{}' is {}", region.dims[d].second.text(), buffer.name, box.count[d]));
    }
  }
  if (box.empty()) return box;
  for (size_t d = 0; d < shape.size() && ok(); ++d) {
    if (box.begin[d] < 0 || box.count[d] > shape[d] || box.begin[d] > shape[d] - box.count[d]) {
      fail("S2", base::format("dimension {} of '{}' has {} elements, the region begins at {} and has {}", d,
                              buffer.name, shape[d], box.begin[d], box.count[d]));
    }
  }
  return box;
}

void Expander::emit(const BoundTask& task, int task_index, const std::vector<int64_t>& point, Expansion* out) {
  Instance& in = out->instances.emplace_back();
  in.task = task_index;
  in.lane = {task.task->engine, eval(task.queue)};
  in.order = eval(task.order);
  in.loop_values = point;
  auto boxes = [&](const std::vector<BoundRegion>& regions, std::vector<std::vector<Box>>* lists) {
    lists->reserve(regions.size());
    for (const BoundRegion& region : regions) {
      std::vector<Box>& list = lists->emplace_back();
      if (region.each) list.reserve(static_cast<size_t>(std::clamp<int64_t>(eval(region.each->end), 0, ranks_)));
      for_each(region.each, [&] { list.push_back(resolve(region, *out)); });
    }
  };
  boxes(task.reads, &in.reads);
  boxes(task.writes, &in.writes);
  for (const BoundWait& wait : task.waits) {
    for_each(wait.each, [&] {
      in.waits.push_back({wait.signal, checked_slot(wait.slot, wait.signal), peer(wait.from, "wait for"),
                          eval(wait.at_least), wait.previous});
    });
  }
  for (const BoundSet& set : task.sets) {
    for_each(set.each, [&] {
      in.sets.push_back({set.signal, checked_slot(set.slot, set.signal), peer(set.at, "set at"), set.add});
    });
  }
}

void Expander::shapes(Expansion* out) {
  size_t next = 0;
  for (const Buffer& buffer : schedule_.buffers) {
    where_ = "buffer " + buffer.name;
    std::vector<int64_t>& shape = out->buffer_shapes.emplace_back();
    for (const Expr& extent : buffer.shape) {
      if (!is_bound_) extents_.push_back(bind(extent, "extent"));
      shape.push_back(eval(extents_[next++]));
    }
    if (shape.empty() || shape.size() > kMaxDims) {
      fail("S1", base::format("{} dimensions, wanted 1 to {}", shape.size(), kMaxDims));
    }
    if (ok() && *std::min_element(shape.begin(), shape.end()) < 0) fail("S1", "negative extent");
    int64_t numel = 1;
    for (int64_t extent : shape) {
      if (ok() && __builtin_mul_overflow(numel, std::max<int64_t>(extent, 1), &numel))
        fail("S1", "overflow of its size");
    }
    if (buffer.depth < 1) fail("S1", base::format("depth is {}, wanted >= 1", buffer.depth));
  }
  for (const SignalDecl& signal : schedule_.signals) {
    where_ = "signal " + signal.name;
    const size_t index = out->signal_slots.size();
    if (!is_bound_) slot_counts_.push_back(bind(signal.slots, "slots"));
    out->signal_slots.push_back(eval(slot_counts_[index]));
    if (ok() && (out->signal_slots.back() < 0 || out->signal_slots.back() > kMaxInstances)) {
      fail("S1", base::format("{} slots, wanted 0 to {}", out->signal_slots.back(), kMaxInstances));
    }
  }
}

base::Status Expander::expand(Expansion* out) {
  bind_names();
  bind_consts();
  if (!is_bound_) num_fixed_ = symbols_.size();
  shapes(out);
  slots_ = out->signal_slots;
  tasks_.reserve(schedule_.tasks.size());
  for (size_t i = 0; i < schedule_.tasks.size() && ok(); ++i) {
    const Task& task = schedule_.tasks[i];
    const int first = static_cast<int>(out->instances.size());
    if (is_bound_) {
      where_ = "task " + task.id;
    } else {
      tasks_.push_back(bind_task(task));
    }
    const BoundTask& bound = tasks_[i];
    task_ = &bound;
    std::vector<int64_t> point;
    for_points(bound, 0, &point, [&] { emit(bound, static_cast<int>(i), point, out); });
    task_ = nullptr;
    if (!is_bound_) drop_loops(task);
    ranges_.emplace_back(first, static_cast<int>(out->instances.size()));
  }
  is_bound_ = ok();
  return status_;
}

base::Status Expander::add_sets(Expansion* out, int at) {
  OVERLACE_ASSERT(is_bound_);
  bind_names();
  bind_consts();
  slots_ = out->signal_slots;
  for (const BoundTask& bound : tasks_) {
    if (!ok()) break;
    if (bound.sets.empty()) continue;
    where_ = "task " + bound.task->id;
    task_ = &bound;
    std::vector<int64_t> point;
    for_points(bound, 0, &point, [&] {
      for (const BoundSet& set : bound.sets) {
        for_each(set.each, [&] {
          const int64_t slot = checked_slot(set.slot, set.signal);
          if (peer(set.at, "set at") != at || !ok()) return;
          out->adds_table[static_cast<size_t>(set.signal)][static_cast<size_t>(slot * ranks_ + rank_)] += set.add;
        });
      }
    });
    task_ = nullptr;
  }
  return status_;
}

}  // namespace overlace::spec
