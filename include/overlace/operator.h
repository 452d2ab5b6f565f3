// Operators and families as values: the problem that an operator solves, its buffers, what it computes, and the ways to
// schedule it. Code that needs a property of an operator asks its value; no code compares names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/schedule.h"
#include "overlace/tensor.h"

namespace overlace::spec {

#pragma GCC visibility push(default)  // exported by liboverlace.so

struct Machine;

/// The options of make_schedule, after checking.
struct FamilyOptions {
  int64_t degree = 1, align = 1, align_columns = 8, ce_queues = 1, own_degree = 1, hosts = 1;
  bool has_credits = true;
};

/// The purpose of a family. A family of purpose `plan` gives the result. The others measure a bound and give no result:
/// the computation alone, the transfers alone, and both side by side without dependence.
enum class Purpose { plan, compute, comm, limit };

/// The closed form by which the planner's recurrence times a family. A family without one is timed by the simulator
/// alone.
enum class ClosedForm {
  none,
  library,         // one collective and one GEMM
  serial,          // all copies, then one GEMM, or the reverse
  per_shard,       // a GEMM per chunk of each shard
  other_shards,    // a GEMM per chunk of all remote shards, and one of the local shard
  all_shards,      // a GEMM per chunk of all shards
  slabs,           // a GEMM per slab of columns
  group,           // groups of chunks whose sums are broadcast: a GEMM per group
  group_shards,    // groups of chunks, with a GEMM per shard of a group
  hosts,           // over several hosts: rows cross once
  slab_kernel,     // one kernel that pushes slabs of its rows
  tile_kernel,     // one kernel that sends tiles to the owners' slots
  tracked_kernel,  // one kernel that counts its tiles, and copies that wait for the counts
  small_m_kernel   // one kernel for small M (decode)
};

/// A way to schedule an operator.
struct FamilyDef {
  std::string_view name;
  Purpose purpose = Purpose::plan;
  bool has_degree = false;  // true if it cuts shards into `degree` chunks
  ClosedForm form = ClosedForm::none;
  int rule = 0;  // place in the order in which tier `rule` tries families; 0: never
  /// Returns the degrees that are worth an estimate on this machine; none if the family cannot run there. If null the
  /// planner leaves the family out.
  std::vector<int> (*degrees)(const OpSpec& op, const Machine& machine) = nullptr;
  /// Sets the options that the caller did not give. If null the defaults of FamilyOptions hold.
  void (*set_defaults)(const OpSpec& op, FamilyOptions* options) = nullptr;
  /// Adds buffers, signals and tasks to a schedule that has its parameters, tables "off" and "cut" and argument
  /// buffers; for two ranks or more.
  void (*make)(Schedule* schedule, const OpSpec& op, const FamilyOptions& options) = nullptr;
};

/// The role of an argument. `bias` is an input that exists if OpSpec::bias is true. `gathered` is an output that exists
/// if OpSpec::gathered is true: the rows of the first input of all ranks are copied there. It is no buffer of
/// schedules. `scale` is an input of fp32 that exists unless OpSpec::scales is none: with `rows` it has the shape that
/// Arg says, with `tensor` one element. `data` is an input that is no buffer of schedules either, as its extent may
/// differ from call to call and from rank to rank: the operator checks it (check_data) and its body reads it
/// (HostTask::tensors).
enum class Role { input, output, bias, gathered, data, scale };

/// The shape of an argument, as Arg has it.
struct ArgShape {
  std::string_view rows = {}, columns = {};
};

/// An argument of an operator, which is a buffer of its schedules. Shapes are expressions over the schedule's
/// parameters and tables ("M", "off[r+1]-off[r]", "got[r+1]-got[r]"); one without columns is a vector. Inputs have the
/// type OpSpec::dtype, that with a layout OpSpec::b_dtype if there is one, outputs and the bias OpSpec::out_dtype.
struct Arg {
  std::string_view name;  // name of the buffer: "A"
  std::string_view call;  // name of the call's argument: "a_shard"
  Role role = Role::input;
  std::string_view rows, columns = {};
  ArgShape cols = {};         // shape if columns are exchanged (OpSpec::exchange); empty: the same
  bool has_layout = false;    // true if it is stored (columns, rows) for OpSpec::b_layout nk
  std::string_view why = {};  // origin of the wanted shape, for errors: "to take N of b"
  std::string_view doc = {};  // description, for references
};

/// The type of a value in OpSpec::fields.
enum class FieldType { integer, real, flag, text };
/// A parameter of an operator besides the sizes and types that OpSpec names; it becomes a parameter of its schedules.
struct FieldDef {
  std::string_view name;
  FieldType type = FieldType::integer;
  std::string_view doc;
};

/// A partial sum of products: of rank `source`, over [begin, end) of the summed dimension.
struct Term {
  int source;
  int64_t begin, end;
  auto operator<=>(const Term&) const = default;
};

/// A rectangle of an argument of one rank and what it holds: which element of the problem its first element is and, in
/// an output, from what it was computed.
struct Held {
  static constexpr int64_t kAll = -1;  // the rectangle extends from `row` or `column` to the end
  std::string_view buffer;
  int64_t origin_row = 0, origin_column = 0;
  int64_t row = 0, rows = kAll, column = 0, columns = kAll;
  bool is_operand = false;       // an output: its elements are elements of an input, moved
  std::vector<Term> terms = {};  // an output: the partial sums in it, in the order of `source`
  int num_biases = 0;
  bool is_activated = false;
  int num_residuals = 0;   // how often the residual is in it; an input with one is the residual
  bool is_normed = false;  // an output: whole rows were normalized
};

/// The meaning of a call for one rank: what its arguments hold before and after it. Check S9 compares schedules with
/// it.
struct Meaning {
  std::vector<Held> inputs, outputs;
};

/// The dependence between a GEMM and its communication. Closed forms and builders of schedules ask for it.
struct Dataflow {
  bool gathers = false;    // rows of the first argument travel before the GEMM; else sums travel behind it
  bool exchanges = false;  // rows or columns travel from each rank to each; nothing is summed across ranks
  bool sums_rows = false;  // the sum is over the rows that travel
  int passes = 1;          // how often each row passes the links: 2 if sums come back to all ranks
  bool norms = false;      // behind that all ranks add a residual to each row and normalize it
};

/// An instance of a task on a CPU rank. It has a view for each box of its regions, in their order; empty boxes are left
/// out.
struct HostTask {
  const Schedule& schedule;
  const Task& task;
  const std::vector<std::vector<TensorView>>&reads, &writes;
  int rank = 0;
  int64_t first_row = 0;                     // place in its buffer of the first box that it writes
  std::span<const TensorView> tensors = {};  // the arguments of the call, in the order of OperatorDef::args
};

/// An operator as a value.
struct OperatorDef {
  std::string_view name, summary;
  std::string_view suffix = {};  // behind the family in the names of its schedules: "hetero_fused_1d" and "_rs"
  std::span<const Arg> args;
  std::span<const FieldDef> fields = {};
  std::span<const FamilyDef> families;  // kLibrary and kSerial first
  Dataflow flow = {};
  std::string_view local_param = {};  // the parameter that may differ between ranks: "N"
  bool knows_hosts = false;           // true if kSerial and families of purpose comm and limit take the option "hosts"
  bool takes_activation = false;
  /// Adds the tasks of a schedule for one rank, on which nothing travels; all families are equal there.
  void (*make_alone)(Schedule* schedule, const OpSpec& op, Purpose purpose) = nullptr;
  /// Completes a schedule after make or make_alone, for all families; may be null.
  void (*complete)(Schedule* schedule, const OpSpec& op) = nullptr;
  /// Says why the problem is refused, besides what the tables say; an empty text accepts it. May be null.
  std::string (*refuse)(const OpSpec& op) = nullptr;
  /// Says what the arguments of `rank` hold; reads parameters and tables of the schedule only.
  Meaning (*meaning)(const Schedule& schedule, int rank, int ranks) = nullptr;
  /// Completes the problem of a call with sizes that no shape of an argument says, but fields do. May be null.
  void (*pose)(OpSpec* op) = nullptr;
  /// Says why values of fields or the arguments of role data are refused on this rank, before anything moves; an empty
  /// text accepts them. It reads elements where `reads_memory`. `tensors` are in the order of `args`. May be null.
  std::string (*check_data)(const OpSpec& op, int rank, std::span<const TensorView> tensors,
                            bool reads_memory) = nullptr;
  /// Computes what tasks of kinds reduce and pool write, on CPU ranks; may throw. If null tasks of kind reduce sum what
  /// they read, as those of the library's own operators do, and there are none of kind pool.
  void (*compute)(const HostTask& task) = nullptr;
  /// True if the library's kernel computes its tasks of kind pool on GPUs: its arguments of role data and the tables of
  /// its schedules are those of embedding_a2a. Others with `compute` run on CPU ranks only.
  bool pools_on_gpus = false;
};

/// Names of the families that every operator has. `library` runs the library's collective and computation one after the
/// other; `serial` does so with copies of overlace.
inline constexpr std::string_view kLibrary = "library", kSerial = "serial";

/// Registers an operator; `op` and what it points at must stay valid. Any thread may call it, before the operator is
/// used. Throws ScheduleError if the name is registered already, or if the value lacks the first two families, an
/// input, an output, make_alone, meaning, or a family's make.
void add_operator(const OperatorDef& op);
/// Returns all operators, those of the library first.
std::vector<const OperatorDef*> operators();
/// Returns the operator of this name, or null if there is none.
const OperatorDef* find_operator(std::string_view name);
/// Returns the family of this name, which has no suffix, or null if the operator has none of that name.
const FamilyDef* find_family(const OperatorDef& op, std::string_view name);
/// Returns all operators (name, summary, arguments, fields, families) as JSON. The interfaces of C and Python are
/// compared with it, and their references are made from it.
std::string operators_json();
/// Returns the family of a schedule that make_schedule made, by its name with suffix, or null for other schedules.
const FamilyDef* family_of(const Schedule& schedule);

#pragma GCC visibility pop

}  // namespace overlace::spec
