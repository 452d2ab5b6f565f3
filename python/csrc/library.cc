// Schemas of torch.ops.overlace.*; docs/guides/pytorch.md says what each argument means.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(overlace, m) {
  m.def(
      "ag_gemm(Tensor a, Tensor[] bs, Tensor[] biases, int gather_dim, str group, *, bool return_a=False, "
      "ScalarType? out_dtype=None, str activation=\"none\", int[] row_offsets=[], str plan=\"\") -> (Tensor, "
      "Tensor[])");
  m.def(
      "ag_wgrad(Tensor x, Tensor[] dys, int gather_dim, str group, *, int[] row_offsets=[], str plan=\"\") -> "
      "Tensor[]");
  m.def(
      "gemm_rs(Tensor a, Tensor b, Tensor? bias, str reduce_op, int scatter_dim, str group, *, "
      "ScalarType? out_dtype=None, str activation=\"none\", int[] row_offsets=[], str plan=\"\") -> Tensor");
  m.def(
      "ag_gemm_scaled(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor? bias, int gather_dim, str group, *, "
      "bool return_a=False, ScalarType? out_dtype=None, int[] row_offsets=[], str plan=\"\") -> (Tensor, Tensor)");
  m.def(
      "gemm_rs_scaled(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor? bias, str reduce_op, "
      "int scatter_dim, str group, *, ScalarType? out_dtype=None, int[] row_offsets=[], str plan=\"\") -> Tensor");
  m.def(
      "gemm_ar_scaled(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor? bias, str reduce_op, str group, *, "
      "ScalarType? out_dtype=None, str plan=\"\") -> Tensor");
  m.def("gemm_ar(Tensor a, Tensor b, Tensor? bias, str reduce_op, str group, *, str plan=\"\") -> Tensor");
  m.def(
      "gemm_ar_norm(Tensor a, Tensor b, Tensor residual, Tensor norm_weight, Tensor? bias, float eps, str group, *, "
      "str plan=\"\") -> (Tensor, Tensor)");
  m.def(
      "gemm_a2a(Tensor a, Tensor b, Tensor? bias, str group, *, ScalarType? out_dtype=None, int[] splits=[], "
      "str exchange=\"rows\", int[] blocks=[], str plan=\"\") -> Tensor");
  m.def(
      "a2a_gemm(Tensor a, Tensor b, Tensor? bias, str group, *, bool return_a=False, ScalarType? out_dtype=None, "
      "int[] splits=[], str exchange=\"rows\", int[] blocks=[], str plan=\"\") -> (Tensor, Tensor)");
  m.def("all_gather(Tensor x, int dim, str group) -> Tensor");
  m.def("reduce_scatter(Tensor x, str reduce_op, int dim, str group) -> Tensor");
  m.def("all_reduce(Tensor x, str reduce_op, str group) -> Tensor");
  m.def("all_to_all(Tensor x, int dim, str group, *, int[] send_splits=[], int[] recv_splits=[]) -> Tensor");
}
