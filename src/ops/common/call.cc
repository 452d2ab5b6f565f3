#include "src/ops/common/call.h"

#include <algorithm>
#include <string>

#include "overlace/team.h"
#include "src/exec/run.h"
#include "src/ops/common/bind.h"
#include "src/ops/common/bodies.h"
#include "src/ops/common/gathered.h"
#include "src/spec/operators.h"

namespace overlace::ops {
namespace {

using spec::Role;

/// An exchange by the library moves each block at once: rows without gaps.
base::Status check_exchanged(const Site& site, const spec::OperatorDef& def, const CallArgs& args,
                             const spec::Schedule& schedule) {
  for (const spec::Task& task : schedule.tasks) {
    const auto found = task.params.find("collective");
    if (found == task.params.end() || found->second != spec::Param(std::string("all_to_all"))) continue;
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

/// What the schedule's fused kernel loads or stores by its copy engines; a bias it does not, and gathered rows are
/// copied behind it.
bool is_kernel_operand(const spec::Schedule& schedule, const spec::Arg& arg) {
  if (arg.role == Role::gathered) return true;
  if (arg.role == Role::bias || arg.role == Role::data) return false;
  const auto is_arg = [&](const spec::Region& region) { return region.buffer == arg.name; };
  return std::any_of(schedule.tasks.begin(), schedule.tasks.end(), [&](const spec::Task& task) {
    return spec::is_part(task) && (std::any_of(task.reads.begin(), task.reads.end(), is_arg) ||
                                   std::any_of(task.writes.begin(), task.writes.end(), is_arg));
  });
}

base::Status check_call(const Channel& channel, const spec::OperatorDef& def, const spec::OpSpec& op,
                        const CallArgs& args, const spec::Schedule& schedule, exec::RunOptions* options) {
  const Site site = site_of(channel, def.name);
  if (site.is_gpu && def.compute != nullptr && !def.pools_on_gpus)
    return base::error(Errc::not_supported, "{}: the operator computes on CPU ranks only; rank {}", def.name,
                       site.rank);
  OVERLACE_TRY(check_problem(site, op, schedule));
  std::vector<Named> operands;
  TensorView input, gathered;
  for (size_t i = 0; i < def.args.size(); ++i) {
    const spec::Arg& arg = def.args[i];
    const TensorView& t = args.tensors[i];
    if (arg.has_layout) OVERLACE_TRY(check_stored(site, t, schedule));
    if ((arg.role == Role::input || arg.role == Role::data) && !input.defined()) input = t;
    if (arg.role == Role::gathered) gathered = t;
    if (site.is_gpu && t.defined() && is_kernel_operand(schedule, arg)) operands.push_back({arg.call, t});
  }
  OVERLACE_TRY(check_supported(channel, schedule));
  OVERLACE_TRY(check_exchanged(site, def, args, schedule));
  OVERLACE_TRY(check_kernel_operands(channel, schedule, operands));
  if (gathered.defined()) options->copies_out = copies_of_gathered(input, gathered, schedule, site.rank);
  return {};
}

/// The sizes that ranks must agree on.
std::string dims_of(const spec::OperatorDef& def, const spec::OpSpec& op) {
  std::string out;
  for (const auto& [name, value] : {std::pair{"M", op.m}, std::pair{"N", op.n}, std::pair{"K", op.k}})
    if (name != def.local_param) out += base::format("{}{} {}", out.empty() ? "" : " ", name, value);
  return out;
}

}  // namespace

Posed pose_checked(const Channel& channel, const spec::OperatorDef& def, const CallArgs& args) {
  Site site = site_of(channel, def.name);
  if (args.tensors.size() != def.args.size())
    return {{}, refuse(site, "got {} tensors, wanted {}", args.tensors.size(), def.args.size()), false};
  spec::OpSpec op = pose(def, args, channel.team().size());
  base::Status status = check_args(site, def, args, op);
  site.looks_at_memory = false;
  const bool fits = status.ok() || check_args(site, def, args, op).ok();
  return {std::move(op), std::move(status), fits};
}

base::Status run_posed(Channel& channel, const spec::OperatorDef& def, const CallArgs& args, const Posed& posed,
                       const spec::Schedule& schedule) {
  exec::RunOptions options{.local_param = def.local_param};
  const base::Status bad =
      posed.status.ok() ? check_call(channel, def, posed.op, args, schedule, &options) : posed.status;
  if (!bad.ok()) return exec::refuse(channel, schedule, options.local_param, bad);
  exec::Bindings bindings;
  for (size_t i = 0; i < def.args.size(); ++i) {
    const spec::Arg& arg = def.args[i];
    if (arg.role == Role::gathered || arg.role == Role::data) continue;
    bindings.emplace(arg.name, arg.has_layout ? stored_b(args.tensors[i], schedule) : args.tensors[i]);
  }
  const std::string words = agreement(posed.op, dims_of(def, posed.op));
  if (def.compute == nullptr) return exec::run(channel, schedule, words, bindings, bodies(channel), options);
  const base::Result<exec::Bodies> computes = bodies_of(channel, def, args.tensors);
  if (!computes.ok()) return exec::refuse(channel, schedule, options.local_param, computes.status());
  return exec::run(channel, schedule, words, bindings, *computes, options);
}

base::Status call_status(Channel& channel, const spec::OperatorDef& def, const CallArgs& args,
                         const spec::Schedule& schedule) {
  return run_posed(channel, def, args, pose_checked(channel, def, args), schedule);
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
