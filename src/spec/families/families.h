// What the family builders share: the frame of a schedule, its regions, and the tasks that recur.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/operator.h"

namespace overlace::spec {

/// The library's operators, one line each in all.cc.
std::span<const OperatorDef* const> built_in_operators();
extern const OperatorDef kAgGemm, kAgWgrad, kGemmRs, kGemmAr, kGemmArNorm, kGemmA2a, kA2aGemm, kEmbeddingA2a;

/// Begins of `parts` parts of [0, extent), each a multiple of `align` long but the last ones, and the end.
std::vector<int64_t> cut_evenly(int64_t extent, int64_t parts, int64_t align);

/// Table "slab": `extent` columns in options.degree parts.
void cut_slabs(Schedule* schedule, int64_t extent, const FamilyOptions& options);

/// What all four mean: A and B as they lie, results as their flow says.
Meaning dense_meaning(const Schedule& schedule, int rank, int ranks);
/// The plain GEMM, but for purpose comm, which has no task.
void make_dense_alone(Schedule* schedule, const OpSpec& op, Purpose purpose);

/// gemm_a2a and a2a_gemm where columns are exchanged: a family of either, and what both mean.
enum class Columns { library, serial, all_ranks, other_ranks, per_rank, compute, comm, limit };
void make_columns_behind(Schedule* schedule, const OpSpec& op, const FamilyOptions& options, Columns how);
void make_columns_before(Schedule* schedule, const OpSpec& op, const FamilyOptions& options, Columns how);
Meaning columns_meaning(const Schedule& schedule, int rank, int ranks, bool is_before);

/// Over `options.hosts` hosts: the family itself and what it is measured against.
enum class Hosts { overlapped, serial, comm, limit };
template <Hosts kHow>
void make_hierarchical(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);

// ---- rows of the tables ----

using Degrees = std::vector<int> (*)(const OpSpec&, const Machine&);
using Make = void (*)(Schedule*, const OpSpec&, const FamilyOptions&);
/// A family without a degree.
constexpr FamilyDef whole(std::string_view name, ClosedForm form, Degrees degrees, Make make) {
  return {.name = name, .form = form, .degrees = degrees, .make = make};
}
/// One that cuts shards. `rule`: as FamilyDef::rule.
constexpr FamilyDef cut(std::string_view name, ClosedForm form, int rule, Degrees degrees, Make make) {
  return {.name = name, .has_degree = true, .form = form, .rule = rule, .degrees = degrees, .make = make};
}
/// One that measures a part.
constexpr FamilyDef bound(std::string_view name, Purpose purpose, Make make) {
  return {.name = name, .purpose = purpose, .has_degree = purpose != Purpose::compute, .make = make};
}
constexpr FamilyDef with_defaults(FamilyDef family, void (*set_defaults)(const OpSpec&, FamilyOptions*)) {
  family.set_defaults = set_defaults;
  return family;
}

// ---- degrees that are worth an estimate ----

/// Families without a degree.
std::vector<int> degree_of_one(const OpSpec& op, const Machine& machine);
/// Chunks of rows, or slabs of columns. GPUs: copies of at least 512 KiB.
std::vector<int> chunk_degrees(const OpSpec& op, const Machine& machine);
std::vector<int> slab_degrees(const OpSpec& op, const Machine& machine);
/// Chunks of all other shards at once: not whole on GPUs, where it was not measured.
std::vector<int> batch_degrees(const OpSpec& op, const Machine& machine);
/// One-kernel families, where the machine is a GPU and the kernel takes the problem: slabs, groups of tiles, bands.
std::vector<int> slab_kernel_degrees(const OpSpec& op, const Machine& machine);
std::vector<int> tile_kernel_degrees(const OpSpec& op, const Machine& machine);
std::vector<int> band_kernel_degrees(const OpSpec& op, const Machine& machine);
/// Chunks that copies send behind a running kernel.
std::vector<int> tracked_kernel_degrees(const OpSpec& op, const Machine& machine);
std::vector<int> small_m_degrees(const OpSpec& op, const Machine& machine);
/// Alignments that the kernels' tiles ask for.
void align_to_slabs(const OpSpec& op, FamilyOptions* options);
void align_to_tiles(const OpSpec& op, FamilyOptions* options);

/// The part of a result that travels at once: chunk s of a shard's rows and all columns (1-D), or a whole shard's rows
/// and slab s of the columns (2-D). Grouped: shard p is the chunks that the tables "chunk" and "place" give it.
struct Piece {
  bool is_slab = false;
  bool is_grouped = false;
  /// Dims in a buffer of all M rows, and in a buffer of that shard's rows.
  std::vector<Range> of(const std::string& shard, const std::string& s = "s") const;
  std::vector<Range> in_shard(const std::string& shard, const std::string& s = "s") const;
};
/// gemm_rs and gemm_ar up to the reduction: "S", signals `arrived` and `credit`, GEMMs, transfers to the owners, and
/// the reduction into my rows of "Y". Returns the loops of the reduction and its chunk number.
struct Reduction {
  Piece piece;
  std::vector<Loop> loops;
  std::string s;
};
/// How the GEMMs are cut.
enum class Scatter { serial, comm, limit, all_shards, slabs, other_shards, per_shard };
Reduction add_scatter(Schedule* schedule, const OpSpec& op, const FamilyOptions& options, Scatter how);
/// The GEMM, then the library's collective, and the GEMM alone, of both.
void make_scatter_library(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
void make_scatter_compute(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
/// "P", "S" with `shard_max` rows a slot, signals `arrived[chunk]` of each source and `credit` back to the sources.
void add_slots(Schedule* schedule, const OpSpec& op, int64_t shard_max);
/// Copies of partials "P" to the owners' slots "S".
void add_scatter_copies(Schedule* schedule, const FamilyOptions& options, const Piece& piece,
                        const std::vector<std::string>& deps);
/// My slots of my rows, in rank order with my own partial in its place, then the bias; one rounding, into "Y".
Task sum_of_sources(const OpSpec& op, const Piece& piece, const std::vector<Loop>& loops, const std::string& s);

/// One kernel of gemm_rs, or of gemm_ar up to my rows of "Y": tiles of rows that others own go straight to my slot of
/// their inbox, group by group; then tiles of my rows, each of which adds what the others have sent of it, in rank
/// order. Slots in the order of distance: that of rank + 1 first. Loops of a group: chunks(), strips().
void add_tma_slot(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
inline constexpr const char* kGroupOfTiles = "s*strips+j";
Loop strips();

/// One kernel: my partials of each rank's rows to that rank (gemm_ar: of all rows to all), then the sums of my rows in
/// rank order. No credit: who sends in a call has got the call before from all, whose senders had read the one before
/// that; an owner without rows is told, too.
void add_one_shot(Schedule* schedule, const OpSpec& op);

/// Scales of the operators whose A does not travel, and of all.
inline constexpr Arg kScaleOfA = {.name = "A_scale",
                                  .call = "a_scale",
                                  .role = Role::scale,
                                  .rows = "M",
                                  .columns = "1",
                                  .why = "as a's rows",
                                  .doc = "fp32, for fp8: of each row of a; or (1)"},
                     kScaleOfB = {.name = "B_scale",
                                  .call = "b_scale",
                                  .role = Role::scale,
                                  .rows = "1",
                                  .columns = "N",
                                  .why = "as b's columns",
                                  .doc = "fp32, for fp8: of each column of b; (1) with such an a_scale"};

/// ag_gemm and ag_wgrad: transfers into X, signals `arrived[chunk]` and `credit`. `is_slab`: rows travel in slabs of K.
void add_gather(Schedule* schedule, const OpSpec& op, const FamilyOptions& options, bool is_slab);
/// The gathered rows as a result of both.
inline constexpr Arg kGathered = {.name = {},
                                  .call = "a",
                                  .role = Role::gathered,
                                  .rows = "M",
                                  .columns = "K",
                                  .why = "to take the gathered rows",
                                  .doc = "all ranks' rows of a_shard"};
/// Families of both: the library's collective, then the GEMM; all transfers, then the GEMM; the GEMM alone;
/// the transfers alone; both.
void make_gather_library(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
void make_gather_serial(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
void make_gather_compute(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
void make_gather_comm(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
void make_gather_limit(Schedule* schedule, const OpSpec& op, const FamilyOptions& options);
inline constexpr FamilyDef kGatherLibrary = whole("library", ClosedForm::library, degree_of_one, make_gather_library),
                           kGatherSerial = whole("serial", ClosedForm::serial, degree_of_one, make_gather_serial),
                           kGatherBounds[] = {bound("compute", Purpose::compute, make_gather_compute),
                                              bound("comm", Purpose::comm, make_gather_comm),
                                              bound("limit", Purpose::limit, make_gather_limit)};
/// My own into X, on a copy lane of their own, so that one GEMM sees evenly spaced rows.
void add_copy_own(Schedule* schedule, const OpSpec& op, bool is_slab);
/// All peers, once the last chunk has been read.
Set credit_at_last();

/// Adds the activation that a problem has to its whole schedule: C has half as many columns. Where sums are rounded
/// once, by a fused kernel or out of a wide accumulator, that task makes swiglu of them; behind a GEMM of a library,
/// which rounds them, a task of its own does.
void add_swiglu(Schedule* schedule, const OpSpec& op);

/// The plain GEMM: what every family is on one rank, and `compute` on several.
void add_plain_gemm(Schedule* schedule, const OpSpec& op, const std::string& a, const std::string& c,
                    bool with_bias = true);

/// Loops and expressions that recur. q: chunks; peers(): p = 1 .. G-1 as distances.
Loop chunks();
Loop peers();
/// `0 .. 0` unless the expression is 0: makes a wait happen once, before the first chunk.
Loop only_if_zero(const std::string& var, const std::string& expr);
/// `peers()` for the last chunk, else empty: credits go out once.
Loop peers_at_last(const std::string& s);
/// p-th of the other ranks in ascending order (p = 0 .. G-2).
inline constexpr std::string_view kOther = "(p+min(1,max(0,p-r+1)))";
Loop others();
/// Exchanges: whom my p-th block goes to, whose p-th block comes to me, and how many rows I have.
inline constexpr const char* kTo = "((r+p)%G)";
inline constexpr const char* kFrom = "((r+G-p)%G)";
inline constexpr const char* kMyRows = "off[r+1]-off[r]";

/// Rows of chunk s of shard `shard` in a buffer of M rows.
Range chunk_rows(const std::string& shard, const std::string& s = "s");
/// Rows of chunk s inside the shard.
Range chunk_rows_in_shard(const std::string& shard, const std::string& s = "s");
/// Rows of chunk s where the tables say which chunks a shard has, and where in its slots they lie.
Range grouped_rows(const std::string& shard, const std::string& s = "s");
Range grouped_rows_in_shard(const std::string& shard, const std::string& s = "s");
Range shard_rows(const std::string& shard);
Range all(const std::string& extent);
Range slab_columns(const std::string& s = "s");

Region box(std::string buffer, std::vector<Range> dims);
Region box_at(std::string buffer, std::string rank, std::vector<Range> dims);
Region boxes(std::string buffer, std::vector<Range> dims, Loop each);
/// The whole of B, or its part along N or K.
Region b_operand(const OpSpec& op);
Region b_columns(const OpSpec& op, const Range& n);
Region b_depth(const OpSpec& op, const Range& k);
/// Rows of B of ag_wgrad.
Region b_rows(const OpSpec& op, const Range& m);

/// The scales of the rows of a buffer that gemm tasks read as a: "A_scale" of "A".
std::string scale_of(std::string_view buffer);
/// A gemm task on sm queue 0; adds the bias region when `with_bias` and the operator has one, and those of the scales.
Task gemm(const OpSpec& op, std::string id, Expr order, Region a, Region b, Region c, bool with_bias);
/// c = a^T b, summed over rows of a. With `adds`: c += a^T b.
Task gemm_of_rows(const OpSpec& op, std::string id, Expr order, Region a, Region b, Region c, bool adds);
/// A part of the fused kernel, whose tasks all have `wait_by: kernel`: c = a b, plus the bias
/// where one is appended to `reads`. Waits are made inside, before what they cover is read.
Task tiles(const OpSpec& op, std::string id, Expr queue, Expr order, Region a, Region b, Region c);
void add_bias(Task* task, Range columns);
Task copy(std::string id, Expr queue, Expr order, std::vector<Loop> loops, Region from, Region to);
/// An instance per chunk that moves nothing: waits for `arrived` of all peers, then gives them their credit.
Task finish(const OpSpec& op, std::string id, Expr order, const std::string& buffer, const std::string& arrived,
            const std::string& credit);
/// Waits until rank `to` has read all that this rank sent there in the epoch before.
Wait credit_of(const std::string& credit, const std::string& to);
/// Waits as credit_of() does, for the first chunk alone, which the others follow in their lane.
Wait credit_from(const std::string& credit, const std::string& to);
/// The copy lane of the transfer to distance p.
Expr lane_of_peer(const FamilyOptions& options);
Task reduce(std::string id, Expr queue, Expr order, std::vector<Loop> loops, std::vector<Region> sources, Region to);
Wait wait_for(std::string signal, Expr slot, Expr from);
Wait wait_each(std::string signal, Expr slot, Expr from, Loop each);
Set set_at(std::string signal, Expr slot, Expr at);
/// The source may send again: `is_last` is 1 where I have read all that it sent, else 0.
Set credit_to(const std::string& source, const std::string& is_last);

/// fp64 for fp64 operands, else fp32.
DType accumulator(const OpSpec& op);

}  // namespace overlace::spec
