#include "overlace/team.h"
#include "src/ops/common/check.h"
#include "src/ops/gemm_ar/impl.h"

namespace overlace::ops {

spec::OpSpec op_spec(const Channel& channel, const GemmArArgs& args) {
  return {.op = "gemm_ar",
          .m = args.a.dim(0),
          .n = args.b.dim(1),
          .k = args.a.dim(1),
          .ranks = channel.team().size(),
          .dtype = args.a.dtype,
          .out_dtype = args.out.dtype,
          .b_layout = layout_of(args.b),
          .bias = args.bias.defined(),
          .row_offsets = {}};
}

base::Status validate(const Channel& channel, const GemmArArgs& args) {
  const Site site = site_of(channel, "gemm_ar");
  const Named a{"a", args.a}, b{"b", args.b}, out{"out", args.out};
  OVERLACE_TRY(check_input_dtype(site, a));
  const int64_t m = args.a.dim(0), k = args.a.ndim == 2 ? args.a.dim(1) : 0;
  OVERLACE_TRY(check_matrix(site, a, m, k, "as given"));
  OVERLACE_TRY(check_b(site, b, k, a));
  OVERLACE_TRY(check_output_dtype(site, out, a));
  OVERLACE_TRY(check_matrix(site, out, m, args.b.dim(1), "to take a b"));
  OVERLACE_TRY(check_bias(site, args.bias, args.b.dim(1), out, a));
  return check_disjoint(site, out, {a, b, {"bias", args.bias}});
}

}  // namespace overlace::ops
