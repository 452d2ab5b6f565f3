// The mixture-of-experts layer of the C API: its router, forward, gradients, and what a caller can do wrong.
#include "overlace/capi_moe.h"
#include "tests/c/threads.h"

#define INVALID(text, call) EXPECT_ERROR(OVL_INVALID_ARGUMENT, text, call)

static ovl_tensor tensor(void* data, int32_t dtype, int64_t rows, int64_t columns) {
  ovl_tensor out = {0};
  EXPECT_OK(ovl_matrix(data, dtype, rows, columns, &out));
  return out;
}
static ovl_tensor stack_of_one(float* data) { return (ovl_tensor){data, OVL_FP32, 3, {1, 1, 1, 0}, {1, 1, 1, 0}}; }

/// Expert e of 2, on rank e: relu(v (e + 1)) * (e + 2) + 10, H = I = 1. Rank 0 has tokens 1 and 3, rank 1 token -2.
static void layer_body(ovl_runtime* runtime, ovl_team* team, int rank) {
  (void)runtime;
  float x[2] = {rank == 0 ? 1.F : -2.F, 3}, weights[4] = {0.5F, 2, 1, 4}, out[2] = {0}, ones[2] = {1, 1};
  int32_t idx[4] = {0, 1, -1, 1};
  float w1 = (float)(rank + 1), w2 = (float)(rank + 2), b2 = 10;
  const int64_t tokens = rank == 0 ? 2 : 1;
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));

  ovl_moe layer = OVL_INIT(ovl_moe);
  pthread_mutex_lock(&check_mutex);
  layer.x = tensor(x, OVL_FP32, tokens, 1), layer.out = tensor(out, OVL_FP32, tokens, 1);
  layer.idx = tensor(idx, OVL_I32, tokens, 2), layer.weights = tensor(weights, OVL_FP32, tokens, 2);
  layer.w1 = stack_of_one(&w1), layer.w2 = stack_of_one(&w2), layer.b2 = tensor(&b2, OVL_FP32, 1, 1);
  layer.num_experts = 2, layer.activation = "relu";
  pthread_mutex_unlock(&check_mutex);
  int64_t load = -1, dropped = -1;
  EXPECT_OK_RANK(rank, ovl_moe_run(channel, &layer, &load, &dropped));
  CHECK_RANK(rank, load == (rank == 0 ? 2 : 3) && dropped == 0);
  CHECK_RANK(rank, out[0] == (rank == 0 ? 0.5F * (1 * 2 + 10) + 2 * (2 * 3 + 10) : 0.5F * 10 + 2 * 10));
  CHECK_RANK(rank, out[1] == (rank == 0 ? 4 * (6 * 3 + 10) : 0));
  const int64_t begin[] = {0, 1, 2};  // as it is without
  layer.expert_begin = begin;
  EXPECT_OK_RANK(rank, ovl_moe_run(channel, &layer, NULL, NULL));

  float dx[2] = {-1, -1}, dweights[4] = {-1, -1, -1, -1}, dw1 = -1, dw2 = -1, db2 = -1;
  ovl_moe_grad grad = OVL_INIT(ovl_moe_grad);
  pthread_mutex_lock(&check_mutex);
  grad.dy = tensor(ones, OVL_FP32, tokens, 1), grad.dx = tensor(dx, OVL_FP32, tokens, 1);
  grad.dweights = tensor(dweights, OVL_FP32, tokens, 2), grad.db2 = tensor(&db2, OVL_FP32, 1, 1);
  pthread_mutex_unlock(&check_mutex);
  grad.dw1 = stack_of_one(&dw1), grad.dw2 = stack_of_one(&dw2);
  EXPECT_OK_RANK(rank, ovl_moe_run_grad(channel, &layer, &grad));
  CHECK_RANK(rank, dx[0] == (rank == 0 ? 0.5F * 1 * 2 + 2 * 2 * 3 : 0) && dx[1] == (rank == 0 ? 4 * 2 * 3 : -1));
  CHECK_RANK(rank, dweights[0] == (rank == 0 ? 12 : 10) && dweights[1] == (rank == 0 ? 16 : 10));
  CHECK_RANK(rank, dweights[2] == (rank == 0 ? 0 : -1) && dweights[3] == (rank == 0 ? 28 : -1));
  CHECK_RANK(rank, dw1 == (rank == 0 ? 0.5F * 1 * 2 : 2 * 1 * 3 + 4 * 3 * 3));
  CHECK_RANK(rank, dw2 == (rank == 0 ? 0.5F * 1 : 2 * 2 + 4 * 6));
  CHECK_RANK(rank, db2 == (rank == 0 ? 0.5F + 0.5F : 2 + 4 + 2));

  layer.num_experts = rank == 0 ? 2 : 0;  // the team goes on behind a refused call
  CHECK_RANK(rank, ovl_moe_run_grad(channel, &layer, &grad) == OVL_INVALID_ARGUMENT);
  layer.num_experts = 2;
  EXPECT_OK_RANK(rank, ovl_moe_run(channel, &layer, NULL, NULL));
}

static void refuses(ovl_runtime* runtime, ovl_team* team, int rank) {
  (void)runtime;
  if (rank != 0) return;
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  ovl_moe layer = OVL_INIT(ovl_moe);
  pthread_mutex_lock(&check_mutex);
  INVALID("ovl_moe_run: channel is null, wanted a channel", ovl_moe_run(NULL, &layer, NULL, NULL));
  INVALID("ovl_moe_run: layer is null, wanted an address", ovl_moe_run(channel, NULL, NULL, NULL));
  INVALID("ovl_moe_run_grad: grad is null, wanted an address", ovl_moe_run_grad(channel, &layer, NULL));
  layer.gated = 2;
  INVALID("ovl_moe_run: layer.gated is 2, wanted 0 or 1", ovl_moe_run(channel, &layer, NULL, NULL));
  layer.struct_size = 8;
  CHECK(ovl_moe_run(channel, &layer, NULL, NULL) == OVL_VERSION_MISMATCH);
  pthread_mutex_unlock(&check_mutex);
}

static void chooses(void) {
  float x[2] = {1, -1}, w_gate[3] = {1, 3, 2}, weights[4] = {0};
  int32_t idx[4] = {0};
  ovl_moe_router router = OVL_INIT(ovl_moe_router);
  router.x = tensor(x, OVL_FP32, 2, 1), router.w_gate = tensor(w_gate, OVL_FP32, 3, 1);
  router.idx = tensor(idx, OVL_I32, 2, 2), router.weights = tensor(weights, OVL_FP32, 2, 2);
  router.renormalize = 1, router.route_scale = 2;
  int64_t nan_tokens = -1;
  EXPECT_OK(ovl_moe_choose_experts(&router, &nan_tokens));
  CHECK(nan_tokens == 0 && idx[0] == 1 && idx[1] == 2 && idx[2] == 0 && idx[3] == 2);
  CHECK(weights[0] + weights[1] > 1.9999F && weights[0] + weights[1] < 2.0001F && weights[0] > weights[1]);
  router.route_scale = 0;  // as 1
  EXPECT_OK(ovl_moe_choose_experts(&router, NULL));
  CHECK(weights[2] + weights[3] > 0.9999F && weights[2] + weights[3] < 1.0001F && weights[2] > weights[3]);
  router.renormalize = -1;
  INVALID("ovl_moe_choose_experts: router.renormalize is -1, wanted 0 or 1", ovl_moe_choose_experts(&router, NULL));
  INVALID("ovl_moe_choose_experts: router is null, wanted an address", ovl_moe_choose_experts(NULL, NULL));
  router.renormalize = 0, router.score = "best";
  CHECK(ovl_moe_choose_experts(&router, NULL) == OVL_INVALID_ARGUMENT);
}

int main(void) {
  run_ranks(layer_body);
  run_ranks(refuses);
  chooses();
  return finish("moe", 60);
}
