// Two CPU ranks as threads, in C: signals, operators against products by hand, collectives, sub-teams, adopted memory.
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/c/threads.h"

enum { kM = 22, kN = 9, kK = 6 };

static float a_value(int rank, int row, int k) { return (float)((row * 7 + k * 3 + rank * 5) % 9 - 4); }
static float b_value(int rank, int k, int n) { return (float)((k * 5 + n * 2 + rank) % 7 - 3); }

static ovl_tensor matrix(void* data, int64_t rows, int64_t columns) {
  ovl_tensor tensor = {0};
  EXPECT_OK(ovl_matrix(data, OVL_FP32, rows, columns, &tensor));
  return tensor;
}

static void test_names(void) {
  static const char* const names[] = {"ok",
                                      "invalid_argument",
                                      "layout_mismatch",
                                      "closed",
                                      "forked",
                                      "capture",
                                      "bad_schedule",
                                      "plan_mismatch",
                                      "not_supported",
                                      "co_residency",
                                      "version_mismatch",
                                      "timeout",
                                      "peer_lost",
                                      "aborted",
                                      "bootstrap",
                                      "desync",
                                      "io",
                                      "corrupt",
                                      "stale",
                                      "cuda",
                                      "engine",
                                      "heap_exhausted",
                                      "out_of_memory",
                                      "non_finite",
                                      "internal"};
  CHECK(sizeof names / sizeof names[0] == OVL_INTERNAL + 1);
  for (int code = 0; code <= OVL_INTERNAL; ++code) CHECK(strcmp(ovl_error_name(code), names[code]) == 0);
  CHECK(strcmp(ovl_error_name(99), "unknown") == 0);
  CHECK(strcmp(ovl_error_name(-1), "unknown") == 0);
  CHECK(ovl_exit_code(OVL_TIMEOUT) == 4);
  CHECK(ovl_api_version() == OVL_API_VERSION);
  CHECK(strncmp(ovl_version(), PROJECT_VERSION, strlen(PROJECT_VERSION)) == 0);
}

static void signals(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_channel* channel = NULL;
  ovl_buffer buffer;
  uint32_t id = 0;
  void* mine = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  EXPECT_OK_RANK(rank, ovl_signal_ids(channel, 2, "words", &id));
  EXPECT_OK_RANK(rank, ovl_heap_alloc(runtime, 4096, 0, "words", &buffer));
  EXPECT_OK_RANK(rank, ovl_peer_ptr(team, buffer, rank, &mine));
  EXPECT_OK_RANK(rank, ovl_barrier(channel)); /* under the adversary fresh memory is poisoned: not behind a put */
  int limit = -1;
  EXPECT_OK_RANK(rank, ovl_channel_limit_sms(channel, 64, &limit));
  CHECK_RANK(rank, limit == 0);
  EXPECT_OK_RANK(rank, ovl_channel_limit_sms(channel, 0, &limit));
  CHECK_RANK(rank, limit == 64);
  /* rank, size, then the bases of the heaps; the ids are as good as those of ovl_signal_ids */
  struct {
    int32_t rank, size;
    char* heap[8];
    char more[104];
  } pod;
  uint32_t more = 0;
  EXPECT_OK_RANK(rank, ovl_channel_handle(channel, 3, &pod, sizeof pod, &more));
  CHECK_RANK(rank, pod.rank == rank && pod.size == kRanks && pod.heap[rank] + buffer.offset == (char*)mine);
  EXPECT_OK_RANK(rank, ovl_signal_add(channel, 1 - rank, more + 2, 1));
  EXPECT_OK_RANK(rank, ovl_signal_take(channel, 1 - rank, more + 2, 1));
  for (int round = 0; round < 5; ++round) {
    uint32_t words[256];
    for (uint32_t i = 0; i < 256; ++i) words[i] = (uint32_t)(round * 1000 + rank * 100000) + i;
    EXPECT_OK_RANK(rank, ovl_put(channel, 1 - rank, buffer.offset, words, sizeof words / 2));
    EXPECT_OK_RANK(rank, ovl_fence(channel, 1 - rank));
    EXPECT_OK_RANK(rank, ovl_put_signal(channel, 1 - rank, buffer.offset + 512, words + 128, 512, id));
    EXPECT_OK_RANK(rank, ovl_signal_add(channel, 1 - rank, id + 1, 3));
    EXPECT_OK_RANK(rank, ovl_signal_take(channel, 1 - rank, id, 1));
    EXPECT_OK_RANK(rank, ovl_signal_take(channel, 1 - rank, id + 1, 3));
    int wrong = 0;
    for (uint32_t i = 0; i < 256; ++i)
      wrong += ((uint32_t*)mine)[i] != (uint32_t)(round * 1000 + (1 - rank) * 100000) + i;
    CHECK_RANK(rank, wrong == 0);
    EXPECT_OK_RANK(rank, ovl_flush(channel));
    EXPECT_OK_RANK(rank, ovl_barrier(channel));
  }
  EXPECT_OK_RANK(rank, ovl_heap_free(runtime, buffer));
  EXPECT_OK_RANK(rank, ovl_heap_verify(runtime));
  EXPECT_OK_RANK(rank, ovl_runtime_synchronize(runtime));
}

/// M rows over two ranks, ragged: 13 and 9.
static const int64_t kOffsets[] = {0, 13, kM};

static void operators(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  const int rows = (int)(kOffsets[rank + 1] - kOffsets[rank]), first = (int)kOffsets[rank];
  float a[kM * kK], shard[kM * kK], weight[kN * kK], c[kM * kN], own[kM * kN], all[kM * kN];
  for (int i = 0; i < kM; ++i)
    for (int k = 0; k < kK; ++k) a[i * kK + k] = a_value(rank, i, k);
  for (int i = 0; i < rows; ++i)
    for (int k = 0; k < kK; ++k) shard[i * kK + k] = a_value(0, first + i, k);
  for (int n = 0; n < kN; ++n)
    for (int k = 0; k < kK; ++k) weight[n * kK + k] = b_value(rank, k, n);
  ovl_tensor b = {0};
  pthread_mutex_lock(&check_mutex);
  b = matrix(weight, kN, kK);
  EXPECT_OK(ovl_transpose(&b));  // the weight (N, K) as b (K, N)
  ag_args ag = {0};
  ag.a_shard = matrix(shard, rows, kK), ag.b = b, ag.c = matrix(c, kM, kN), ag.row_offsets = kOffsets;
  const ovl_tensor whole = matrix(a, kM, kK);
  const ovl_arg rs[] = {ovl_tensor_arg("a", whole), ovl_tensor_arg("b", b),
                        ovl_tensor_arg("out", matrix(own, rows, kN)),
                        ovl_list_arg("row_offsets", kOffsets, kRanks + 1)};
  const ovl_arg ar[] = {ovl_tensor_arg("out", matrix(all, kM, kN)), ovl_tensor_arg("a", whole), ovl_tensor_arg("b", b)};
  pthread_mutex_unlock(&check_mutex);

  ovl_op op = OVL_INIT(ovl_op);
  op.m = kM, op.n = kN, op.k = kK, op.ranks = kRanks, op.dtype = op.out_dtype = OVL_FP32, op.row_offsets = kOffsets;
  char path[64];
  snprintf(path, sizeof path, "/tmp/overlace_c_%ld.json", (long)getpid());
  ovl_timeline* timeline = NULL;
  EXPECT_OK_RANK(rank, ovl_timeline_begin(channel, &timeline));
  EXPECT_OK_RANK(rank, ovl_timeline_label(timeline, "from C"));
  static const char* const families[] = {"library", "serial", "hetero_fused_1d", "uniform_fused_1d"};
  for (int f = 0; f < 4; ++f) {
    ovl_schedule *for_ag = NULL, *for_rs = NULL, *for_ar = NULL;
    uint64_t workspace = 0, heap = 0;
    op.name = "ag_gemm", op.row_offsets = kOffsets;
    EXPECT_OK_RANK(rank, ovl_schedule_make(&op, families[f], 2, &for_ag));
    EXPECT_OK_RANK(rank, ovl_schedule_supported(for_ag, channel, &op));
    EXPECT_OK_RANK(rank, ovl_schedule_memory(for_ag, &op, rank, &workspace, &heap));
    CHECK_RANK(rank, heap > 0 || f == 0);
    op.name = "gemm_rs";
    EXPECT_OK_RANK(rank, ovl_schedule_make(&op, families[f], 2, &for_rs));
    op.name = "gemm_ar", op.row_offsets = NULL;
    EXPECT_OK_RANK(rank, ovl_schedule_make(&op, families[f], 2, &for_ar));
    memset(c, 0xFF, sizeof c), memset(own, 0xFF, sizeof own), memset(all, 0xFF, sizeof all);
    EXPECT_OK_RANK(rank, call_ag(channel, &ag, for_ag));
    EXPECT_OK_RANK(rank, ovl_call(channel, "gemm_rs", rs, 4, for_rs));
    EXPECT_OK_RANK(rank, ovl_call(channel, "gemm_ar", ar, 3, for_ar));
    int wrong_c = 0, wrong_own = 0, wrong_all = 0;
    for (int i = 0; i < kM; ++i) {
      for (int n = 0; n < kN; ++n) {
        float gathered = 0, sum = 0;
        for (int k = 0; k < kK; ++k) {
          gathered += a_value(0, i, k) * b_value(rank, k, n);
          for (int r = 0; r < kRanks; ++r) sum += a_value(r, i, k) * b_value(r, k, n);
        }
        wrong_c += c[i * kN + n] != gathered;
        wrong_all += all[i * kN + n] != sum;
        if (i >= first && i < first + rows) wrong_own += own[(i - first) * kN + n] != sum;
      }
    }
    CHECK_RANK(rank, wrong_c == 0 && wrong_own == 0 && wrong_all == 0);
    EXPECT_OK_RANK(rank, ovl_schedule_free(for_ag));
    EXPECT_OK_RANK(rank, ovl_schedule_free(for_rs));
    EXPECT_OK_RANK(rank, ovl_schedule_free(for_ar));
  }
  EXPECT_OK_RANK(rank, ovl_timeline_write(timeline, path));
  CHECK_RANK(rank, ovl_timeline_write(timeline, path) == OVL_CLOSED);
  if (rank == 0) {
    char text[4096] = "";
    FILE* const file = fopen(path, "r");
    CHECK_RANK(rank, file != NULL && fread(text, 1, sizeof text - 1, file) > 0 && strstr(text, "from C ") != NULL);
    if (file != NULL) fclose(file);
    CHECK_RANK(rank, remove(path) == 0);
  }
  EXPECT_OK_RANK(rank, ovl_timeline_begin(channel, &timeline));  // ends with the runtime
  ovl_info info = OVL_INIT(ovl_info);
  EXPECT_OK_RANK(rank, ovl_runtime_info(runtime, &info));
  CHECK_RANK(rank, info.rank == rank && info.size == kRanks && info.backend == OVL_BACKEND_CPU && info.device == -1);
  CHECK_RANK(rank, info.calls == 12 && info.heap_bytes >= 8 << 20 && info.heap_in_use > 0 && !info.is_emulated);
}

/// gemm_rs by name, with each kind of plan; schedules are made once for each problem and plan.
static void plans(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  float a[kM * kK], b[kK * kN], bias[kN], out[kM * kN];
  for (int i = 0; i < kM * kK; ++i) a[i] = a_value(rank, i / kK, i % kK);
  for (int i = 0; i < kK * kN; ++i) b[i] = b_value(rank, i / kN, i % kN);
  for (int n = 0; n < kN; ++n) bias[n] = (float)(10 * n);
  ovl_op op = OVL_INIT(ovl_op);
  op.name = "gemm_rs", op.m = kM, op.n = kN, op.k = kK, op.ranks = kRanks, op.dtype = op.out_dtype = OVL_FP32;
  op.b_layout = OVL_KN, op.has_bias = 1;
  ovl_schedule* made = NULL;
  const char* json = NULL;
  EXPECT_OK_RANK(rank, ovl_schedule_make(&op, "hetero_unfused_1d", 3, &made));
  EXPECT_OK_RANK(rank, ovl_schedule_json(made, &json));
  const char* const wanted[] = {
      NULL, "auto", "serial", "uniform_fused_1d:2", "family=serial", "family=uniform_fused_1d,degree=2", json};
  pthread_mutex_lock(&check_mutex);
  const ovl_tensor row = {bias, OVL_FP32, 1, {kN, 0, 0, 0}, {1, 0, 0, 0}};
  const ovl_arg args[] = {ovl_tensor_arg("bias", row), ovl_tensor_arg("out", matrix(out, kM / kRanks, kN)),
                          ovl_tensor_arg("a", matrix(a, kM, kK)), ovl_tensor_arg("b", matrix(b, kK, kN)),
                          ovl_list_arg("row_offsets", NULL, 0)};
  pthread_mutex_unlock(&check_mutex);
  for (int i = 0; i < 14; ++i) {
    memset(out, 0xFF, sizeof out);
    EXPECT_OK_RANK(rank, ovl_run(channel, "gemm_rs", args, 5, wanted[i % 7]));
    int wrong = 0;
    for (int row_of_out = 0; row_of_out < kM / kRanks; ++row_of_out)
      for (int n = 0; n < kN; ++n) {
        float sum = bias[n];
        for (int r = 0; r < kRanks; ++r)
          for (int k = 0; k < kK; ++k) sum += a_value(r, rank * (kM / kRanks) + row_of_out, k) * b_value(r, k, n);
        wrong += out[row_of_out * kN + n] != sum;
      }
    CHECK_RANK(rank, wrong == 0);
  }
  ovl_info info = OVL_INIT(ovl_info);
  EXPECT_OK_RANK(rank, ovl_runtime_info(runtime, &info));
  CHECK_RANK(rank, info.calls == 14 && info.preparations == 4);
  EXPECT_OK_RANK(rank, ovl_schedule_free(made));
}

/// x^T dy, of the rows of both ranks; the gathered x as well.
static void gradients(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  const int rows = (int)(kOffsets[rank + 1] - kOffsets[rank]), first = (int)kOffsets[rank];
  float shard[kM * kK], dy[kM * kN], dw[kK * kN], x[kM * kK];
  for (int i = 0; i < rows; ++i)
    for (int k = 0; k < kK; ++k) shard[i * kK + k] = a_value(0, first + i, k);
  for (int i = 0; i < kM; ++i)
    for (int n = 0; n < kN; ++n) dy[i * kN + n] = b_value(rank, i, n);
  pthread_mutex_lock(&check_mutex);
  const ovl_arg args[] = {ovl_tensor_arg("a_shard", matrix(shard, rows, kK)), ovl_tensor_arg("b", matrix(dy, kM, kN)),
                          ovl_tensor_arg("c", matrix(dw, kK, kN)), ovl_tensor_arg("a", matrix(x, kM, kK)),
                          ovl_list_arg("row_offsets", kOffsets, kRanks + 1)};
  pthread_mutex_unlock(&check_mutex);
  ovl_op op = OVL_INIT(ovl_op);
  op.name = "ag_wgrad", op.m = kM, op.n = kN, op.k = kK, op.ranks = kRanks, op.dtype = op.out_dtype = OVL_FP32;
  op.b_layout = OVL_KN, op.has_a = 1, op.row_offsets = kOffsets;
  static const char* const families[] = {"library", "serial", "hetero_unfused_1d", "uniform_fused_2d"};
  for (int f = 0; f < 4; ++f) {
    ovl_schedule* schedule = NULL;
    EXPECT_OK_RANK(rank, ovl_schedule_make(&op, families[f], 2, &schedule));
    memset(dw, 0xFF, sizeof dw), memset(x, 0xFF, sizeof x);
    EXPECT_OK_RANK(rank, ovl_call(channel, "ag_wgrad", args, 5, schedule));
    int wrong = 0;
    for (int k = 0; k < kK; ++k) {
      for (int i = 0; i < kM; ++i) wrong += x[i * kK + k] != a_value(0, i, k);
      for (int n = 0; n < kN; ++n) {
        float sum = 0;
        for (int i = 0; i < kM; ++i) sum += a_value(0, i, k) * b_value(rank, i, n);
        wrong += dw[k * kN + n] != sum;
      }
    }
    CHECK_RANK(rank, wrong == 0);
    EXPECT_OK_RANK(rank, ovl_schedule_free(schedule));
  }
  EXPECT_OK_RANK(rank, ovl_runtime_check(runtime));
}

static void collectives(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  int32_t mine[6], all[6], sum[3], turned[6];
  for (int i = 0; i < 6; ++i) mine[i] = 1000 * (rank + 1) + i;
  EXPECT_OK_RANK(rank, ovl_all_gather(channel, mine, all, 3, OVL_I32));
  for (int i = 0; i < 6; ++i) CHECK_RANK(rank, all[i] == 1000 * (i / 3 + 1) + i % 3);
  EXPECT_OK_RANK(rank, ovl_all_to_all(channel, mine, turned, 3, OVL_I32));
  for (int i = 0; i < 6; ++i) CHECK_RANK(rank, turned[i] == 1000 * (i / 3 + 1) + 3 * rank + i % 3);
  /* Rank 0 sends 4 to itself and 1 to rank 1, which sends it 2 and keeps none. */
  const int64_t send_counts[kRanks] = {rank == 0 ? 4 : 2, rank == 0 ? 1 : 0};
  const int64_t recv_counts[kRanks] = {rank == 0 ? 4 : 1, rank == 0 ? 2 : 0};
  EXPECT_OK_RANK(rank, ovl_all_to_allv(channel, mine, send_counts, turned, recv_counts, OVL_I32));
  for (int i = 0; i < (rank == 0 ? 6 : 1); ++i)
    CHECK_RANK(rank, turned[i] == (rank == 1 ? 1004 : i < 4 ? 1000 + i : 2000 + i - 4));
  float in[6], out[6];
  for (int i = 0; i < 6; ++i) in[i] = (float)mine[i];
  EXPECT_OK_RANK(rank, ovl_all_reduce(channel, in, out, 6, OVL_FP32));
  for (int i = 0; i < 6; ++i) CHECK_RANK(rank, out[i] == (float)(3000 + 2 * i));
  EXPECT_OK_RANK(rank, ovl_reduce_scatter(channel, in, out, 3, OVL_FP32));
  for (int i = 0; i < 3; ++i) CHECK_RANK(rank, out[i] == (float)(3000 + 2 * (3 * rank + i)));
  memcpy(sum, mine, sizeof sum);
  EXPECT_OK_RANK(rank, ovl_broadcast(channel, sum, 3, OVL_I32, 1));
  for (int i = 0; i < 3; ++i) CHECK_RANK(rank, sum[i] == 2000 + i);
  EXPECT_OK_RANK(rank, ovl_runtime_check(runtime));
}

static void* adopted[kRanks];

static void teams_and_regions(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_team *one = NULL, *turned = NULL;
  const int first[] = {0}, reversed[] = {1, 0};
  int got = -1, size = -1;
  EXPECT_OK_RANK(rank, ovl_team_sub(team, first, 1, "first", &one));
  CHECK_RANK(rank, (one != NULL) == (rank == 0));
  EXPECT_OK_RANK(rank, ovl_team_sub(team, reversed, 2, NULL, &turned));
  EXPECT_OK_RANK(rank, ovl_team_rank(turned, &got));
  EXPECT_OK_RANK(rank, ovl_team_size(turned, &size));
  CHECK_RANK(rank, got == 1 - rank && size == 2);
  const uint64_t mine = 77 + (uint64_t)rank;
  uint64_t all[kRanks] = {0, 0};
  EXPECT_OK_RANK(rank, ovl_team_exchange(turned, &mine, sizeof mine, all));
  CHECK_RANK(rank, all[0] == 78 && all[1] == 77);

  static char memory[kRanks][256];
  adopted[rank] = memory[rank];
  EXPECT_OK_RANK(rank, ovl_team_barrier(team));
  ovl_region* region = NULL;
  ovl_channel* channel = NULL;
  uint32_t id = 0;
  EXPECT_OK_RANK(rank, ovl_heap_adopt(runtime, "memory", memory[rank], 256, adopted, &region));
  EXPECT_OK_RANK(rank, ovl_channel_open(turned, NULL, 0, &channel));
  EXPECT_OK_RANK(rank, ovl_signal_ids(channel, 1, "region", &id));
  char text[16] = "from rank ?";
  text[10] = (char)('0' + rank);
  EXPECT_OK_RANK(rank, ovl_region_put(channel, region, rank, 100, text, sizeof text));  // peers of `turned`
  EXPECT_OK_RANK(rank, ovl_fence(channel, rank));
  EXPECT_OK_RANK(rank, ovl_signal_add(channel, rank, id, 1));
  EXPECT_OK_RANK(rank, ovl_signal_take(channel, rank, id, 1));
  CHECK_RANK(rank, strcmp(memory[rank] + 100, rank == 0 ? "from rank 1" : "from rank 0") == 0);
  EXPECT_OK_RANK(rank, ovl_team_barrier(team));
}

/// A chosen schedule that needs more than the 8 MiB of the heap gives way to one that does not; a named one does not.
static void full_heap(ovl_runtime* runtime, ovl_team* team, int rank) {
  enum { kRows = 4096, kColumns = 64, kDepth = 512 };
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  float* const shard = malloc(sizeof(float) * kRows / kRanks * kDepth);
  float* const weight = malloc(sizeof(float) * kColumns * kDepth);
  float* const c = malloc(sizeof(float) * kRows * kColumns);
  for (int i = 0; i < kRows / kRanks * kDepth; ++i) shard[i] = (float)((i / kDepth + rank * 3) % 5);
  for (int i = 0; i < kColumns * kDepth; ++i) weight[i] = (float)(i / kDepth % 3);
  ag_args args = {0};
  pthread_mutex_lock(&check_mutex);
  args.a_shard = matrix(shard, kRows / kRanks, kDepth), args.b = matrix(weight, kColumns, kDepth);
  args.c = matrix(c, kRows, kColumns);
  EXPECT_OK(ovl_transpose(&args.b));
  pthread_mutex_unlock(&check_mutex);
  ovl_op op = OVL_INIT(ovl_op);
  op.name = "ag_gemm", op.m = kRows, op.n = kColumns, op.k = kDepth, op.ranks = kRanks;
  op.dtype = op.out_dtype = OVL_FP32;
  ovl_schedule *chosen = NULL, *named = NULL;
  uint64_t workspace = 0, heap = 0;
  const char* reason = NULL;
  EXPECT_OK_RANK(rank, ovl_schedule_choose(runtime, &op, &chosen));
  EXPECT_OK_RANK(rank, ovl_schedule_memory(chosen, &op, rank, &workspace, &heap));
  CHECK_RANK(rank, heap > 8 << 20);
  for (int round = 0; round < 2; ++round) {
    memset(c, 0xFF, sizeof(float) * kRows * kColumns);
    EXPECT_OK_RANK(rank, call_ag(channel, &args, chosen));
    CHECK_RANK(rank, wrong_products(c, kRows, kColumns, kDepth, 0) == 0);
  }
  EXPECT_OK_RANK(rank, ovl_schedule_memory(chosen, &op, rank, &workspace, &heap));
  CHECK_RANK(rank, heap <= 8 << 20);
  EXPECT_OK_RANK(rank, ovl_schedule_reason(chosen, &reason));
  CHECK_RANK(rank, strstr(reason, "had no room for its") != NULL);
  ovl_info info = OVL_INIT(ovl_info);
  EXPECT_OK_RANK(rank, ovl_runtime_info(runtime, &info));
  CHECK_RANK(rank, info.smaller_plans >= 1 && info.preparations == 1 && info.max_heap_bytes == 8 << 20);
  EXPECT_OK_RANK(rank, ovl_schedule_make(&op, "hetero_fused_1d", 2, &named));
  CHECK_RANK(rank, call_ag(channel, &args, named) == OVL_HEAP_EXHAUSTED);
  EXPECT_OK_RANK(rank, ovl_schedule_free(chosen));
  EXPECT_OK_RANK(rank, ovl_schedule_free(named));
  free(shard), free(weight), free(c);
}

/// Ranks with other N, whose own choices differ: that for the widest counts.
static void other_widths(ovl_runtime* runtime, ovl_team* team, int rank) {
  enum { kRows = 512, kDepth = 64, kWidest = 600 };
  const int columns = rank == 0 ? 1 : kWidest;
  ovl_channel* channel = NULL;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  float* const shard = malloc(sizeof(float) * kRows / kRanks * kDepth);
  float* const weight = malloc(sizeof(float) * kWidest * kDepth);
  float* const c = malloc(sizeof(float) * kRows * kWidest);
  for (int i = 0; i < kRows / kRanks * kDepth; ++i) shard[i] = (float)((i / kDepth + rank * 3) % 5);
  for (int i = 0; i < columns * kDepth; ++i) weight[i] = (float)(i / kDepth % 3 + 1);
  ag_args args = {0};
  pthread_mutex_lock(&check_mutex);
  args.a_shard = matrix(shard, kRows / kRanks, kDepth), args.b = matrix(weight, columns, kDepth);
  args.c = matrix(c, kRows, columns);
  EXPECT_OK(ovl_transpose(&args.b));
  pthread_mutex_unlock(&check_mutex);
  ovl_op op = OVL_INIT(ovl_op);
  op.name = "ag_gemm", op.m = kRows, op.n = columns, op.k = kDepth, op.ranks = kRanks;
  op.dtype = op.out_dtype = OVL_FP32;
  ovl_schedule* chosen = NULL;
  const char* text = NULL;
  EXPECT_OK_RANK(rank, ovl_schedule_choose(runtime, &op, &chosen));
  EXPECT_OK_RANK(rank, ovl_schedule_text(chosen, &text));
  CHECK_RANK(rank, (strstr(text, "library") != NULL) == (rank == 0));
  for (int round = 0; round < 2; ++round) {
    memset(c, 0xFF, sizeof(float) * (size_t)(kRows * columns));
    EXPECT_OK_RANK(rank, call_ag(channel, &args, chosen));
    CHECK_RANK(rank, wrong_products(c, kRows, columns, kDepth, 1) == 0);
  }
  EXPECT_OK_RANK(rank, ovl_schedule_text(chosen, &text));
  CHECK_RANK(rank, strstr(text, "library") == NULL);
  EXPECT_OK_RANK(rank, ovl_schedule_reason(chosen, &text));
  CHECK_RANK(rank, strstr(text, "that for N 600 counts") != NULL);
  ovl_info info = OVL_INIT(ovl_info);
  EXPECT_OK_RANK(rank, ovl_runtime_info(runtime, &info));
  CHECK_RANK(rank, info.preparations == 1);
  EXPECT_OK_RANK(rank, ovl_schedule_free(chosen));
  free(shard), free(weight), free(c);
}

int main(void) {
  test_names();
  run_ranks(signals);
  run_ranks(operators);
  run_ranks(plans);
  run_ranks(gradients);
  run_ranks(collectives);
  run_ranks(teams_and_regions);
  run_ranks(full_heap);
  run_ranks(other_widths);
  return finish("ranks_test", 200);
}
