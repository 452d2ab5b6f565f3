#include "src/ops/common/call.h"

#include <algorithm>
#include <string>

#include "overlace/team.h"
#include "src/exec/run.h"
#include "src/ops/common/bind.h"
#include "src/ops/common/bodies.h"
#include "src/ops/common/gathered.h"
#include "src/ops/fused/choose.h"
#include "src/spec/operators.h"

namespace overlace::ops {
namespace {

using spec::Role;

bool exchanges_by_library(const spec::Task& task) {
  const auto found = task.params.find("collective");
  return found != task.params.end() && found->second == spec::Param(std::string("all_to_all"));
}

/// An exchange by the library moves each block at once: rows without gaps.
base::Status check_exchanged(const Site& site, const spec::OperatorDef& def, const CallArgs& args,
                             const spec::Schedule& schedule) {
  for (const spec::Task& task : schedule.tasks) {
    if (!exchanges_by_library(task)) continue;
    for (size_t i = 0; i < def.args.size(); ++i) {
      const TensorView& t = args.tensors[i];
      const std::string_view name = def.args[i].name;
      if (name != task.reads[0].buffer && name != task.writes[0].buffer) continue;
      if (t.dim(0) <= 1 || t.stride(0) == t.dim(1)) continue;
      return base::error(Errc::not_supported,
                         "{}: schedule {}: {} has rows of {} elements, {} apart; wanted rows without gaps, or family "
                         "serial; rank {}",
                         def.name, schedule.family, def.args[i].call, t.dim(1), t.stride(0), site.rank);
    }
  }
  return {};
}

/// What the schedule's fused kernel loads or stores by its copy engines, or a product of fp8; a bias they do not, and
/// gathered rows are copied behind it.
bool is_kernel_operand(const spec::Schedule& schedule, const spec::Arg& arg) {
  if (arg.role == Role::gathered) return fused::needs_instance(schedule);
  if (arg.role == Role::bias || arg.role == Role::data || arg.role == Role::scale) return false;
  const auto is_arg = [&](const spec::Region& region) { return region.buffer == arg.name; };
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), [&](const spec::Task& task) {
    return (spec::is_part(task) || spec::num_scales(task) > 0) &&
           (std::any_of(task.reads.begin(), task.reads.end(), is_arg) ||
            std::any_of(task.writes.begin(), task.writes.end(), is_arg));
  });
}

/// What a schedule says of the arguments, and the last call with it: the next one of its problem is looked at in part,
/// and binds other memory to the same names.
struct Checked {
  std::shared_ptr<const Problem> problem = nullptr;  // null: no call yet
  bool exchanges_by_library = false, stores_nk = false;
  std::vector<bool> is_kernel_operand{};  // of its arguments
  exec::Bindings bindings{};              // taken out while a call runs
};

Checked look_at(const spec::OperatorDef& def, const spec::Schedule& schedule) {
  Checked out{.exchanges_by_library = std::any_of(schedule.tasks.begin(), schedule.tasks.end(), exchanges_by_library),
              .stores_nk = stores_nk(schedule)};
  for (const spec::Arg& arg : def.args) out.is_kernel_operand.push_back(is_kernel_operand(schedule, arg));
  return out;
}

/// What of a call does not depend on where its memory lies.
base::Status check_shapes(const Channel& channel, const Site& site, const CallArgs& args, const Problem& problem,
                          const spec::Schedule& schedule, const Checked& before) {
  const spec::OperatorDef& def = *problem.def;
  const bool is_new = before.problem == nullptr || before.problem->op != problem.op;
  if (is_new) OVERLACE_TRY(check_problem(site, problem.op, schedule));
  for (size_t i = 0; i < def.args.size(); ++i)
    if (def.args[i].has_layout) OVERLACE_TRY(check_stored(site, args.tensors[i], schedule));
  if (is_new) OVERLACE_TRY(check_supported(channel, schedule));
  return before.exchanges_by_library ? check_exchanged(site, def, args, schedule) : base::Status();
}

base::Status check_call(const Channel& channel, const CallArgs& args, const Posed& posed,
                        const spec::Schedule& schedule, const Checked& before, exec::RunOptions* options) {
  const spec::OperatorDef& def = *posed.problem->def;
  const Site site = site_of(channel, def.name);
  OVERLACE_TRY(check_computes(channel, def));
  if (before.problem != posed.problem)
    OVERLACE_TRY(check_shapes(channel, site, args, *posed.problem, schedule, before));
  const TensorView *input = nullptr, *gathered = nullptr;
  for (size_t i = 0; i < def.args.size(); ++i) {
    const spec::Arg& arg = def.args[i];
    const TensorView& t = args.tensors[i];
    if (!t.defined()) continue;
    if ((arg.role == Role::input || arg.role == Role::data) && input == nullptr) input = &t;
    if (arg.role == Role::gathered) gathered = &t;
    if (site.is_gpu && arg.role == Role::scale) OVERLACE_TRY(check_scale_place(site, {arg.call, t}, schedule));
    if (site.is_gpu && before.is_kernel_operand[i]) OVERLACE_TRY(check_kernel_operand(site, {arg.call, t}, schedule));
  }
  if (gathered == nullptr) return {};
  if (input == nullptr) return refuse(site, "rows are gathered of no input, wanted one that is given");
  options->copies_out = copies_of_gathered(*input, *gathered, schedule, site.rank);
  return {};
}

void bind(const spec::OperatorDef& def, const CallArgs& args, bool stores_nk, exec::Bindings* bindings) {
  for (size_t i = 0; i < def.args.size(); ++i) {
    const spec::Arg& arg = def.args[i];
    if (arg.role == Role::gathered || arg.role == Role::data) continue;
    (*bindings)[arg.name] = arg.has_layout && stores_nk ? args.tensors[i].transposed() : args.tensors[i];
  }
}

}  // namespace

Posed pose_checked(Channel& channel, const spec::OperatorDef& def, const CallArgs& args) {
  Site site = site_of(channel, def.name);
  if (args.tensors.size() != def.args.size()) {
    return {std::make_shared<Problem>(Problem{.def = &def}),
            refuse(site, "got {} tensors, wanted {}", args.tensors.size(), def.args.size()), false};
  }
  KnownProblems* const known = KnownProblems::of(channel);
  std::shared_ptr<const Problem> problem = known == nullptr ? nullptr : known->find(def, args);
  if (problem != nullptr && has_sound_memory(site, *problem, args)) return {std::move(problem), {}, true};
  problem = problem_of(def, args, channel.team().size());
  base::Status status = check_args(site, def, args, problem->op);
  if (status.ok() && known != nullptr) known->keep(problem);
  site.looks_at_memory = false;
  const bool fits = status.ok() || check_args(site, def, args, problem->op).ok();
  return {std::move(problem), std::move(status), fits};
}

base::Status run_posed(Channel& channel, const CallArgs& args, const Posed& posed, const spec::Schedule& schedule,
                       uint64_t serial) {
  const spec::OperatorDef& def = *posed.problem->def;
  exec::Program* const known = exec::known_program(channel, schedule, serial);
  exec::RunOptions options{.local_param = def.local_param, .known = known};
  if (!posed.status.ok()) return exec::refuse(channel, schedule, options.local_param, posed.status);
  std::shared_ptr<Checked> checked =
      known == nullptr ? nullptr : std::static_pointer_cast<Checked>(exec::note_of(*known));
  if (checked == nullptr) checked = std::make_shared<Checked>(look_at(def, schedule));
  const base::Status bad = check_call(channel, args, posed, schedule, *checked, &options);
  if (!bad.ok()) return exec::refuse(channel, schedule, options.local_param, bad);
  exec::TakenOut<exec::Bindings> bindings(checked->bindings);  // a body may make calls with this schedule
  bind(def, args, checked->stores_nk, &bindings.value);
  checked->problem = posed.problem;
  if (known != nullptr) exec::note_of(*known) = checked;
  const auto words = [&] { return agreement(def, posed.problem->op); };
  if (def.compute == nullptr) return exec::run(channel, schedule, words, bindings.value, bodies(channel), options);
  const base::Result<exec::Bodies> computes = bodies_of(channel, def, args.tensors);
  if (!computes.ok()) return exec::refuse(channel, schedule, options.local_param, computes.status());
  return exec::run(channel, schedule, words, bindings.value, *computes, options);
}

base::Status call_status(Channel& channel, const spec::OperatorDef& def, const CallArgs& args,
                         const spec::Schedule& schedule) {
  return run_posed(channel, args, pose_checked(channel, def, args), schedule);
}

std::vector<TensorView> named_tensors(const spec::OperatorDef& op,
                                      const std::vector<std::pair<std::string_view, TensorView>>& tensors) {
  std::vector<TensorView> out(op.args.size());
  for (const auto& given : tensors) {
    const std::string_view name = given.first;
    const auto it =
        std::find_if(op.args.begin(), op.args.end(), [&](const spec::Arg& arg) { return arg.call == name; });
    if (it == op.args.end()) {
      std::string known;
      for (const spec::Arg& arg : op.args) known += base::format("{}{}", known.empty() ? "" : ", ", arg.call);
      base::invalid_argument("{}: no argument is called '{}', wanted {}", op.name, name, known).or_throw();
    }
    TensorView& place = out[static_cast<size_t>(it - op.args.begin())];
    if (place.defined()) base::invalid_argument("{}: {} is given twice", op.name, name).or_throw();
    place = given.second;
  }
  return out;
}

void call(Channel& channel, const spec::OperatorDef& op, const CallArgs& args, const spec::Schedule& schedule) {
  call_status(channel, op, args, schedule).or_throw();
}

spec::OpSpec op_spec(const Channel& channel, const spec::OperatorDef& op, const CallArgs& args) {
  return pose(op, args, channel.team().size());
}

}  // namespace overlace::ops
