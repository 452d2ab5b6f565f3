#include "overlace/team.h"
#include "src/ops/ag_gemm/impl.h"
#include "src/ops/common/bodies.h"
#include "src/ops/common/check.h"
#include "src/ops/common/gathered.h"

namespace overlace::ops {
namespace {

base::Status check_call(const Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule,
                        exec::RunOptions* options) {
  OVERLACE_TRY(validate(channel, args));
  const spec::OpSpec op = op_spec(channel, args);
  const Site site = site_of(channel, op.op);
  OVERLACE_TRY(check_schedule(site, op, args.b, schedule));
  OVERLACE_TRY(check_supported(channel, schedule));
  OVERLACE_TRY(check_kernel_operands(channel, schedule, {{"a_shard", args.a_shard}, {"b", args.b}, {"c", args.c}}));
  if (!args.a.defined()) return {};
  options->copies_out = copies_of_gathered(args.a_shard, args.a, schedule, site.rank);
  return check_kernel_operands(channel, schedule, {{"a", args.a}});
}

}  // namespace

base::Status run_status(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule) {
  exec::RunOptions options{.local_param = "N"};
  if (const base::Status bad = check_call(channel, args, schedule, &options); !bad.ok()) {
    return exec::refuse(channel, schedule, options.local_param, bad);
  }
  const spec::OpSpec op = op_spec(channel, args);
  const exec::Bindings bindings = {
      {"A", args.a_shard}, {"B", stored_b(args.b, schedule)}, {"C", args.c}, {"bias", args.bias}};
  return exec::run(channel, schedule, agreement(op, base::format("M {} K {}", op.m, op.k)), bindings, bodies(channel),
                   options);
}

void run(Channel& channel, const AgGemmArgs& args, const spec::Schedule& schedule) {
  run_status(channel, args, schedule).or_throw();
}

}  // namespace overlace::ops
