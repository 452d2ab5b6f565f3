#include "overlace/team.h"
#include "src/ops/common/check.h"
#include "src/ops/gemm_rs/impl.h"

namespace overlace::ops {

spec::OpSpec op_spec(const Channel& channel, const GemmRsArgs& args) {
  return {.op = "gemm_rs",
          .m = args.a.dim(0),
          .n = args.b.dim(1),
          .k = args.a.dim(1),
          .ranks = channel.team().size(),
          .dtype = args.a.dtype,
          .out_dtype = args.out.dtype,
          .b_layout = layout_of(args.b),
          .bias = args.bias.defined(),
          .row_offsets = args.row_offsets};
}

base::Status validate(const Channel& channel, const GemmRsArgs& args) {
  const Site site = site_of(channel, "gemm_rs");
  const Named a{"a", args.a}, b{"b", args.b}, out{"out", args.out};
  OVERLACE_TRY(check_input_dtype(site, a));
  const int64_t m = args.a.dim(0), k = args.a.ndim == 2 ? args.a.dim(1) : 0;
  OVERLACE_TRY(check_matrix(site, a, m, k, "as given"));
  OVERLACE_TRY(check_b(site, b, k, a));
  OVERLACE_TRY(check_output_dtype(site, out, a));
  OVERLACE_TRY(check_offsets(site, args.row_offsets, channel.team().size(), m));
  const int64_t n = args.b.dim(1);
  const std::vector<int64_t> off = spec::row_offsets(op_spec(channel, args));
  const size_t rank = static_cast<size_t>(site.rank);
  OVERLACE_TRY(check_matrix(site, out, off[rank + 1] - off[rank], n, "to take this rank's rows of a b"));
  OVERLACE_TRY(check_bias(site, args.bias, n, out, a));
  return check_disjoint(site, out, {a, b, {"bias", args.bias}});
}

}  // namespace overlace::ops
