/* The C API: GEMM and AllReduce. Every function gives a code; ovl_error_text() says what went wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "overlace/capi.h"

enum { kM = 32, kN = 20, kK = 16 };

static void must(int code) {
  if (code == OVL_OK) return;
  fprintf(stderr, "%s: %s\n", ovl_error_name(code), ovl_error_text());
  exit(ovl_exit_code(code));
}

static float a_value(int rank, int i, int k) { return (float)((i * 3 + k + rank * 2) % 9 - 4); }
static float b_value(int rank, int k, int n) { return (float)((k * 5 + n + rank) % 7 - 3); }

int main(void) {
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  ovl_runtime* runtime = NULL;
  ovl_team* team = NULL;
  ovl_channel* channel = NULL;
  int rank = 0, size = 0;
  must(ovl_runtime_open(&options, &runtime));
  must(ovl_runtime_world(runtime, &team));
  must(ovl_team_rank(team, &rank));
  must(ovl_team_size(team, &size));
  must(ovl_channel_open(team, NULL, 0, &channel));

  static float a[kM * kK], b[kK * kN], out[kM * kN];
  for (int i = 0; i < kM * kK; ++i) a[i] = a_value(rank, i / kK, i % kK);
  for (int i = 0; i < kK * kN; ++i) b[i] = b_value(rank, i / kN, i % kN);
  ovl_tensor a_view, b_view, out_view;
  must(ovl_matrix(a, OVL_FP32, kM, kK, &a_view));
  must(ovl_matrix(b, OVL_FP32, kK, kN, &b_view));
  must(ovl_matrix(out, OVL_FP32, kM, kN, &out_view));
  const ovl_arg args[] = {ovl_tensor_arg("a", a_view), ovl_tensor_arg("b", b_view), ovl_tensor_arg("out", out_view)};
  must(ovl_run(channel, "gemm_ar", args, 3, "uniform_fused_1d:2")); /* "": overlace decides */

  int wrong = 0;
  for (int i = 0; i < kM; ++i)
    for (int n = 0; n < kN; ++n) {
      float want = 0;
      for (int r = 0; r < size; ++r)
        for (int k = 0; k < kK; ++k) want += a_value(r, i, k) * b_value(r, k, n);
      wrong += out[i * kN + n] != want;
    }
  printf("rank %d of %d: %d of %d elements are wrong\n", rank, size, wrong, kM * kN);
  must(ovl_runtime_close(runtime));
  return wrong == 0 ? 0 : 1;
}
