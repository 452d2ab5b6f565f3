#include "src/ops/common/bodies.h"
#include "src/ops/common/check.h"
#include "src/ops/gemm_ar/impl.h"

namespace overlace::ops {
namespace {

base::Status check_call(const Channel& channel, const GemmArArgs& args, const spec::Schedule& schedule) {
  OVERLACE_TRY(validate(channel, args));
  const spec::OpSpec op = op_spec(channel, args);
  OVERLACE_TRY(check_schedule(site_of(channel, op.op), op, args.b, schedule));
  OVERLACE_TRY(check_supported(channel, schedule));
  return check_kernel_operands(channel, schedule, {{"a", args.a}, {"b", args.b}, {"out", args.out}});
}

}  // namespace

base::Status run_status(Channel& channel, const GemmArArgs& args, const spec::Schedule& schedule) {
  if (const base::Status bad = check_call(channel, args, schedule); !bad.ok()) {
    return exec::refuse(channel, schedule, "K", bad);
  }
  const spec::OpSpec op = op_spec(channel, args);
  const exec::Bindings bindings = {
      {"A", args.a}, {"B", stored_b(args.b, schedule)}, {"Y", args.out}, {"bias", args.bias}};
  return exec::run(channel, schedule, agreement(op, base::format("M {} N {}", op.m, op.n)), bindings, bodies(channel),
                   {.local_param = "K"});
}

void run(Channel& channel, const GemmArArgs& args, const spec::Schedule& schedule) {
  run_status(channel, args, schedule).or_throw();
}

}  // namespace overlace::ops
