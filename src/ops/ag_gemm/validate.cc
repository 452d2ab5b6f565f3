#include "overlace/team.h"
#include "src/ops/ag_gemm/impl.h"
#include "src/ops/common/check.h"

namespace overlace::ops {

spec::OpSpec op_spec(const Channel& channel, const AgGemmArgs& args) {
  return {.op = "ag_gemm",
          .m = args.c.dim(0),
          .n = args.b.dim(1),
          .k = args.a_shard.dim(1),
          .ranks = channel.team().size(),
          .dtype = args.a_shard.dtype,
          .out_dtype = args.c.dtype,
          .b_layout = layout_of(args.b),
          .bias = args.bias.defined(),
          .gathered = args.a.defined(),
          .activation = args.activation,
          .row_offsets = args.row_offsets};
}

base::Status validate(const Channel& channel, const AgGemmArgs& args) {
  const Site site = site_of(channel, "ag_gemm");
  const Named shard{"a_shard", args.a_shard}, b{"b", args.b}, c{"c", args.c}, a{"a", args.a};
  OVERLACE_TRY(check_input_dtype(site, shard));
  const int64_t k = args.a_shard.ndim == 2 ? args.a_shard.dim(1) : 0;
  OVERLACE_TRY(check_matrix(site, shard, args.a_shard.dim(0), k, "as given"));
  OVERLACE_TRY(check_b(site, b, k, shard));
  OVERLACE_TRY(check_output_dtype(site, c, shard));
  const int64_t m = args.c.ndim == 2 ? args.c.dim(0) : 0, n = args.b.dim(1);
  const bool is_swiglu = args.activation == spec::Activation::swiglu;
  if (is_swiglu) OVERLACE_TRY(check_pairs(site, b));
  OVERLACE_TRY(
      check_matrix(site, c, m, is_swiglu ? n / 2 : n, is_swiglu ? "to take swiglu of b's N" : "to take N of b"));
  OVERLACE_TRY(check_offsets(site, args.row_offsets, channel.team().size(), m));
  const std::vector<int64_t> off = spec::row_offsets(op_spec(channel, args));
  const size_t rank = static_cast<size_t>(site.rank);
  OVERLACE_TRY(check_matrix(site, shard, off[rank + 1] - off[rank], k,
                            args.row_offsets.empty() ? "as c's rows are split" : "as row_offsets say"));
  OVERLACE_TRY(check_bias(site, args.bias, n, c, shard));
  OVERLACE_TRY(check_disjoint(site, c, {shard, b, {"bias", args.bias}}));
  return args.a.defined() ? check_gathered(site, a, m, shard, {b, {"bias", args.bias}, c}) : base::Status();
}

}  // namespace overlace::ops
