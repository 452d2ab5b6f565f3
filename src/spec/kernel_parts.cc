#include "src/spec/kernel_parts.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/format.h"
#include "src/spec/fused_pod.h"
#include "src/spec/item_effects_pod.h"
#include "src/spec/items.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

struct Span {
  int64_t begin = 0, count = 0;
};
Span between(int64_t begin, int64_t end, int64_t limit) {
  const int64_t first = std::min(begin, limit);
  return {first, std::min(end, limit) - first};
}

using PartId = std::pair<std::string_view, std::vector<int64_t>>;  // task, values of its loops

/// What the kernel does in place of a part. Sums are made of `from` in its order.
struct Doing {
  PartId part;
  Kind kind = Kind::copy;
  std::vector<Box> from{};
  Box to;
  std::vector<ResolvedWait> waits{};
  std::vector<ResolvedSet> sets{};
  std::vector<PartId> behind{};
  bool adds = false;           // to what an earlier part left there
  bool ends_sums = false;      // adds a bias where there is one, and applies the activation
  bool moves_nothing = false;  // and yet tells somebody
};

/// Makes what a kernel does on a rank, and compares.
class Comparison {
 public:
  Comparison(const Schedule& schedule, const Expansion& expansion)
      : schedule_(schedule),
        expansion_(expansion),
        rank_(expansion.rank),
        ranks_(expansion.ranks),
        off_(schedule.tables.at("off")),
        m_(number("M")),
        n_(number("N")),
        k_(number("K")),
        travels_(returns_to_all(schedule.op)),
        has_bias_(buffer("bias") < static_cast<int>(schedule.buffers.size())),
        is_nk_(is(schedule.params, "b_layout", std::string("nk"))) {
    for (size_t i = 0; i < expansion.instances.size(); ++i) {
      const Instance& in = expansion.instances[i];
      const Task& task = schedule.tasks[static_cast<size_t>(in.task)];
      if (is_part(task)) parts_[{task.id, in.loop_values}] = static_cast<int>(i);
    }
  }

  base::Status run() {
    OVERLACE_TRY(check_sizes());
    const bool has_few_rows = takes_one_shot(schedule_);
    OVERLACE_TRY(is_tracked(schedule_)   ? counted_tiles()
                 : gathers(schedule_.op) ? (has_few_rows ? few_rows_gathered() : slabs())
                                         : (has_few_rows ? few_rows_summed() : sums()));
    if (compared_ != parts_.size())
      return bad("has {} parts on rank {}; its kernel does {}", parts_.size(), rank_, compared_);
    return check_others();
  }

 private:
  // ---- what the kernels do ----

  /// Products in groups of tiles, sums behind them, with AllReduce copies of peers' sums.
  base::Status sums() {
    OVERLACE_TRY(draws("woven"));
    OVERLACE_TRY(has_signals({"arrived", "credit"}));
    if (travels_) OVERLACE_TRY(has_signals({"ready"}));
    const int64_t tile_m = number("tile_m"), tile_n = number("tile_n");
    TileOrder order = make_tile_order(TileOrderKind::woven, rank_, ranks_, off_.data(), static_cast<int32_t>(tile_m),
                                      static_cast<int32_t>(base::ceil_div(n_, tile_n)));
    order.swizzle = kTileSwizzle;
    const TileGroups groups = woven_groups(&order, number("groups"), travels_);
    const int64_t longest = longest_shard(schedule_);
    const int64_t bands = base::ceil_div(longest_row_tiles(order), groups.rows);
    OVERLACE_TRY(inbox("S", {ranks_ - 1, longest, n_}));
    if (travels_) OVERLACE_TRY(inbox("Z", {m_, n_}));
    std::vector<PartId> all_sums;
    for (int64_t s = 0; s < bands; ++s) {
      for (int64_t j = 0; j < groups.groups_n; ++j) {
        const int64_t word = s * groups.groups_n + j, tall = groups.rows * tile_m, wide = groups.cols * tile_n;
        const auto rows = [&](int64_t shard) { return between(s * tall, (s + 1) * tall, rows_of(shard)); };
        const Span columns = between(j * wide, (j + 1) * wide, n_);
        const Box own = result(rank_, rows(rank_), columns), b = b_box(columns, {0, k_});
        const auto slots = [&](int64_t first, int64_t end, std::vector<Box>* out) {
          for (int64_t i = first; i < end; ++i)
            out->push_back(box("S", rank_, {{slot_of(i, rank_, ranks_), 1}, rows(rank_), columns}));
        };
        std::vector<Box> sources;  // in rank order, the own ones in the result
        slots(0, rank_, &sources);
        sources.push_back(own);
        slots(rank_ + 1, ranks_, &sources);
        if (has_bias_) sources.push_back(box("bias", rank_, {columns}));
        OVERLACE_TRY(compare({.part = {"tiles_own", {s, j}},
                              .kind = Kind::tiles,
                              .from = {box("A", rank_, {in_all(rank_, rows(rank_)), {0, k_}}), b},
                              .to = own}));
        OVERLACE_TRY(compare({.part = {"sum_own", {s, j}},
                              .kind = Kind::reduce,
                              .from = std::move(sources),
                              .to = own,
                              .waits = waits(awaited_by(Work::sum), rank_, word, 1),
                              .behind = {{"tiles_own", {s, j}}},
                              .ends_sums = true}));
        all_sums.push_back({"sum_own", {s, j}});
        for (int64_t p = 1; p < ranks_; ++p) {
          const int64_t owner = (rank_ + p) % ranks_;
          const bool is_in_slot = goes_to_slot(Work::product, /*is_own=*/false);
          const Box slot = box("S", owner, {{slot_of(rank_, owner, ranks_), 1}, rows(owner), columns});
          OVERLACE_TRY(compare({.part = {"tiles_remote", {p, s, j}},
                                .kind = Kind::tiles,
                                .from = {box("A", rank_, {in_all(owner, rows(owner)), {0, k_}}), b},
                                .to = is_in_slot ? slot : result(owner, rows(owner), columns),
                                .waits = credit_of(owner),
                                .sets = sets(told_by(Work::product, travels_), owner, word, 1)}));
          if (!travels_) continue;
          OVERLACE_TRY(compare({.part = {"broadcast", {s, j, p}},
                                .from = {own},
                                .to = box("Z", owner, {in_all(rank_, rows(rank_)), columns}),
                                .sets = sets(told_by(Work::sum, travels_), owner, word, 1),
                                .behind = {{"sum_own", {s, j}}}}));
          OVERLACE_TRY(compare({.part = {"copy_out", {s, j, p}},
                                .from = {box("Z", rank_, {in_all(owner, rows(owner)), columns})},
                                .to = result(owner, rows(owner), columns),
                                .waits = waits(awaited_by(Work::copy), owner, word, 1)}));
        }
      }
    }
    Doing release{.part = {"release", {}}, .to = {}, .behind = std::move(all_sums), .moves_nothing = true};
    for (int64_t p = 1; p < ranks_; ++p) release.sets.push_back(credit_to((rank_ + p) % ranks_));
    return compare(release);
  }

  /// Products of all rows into local memory; those of a chunk of a peer's rows are counted.
  base::Status counted_tiles() {
    OVERLACE_TRY(draws("own_last"));
    OVERLACE_TRY(has_signals({"done"}));
    OVERLACE_TRY(partials("P"));
    const int64_t tile_m = number("tile_m");
    const TileOrder order =
        make_tile_order(TileOrderKind::own_last, rank_, ranks_, off_.data(), static_cast<int32_t>(tile_m),
                        static_cast<int32_t>(base::ceil_div(n_, number("tile_n"))));
    const int64_t band = chunk_groups(order, number("groups")).rows, tall = band * tile_m;
    const Span columns = {0, n_};
    const auto product = [&](PartId part, const Span& rows, std::vector<ResolvedSet> sets) {
      return compare({.part = std::move(part),
                      .kind = Kind::tiles,
                      .from = {box("A", rank_, {rows, {0, k_}}), b_box(columns, {0, k_})},
                      .to = box("P", rank_, {rows, columns}),
                      .sets = std::move(sets)});
    };
    for (int64_t s = 0; s < base::ceil_div(longest_row_tiles(order), band); ++s) {
      for (int64_t p = 1; p < ranks_; ++p) {
        const int64_t owner = (rank_ + p) % ranks_;
        const int64_t counter = counter_of_chunk(static_cast<int32_t>(s), static_cast<int32_t>(p), ranks_);
        OVERLACE_TRY(product({"tiles_remote", {s, p}}, in_all(owner, between(s * tall, (s + 1) * tall, rows_of(owner))),
                             {{.signal = signal("done"), .slot = counter, .at = rank_}}));
      }
    }
    return product({"tiles_own", {}}, rows_in_all(rank_), {});
  }

  /// Own rows to all peers slab by slab, and tiles of each rank's rows.
  base::Status slabs() {
    OVERLACE_TRY(draws("rotated"));
    OVERLACE_TRY(has_signals({"arrived", "credit"}));
    OVERLACE_TRY(inbox("X", {m_, k_}));
    const auto blocks = static_cast<int32_t>(base::ceil_div(k_, kTileDepth));
    const int64_t q = number("q"), wide = blocks_of_slab(blocks, static_cast<int32_t>(q)) * kTileDepth;
    const std::vector<Box> bias = has_bias_ ? std::vector{box("bias", rank_, {{0, n_}})} : std::vector<Box>{};
    std::vector<Box> own = {box("A", rank_, {{0, rows_of(rank_)}, {0, k_}}), b_box({0, n_}, {0, k_})};
    own.insert(own.end(), bias.begin(), bias.end());
    OVERLACE_TRY(compare({.part = {"tiles_own", {}},
                          .kind = Kind::tiles,
                          .from = std::move(own),
                          .to = gathered_result(rank_),
                          .ends_sums = true}));
    for (int64_t s = 0; s < q; ++s) {
      const Span columns = between(s * wide, (s + 1) * wide, k_);
      for (int64_t p = 1; p < ranks_; ++p) {
        OVERLACE_TRY(compare(push(s, p, columns, credit_of((rank_ - p + ranks_) % ranks_))));
        const int64_t shard = (rank_ + p) % ranks_;
        Doing tiles{.part = {s == 0 ? "tiles_first" : "tiles_add", {p, s}},
                    .kind = Kind::tiles,
                    .from = {box("X", rank_, {rows_in_all(shard), columns}), b_box({0, n_}, columns)},
                    .to = gathered_result(shard),
                    .waits = waits(rows_awaited_by(/*is_own=*/false), shard, s, kShares),
                    .adds = s > 0,
                    .ends_sums = true};
        if (s + 1 == q) {
          tiles.sets = {credit_to(shard)};
          tiles.from.insert(tiles.from.end(), bias.begin(), bias.end());
        }
        OVERLACE_TRY(compare(tiles));
      }
    }
    return {};
  }

  /// Partial sums of few rows to who gets them, and sums. Credit is in the words.
  base::Status few_rows_summed() {
    OVERLACE_TRY(has_signals({"arrived"}));
    OVERLACE_TRY(inbox("S", {ranks_, one_shot_tokens(m_), one_shot_columns(n_)}));
    const Span columns = {0, n_}, whole = {0, m_};
    const PartId tiles = {"tiles", {}};
    OVERLACE_TRY(compare({.part = tiles,
                          .kind = Kind::tiles,
                          .from = {box("A", rank_, {whole, {0, k_}}), b_box(columns, {0, k_})},
                          .to = box("S", rank_, {{rank_, 1}, whole, columns})}));
    for (int64_t p = 1; p < ranks_; ++p) {
      const int64_t owner = (rank_ + p) % ranks_;
      const Span rows = travels_ ? whole : Span{off(owner), rows_of(owner)};
      OVERLACE_TRY(compare({.part = {"send", {p}},
                            .from = {box("S", rank_, {{rank_, 1}, rows, columns})},
                            .to = box("S", owner, {{rank_, 1}, rows, columns}),
                            .sets = sets(told_by(Work::product, travels_), owner, 0, 1),
                            .behind = {tiles}}));
    }
    const Span mine = travels_ ? whole : rows_in_all(rank_);
    std::vector<Box> sources;  // in rank order
    for (int64_t i = 0; i < ranks_; ++i) sources.push_back(box("S", rank_, {{i, 1}, mine, columns}));
    if (has_bias_) sources.push_back(box("bias", rank_, {columns}));
    return compare({.part = {"sum", {}},
                    .kind = Kind::reduce,
                    .from = std::move(sources),
                    .to = box("Y", rank_, {{0, mine.count}, columns}),
                    .waits = waits(awaited_by(Work::sum), rank_, 0, 1),
                    .behind = {tiles},
                    .ends_sums = true});
  }

  /// Few rows to all, this rank too, and tiles once all have come.
  base::Status few_rows_gathered() {
    OVERLACE_TRY(has_signals({"arrived"}));
    OVERLACE_TRY(inbox("X", {m_, k_}));
    const Span columns = {0, k_};
    for (int64_t p = 1; p < ranks_; ++p) OVERLACE_TRY(compare(push(0, p, columns, {})));
    OVERLACE_TRY(compare({.part = {"copy_own", {0}},
                          .from = {box("A", rank_, {{0, rows_of(rank_)}, columns})},
                          .to = box("X", rank_, {rows_in_all(rank_), columns})}));
    Doing tiles{.part = {"tiles", {}},
                .kind = Kind::tiles,
                .from = {box("X", rank_, {{0, m_}, columns}), b_box({0, n_}, columns)},
                .to = box("C", rank_, {{0, m_}, result_columns()}),
                .behind = {{"copy_own", {0}}},
                .ends_sums = true};
    if (has_bias_) tiles.from.push_back(box("bias", rank_, {{0, n_}}));
    tiles.waits = waits({Whose::everybody, rows_awaited_by(/*is_own=*/false).word}, rank_, 0, kShares);
    return compare(tiles);
  }

  Doing push(int64_t s, int64_t p, const Span& columns, std::vector<ResolvedWait> waits) const {
    const int64_t peer = (rank_ - p + ranks_) % ranks_;
    return {.part = {"push", {s, p}},
            .from = {box("A", rank_, {{0, rows_of(rank_)}, columns})},
            .to = box("X", peer, {rows_in_all(rank_), columns}),
            .waits = std::move(waits),
            .sets = sets({Whose::owner, rows_awaited_by(/*is_own=*/false).word}, peer, s, kShares)};
  }

  // ---- boxes, words ----

  static bool is(const Params& params, std::string_view name, const Param& value) {
    const auto found = params.find(name);
    return found != params.end() && found->second == value;
  }
  int64_t number(std::string_view name) const {
    const auto found = schedule_.params.find(name);
    const auto* value = found == schedule_.params.end() ? nullptr : std::get_if<int64_t>(&found->second);
    return value == nullptr ? 1 : *value;
  }
  int64_t off(int64_t rank) const { return off_[static_cast<size_t>(rank)]; }
  int64_t rows_of(int64_t rank) const { return off(rank + 1) - off(rank); }
  Span in_all(int64_t shard, const Span& rows) const { return {off(shard) + rows.begin, rows.count}; }
  Span rows_in_all(int64_t rank) const { return {off(rank), rows_of(rank)}; }
  Span result_columns() const { return {0, n_ / columns_per_result(schedule_.params)}; }

  int buffer(std::string_view name) const {
    const auto at = std::ranges::find(schedule_.buffers, name, &Buffer::name);
    return static_cast<int>(at - schedule_.buffers.begin());
  }
  Box box(std::string_view name, int64_t rank, const std::vector<Span>& spans) const {
    Box out{.buffer = buffer(name), .rank = static_cast<int>(rank), .ndim = static_cast<int>(spans.size())};
    for (size_t d = 0; d < spans.size(); ++d) {
      out.begin[d] = spans[d].begin;
      out.count[d] = spans[d].count;
    }
    return out;
  }
  Box b_box(const Span& columns, const Span& depth) const {
    return is_nk_ ? box("B", rank_, {columns, depth}) : box("B", rank_, {depth, columns});
  }
  /// Rows of `owner`'s shard of the sums, in this rank's result.
  Box result(int64_t owner, Span rows, const Span& columns) const {
    if (travels_) rows.begin += off(owner);
    return box("Y", rank_, {rows, columns});
  }
  Box gathered_result(int64_t shard) const { return box("C", rank_, {rows_in_all(shard), result_columns()}); }

  int signal(std::string_view name) const {
    const auto at = std::ranges::find(schedule_.signals, name, &SignalDecl::name);
    return static_cast<int>(at - schedule_.signals.begin());
  }
  int signal(Word word) const { return signal(word == Word::arrived ? "arrived" : "ready"); }
  /// This rank's own words are its order among its own parts.
  std::vector<ResolvedWait> waits(const Words& of, int64_t owner, int64_t slot, int64_t count) const {
    std::vector<ResolvedWait> out;
    for (int from = 0; from < ranks_; ++from)
      if (from != rank_ && is_among(of.whose, owner, from))
        out.push_back({.signal = signal(of.word), .slot = slot, .from = from, .at_least = count});
    return out;
  }
  /// To one of those who are told.
  std::vector<ResolvedSet> sets(const Words& of, int64_t to, int64_t slot, int64_t count) const {
    if (of.whose == Whose::nobody) return {};
    return {{.signal = signal(of.word), .slot = slot, .at = static_cast<int>(to), .add = count}};
  }
  static bool is_among(Whose whose, int64_t owner, int64_t rank) {
    return whose == Whose::everybody || (whose == Whose::owner && rank == owner);
  }
  std::vector<ResolvedWait> credit_of(int64_t peer) const {
    return {{.signal = signal("credit"), .from = static_cast<int>(peer), .previous = true}};
  }
  ResolvedSet credit_to(int64_t peer) const { return {.signal = signal("credit"), .at = static_cast<int>(peer)}; }

  // ---- comparison ----

  template <class... Args>
  base::Status bad(std::string_view text, const Args&... args) const {
    return base::error(Errc::bad_schedule, "schedule {} {}", schedule_.family, base::format(text, args...));
  }
  std::string word_text(int signal, int64_t slot) const {
    return base::format("{}[{}]", schedule_.signals[static_cast<size_t>(signal)].name, slot);
  }
  std::string text(const Box& at) const {
    const auto i = static_cast<size_t>(at.buffer);
    std::string out = i < schedule_.buffers.size() ? schedule_.buffers[i].name : "no buffer";
    for (int d = 0; d < at.ndim; ++d)
      out += base::format("{}{}:{}", d == 0 ? "[" : ", ", at.begin[d], at.begin[d] + at.count[d]);
    return out + base::format("] of rank {}", at.rank);
  }
  template <class T, class Text>
  static std::string list(const std::vector<T>& all, Text&& text) {
    std::string out;
    for (const T& x : all) out += (out.empty() ? "" : ", ") + text(x);
    return out.empty() ? "nothing" : out;
  }
  std::string text(const std::vector<ResolvedWait>& all) const {
    return list(all, [&](const ResolvedWait& w) {
      return base::format("{} of rank {} >= {}{}", word_text(w.signal, w.slot), w.from, w.at_least,
                          w.previous ? " of the call before" : "");
    });
  }
  std::string text(const std::vector<ResolvedSet>& all) const {
    return list(all, [&](const ResolvedSet& s) {
      return base::format("{} += {} at rank {}", word_text(s.signal, s.slot), s.add, s.at);
    });
  }
  std::string text(const std::vector<Box>& boxes) const {
    return list(boxes, [&](const Box& one) { return text(one); });
  }
  std::string text(const std::vector<int>& deps) const {
    return list(deps, [&](int i) { return expansion_.instances[static_cast<size_t>(i)].id(schedule_); });
  }

  base::Status draws(std::string_view items) const {
    const auto found = schedule_.params.find("items");
    const auto* name = found == schedule_.params.end() ? nullptr : std::get_if<std::string>(&found->second);
    if (name != nullptr && *name == items) return {};
    return bad("has items {}; its kernel draws them {}", name == nullptr ? "none" : *name, items);
  }
  base::Status has_signals(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names)
      if (signal(name) == static_cast<int>(schedule_.signals.size()))
        return bad("has no signal {}, which its kernel uses", name);
    return {};
  }
  base::Status inbox(std::string_view name, const std::vector<int64_t>& shape) const {
    const auto i = static_cast<size_t>(buffer(name));
    const auto text_of = [&](DType dtype, const std::vector<int64_t>& all, int64_t copies) {
      return base::format("{} of ({}), {} copies", dtype_name(dtype),
                          list(all, [](int64_t x) { return std::to_string(x); }), copies);
    };
    if (i == schedule_.buffers.size()) return bad("has no {}, which its kernel uses", name);
    const Buffer& there = schedule_.buffers[i];
    const bool has_type = is(schedule_.params, "dtype", std::string(dtype_name(there.dtype)));
    if (has_type && there.space == Space::symmetric && expansion_.buffer_shapes[i] == shape && there.depth == 2)
      return {};
    return bad("has {} as {}; its kernel wants symmetric memory of the operands' type, ({}), 2 copies", name,
               text_of(there.dtype, expansion_.buffer_shapes[i], there.depth),
               list(shape, [](int64_t x) { return std::to_string(x); }));
  }
  base::Status partials(std::string_view name) const {
    const auto i = static_cast<size_t>(buffer(name));
    if (i == schedule_.buffers.size()) return bad("has no {}, which its kernel uses", name);
    const Buffer& there = schedule_.buffers[i];
    const bool has_type = is(schedule_.params, "dtype", std::string(dtype_name(there.dtype)));
    const std::vector<int64_t> shape = {m_, n_};
    if (has_type && there.space == Space::local && expansion_.buffer_shapes[i] == shape) return {};
    return bad("has {} as {}, {} dimensions; its kernel wants local memory of the operands' type, ({}, {})", name,
               dtype_name(there.dtype), expansion_.buffer_shapes[i].size(), m_, n_);
  }
  base::Status check_sizes() const {
    if (ranks_ < 2 || ranks_ > kOrderShards)
      return bad("is of {} ranks; its kernel takes 2 to {}", ranks_, kOrderShards);
    if (static_cast<int>(off_.size()) != ranks_ + 1 || off_.front() != 0 || !std::ranges::is_sorted(off_) ||
        off_.back() != m_)
      return bad("has a table off that does not give {} rows to {} ranks", m_, ranks_);
    for (const char* name : {"tile_m", "tile_n", "groups", "q", "N", "K"})
      if (number(name) < 1 || number(name) > int64_t{1} << 30)
        return bad("has {} {}; its kernel takes 1 to {}", name, number(name), int64_t{1} << 30);
    return {};
  }
  /// The words and inboxes of a kernel are its own: it counts otherwise than the schedule, in epochs of its own. Not
  /// counters of scope device, which it sets for others; and one that sets those alone has no inbox.
  base::Status check_others() const {
    std::set<int> signals, inboxes;
    for (const auto& [id, i] : parts_) {
      const Instance& part = expansion_.instances[static_cast<size_t>(i)];
      for (const ResolvedWait& wait : part.waits) signals.insert(wait.signal);
      for (const ResolvedSet& set : part.sets)
        if (schedule_.signals[static_cast<size_t>(set.signal)].scope == Scope::system) signals.insert(set.signal);
    }
    for (size_t i = 0; i < schedule_.buffers.size(); ++i) {
      if (schedule_.buffers[i].space != Space::symmetric) continue;
      if (!is_tracked(schedule_)) inboxes.insert(static_cast<int>(i));
      if (schedule_.buffers[i].depth > 2)
        return bad("has {} copies of {}; beside its kernel there are 2", schedule_.buffers[i].depth,
                   schedule_.buffers[i].name);
    }
    for (const Instance& in : expansion_.instances) {
      if (is_part(schedule_.tasks[static_cast<size_t>(in.task)])) continue;
      const auto is_signal = [&](const auto& x) { return signals.contains(x.signal); };
      const auto is_inbox = [&](const std::vector<Box>& boxes) {
        return std::ranges::any_of(boxes, [&](const Box& at) { return inboxes.contains(at.buffer); });
      };
      if (std::ranges::any_of(in.waits, is_signal) || std::ranges::any_of(in.sets, is_signal) ||
          std::ranges::any_of(in.reads, is_inbox) || std::ranges::any_of(in.writes, is_inbox))
        return bad("lets {}, which is no part of its kernel, use the kernel's signals or inboxes; wanted: others",
                   in.id(schedule_));
    }
    return {};
  }

  base::Status compare(const Doing& doing) {
    const auto found = parts_.find({std::string(doing.part.first), doing.part.second});
    if (found == parts_.end())
      return bad("has no part {} on rank {} for {}", doing.part.first, rank_,
                 doing.moves_nothing ? text(doing.sets) : text(doing.to));
    ++compared_;
    const Instance& part = expansion_.instances[static_cast<size_t>(found->second)];
    const Task& task = schedule_.tasks[static_cast<size_t>(part.task)];
    const auto differs = [&](std::string_view what, const std::string& said, const std::string& done) {
      return bad("lets {} of rank {} {} {}; its kernel: {}", part.id(schedule_), rank_, what, said, done);
    };
    const bool adds_bias = doing.ends_sums && has_bias_;
    const Activation activation = doing.ends_sums ? activation_of(schedule_.params) : Activation::none;
    const bool is_layout = doing.kind != Kind::tiles || is(task.params, "b_layout", std::string(is_nk_ ? "nk" : "kn"));
    if (task.kind != doing.kind || task.engine != Engine::sm || (task.combine == Combine::add) != doing.adds ||
        is(task.params, "bias", true) != adds_bias || activation_of(task.params) != activation || !is_layout)
      return bad(
          "states {} in another way than its kernel does it: kind, engine, combine, bias, activation or layout of B",
          part.id(schedule_));
    const std::vector<Box> from = boxes_of(part.reads), to = boxes_of(part.writes);
    const bool is_empty = doing.moves_nothing || doing.to.empty();
    if (is_empty != to.empty() || (!is_empty && to != std::vector{doing.to}))
      return differs("write", text(to), is_empty ? "nothing" : text(doing.to));
    if (!is_empty && from != boxes_of({doing.from})) return differs("read", text(from), text(boxes_of({doing.from})));
    if (!alike(part.waits, doing.waits)) return differs("wait for", text(part.waits), text(doing.waits));
    if (!alike(part.sets, doing.sets)) return differs("set", text(part.sets), text(doing.sets));
    std::vector<int> behind;
    for (const auto& [name, loop_values] : doing.behind) {
      const auto before = parts_.find({std::string(name), loop_values});
      if (before != parts_.end()) behind.push_back(before->second);
    }
    if (!alike(part.deps, behind)) return differs("come behind", text(part.deps), text(behind));
    return {};
  }
  /// Those that hold something, in their order.
  static std::vector<Box> boxes_of(const std::vector<std::vector<Box>>& regions) {
    std::vector<Box> out;
    for (const std::vector<Box>& boxes : regions)
      std::ranges::copy_if(boxes, std::back_inserter(out), [](const Box& one) { return !one.empty(); });
    return out;
  }
  /// In any order.
  template <class T>
  static bool alike(const std::vector<T>& a, const std::vector<T>& b) {
    return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
  }

  const Schedule& schedule_;
  const Expansion& expansion_;
  const int rank_, ranks_;
  const std::vector<int64_t>& off_;
  const int64_t m_, n_, k_;
  const bool travels_, has_bias_, is_nk_;
  std::map<std::pair<std::string, std::vector<int64_t>>, int> parts_;
  size_t compared_ = 0;
};

}  // namespace

base::Status check_kernel(const Schedule& schedule, const Expansion& expansion) {
  if (!schedule.tables.contains("off"))
    return base::error(Errc::bad_schedule,
                       "schedule {} has no table off; wanted: one, by which its kernel knows the ranks' rows",
                       schedule.family);
  return Comparison(schedule, expansion).run();
}

}  // namespace overlace::spec
