#include "src/ops/common/call.h"

#include <string>

#include "src/ops/common/bodies.h"
#include "src/ops/common/check.h"
#include "src/ops/common/gathered.h"

namespace overlace::ops {
namespace {

base::Status check_call(const Channel& channel, const spec::OperatorDef& def, const spec::OpSpec& op,
                        const CallArgs& args, const spec::Schedule& schedule, exec::RunOptions* options) {
  const Site site = site_of(channel, def.name);
  std::vector<Named> operands;
  for (size_t i = 0; i < def.args.size(); ++i) {
    if (def.args[i].has_layout) OVERLACE_TRY(check_schedule(site, op, args.tensors[i], schedule));
    if (def.args[i].role != spec::Role::bias) operands.push_back({def.args[i].call, args.tensors[i]});
  }
  OVERLACE_TRY(check_supported(channel, schedule));
  OVERLACE_TRY(check_kernel_operands(channel, schedule, operands));
  if (!args.gathered.defined()) return {};
  options->copies_out = copies_of_gathered(args.tensors[0], args.gathered, schedule, site.rank);
  return check_kernel_operands(channel, schedule, {{"a", args.gathered}});
}

/// The sizes that ranks must agree on.
std::string dims_of(const spec::OperatorDef& def, const spec::OpSpec& op) {
  std::string out;
  for (const auto& [name, value] : {std::pair{"M", op.m}, std::pair{"N", op.n}, std::pair{"K", op.k}})
    if (name != def.local_param) out += base::format("{}{} {}", out.empty() ? "" : " ", name, value);
  return out;
}

}  // namespace

base::Status run_call(Channel& channel, const spec::OperatorDef& def, const base::Status& valid, const spec::OpSpec& op,
                      const CallArgs& args, const spec::Schedule& schedule) {
  exec::RunOptions options{.local_param = def.local_param};
  const base::Status bad = valid.ok() ? check_call(channel, def, op, args, schedule, &options) : valid;
  if (!bad.ok()) return exec::refuse(channel, schedule, options.local_param, bad);
  exec::Bindings bindings;
  for (size_t i = 0; i < def.args.size(); ++i) {
    const TensorView& tensor = args.tensors[i];
    bindings.emplace(def.args[i].name, def.args[i].has_layout ? stored_b(tensor, schedule) : tensor);
  }
  return exec::run(channel, schedule, agreement(op, dims_of(def, op)), bindings, bodies(channel), options);
}

}  // namespace overlace::ops
