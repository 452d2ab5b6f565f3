#include "overlace/ops/common.h"
#include "src/exec/run.h"
#include "src/ops/common/check.h"
#include "src/spec/operators.h"

namespace overlace::ops {
namespace {

base::Status check_support(const Channel& channel, const spec::OpSpec& op, const spec::Schedule& schedule) {
  const Site site = site_of(channel, op.op);
  OVERLACE_TRY(check_made_for(site, op, schedule));
  TensorView operand;
  operand.dtype = op.dtype;
  for (const spec::Arg& arg : spec::find_operator(op.op)->args)
    if (arg.role == spec::Role::input) {
      OVERLACE_TRY(check_input_dtype(site, {arg.call, operand}, spec::takes_scales(*spec::find_operator(op.op))));
      break;
    }
  return check_supported(channel, schedule);
}

exec::Footprint footprint_of(const spec::OpSpec& op, const spec::Schedule& schedule, int rank) {
  if (rank < 0 || rank >= op.ranks) {
    base::invalid_argument("{}: rank is {}, wanted 0 to {}", op.op, rank, op.ranks - 1).or_throw();
  }
  check_made_for({op.op, rank, false}, op, schedule).or_throw();
  return exec::footprint(schedule, rank, op.ranks).value();
}

}  // namespace

Support supports(const Channel& channel, const spec::OpSpec& op, const spec::Schedule& schedule) {
  return {check_support(channel, op, schedule).message()};
}

size_t workspace_bytes(const spec::OpSpec& op, const spec::Schedule& schedule, int rank) {
  return footprint_of(op, schedule, rank).workspace_bytes;
}

size_t heap_bytes(const spec::OpSpec& op, const spec::Schedule& schedule) {
  return footprint_of(op, schedule, 0).heap_bytes;
}

}  // namespace overlace::ops
