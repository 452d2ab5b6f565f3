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

/// The values that an expression may name: r (this rank), G (ranks), host, local, loop variables, consts, integer
/// params and tables.
using Env = std::map<std::string, int64_t, std::less<>>;
using Tables = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// An integer expression: + - * % (non-negative remainder), / (exact, else an error), min(a,b), max(a,b), ceildiv(a,b),
/// table[index], parentheses. Immutable; copies share the parsed form.
class Expr {
 public:
  Expr();               // 0
  Expr(int64_t value);  // NOLINT(google-explicit-constructor): literals read as data
  Expr(int value) : Expr(int64_t{value}) {}
  /// Parses a text. Throws ScheduleError (`bad_schedule`) with the text and the position of the error.
  Expr(std::string_view text);  // NOLINT(google-explicit-constructor)
  Expr(const char* text) : Expr(std::string_view(text)) {}
  Expr(const std::string& text) : Expr(std::string_view(text)) {}
  /// Returns the value. Throws ScheduleError for an unknown name, an inexact division, a division by zero, an index
  /// outside its table, or an overflow.
  int64_t eval(const Env& env, const Tables& tables = {}) const;
  const std::string& text() const;
  bool operator==(const Expr& other) const { return text() == other.text(); }

 private:
  friend class BoundExpr;
  struct Node;
  static std::shared_ptr<const Node> parsed(std::string_view text);
  std::shared_ptr<const Node> node_;
};

/// Where a buffer lies. `argument` is memory that the caller of run gives; `local` is workspace of this rank;
/// `symmetric` is memory at one offset of every rank's heap.
enum class Space { argument, local, symmetric };
/// The unit that works on a task. Engines own lanes (engine, queue); a lane runs its instances in order.
enum class Engine { sm, ce, nic, io, cpu };
/// The kind of a task. `gemm` is a library GEMM; `tiles` is a part of a fused kernel (the operator's body); `copy`
/// moves 1-D or 2-D bytes to `writes[0].at`; `reduce` sums sources in their order (the operator's body); `collective`
/// calls the NetEngine; `pool` reads no buffer: each row that it writes is made of table rows which the operator's body
/// looks up, its buffer has a row for each bag of the problem and a column for each pooled column of the rank, and its
/// parameter "entries" is the expected number of table rows of a bag, by which it is timed.
enum class Kind { gemm, tiles, copy, reduce, collective, barrier, host, pool };
enum class Combine { none, add };
/// Where a task waits. With `queue` the lane stops until the waits hold. With `kernel` the task is a part of the
/// schedule's one fused kernel, which is launched once for all of them, waits by itself before it reads what a wait
/// covers, and sets signals by itself.
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

/// A buffer, row-major, with its shape in elements. `depth` copies take turns over calls (epochs); reuse must follow
/// from a chain of signals (check S6).
struct Buffer {
  std::string name;
  Space space = Space::local;
  DType dtype = DType::fp32;
  std::vector<Expr> shape;
  int depth = 1;
  bool operator==(const Buffer&) const = default;
};

/// A signal: `slots` words per sender. A word lives at the receiver and only grows. With scope `device` it has `slots`
/// words in all, which the rank itself sets and awaits alone: counters beside the heap that begin at 0 in each call. On
/// GPUs they count tiles that a running kernel has stored, and copy lanes wait for them.
struct SignalDecl {
  std::string name;
  Expr slots;
  Scope scope = Scope::system;
  bool operator==(const SignalDecl&) const = default;
};
/// A wait on a signal. It holds when the adds that rank `from` made in this epoch to word `slot` of this rank are at
/// least `at_least`. With `previous` it holds when all adds of earlier epochs have arrived, so it holds at once in the
/// first epoch.
struct Wait {
  std::string signal;
  Expr slot;
  Expr from;
  Expr at_least = 1;
  std::optional<Loop> each = {};
  bool previous = false;
  bool operator==(const Wait&) const = default;
};
/// A signal of a task: after completion it adds to word `slot` of sender r at rank `at`, with release semantics.
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
  Tables tables;  // "off": row offsets of the shards, G + 1 entries; "cut": those of the chunks, G * q + 1; "slab":
                  // columns; "chunk", "place": grouped gemm_ar, of chunk s of owner p at p * q + s. Where rows are
                  // exchanged: "splits"; "cut" of the chunks of each block, G * G * q + 1; "place" of each in its
                  // destination's result, G * G * q; "got": offsets of the results, G + 1. Where columns are
                  // exchanged: "block": offsets of the blocks
  bool deterministic = true;
  std::vector<Buffer> buffers;
  std::vector<SignalDecl> signals;
  std::vector<Task> tasks;
  bool operator==(const Schedule&) const = default;

  /// Returns canonical JSON (sorted keys, no spaces).
  std::string to_json() const;
  /// Reads JSON; unknown keys are refused unless they begin with "x-". Throws ScheduleError with the path of the value.
  static Schedule from_json(std::string_view text);
  /// Returns a few lines for people: lanes, tasks, and which task waits for which.
  std::string to_string() const;
};

/// How B is stored: `nk` is (N, K) with K contiguous (a weight, the usual case), `kn` is (K, N) with N contiguous. In
/// ag_wgrad, which sums over M, they are (N, M) and (M, N).
enum class BLayout { nk, kn };

/// The function that is applied to the sums, bias included, before they are rounded. `swiglu` combines columns 2i (a
/// gate) and 2i + 1 of B into column i of the result, silu(gate) times the other, with silu(x) = x / (1 + exp(-x))
/// (arXiv 2002.05202).
enum class Activation { none, swiglu };

/// What goes from each rank to each, in the operators that exchange. `rows` sends a block of each rank's rows to each
/// rank. With `cols` a rank that has all columns of its rows sends each rank the columns that are that rank's, which
/// then has them of all rows; or the reverse.
enum class Exchange { rows, cols };

/// What the sums of products are multiplied by, in fp32 numbers: `tensor` is one number for A and one for B, `rows` one
/// for each row of A and one for each column of B.
enum class Scales { none, tensor, rows };

/// The problem that an operator solves, as one rank sees it. M is global; N is local for ag_gemm and ag_wgrad, and K is
/// local for gemm_rs and gemm_ar. In ag_wgrad C (K, N) is the gathered A (M, K), transposed, times B, without bias. In
/// gemm_a2a and a2a_gemm M is the sum of all ranks' rows; if columns are exchanged, N and K are those of B, and what
/// travels is a multiple of ranks.
struct OpSpec {
  std::string op;  // name of an operator: ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_a2a, or one that was added
  int64_t m = 0, n = 0, k = 0;
  int ranks = 1;
  DType dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  BLayout b_layout = BLayout::nk;
  bool bias = false;
  bool gathered = false;                     // ag_gemm, ag_wgrad, a2a_gemm: the gathered A is a result too
  Activation activation = Activation::none;  // ag_gemm; with swiglu N, of B, is even, and C is (M, N / 2)
  std::vector<int64_t> row_offsets;          // empty: torch.tensor_split
  std::vector<int64_t> splits = {};          // gemm_a2a: rows from rank s to rank d at s * ranks + d, which sum to m;
                                             // empty: torch.tensor_split of each rank's rows. With cols: rows of
                                             // each rank
  Exchange exchange = Exchange::rows;        // gemm_a2a, a2a_gemm
  std::vector<int64_t> blocks = {};          // for cols: the columns that travel, N of gemm_a2a and K of a2a_gemm, in
                                             // blocks; each is a multiple of ranks and dealt by itself. Empty: one
  Params fields = {};                        // what OperatorDef::fields names
  Scales scales = Scales::none;              // not none where dtype is fp8, and there alone
  std::optional<DType> b_dtype = {};         // type of B where it is the other one of fp8; e5m2 goes with e4m3 alone
  bool operator==(const OpSpec&) const = default;
  /// Returns the problem as text: "ag_gemm M 8192 N 2560 K 8192 G 4 bf16".
  std::string to_string() const;
};

/// Returns the row offsets of the shards, G + 1 entries: the sums of `splits`, else `row_offsets`, else those of
/// torch.tensor_split.
std::vector<int64_t> row_offsets(const OpSpec& op);
/// Returns the rows from each rank to each, G x G entries: `splits`, else torch.tensor_split of each shard.
std::vector<int64_t> splits(const OpSpec& op);
/// Returns the offsets of the blocks of columns that travel, from 0 to all of them.
std::vector<int64_t> block_offsets(const OpSpec& op);

/// Returns all names that make_schedule takes for this operator, `library` and `serial` first. `compute`, `comm` and
/// `limit` are among them: they measure one side, or both without dependence, and give no valid output.
std::vector<std::string> families(std::string_view op);

/// Builds the schedule of a family. `family` has no suffix; `degree` is the number q >= 1 of chunks per shard and is
/// ignored by families without one. `options` are
/// "align" (the rows of a chunk are a multiple of it, default 1; for tma_slot the rows of a tile, 256),
/// "align_n" and "align_k" (columns of a slab, default 8; for k_slab 64; for tma_slot columns of a tile, 128 or 256),
/// "ce_queues" (copy lanes, default 1: in the order of need),
/// "own_degree" (parts of the GEMM of the local shard in gemm_rs and gemm_ar, a divisor of q, default 1),
/// "hosts" (for hierarchical: hosts of equal size, with ranks numbered host by host, default 1),
/// "credits" (receivers tell senders that an inbox is free, default true; false leaves that to the data signals of the
/// call between, at depth 2).
/// Throws ScheduleError with the known families or the bad option.
Schedule make_schedule(const OpSpec& op, std::string_view family, int degree = 1, const Params& options = {});

#pragma GCC visibility pop

}  // namespace overlace::spec
