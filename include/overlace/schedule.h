// Schedules as plain data: buffers, signals, loops, tasks on lanes. One SPMD template serves every rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "overlace/dtype_pod.h"

namespace overlace::spec {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// What an expression may name: r (this rank), G (ranks), host, local, loop variables, consts, integer params, tables.
using Env = std::map<std::string, int64_t, std::less<>>;
using Tables = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// Integer expression: + - * % (non-negative remainder), / (exact, else an error), min(a,b), max(a,b), ceildiv(a,b),
/// table[index], parentheses. Immutable; copies share the parsed form.
class Expr {
 public:
  Expr() : Expr(int64_t{0}) {}
  Expr(int64_t value);  // NOLINT(google-explicit-constructor): literals read as data
  Expr(int value) : Expr(int64_t{value}) {}
  /// Throws ScheduleError (`bad_schedule`) with the text and the position.
  Expr(std::string_view text);  // NOLINT(google-explicit-constructor)
  Expr(const char* text) : Expr(std::string_view(text)) {}
  Expr(const std::string& text) : Expr(std::string_view(text)) {}
  /// Throws ScheduleError: unknown name, inexact division, division by zero, index outside its table, overflow.
  int64_t eval(const Env& env, const Tables& tables = {}) const;
  const std::string& text() const;
  bool operator==(const Expr& other) const { return text() == other.text(); }

 private:
  friend class BoundExpr;
  struct Node;
  std::shared_ptr<const Node> node_;
  std::shared_ptr<const std::string> text_;
};

/// argument: bound by the caller of run; local: workspace of this rank; symmetric: same offset on every rank's heap.
enum class Space { argument, local, symmetric };
/// Engines own lanes (engine, queue); a lane runs its instances in order.
enum class Engine { sm, ce, nic, io, cpu };
/// gemm: library GEMM; tiles: part of a fused kernel (operator's body); copy: 1-D or 2-D bytes to `writes[0].at`;
/// reduce: sum of sources in source order (operator's body); collective: NetEngine; barrier, host.
enum class Kind { gemm, tiles, copy, reduce, collective, barrier, host };
enum class Combine { none, add };
/// queue: the lane stops until the waits hold; kernel: the task is a part of the schedule's one fused kernel, which is
/// launched once for all of them, waits by itself before it reads what a wait covers, and sets by itself.
enum class WaitBy { queue, kernel };
enum class Scope { device, system };

using Param = std::variant<int64_t, double, bool, std::string>;
using Params = std::map<std::string, Param, std::less<>>;

struct Loop {
  std::string var;
  Expr begin, end;
  bool operator==(const Loop&) const = default;
};
struct Range {
  Expr begin, count;
  bool operator==(const Range&) const = default;
};

/// A box of a buffer at rank `at`; with `each`, one box per value of its variable, in ascending order.
struct Region {
  std::string buffer;
  Expr at = "r";
  std::vector<Range> dims = {};
  std::optional<Loop> each = {};
  bool operator==(const Region&) const = default;
};

/// Shape in elements, row-major. `depth` copies rotate over calls (epochs); reuse must follow from a signal path (S6).
struct Buffer {
  std::string name;
  Space space = Space::local;
  DType dtype = DType::fp32;
  std::vector<Expr> shape;
  int depth = 1;
  bool operator==(const Buffer&) const = default;
};

/// `slots` words per sender; a word lives at the receiver and only grows.
struct SignalDecl {
  std::string name;
  Expr slots;
  Scope scope = Scope::system;
  bool operator==(const SignalDecl&) const = default;
};
/// Holds when the adds that rank `from` made to my word `slot` in THIS epoch are >= at_least; with `previous`, once all
/// adds of the epochs before this one are in (so it passes at once in the first).
struct Wait {
  std::string signal;
  Expr slot;
  Expr from;
  Expr at_least = 1;
  std::optional<Loop> each = {};
  bool previous = false;
  bool operator==(const Wait&) const = default;
};
/// After completion: add to word `slot` of sender r at rank `at`, with release semantics.
struct Set {
  std::string signal;
  Expr slot;
  Expr at;
  int64_t add = 1;
  std::optional<Loop> each = {};
  bool operator==(const Set&) const = default;
};

struct Task {
  std::string id;
  Kind kind = Kind::gemm;
  Engine engine = Engine::sm;
  Expr queue = 0;           // with the engine: the lane
  Expr order = 0;           // position in the lane; ties by loop indices
  std::vector<Loop> loops;  // one instance per point
  Params params;
  Combine combine = Combine::none;
  std::vector<Region> reads, writes;
  std::vector<std::string> deps;  // tasks of this rank; instances whose common loop variables are equal
  std::vector<Wait> waits;
  WaitBy wait_by = WaitBy::queue;
  std::vector<Set> sets;
  bool operator==(const Task&) const = default;
};

struct Schedule {
  int version = 1;
  std::string op;      // name of an operator (overlace/operator.h)
  std::string family;  // name of one of its families and its suffix: "hetero_fused_1d", "hetero_fused_1d_rs"
  Params params;       // M, N, K, G, q, dtype, ...
  std::map<std::string, Expr, std::less<>> consts;
  Tables tables;  // "off": row offsets of the shards, G + 1 entries; "cut": of the chunks, G * q + 1; "slab": columns;
                  // "chunk", "place": grouped gemm_ar, of chunk s of owner p at p * q + s. Where rows are exchanged:
                  // "splits"; "cut" of the chunks of each block, G * G * q + 1; "place" of each in its destination's
                  // result, G * G * q; "got": offsets of the results, G + 1. Where columns are: "block": offsets of
                  // the blocks
  bool deterministic = true;
  std::vector<Buffer> buffers;
  std::vector<SignalDecl> signals;
  std::vector<Task> tasks;
  bool operator==(const Schedule&) const = default;

  /// Canonical JSON (sorted keys, no spaces); parse accepts unknown keys only as "x-...". Throws ScheduleError with the
  /// path of the offending value.
  std::string to_json() const;
  static Schedule from_json(std::string_view text);
  /// A few lines for people: lanes, tasks, who waits for whom.
  std::string to_string() const;
};

/// Whether B is stored (N, K) with K contiguous (a weight, the usual case) or (K, N) with N contiguous. In ag_wgrad,
/// whose sum is over M, these are (N, M) and (M, N).
enum class BLayout { nk, kn };

/// What becomes of the sums, bias included, before they are rounded. swiglu: of columns 2i (a gate) and 2i + 1 of B
/// together column i of the result, silu(gate) times the other, silu(x) = x / (1 + exp(-x)) (arXiv 2002.05202).
enum class Activation { none, swiglu };

/// What goes from each rank to each, in the operators that exchange. rows: a block of rows of each rank to each. cols:
/// a rank that has all columns of its rows sends each rank the columns that are that rank's, which then has them of all
/// rows; or the reverse.
enum class Exchange { rows, cols };

/// What an operator is asked to do, as one rank sees it. M is global; N is local for ag_gemm and ag_wgrad, K is local
/// for gemm_rs/ar. ag_wgrad: C (K, N) = gathered A (M, K), transposed, times B, without bias. gemm_a2a: M is the sum of
/// all ranks' rows. Where columns are exchanged, N and K are those of B, and a multiple of ranks of what travels.
struct OpSpec {
  std::string op;  // name of an operator: ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_a2a, or one that was added
  int64_t m = 0, n = 0, k = 0;
  int ranks = 1;
  DType dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  BLayout b_layout = BLayout::nk;
  bool bias = false;
  bool gathered = false;                     // ag_gemm, ag_wgrad: the gathered A is a result too
  Activation activation = Activation::none;  // ag_gemm; with swiglu N, of B, is even, and C is (M, N / 2)
  std::vector<int64_t> row_offsets;          // empty: torch.tensor_split
  std::vector<int64_t> splits = {};          // gemm_a2a: rows from rank s to rank d at s * ranks + d, which sum to m;
                                             // empty: torch.tensor_split of each rank's rows. With cols: rows of
                                             // each rank
  Exchange exchange = Exchange::rows;        // gemm_a2a, a2a_gemm
  std::vector<int64_t> blocks = {};          // of cols: the columns that travel, N of gemm_a2a and K of a2a_gemm, in
                                             // blocks; each is a multiple of ranks and dealt by itself. Empty: one
  Params fields = {};                        // what OperatorDef::fields names
  /// "ag_gemm M 8192 N 2560 K 8192 G 4 bf16"
  std::string to_string() const;
};

/// Row offsets of the shards, G + 1 entries: what `splits` sum to, or `row_offsets`, or torch.tensor_split's.
std::vector<int64_t> row_offsets(const OpSpec& op);
/// Rows from rank to rank, G x G entries: `splits`, or torch.tensor_split's of each shard.
std::vector<int64_t> splits(const OpSpec& op);
/// Offsets of the blocks of columns that travel, from 0 to all of them.
std::vector<int64_t> block_offsets(const OpSpec& op);

/// All names that make_schedule takes for this operator, `library` and `serial` first. Besides the schedules proper:
/// `compute`, `comm` and `limit`, which measure one side or both without dependence and give no valid output.
std::vector<std::string> families(std::string_view op);

/// Builds a family's schedule. `family` without suffix; `degree` q >= 1 chunks per shard (ignored where the family has
/// none). `options`: "align" (rows of a chunk are a multiple of it, default 1; tma_slot: of a tile, 256), "align_n" and
/// "align_k" (columns of a slab, default 8; k_slab: 64; tma_slot: of a tile, 128 or 256), "ce_queues" (copy lanes,
/// default 1: in need order), "own_degree" (parts of the own shard's GEMM in gemm_rs/ar, a divisor of q, default 1),
/// "hosts" (of hierarchical: hosts of equal size with ranks numbered host by host, default 1), "credits" (receivers
/// tell senders that an inbox is free, default true; false leaves that to the data signals of the call between, at
/// depth 2). Throws ScheduleError naming the known families or the bad option.
Schedule make_schedule(const OpSpec& op, std::string_view family, int degree = 1, const Params& options = {});

#pragma GCC visibility pop

}  // namespace overlace::spec
