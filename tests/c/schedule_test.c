// Schedules through the C API: chosen, shown, written and read again, and asked where they fit.
#include <stdlib.h>

#include "overlace/capi_tune.h"
#include "tests/c/threads.h"

static ovl_op op_of(const char* name, int64_t m, int64_t n, int64_t k) {
  ovl_op op = OVL_INIT(ovl_op);
  op.name = name, op.m = m, op.n = n, op.k = k, op.ranks = kRanks, op.dtype = op.out_dtype = OVL_FP32;
  op.b_layout = OVL_KN;
  return op;
}

static int has(const char* text, const char* part) { return text != NULL && strstr(text, part) != NULL; }

static ovl_runtime* open_alone(ovl_world** world, const char* machine) {
  ovl_options options = OVL_INIT(ovl_options);
  ovl_runtime* runtime = NULL;
  options.backend = OVL_BACKEND_CPU, options.heap_bytes = 1 << 20, options.machine = machine;
  EXPECT_OK(ovl_world_create(1, world));
  EXPECT_OK(ovl_runtime_open_thread(*world, 0, &options, &runtime));
  return runtime;
}

static void test_choice(void) {
  const ovl_op op = op_of("ag_gemm", 4096, 512, 512);
  ovl_world *slow_world = NULL, *unknown_world = NULL;
  ovl_runtime *slow = open_alone(&slow_world, "1GB/s,100GFLOP/s"), *unknown = open_alone(&unknown_world, NULL);
  ovl_schedule *chosen = NULL, *fallback = NULL;
  const char* text = NULL;
  EXPECT_OK(ovl_runtime_machine(slow, &text));
  CHECK(strcmp(text, "1GB/s,100GFLOP/s, the argument machine") == 0);
  EXPECT_OK(ovl_schedule_choose(slow, &op, &chosen));
  EXPECT_OK(ovl_schedule_reason(chosen, &text));
  CHECK(has(text, "expected at") && has(text, "library at"));
  EXPECT_OK(ovl_schedule_json(chosen, &text));
  CHECK(has(text, "\"ag_gemm\"") && !has(text, "\"family\":\"library\""));
  // Who does not know the machine takes what always works.
  EXPECT_OK(ovl_runtime_machine(unknown, &text));
  CHECK(strcmp(text, "no machine file for CPU ranks") == 0);
  EXPECT_OK(ovl_schedule_choose(unknown, &op, &fallback));
  EXPECT_OK(ovl_schedule_reason(fallback, &text));
  CHECK(has(text, "unknown: library"));
  EXPECT_OK(ovl_schedule_text(fallback, &text));
  CHECK(has(text, "library"));
  EXPECT_OK(ovl_schedule_free(chosen));
  EXPECT_OK(ovl_schedule_free(fallback));
  EXPECT_OK(ovl_runtime_close(slow));
  EXPECT_OK(ovl_runtime_close(unknown));
  EXPECT_OK(ovl_world_free(slow_world));
  EXPECT_OK(ovl_world_free(unknown_world));
}

/// A machine that cannot be read ends the opening, with what was wanted.
static void test_bad_machine(void) {
  static const char* const kBad[] = {"h200x3", "nothing.json", "10GB/s,fast", "0GB/s,1GFLOP/s", "1GB/s,-2GFLOP/s"};
  for (size_t i = 0; i < sizeof kBad / sizeof *kBad; ++i) {
    ovl_options options = OVL_INIT(ovl_options);
    ovl_world* world = NULL;
    ovl_runtime* runtime = NULL;
    options.backend = OVL_BACKEND_CPU, options.heap_bytes = 1 << 20, options.machine = kBad[i];
    EXPECT_OK(ovl_world_create(1, &world));
    CHECK(ovl_runtime_open_thread(world, 0, &options, &runtime) != OVL_OK);
    CHECK(has(ovl_error_text(), "the argument machine is \"") && has(ovl_error_text(), kBad[i]));
    EXPECT_OK(ovl_world_free(world));
  }
}

/// `text` with the first `from` replaced; the caller frees it.
static char* replaced(const char* text, const char* from, const char* to) {
  const char* at = strstr(text, from);
  if (!CHECK(at != NULL)) return NULL;
  const size_t before = (size_t)(at - text), size = strlen(text) + strlen(to) + 1;
  char* out = malloc(size);
  snprintf(out, size, "%.*s%s%s", (int)before, text, to, at + strlen(from));
  return out;
}

static void expect_refused(const char* json, const char* part) {
  ovl_schedule* schedule = NULL;
  CHECK(json != NULL && ovl_schedule_from_json(json, &schedule) == OVL_BAD_SCHEDULE);
  CHECK(schedule == NULL);
  if (!CHECK(has(ovl_error_text(), part))) printf("  %s\n", ovl_error_text());
}

static void test_round_trip(void) {
  const ovl_op op = op_of("gemm_rs", 64, 48, 32);
  ovl_schedule *made = NULL, *read = NULL;
  const char *first = NULL, *second = NULL, *again = NULL;
  EXPECT_OK(ovl_schedule_make(&op, "hetero_unfused_1d", 2, &made));
  EXPECT_OK(ovl_schedule_json(made, &first));
  EXPECT_OK(ovl_schedule_from_json(first, &read));
  EXPECT_OK(ovl_schedule_json(read, &second));
  CHECK(strcmp(first, second) == 0);
  EXPECT_OK(ovl_schedule_json(read, &again));
  CHECK(again == second);  // it lives as long as the schedule
  EXPECT_OK(ovl_schedule_text(read, &second));
  EXPECT_OK(ovl_schedule_text(made, &first));
  CHECK(first != second && strcmp(first, second) == 0);
  EXPECT_OK(ovl_schedule_reason(made, &first));
  CHECK(strcmp(first, "") == 0);  // nobody chose it

  EXPECT_OK(ovl_schedule_json(made, &first));
  char* many = replaced(first, "\"G\":2", "\"G\":2000");
  char* racing = replaced(first, "\"deps\":[\"gemm_remote\"],", "");
  expect_refused(many, "/params/G: got 2000, wanted 1 to 1024");
  expect_refused(racing, "schedule: S5: task push");
  expect_refused("{\"op\": \"gemm_rs\"", "");
  free(many);
  free(racing);
  EXPECT_OK(ovl_schedule_free(made));
  EXPECT_OK(ovl_schedule_free(read));
}

/// What fits on the channel of two ranks, and what it takes.
static void test_fit(ovl_runtime* runtime, ovl_team* team, int rank) {
  (void)runtime;
  const ovl_op op = op_of("ag_gemm", 64, 48, 32), other = op_of("ag_gemm", 128, 48, 32);
  ovl_channel* channel = NULL;
  ovl_schedule *copies = NULL, *library = NULL;
  uint64_t workspace = 1, heap = 1, more = 1;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  EXPECT_OK_RANK(rank, ovl_schedule_make(&op, "hetero_unfused_1d", 2, &copies));
  EXPECT_OK_RANK(rank, ovl_schedule_make(&op, "library", 1, &library));
  EXPECT_OK_RANK(rank, ovl_schedule_supported(copies, channel, &op));
  EXPECT_OK_RANK(rank, ovl_schedule_supported(library, channel, &op));
  CHECK_RANK(rank, ovl_schedule_supported(copies, channel, &other) == OVL_NOT_SUPPORTED);
  CHECK_RANK(rank, has(ovl_error_text(), "M 64") || has(ovl_error_text(), "128"));
  EXPECT_OK_RANK(rank, ovl_schedule_memory(copies, &op, rank, &workspace, &heap));
  // An inbox of two epochs for the other's 32 rows of 32 fp32.
  CHECK_RANK(rank, heap >= 2 * 32 * 32 * 4);
  EXPECT_OK_RANK(rank, ovl_schedule_memory(library, &op, rank, &workspace, &more));
  CHECK_RANK(rank, more < heap);
  CHECK_RANK(rank, ovl_schedule_memory(copies, &op, rank, NULL, &heap) == OVL_INVALID_ARGUMENT);
  EXPECT_OK_RANK(rank, ovl_schedule_free(copies));
  EXPECT_OK_RANK(rank, ovl_schedule_free(library));
}

/// What two ranks cannot measure is refused, with a message, before anything runs.
static void test_tune(ovl_runtime* runtime, ovl_team* team, int rank) {
  (void)runtime;
  const ovl_op op = op_of("gemm_rs", 64, 48, 32);
  ovl_op bad = op;
  ovl_channel* channel = NULL;
  const ovl_tuned* tuned = NULL;
  int count = -1;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  CHECK_RANK(rank, ovl_tune(channel, &op, 1, -1, &tuned, &count) == OVL_INVALID_ARGUMENT);
  CHECK_RANK(rank, has(ovl_error_text(), "tune: seconds is -1, wanted 0 or more"));
  CHECK_RANK(rank, ovl_tune(channel, &op, -1, 0, &tuned, &count) == OVL_INVALID_ARGUMENT);
  CHECK_RANK(rank, has(ovl_error_text(), "ovl_tune: count is -1, wanted 0 or more"));
  CHECK_RANK(rank, ovl_tune(channel, &op, 1, 0, NULL, &count) == OVL_INVALID_ARGUMENT);
  CHECK_RANK(rank, has(ovl_error_text(), "ovl_tune: tuned is null, wanted an address"));
  CHECK_RANK(rank, ovl_tune(NULL, &op, 1, 0, &tuned, &count) == OVL_INVALID_ARGUMENT);
  CHECK_RANK(rank, has(ovl_error_text(), "ovl_tune: channel is null, wanted a channel"));
  bad.ranks = 3;
  CHECK_RANK(rank, ovl_tune(channel, &bad, 1, 0, &tuned, &count) == OVL_INVALID_ARGUMENT);
  CHECK_RANK(rank, has(ovl_error_text(), "is a problem of 3 ranks, wanted 2 as the team"));
  CHECK_RANK(rank, ovl_tune(channel, &op, 1, 0, &tuned, &count) == OVL_NOT_SUPPORTED);
  CHECK_RANK(rank, has(ovl_error_text(), "which has no costs to choose candidates by"));
  CHECK_RANK(rank, tuned == NULL && count == -1);
}

int main(void) {
  test_choice();
  test_bad_machine();
  test_round_trip();
  run_ranks(test_fit);
  run_ranks(test_tune);
  return finish("schedule_test", 60);
}
