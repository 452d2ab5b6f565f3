// Operators and families as values: what an operator is asked for, which buffers it has and what it computes, and the
// ways to schedule it. Whoever needs to know something of an operator asks its value; nobody compares its name.
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

/// Options of make_schedule after checking.
struct FamilyOptions {
  int64_t degree = 1, align = 1, align_columns = 8, ce_queues = 1, own_degree = 1, hosts = 1;
  bool has_credits = true;
};

/// What a family is for: `plan` gives the result. The others measure a bound and give none: the computation alone, the
/// transfers alone, and both side by side without dependence.
enum class Purpose { plan, compute, comm, limit };

/// The closed form by which the planner's recurrence times a family. A family without one is timed by the simulator
/// alone.
enum class ClosedForm {
  none,
  library,        // one collective and one product
  serial,         // all copies, then one product, or the reverse
  per_shard,      // a product per chunk of each shard
  other_shards,   // a product per chunk of all other shards, and one of the own shard
  all_shards,     // a product per chunk of all shards
  slabs,          // a product per slab of columns
  group,          // groups of chunks whose sums are broadcast: a product per group
  group_shards,   // the same with a product per shard of a group
  hosts,          // over several hosts: rows cross once
  slab_kernel,    // one kernel that pushes slabs of its rows
  tile_kernel,    // one kernel that sends tiles to the owners' slots
  small_m_kernel  // one kernel for few rows
};

/// A way to schedule an operator.
struct FamilyDef {
  std::string_view name;
  Purpose purpose = Purpose::plan;
  bool has_degree = false;  // it cuts shards into `degree` chunks
  ClosedForm form = ClosedForm::none;
  int rule = 0;  // place in the order in which tier rule tries families; 0: never
  /// Degrees that are worth an estimate on this machine; none where the family cannot run there. Null: the planner
  /// leaves the family out.
  std::vector<int> (*degrees)(const OpSpec& op, const Machine& machine) = nullptr;
  /// Options that the caller did not give; null: those of FamilyOptions.
  void (*set_defaults)(const OpSpec& op, FamilyOptions* options) = nullptr;
  /// Adds buffers, signals and tasks to a schedule that has its parameters, tables "off" and "cut" and argument
  /// buffers; for two ranks or more.
  void (*make)(Schedule* schedule, const OpSpec& op, const FamilyOptions& options) = nullptr;
};

/// bias: an input that is there if OpSpec::bias says so. gathered: if OpSpec::gathered says so, the rows of the first
/// input of all ranks are copied there; it is no buffer of schedules.
enum class Role { input, output, bias, gathered };

/// The shape of an argument, as Arg has it.
struct ArgShape {
  std::string_view rows = {}, columns = {};
};

/// An argument of an operator, which is a buffer of its schedules. Shapes are expressions over the schedule's
/// parameters and tables ("M", "off[r+1]-off[r]", "got[r+1]-got[r]"); one without columns is a vector. Inputs have the
/// type OpSpec::dtype, outputs and the bias OpSpec::out_dtype.
struct Arg {
  std::string_view name;  // of the buffer: "A"
  std::string_view call;  // of the call's argument: "a_shard"
  Role role = Role::input;
  std::string_view rows, columns = {};
  ArgShape cols = {};         // where columns are exchanged (OpSpec::exchange); empty: the same
  bool has_layout = false;    // stored (columns, rows) where OpSpec::b_layout is nk
  std::string_view why = {};  // where the wanted shape comes from, for errors: "to take N of b"
  std::string_view doc = {};  // what it is, for references
};

/// What a field of OpSpec::fields holds.
enum class FieldType { integer, real, flag, text };
/// A parameter of an operator besides the sizes and types that OpSpec names; it becomes a parameter of its schedules.
struct FieldDef {
  std::string_view name;
  FieldType type = FieldType::integer;
  std::string_view doc;
};

/// Products of rank `source` over [begin, end) of what they are summed over.
struct Term {
  int source;
  int64_t begin, end;
  auto operator<=>(const Term&) const = default;
};

/// A rectangle of an argument of one rank and what it holds: the element of the problem that is its first one, and of
/// an output what must have been made of it.
struct Held {
  static constexpr int64_t kAll = -1;  // from `row` or `column` to the end
  std::string_view buffer;
  int64_t origin_row = 0, origin_column = 0;
  int64_t row = 0, rows = kAll, column = 0, columns = kAll;
  bool is_operand = false;       // an output: elements of an input, moved
  std::vector<Term> terms = {};  // an output: the sums in it, in the order of `source`
  int num_biases = 0;
  bool is_activated = false;
};

/// What the arguments of one rank hold before and after a call: what check S9 compares with.
struct Meaning {
  std::vector<Held> inputs, outputs;
};

/// How a GEMM and its communication depend on each other; what closed forms and builders ask.
struct Dataflow {
  bool gathers = false;    // rows of the first argument travel before the product; else sums travel behind it
  bool exchanges = false;  // rows or columns travel from each rank to each; nothing is summed across ranks
  bool sums_rows = false;  // the sum is over the rows that travel
  int passes = 1;          // of each row over the links: 2 where sums come back to all
};

/// An instance of a task on a CPU rank: a view for each box of its regions, in their order; empty boxes are left out.
struct HostTask {
  const Schedule& schedule;
  const Task& task;
  const std::vector<std::vector<TensorView>>&reads, &writes;
};

struct OperatorDef {
  std::string_view name, summary;
  std::string_view suffix = {};  // of the names of its schedules: "hetero_fused_1d" and "_rs"
  std::span<const Arg> args;
  std::span<const FieldDef> fields = {};
  std::span<const FamilyDef> families;  // kLibrary and kSerial first
  Dataflow flow = {};
  std::string_view local_param = {};  // the parameter that ranks need not agree on: "N"
  bool knows_hosts = false;           // families of purpose comm and limit, and kSerial, take the option "hosts"
  bool takes_activation = false;
  /// Adds the tasks of a schedule on one rank, where nothing travels; every family is that there.
  void (*make_alone)(Schedule* schedule, const OpSpec& op, Purpose purpose) = nullptr;
  /// Called behind make and make_alone, for all families; may be null.
  void (*complete)(Schedule* schedule, const OpSpec& op) = nullptr;
  /// Says why the problem is refused, besides what the tables say; an empty text accepts it. May be null.
  std::string (*refuse)(const OpSpec& op) = nullptr;
  /// Says what the arguments of `rank` hold; reads parameters and tables of the schedule only.
  Meaning (*meaning)(const Schedule& schedule, int rank, int ranks) = nullptr;
  /// Computes what tasks of kind reduce write, on CPU ranks; may throw. Null: sums of the reads, as the library's own
  /// operators have them.
  void (*compute)(const HostTask& task) = nullptr;
};

/// Families that every operator has: the library's collective and computation one after the other, and the same by
/// copies of this library.
inline constexpr std::string_view kLibrary = "library", kSerial = "serial";

/// Makes an operator known; `op` and what it points at must stay. Throws ScheduleError if the name is known already, or
/// if the value lacks something: the first two families, an input, an output, make_alone, meaning, or a family's make.
/// Safe on any thread, but before the operator is used.
void add_operator(const OperatorDef& op);
/// Returns all operators, those of the library first.
std::vector<const OperatorDef*> operators();
/// Returns null if there is no operator of this name.
const OperatorDef* find_operator(std::string_view name);
/// Returns null if the operator has no family of this name, which has no suffix.
const FamilyDef* find_family(const OperatorDef& op, std::string_view name);
/// Name, summary, arguments, fields and families of all of them, as JSON: what the interfaces of C and Python are
/// compared with, and what their references are made of.
std::string operators_json();
/// Returns the family of a schedule that make_schedule made, by its name with suffix; null for other schedules.
const FamilyDef* family_of(const Schedule& schedule);

#pragma GCC visibility pop

}  // namespace overlace::spec
