// What a caller can do wrong, each with its code and its whole message. Nothing waits, nothing moves.
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "overlace/capi_words.h"
#include "tests/c/threads.h"

#define INVALID(text, call) EXPECT_ERROR(OVL_INVALID_ARGUMENT, text, call)

typedef struct fixture {
  ovl_world* world;
  ovl_runtime* runtime;
  ovl_team* team;
  ovl_channel* channel;
  ovl_schedule* schedule;
  ovl_op op;
  ag_args args;
  uint32_t id;
  float a[8], b[6], c[12];
} fixture;

static ovl_op small_op(void) {
  ovl_op op = OVL_INIT(ovl_op);
  op.name = "ag_gemm", op.m = 4, op.n = 3, op.k = 2, op.ranks = 1, op.dtype = op.out_dtype = OVL_FP32;
  op.b_layout = OVL_KN;
  return op;
}

/// One rank, and arguments of a product (4, 2) x (2, 3) that are right.
static void open_fixture(fixture* f) {
  memset(f, 0, sizeof *f);
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  options.heap_bytes = 1 << 20;
  f->op = small_op();
  EXPECT_OK(ovl_world_create(1, &f->world));
  EXPECT_OK(ovl_runtime_open_thread(f->world, 0, &options, &f->runtime));
  EXPECT_OK(ovl_runtime_world(f->runtime, &f->team));
  EXPECT_OK(ovl_channel_open(f->team, NULL, 0, &f->channel));
  EXPECT_OK(ovl_schedule_make(&f->op, "library", 1, &f->schedule));
  EXPECT_OK(ovl_matrix(f->a, OVL_FP32, 4, 2, &f->args.a_shard));
  EXPECT_OK(ovl_matrix(f->b, OVL_FP32, 2, 3, &f->args.b));
  EXPECT_OK(ovl_matrix(f->c, OVL_FP32, 4, 3, &f->args.c));
  EXPECT_OK(call_ag(f->channel, &f->args, f->schedule));
}

static void test_handles(fixture* f) {
  int rank = 0;
  ovl_team* team = NULL;
  INVALID("ovl_runtime_world: runtime is null, wanted a runtime", ovl_runtime_world(NULL, &team));
  INVALID("ovl_runtime_world: team is null, wanted an address", ovl_runtime_world(f->runtime, NULL));
  INVALID("ovl_team_rank: team is null, wanted a team", ovl_team_rank(NULL, &rank));
  INVALID("ovl_team_rank: rank is null, wanted an address", ovl_team_rank(f->team, NULL));
  INVALID("ovl_team_rank: team is a channel, wanted a team", ovl_team_rank((ovl_team*)f->channel, &rank));
  INVALID("ovl_team_rank: team is no handle of overlace, wanted a team", ovl_team_rank((ovl_team*)&rank, &rank));
  INVALID("ovl_runtime_close: runtime is a world, wanted a runtime", ovl_runtime_close((ovl_runtime*)f->world));
  INVALID("ovl_schedule_free: schedule is null, wanted a schedule", ovl_schedule_free(NULL));
  INVALID("ovl_world_free: world is null, wanted a world", ovl_world_free(NULL));
  ovl_schedule* schedule = NULL;
  const char* text = NULL;
  EXPECT_OK(ovl_schedule_make(&f->op, "serial", 1, &schedule));
  EXPECT_OK(ovl_schedule_free(schedule));
  EXPECT_ERROR(OVL_CLOSED, "ovl_schedule_free: schedule was closed before this call", ovl_schedule_free(schedule));
  EXPECT_ERROR(OVL_CLOSED, "ovl_schedule_json: schedule was closed before this call",
               ovl_schedule_json(schedule, &text));
  EXPECT_ERROR(OVL_CLOSED, "ovl_call: schedule was closed before this call", call_ag(f->channel, &f->args, schedule));
}

static void test_open(fixture* f) {
  ovl_world* world = NULL;
  ovl_runtime* runtime = NULL;
  INVALID("ovl_world_create: ranks is 0, wanted 1 to 1024", ovl_world_create(0, &world));
  INVALID("ovl_world_create: ranks is -3, wanted 1 to 1024", ovl_world_create(-3, &world));
  INVALID("ovl_world_create: ranks is 1025, wanted 1 to 1024", ovl_world_create(1025, &world));
  INVALID("ovl_world_create: world is null, wanted an address", ovl_world_create(1, NULL));
  INVALID("ovl_runtime_open_thread: rank is 1, wanted 0 to 0", ovl_runtime_open_thread(f->world, 1, NULL, &runtime));
  INVALID("ovl_runtime_open_thread: rank 0 of this world was opened before, wanted each once",
          ovl_runtime_open_thread(f->world, 0, NULL, &runtime));
  INVALID("ovl_runtime_open: runtime is null, wanted an address", ovl_runtime_open(NULL, NULL));

  ovl_options options = {0};
  EXPECT_ERROR(OVL_VERSION_MISMATCH, "ovl_runtime_open: options.struct_size is 0, wanted 88 (OVL_API_VERSION 15)",
               ovl_runtime_open(&options, &runtime));
  options = (ovl_options)OVL_INIT(ovl_options);
  options.backend = 3;
  INVALID("ovl_runtime_open: options.backend is 3, wanted 0 (auto), 1 (cpu) or 2 (cuda_peer)",
          ovl_runtime_open(&options, &runtime));
  options.backend = OVL_BACKEND_CPU, options.has_device = 1, options.device = -1;
  INVALID("ovl_runtime_open: options.device is -1, wanted 0 or more", ovl_runtime_open(&options, &runtime));
  options.has_device = 0, options.timeout_ms = -1;
  INVALID("RuntimeOptions::timeout_ms is -1, wanted 1 to 86400000", ovl_runtime_open(&options, &runtime));
  options.timeout_ms = 0, options.num_signal_ids = 8;
  INVALID("RuntimeOptions::num_signal_ids is 8, wanted 64 to 1048576", ovl_runtime_open(&options, &runtime));
  options.num_signal_ids = 0, options.link = "fast";
  CHECK(ovl_runtime_open(&options, &runtime) == OVL_INVALID_ARGUMENT);
  CHECK(strncmp(ovl_error_text(), "link \"fast\": it has 1 parts; wanted RATE,LATENCY such as 2GB/s,20us", 60) == 0);
  options.link = NULL, options.checks = "all";
  INVALID("checks \"all\": \"all\" is unknown; wanted a comma-separated list of sync, calls",
          ovl_runtime_open(&options, &runtime));

  ovl_given given = OVL_INIT(ovl_given);
  INVALID("ovl_runtime_open_given: given.token is null, wanted an address",
          ovl_runtime_open_given(&given, NULL, &runtime));
  given.token = "job";
  INVALID("ovl_runtime_open_given: given.allgather is null, wanted an address",
          ovl_runtime_open_given(&given, NULL, &runtime));
  CHECK(runtime == NULL && world == NULL);
}

static int failing_gather(void* user, const void* mine, size_t bytes, void* all) {
  (void)user, (void)mine, (void)bytes, (void)all;
  return 17;
}

static void test_gather(void) {
  ovl_runtime* runtime = NULL;
  ovl_given given = OVL_INIT(ovl_given);
  given.rank = 2, given.size = 2, given.token = "job", given.allgather = failing_gather;
  INVALID("callback_bootstrap: rank is 2 of 2, wanted 0 <= rank < size and a callable",
          ovl_runtime_open_given(&given, NULL, &runtime));
  given.rank = 0;
  EXPECT_ERROR(OVL_BOOTSTRAP, "bootstrap: the caller's allgather returned 17",
               ovl_runtime_open_given(&given, NULL, &runtime));
}

static void test_heap(fixture* f) {
  ovl_buffer buffer = {0, 0}, foreign = {12, 8};
  void* address = NULL;
  char local[8];
  void* peers[1] = {local + 1};
  ovl_region* region = NULL;
  INVALID("ovl_heap_alloc: buffer is null, wanted an address", ovl_heap_alloc(f->runtime, 8, 0, "x", NULL));
  INVALID("heap.alloc \"x\": align is 24, wanted a power of two <= 2 MiB",
          ovl_heap_alloc(f->runtime, 8, 24, "x", &buffer));
  EXPECT_ERROR(OVL_HEAP_EXHAUSTED,
               "symmetric heap exhausted: \"x\" asked 2097152 bytes, largest free block 1048576, total 1048576, in use "
               "0; raise heap_bytes",
               ovl_heap_alloc(f->runtime, 2 << 20, 0, "x", &buffer));
  INVALID("heap.free: no block starts at offset 12 (8 bytes); wanted one that alloc gave and that was not freed before",
          ovl_heap_free(f->runtime, foreign));
  INVALID("ovl_peer_ptr: peer is 1, wanted 0 to 0", ovl_peer_ptr(f->team, buffer, 1, &address));
  INVALID("ovl_heap_adopt: name is null, wanted an address",
          ovl_heap_adopt(f->runtime, NULL, local, 8, peers, &region));
  INVALID("heap.adopt \"x\": peers[0] is this rank's own and must be `local`",
          ovl_heap_adopt(f->runtime, "x", local, 8, peers, &region));
  INVALID("ovl_peer_ptr: address is null, wanted an address", ovl_peer_ptr(f->team, buffer, 0, NULL));
  EXPECT_OK(ovl_heap_alloc(f->runtime, 100, 0, NULL, &buffer));
  ovl_buffer beyond = {buffer.offset, 2 << 20};
  char wanted[160];
  snprintf(wanted, sizeof wanted, "ovl_peer_ptr: 2097152 bytes at offset %llu of the heap, wanted within %llu to %llu",
           (unsigned long long)buffer.offset, (unsigned long long)buffer.offset,
           (unsigned long long)buffer.offset + (1 << 20));
  INVALID(wanted, ovl_peer_ptr(f->team, beyond, 0, &address));
  EXPECT_OK(ovl_heap_free(f->runtime, buffer));
  EXPECT_ERROR(OVL_VERSION_MISMATCH, "ovl_runtime_info: info.struct_size is 8, wanted 120 (OVL_API_VERSION 15)",
               ovl_runtime_info(f->runtime, &(ovl_info){.struct_size = 8}));
}

static void test_signals(fixture* f) {
  uint32_t id = 0;
  char byte = 1;
  INVALID("ovl_signal_ids: count is 0, wanted 1 or more", ovl_signal_ids(f->channel, 0, "x", &id));
  EXPECT_ERROR(
      OVL_HEAP_EXHAUSTED,
      "signal ids exhausted: \"x\" asked 1048576, largest free range 2044, total 2048 of team \"world\"; raise "
      "num_signal_ids",
      ovl_signal_ids(f->channel, 1 << 20, "x", &id));
  INVALID("ovl_signal_add: id is 0, wanted one that ovl_signal_ids gave for this channel: none",
          ovl_signal_add(f->channel, 0, 0, 1));
  EXPECT_OK(ovl_signal_ids(f->channel, 1, NULL, &id));
  char pod[256], text[128];
  snprintf(text, sizeof text, "ovl_signal_add: id is 0, wanted one that ovl_signal_ids gave for this channel: %u to %u",
           id, id);
  INVALID(text, ovl_signal_add(f->channel, 0, 0, 1));
  INVALID("ovl_channel_handle: handle is null, wanted an address", ovl_channel_handle(f->channel, 0, NULL, 176, NULL));
  INVALID("ovl_channel_handle: first is null, wanted an address", ovl_channel_handle(f->channel, 1, pod, 176, NULL));
  INVALID("ovl_channel_handle: channel is null, wanted a channel", ovl_channel_handle(NULL, 0, pod, 176, NULL));
  EXPECT_ERROR(OVL_VERSION_MISMATCH, "ovl_channel_handle: bytes is 256, wanted 176 (OVL_API_VERSION 15)",
               ovl_channel_handle(f->channel, 0, pod, sizeof pod, NULL));
  EXPECT_OK(ovl_channel_handle(f->channel, 0, pod, 176, NULL));
  int64_t words[OVL_WORD_BASES + 1];
  INVALID("ovl_handle_words: handle is null, wanted an address", ovl_handle_words(NULL, 176, 0, words, 18));
  INVALID("ovl_handle_words: words is null, wanted an address", ovl_handle_words(pod, 176, 0, NULL, 18));
  INVALID("ovl_handle_words: count is 17, wanted 18", ovl_handle_words(pod, 176, 0, words, 17));
  EXPECT_ERROR(OVL_VERSION_MISMATCH, "ovl_handle_words: bytes is 256, wanted 176 (OVL_API_VERSION 15)",
               ovl_handle_words(pod, sizeof pod, 0, words, 18));
  EXPECT_OK(ovl_handle_words(pod, 176, 5, words, 18));
  CHECK(words[OVL_WORD_RANK] == 0 && words[OVL_WORD_SIZE] == 1 && words[OVL_WORD_FIRST_ID] == 5);
  INVALID("ovl_signal_add: peer is -1, wanted 0 to 0", ovl_signal_add(f->channel, -1, id, 1));
  INVALID("ovl_signal_add: delta is 0, wanted 1 to 2147483647", ovl_signal_add(f->channel, 0, id, 0));
  INVALID("ovl_signal_take: delta is 2147483648, wanted 1 to 2147483647",
          ovl_signal_take(f->channel, 0, id, UINT32_C(1) << 31));
  INVALID("ovl_signal_take: sender is 7, wanted 0 to 0", ovl_signal_take(f->channel, 7, id, 1));
  INVALID("ovl_put: src is null, wanted an address", ovl_put(f->channel, 0, 0, NULL, 1));
  INVALID("ovl_put: peer is 2, wanted 0 to 0", ovl_put(f->channel, 2, 0, &byte, 1));
  CHECK(ovl_put(f->channel, 0, 0, &byte, 1) == OVL_INVALID_ARGUMENT);  // the control block is not the user's
  CHECK(ovl_put_signal(f->channel, 0, UINT64_MAX, &byte, 1, id) == OVL_INVALID_ARGUMENT);
  INVALID("ovl_region_put: region is null, wanted a region", ovl_region_put(f->channel, NULL, 0, 0, &byte, 1));
  INVALID("ovl_fence: peer is 1, wanted 0 to 0", ovl_fence(f->channel, 1));
  INVALID("ovl_channel_open: stream is set, wanted null: CPU ranks run on the calling thread",
          ovl_channel_open(f->team, &byte, 0, &f->channel));
  INVALID("ChannelOptions::sm_budget is -1, wanted 0 (all SMs) or more",
          ovl_channel_open(f->team, NULL, -1, &f->channel));
  INVALID("channel.limit_sms: sms is -1, wanted 0 (no limit) or more", ovl_channel_limit_sms(f->channel, -1, NULL));
  INVALID("ovl_channel_limit_sms: channel is null, wanted a channel", ovl_channel_limit_sms(NULL, 2, NULL));
  int ranks[2] = {0, 0};
  ovl_team* sub = NULL;
  INVALID("ovl_team_sub: count is 2, wanted 1 to 1", ovl_team_sub(f->team, ranks, 2, "x", &sub));
  ranks[0] = 4;
  INVALID("team.sub: peer is 4, wanted 0 to 0 (team \"world\")", ovl_team_sub(f->team, ranks, 1, "x", &sub));
}

static void test_schedules(fixture* f) {
  ovl_schedule* made = NULL;
  ovl_op op = small_op();
  op.name = "conv";
  INVALID(
      "ovl_schedule_make: op.name is \"conv\", wanted ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, "
      "a2a_gemm or embedding_a2a",
      ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.name = NULL;
  INVALID("ovl_schedule_make: op.name is null, wanted an address", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.m = -4;
  INVALID("ovl_schedule_make: op.m is -4, wanted 0 to 2^46", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.k = INT64_MAX;
  INVALID("ovl_schedule_make: op.k is 9223372036854775807, wanted 0 to 2^46",
          ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.ranks = 0;
  INVALID("ovl_schedule_make: op.ranks is 0, wanted 1 to 1024", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.dtype = 10;
  INVALID("ovl_schedule_make: op.dtype is 10, wanted 0 (fp64) to 9 (u8)", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.b_layout = 2;
  INVALID("ovl_schedule_make: op.b_layout is 2, wanted 0 (NK) or 1 (KN)", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.has_bias = -1;
  INVALID("ovl_schedule_make: op.has_bias is -1, wanted 0 or 1", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.has_a = 2;
  INVALID("ovl_schedule_make: op.has_a is 2, wanted 0 or 1", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.activation = 2;
  INVALID("ovl_schedule_make: op.activation is 2, wanted 0 (none) or 1 (swiglu)",
          ovl_schedule_make(&op, "library", 1, &made));
  const int64_t offsets[] = {0, 5};
  op = small_op(), op.row_offsets = offsets;
  INVALID("ovl_schedule_make: op.row_offsets go from 0 to 5, wanted 2 ascending entries from 0 to m = 4",
          ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.splits = (int64_t[]){3};
  INVALID("ovl_schedule_make: op.splits are given, wanted none: ag_gemm exchanges no rows",
          ovl_schedule_make(&op, "library", 1, &made));
  op.name = "gemm_a2a";
  INVALID("ovl_schedule_make: op.splits sum to 3, wanted M = 4", ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.name = "gemm_a2a", op.exchange = 2;
  INVALID("ovl_schedule_make: op.exchange is 2, wanted 0 (rows) or 1 (cols)",
          ovl_schedule_make(&op, "library", 1, &made));
  op.exchange = OVL_COLS, op.num_blocks = 2000, op.blocks = (int64_t[]){1, 0};
  INVALID("ovl_schedule_make: op.num_blocks is 2000, wanted 0 to 1024", ovl_schedule_make(&op, "library", 1, &made));
  op.num_blocks = 2;
  INVALID("ovl_schedule_make: op.blocks[1] is 0, wanted a multiple of 1 above 0: as many columns for each rank",
          ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.dtype = OVL_E4M3;
  INVALID("ovl_schedule_make: op: scales are none, wanted tensor or rows with operands of e4m3",
          ovl_schedule_make(&op, "library", 1, &made));
  op.scales = 3;
  INVALID("ovl_schedule_make: op.scales is 3, wanted 0 (none), 1 (tensor) or 2 (rows)",
          ovl_schedule_make(&op, "library", 1, &made));
  op = small_op(), op.struct_size -= 8;
  EXPECT_ERROR(OVL_VERSION_MISMATCH, "ovl_schedule_make: op.struct_size is 104, wanted 112 (OVL_API_VERSION 15)",
               ovl_schedule_make(&op, "library", 1, &made));
  op = small_op();
  INVALID("ovl_schedule_make: family is null, wanted an address", ovl_schedule_make(&op, NULL, 1, &made));
  CHECK(ovl_schedule_make(&op, "fastest", 1, &made) == OVL_BAD_SCHEDULE && strstr(ovl_error_text(), "fastest") != NULL);
  CHECK(ovl_schedule_make(&op, "uniform_fused_1d", 0, &made) == OVL_BAD_SCHEDULE);
  INVALID("ovl_operators_json: json is null, wanted an address", ovl_operators_json(NULL));
  INVALID("ovl_schedule_choose: runtime is null, wanted a runtime", ovl_schedule_choose(NULL, &op, &made));
  INVALID("ovl_schedule_choose: runtime is a world, wanted a runtime",
          ovl_schedule_choose((ovl_runtime*)f->world, &op, &made));
  INVALID("ovl_schedule_from_json: json is null, wanted an address", ovl_schedule_from_json(NULL, &made));
  CHECK(ovl_schedule_from_json("{", &made) == OVL_BAD_SCHEDULE);
  EXPECT_ERROR(OVL_BAD_SCHEDULE, "schedule /: got [], wanted an object", ovl_schedule_from_json("[]", &made));
  uint64_t workspace = 0, heap = 0;
  INVALID("ag_gemm: rank is 1, wanted 0 to 0", ovl_schedule_memory(f->schedule, &op, 1, &workspace, &heap));
  op.m = 8;
  EXPECT_ERROR(OVL_NOT_SUPPORTED, "ag_gemm: schedule library was made for M 4, the call has 8; rank 0",
               ovl_schedule_supported(f->schedule, f->channel, &op));
  CHECK(made == NULL);
}

static void test_tensors(fixture* f) {
  ovl_tensor tensor;
  INVALID("ovl_matrix: tensor is null, wanted an address", ovl_matrix(f->a, OVL_FP32, 1, 1, NULL));
  INVALID("ovl_matrix: tensor.sizes[0] is -1, wanted 0 or more", ovl_matrix(f->a, OVL_FP32, -1, 1, &tensor));
  INVALID("ovl_matrix: tensor.dtype is 11, wanted 0 (fp64) to 9 (u8)", ovl_matrix(f->a, 11, 1, 1, &tensor));
  INVALID(
      "ovl_matrix: tensor.strides[0] is 4611686018427387904, wanted the last element within 2^46 of the "
      "first",
      ovl_matrix(f->a, OVL_FP32, 4, INT64_C(1) << 62, &tensor));
  INVALID("ovl_transpose: tensor.ndim is 0, wanted 2", ovl_transpose(&(ovl_tensor){0}));
  INVALID("ag_gemm: args is null, wanted an address", ovl_call(f->channel, "ag_gemm", NULL, 1, f->schedule));
  INVALID("ovl_call: schedule is null, wanted a schedule", call_ag(f->channel, &f->args, NULL));
  INVALID("ovl_call: channel is null, wanted a channel", call_ag(NULL, &f->args, f->schedule));
  ag_args args;
  args = f->args, args.b.ndim = 5;
  INVALID("ag_gemm: b.ndim is 5, wanted 0 to 4", call_ag(f->channel, &args, f->schedule));
  args = f->args, args.c.strides[0] = -3;
  INVALID("ag_gemm: c.strides[0] is -3, wanted 0 or more", call_ag(f->channel, &args, f->schedule));
  args = f->args, args.a_shard.strides[0] = INT64_MAX;
  INVALID(
      "ag_gemm: a_shard.strides[0] is 9223372036854775807, wanted the last element within 2^46 of the "
      "first",
      call_ag(f->channel, &args, f->schedule));
  args = f->args, args.b.sizes[1] = INT64_C(1) << 46, args.b.strides[0] = args.b.strides[1] = 0;
  INVALID("ag_gemm: b.sizes[1] is 70368744177664, wanted at most 2^46 elements in all",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.a_shard.dtype = OVL_I32;
  INVALID("ag_gemm: a_shard must be fp32, bf16, fp16, e4m3 or fp64, got i32; rank 0",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.b.dtype = OVL_BF16;
  INVALID("ag_gemm: b must have the dtype of a_shard (fp32), got bf16; rank 0",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.activation = "gelu";
  INVALID("ag_gemm: activation is \'gelu\', wanted \'none\' or \'swiglu\'", call_ag(f->channel, &args, f->schedule));
  args = f->args, args.activation = "swiglu";
  INVALID("ag_gemm: b must have pairs of columns for swiglu, got (2, 3); rank 0",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.c.data = NULL;
  INVALID("ag_gemm: c (4, 3) has no memory (null); rank 0", call_ag(f->channel, &args, f->schedule));
  args = f->args, args.b.data = (char*)args.b.data + 2;
  INVALID("ag_gemm: b must be aligned to its 4 bytes of fp32, got an address 2 past that; rank 0",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.c.data = f->a;
  INVALID("ag_gemm: c (4, 3) must not share memory with a_shard (4, 2); rank 0",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.a_shard.sizes[1] = 1;
  INVALID("ag_gemm: b must have K = 1 rows as a_shard (4, 1) has columns, got (2, 3); rank 0",
          call_ag(f->channel, &args, f->schedule));
  args = f->args, args.b = (ovl_tensor){0};
  INVALID("ag_gemm: b must have 2 dimensions, got 0 (); rank 0", call_ag(f->channel, &args, f->schedule));
  const ovl_arg rs[] = {ovl_tensor_arg("a", f->args.a_shard), ovl_tensor_arg("b", f->args.b),
                        ovl_tensor_arg("out", f->args.c)};
  EXPECT_ERROR(OVL_PLAN_MISMATCH, "gemm_rs: schedule library was made for operator ag_gemm; rank 0",
               ovl_call(f->channel, "gemm_rs", rs, 3, f->schedule));
}

static void test_arguments_by_name(fixture* f) {
  ovl_arg args[] = {ovl_tensor_arg("a_shard", f->args.a_shard), ovl_tensor_arg("b", f->args.b),
                    ovl_tensor_arg("c", f->args.c), ovl_integer_arg("row_offsets", 4)};
  EXPECT_OK(ovl_run(f->channel, "ag_gemm", args, 3, NULL));
  INVALID("ovl_run: op is null, wanted an address", ovl_run(f->channel, NULL, args, 3, ""));
  INVALID("ovl_run: channel is null, wanted a channel", ovl_run(NULL, "ag_gemm", args, 3, ""));
  INVALID(
      "ovl_run: op is \"gemm\", wanted ag_gemm, ag_wgrad, gemm_rs, gemm_ar, gemm_ar_norm, gemm_a2a, a2a_gemm or "
      "embedding_a2a",
      ovl_run(f->channel, "gemm", args, 3, ""));
  INVALID("ag_gemm: count is -1, wanted 0 or more", ovl_run(f->channel, "ag_gemm", args, -1, ""));
  INVALID("ag_gemm: a_shard must be fp32, bf16, fp16, e4m3 or fp64, got u8; rank 0",
          ovl_run(f->channel, "ag_gemm", (args[0].tensor.dtype = OVL_U8, args), 3, ""));
  args[0].tensor.dtype = OVL_FP32;
  INVALID("ag_gemm: c must have the dtype of a_shard (fp32) or fp32, got fp64; rank 0",
          ovl_run(f->channel, "ag_gemm", (args[2].tensor.dtype = OVL_FP64, args), 3, ""));
  args[2].tensor.dtype = OVL_FP32;
  INVALID("ag_gemm: row_offsets is an integer, wanted a list", ovl_run(f->channel, "ag_gemm", args, 4, ""));
  args[3].kind = 9;
  const int64_t far[] = {INT64_MAX};
  ovl_arg exchanged[] = {ovl_tensor_arg("a", f->args.a_shard), ovl_tensor_arg("b", f->args.b),
                         ovl_tensor_arg("out", f->args.c), ovl_list_arg("splits", far, 1)};
  INVALID("gemm_a2a: a must be (9223372036854775807, 2) as splits say, got (4, 2); rank 0",
          ovl_run(f->channel, "gemm_a2a", exchanged, 4, ""));
  const int64_t blocks[] = {2, 2};
  ovl_arg columns[] = {exchanged[0], exchanged[1], exchanged[2], ovl_text_arg("exchange", "cols"),
                       ovl_list_arg("blocks", blocks, 2)};
  EXPECT_OK(ovl_run(f->channel, "gemm_a2a", columns, 4, ""));
  INVALID("gemm_a2a: blocks sum to 4, wanted N = 3; rank 0", ovl_run(f->channel, "gemm_a2a", columns, 5, ""));
  INVALID("gemm_a2a: a must be (3, 2) as all rows are dealt evenly, got (4, 2); rank 0",
          ovl_run(f->channel, "gemm_a2a", (columns[2].tensor.sizes[0] = 3, columns), 4, ""));
  INVALID("gemm_a2a: exchange is 'both', wanted 'rows' or 'cols'",
          ovl_run(f->channel, "gemm_a2a", (columns[3].text = "both", columns), 4, ""));
  INVALID("ag_gemm: row_offsets is of kind 9, wanted a list", ovl_run(f->channel, "ag_gemm", args, 4, ""));
  args[3].name = "b";
  INVALID("ag_gemm: b is given twice", ovl_run(f->channel, "ag_gemm", args, 4, ""));
  args[3].name = "d";
  INVALID(
      "ag_gemm: no argument is called 'd', wanted a_shard, b, c, bias, a, a_scale, b_scale, row_offsets or activation",
      ovl_run(f->channel, "ag_gemm", args, 4, ""));
  args[3].name = NULL;
  INVALID("ag_gemm: args[3].name is null, wanted an argument's name", ovl_run(f->channel, "ag_gemm", args, 4, ""));
  args[3] = ovl_text_arg("activation", NULL);
  INVALID("ag_gemm: activation is null, wanted an address", ovl_run(f->channel, "ag_gemm", args, 4, ""));
  const int64_t offsets[] = {0, 2};
  args[3] = ovl_list_arg("row_offsets", offsets, 2);
  INVALID("ag_gemm: row_offsets must be 2 ascending entries from 0 to M = 4, got 2 entries: 0 2; rank 0",
          ovl_run(f->channel, "ag_gemm", args, 4, ""));
  const ovl_arg ar[] = {ovl_tensor_arg("a", f->args.a_shard), ovl_tensor_arg("b", f->args.b),
                        ovl_tensor_arg("out", f->args.c), ovl_list_arg("row_offsets", offsets, 2),
                        ovl_text_arg("activation", "swiglu")};
  INVALID("gemm_ar: row_offsets are given, wanted none: gemm_ar splits no rows; rank 0",
          ovl_run(f->channel, "gemm_ar", ar, 4, ""));
  const ovl_arg gated[] = {ar[0], ar[1], ar[2], ar[4]};
  INVALID("gemm_ar: activation is swiglu, wanted none: gemm_ar has none; rank 0",
          ovl_run(f->channel, "gemm_ar", gated, 4, ""));
  for (int i = 0; i < 5; ++i) {
    static const char* const plans[] = {":2", "library:", "library:0", "family=", "family=library,degree=two"};
    char text[256];
    snprintf(text, sizeof text,
             "ag_gemm: plan is '%s', wanted auto, FAMILY, FAMILY:DEGREE with a degree >= 1, or a schedule in JSON",
             plans[i]);
    INVALID(text, ovl_run(f->channel, "ag_gemm", args, 3, plans[i]));
  }
  INVALID("ag_gemm: plan is 'compute', which measures a part, wanted a family that gives the result",
          ovl_run(f->channel, "ag_gemm", args, 3, "compute"));
  CHECK(ovl_run(f->channel, "ag_gemm", args, 3, "fastest") == OVL_BAD_SCHEDULE);
  CHECK(ovl_run(f->channel, "ag_gemm", args, 3, "{}") == OVL_BAD_SCHEDULE);
  EXPECT_OK(ovl_run(f->channel, "ag_gemm", args, 3, "library"));
}

static void test_norm(fixture* f) {
  float residual[12], weight[3] = {1, 2, 3}, normed[12];
  for (int i = 0; i < 12; ++i) residual[i] = (float)(i - 5);
  ovl_tensor residual_view, out, normed_view, weight_view = {weight, OVL_FP32, 1, {3}, {1}};
  EXPECT_OK(ovl_matrix(residual, OVL_FP32, 4, 3, &residual_view));
  EXPECT_OK(ovl_matrix(f->c, OVL_FP32, 4, 3, &out));
  EXPECT_OK(ovl_matrix(normed, OVL_FP32, 4, 3, &normed_view));
  ovl_arg args[] = {ovl_tensor_arg("a", f->args.a_shard),
                    ovl_tensor_arg("b", f->args.b),
                    ovl_tensor_arg("residual", residual_view),
                    ovl_tensor_arg("norm_weight", weight_view),
                    ovl_tensor_arg("out", out),
                    ovl_tensor_arg("normed", normed_view),
                    ovl_real_arg("eps", 0.5)};
  for (int i = 0; i < 8; ++i) f->a[i] = (float)i;
  for (int i = 0; i < 6; ++i) f->b[i] = (float)(i % 3);
  EXPECT_OK(ovl_run(f->channel, "gemm_ar_norm", args, 7, "serial"));
  for (int row = 0; row < 4; ++row) {
    double squares = 0;
    for (int j = 0; j < 3; ++j) {
      const float sum = (f->a[2 * row] + f->a[2 * row + 1]) * (float)j + (float)(3 * row + j - 5);
      CHECK(f->c[3 * row + j] == sum);
      squares += (double)sum * sum;
    }
    const double mean = squares / 3 + 0.5;
    for (int j = 0; j < 3; ++j) {
      const double root_free = normed[3 * row + j] / (double)weight[j];  // x / sqrt(mean), whose square needs no root
      const double x = f->c[3 * row + j], error = root_free * root_free * mean - x * x;
      CHECK(error < 1e-4 && error > -1e-4 && root_free * x >= 0);
    }
  }
  args[6].real = 0;
  INVALID("gemm_ar_norm: eps is 0, wanted a finite number above 0; rank 0",
          ovl_run(f->channel, "gemm_ar_norm", args, 7, ""));
  INVALID("gemm_ar_norm: field 'eps' is missing, wanted a number; rank 0",
          ovl_run(f->channel, "gemm_ar_norm", args, 6, ""));
  args[6].real = 1e-6;
  INVALID("gemm_ar_norm: residual must be (4, 3) as the sum, got (3, 3); rank 0",
          ovl_run(f->channel, "gemm_ar_norm", (args[2].tensor.sizes[0] = 3, args), 7, ""));
  args[2].tensor.sizes[0] = 4;
  INVALID("gemm_ar_norm: norm_weight must be (3) to take N of b, got (2); rank 0",
          ovl_run(f->channel, "gemm_ar_norm", (args[3].tensor.sizes[0] = 2, args), 7, ""));
  args[3].tensor.sizes[0] = 3;
  INVALID("gemm_ar_norm: out (4, 3) must not share memory with residual (4, 3); rank 0",
          ovl_run(f->channel, "gemm_ar_norm", (args[4].tensor.data = residual, args), 7, ""));
}

static void test_collectives(fixture* f) {
  float in[2] = {1, 2}, out[2];
  INVALID("ovl_all_reduce: count is -1, wanted 0 to 2^40", ovl_all_reduce(f->channel, in, out, -1, OVL_FP32));
  INVALID("ovl_all_gather: dtype is -1, wanted 0 (fp64) to 9 (u8)", ovl_all_gather(f->channel, in, out, 1, -1));
  INVALID("ovl_all_gather: send is null, wanted an address", ovl_all_gather(f->channel, NULL, out, 1, OVL_FP32));
  INVALID("ovl_all_to_all: recv is null, wanted an address", ovl_all_to_all(f->channel, in, NULL, 1, OVL_FP32));
  const int64_t one[] = {1}, less[] = {-1}, more[] = {2}, huge[] = {INT64_MAX};
  INVALID("ovl_all_to_allv: send_counts is null, wanted an address",
          ovl_all_to_allv(f->channel, in, NULL, out, one, OVL_FP32));
  INVALID("ovl_all_to_allv: recv_counts[0] is -1, wanted 0 or more, and a sum of at most 2^40",
          ovl_all_to_allv(f->channel, in, one, out, less, OVL_FP32));
  INVALID("ovl_all_to_allv: send_counts[0] is 9223372036854775807, wanted 0 or more, and a sum of at most 2^40",
          ovl_all_to_allv(f->channel, in, huge, out, one, OVL_FP32));
  INVALID("ovl_all_to_allv: send is null, wanted an address",
          ovl_all_to_allv(f->channel, NULL, one, out, one, OVL_FP32));
  INVALID("ovl_all_to_allv: recv must be aligned to its 4 bytes of fp32, got an address 1 past that",
          ovl_all_to_allv(f->channel, in, one, (char*)out + 1, one, OVL_FP32));
  INVALID("ovl_all_to_allv: rank 0 sends itself 1 elements and wants 2 of itself",
          ovl_all_to_allv(f->channel, in, one, out, more, OVL_FP32));
  INVALID("ovl_reduce_scatter: send must be aligned to its 4 bytes of fp32, got an address 1 past that",
          ovl_reduce_scatter(f->channel, (char*)in + 1, out, 1, OVL_FP32));
  int before = -1;
  INVALID("ovl_nvtx: on is 2, wanted 0 or 1", ovl_nvtx(2, &before));
  EXPECT_OK(ovl_nvtx(0, &before));
  CHECK(before == 0);
  ovl_timeline* timeline = NULL;
  INVALID("ovl_timeline_begin: timeline is null, wanted an address", ovl_timeline_begin(f->channel, NULL));
  INVALID("ovl_timeline_write: timeline is null, wanted a timeline", ovl_timeline_write(NULL, "x.json"));
  EXPECT_OK(ovl_timeline_begin(f->channel, &timeline));
  INVALID("ovl_timeline_label: label is null, wanted an address", ovl_timeline_label(timeline, NULL));
  CHECK(ovl_timeline_write(timeline, "/nonexistent/x.json") == OVL_IO);
  INVALID("ovl_broadcast: root is 1, wanted 0 to 0", ovl_broadcast(f->channel, in, 1, OVL_FP32, 1));
}

/// One rank's arguments are wrong: both learn of it, and both can go on.
static void one_is_wrong(ovl_runtime* runtime, ovl_team* team, int rank) {
  float a[4] = {1, 2, 3, 4}, b[4] = {1, 0, 0, 1}, c[8] = {0};
  ovl_channel* channel = NULL;
  ovl_schedule* schedule = NULL;
  ovl_op op = small_op();
  op.n = 2, op.ranks = kRanks;
  ag_args args = {0};
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  EXPECT_OK_RANK(rank, ovl_schedule_make(&op, "hetero_fused_1d", 1, &schedule));
  EXPECT_OK_RANK(rank, ovl_matrix(a, OVL_FP32, 2, 2, &args.a_shard));
  EXPECT_OK_RANK(rank, ovl_matrix(b, OVL_FP32, 2, 2, &args.b));
  EXPECT_OK_RANK(rank, ovl_matrix(c, OVL_FP32, 4, 2, &args.c));
  const ag_args right = args;
  if (rank == 1) args.b.dtype = 77;
  const int code = call_ag(channel, &args, schedule);
  CHECK_RANK(rank, code == OVL_INVALID_ARGUMENT);
  CHECK_RANK(rank, strstr(ovl_error_text(), "ag_gemm: b.dtype is 77, wanted 0 (fp64) to 9 (u8)") != NULL);
  EXPECT_OK_RANK(rank, call_ag(channel, &right, schedule));
  CHECK_RANK(rank, c[0] == 1 && c[3] == 4 && c[4] == 1 && c[7] == 4);
  EXPECT_OK_RANK(rank, ovl_runtime_check(runtime));
}

/// A rank that gives up ends the other's wait.
static void abort_ends_waits(ovl_runtime* runtime, ovl_team* team, int rank) {
  ovl_channel* channel = NULL;
  uint32_t id = 0;
  EXPECT_OK_RANK(rank, ovl_channel_open(team, NULL, 0, &channel));
  EXPECT_OK_RANK(rank, ovl_signal_ids(channel, 1, "never", &id));
  if (rank == 0) {
    EXPECT_OK_RANK(rank, ovl_signal_add(channel, 1, id, 1));  // the other has to wait for this before it gives up
  } else {
    EXPECT_OK_RANK(rank, ovl_signal_take(channel, 0, id, 1));
    EXPECT_OK_RANK(rank, ovl_runtime_abort(runtime, "rank 1 gave up"));
  }
  const int code = rank == 0 ? ovl_signal_take(channel, 1, id, 1) : ovl_runtime_check(runtime);
  CHECK_RANK(rank, code == OVL_ABORTED && strstr(ovl_error_text(), "rank 1 gave up") != NULL);
  CHECK_RANK(rank, ovl_team_barrier(team) == OVL_ABORTED);
}

static void* wait_for_ever(void* argument) {
  const fixture* f = argument;
  int code = OVL_INVALID_ARGUMENT;
  while (code == OVL_INVALID_ARGUMENT) code = ovl_signal_take(f->channel, 0, f->id, 1);  // until it is its turn
  CHECK_RANK(0, code == OVL_ABORTED);
  CHECK_RANK(0, strstr(ovl_error_text(), "from another thread") != NULL);
  return NULL;
}

/// While a thread waits inside, a second one is refused, except to abort.
static void test_second_thread(void) {
  fixture f;
  pthread_t thread;
  open_fixture(&f);
  EXPECT_OK(ovl_signal_ids(f.channel, 1, "never", &f.id));
  pthread_create(&thread, NULL, wait_for_ever, &f);
  int code = OVL_OK;
  const time_t deadline = time(NULL) + 20;
  while (code == OVL_OK && time(NULL) < deadline) code = ovl_runtime_check(f.runtime);  // until the other is inside
  CHECK_RANK(1, code == OVL_INVALID_ARGUMENT);
  CHECK_RANK(1, strcmp(ovl_error_text(),
                       "ovl_runtime_check: another thread uses this runtime at the moment, wanted one "
                       "at a time") == 0);
  CHECK_RANK(1, ovl_runtime_abort(f.runtime, "from another thread") == OVL_OK);
  pthread_join(thread, NULL);
  EXPECT_ERROR(OVL_ABORTED, "from another thread", ovl_runtime_check(f.runtime));
  EXPECT_OK(ovl_runtime_close(f.runtime));
  EXPECT_OK(ovl_schedule_free(f.schedule));
  EXPECT_OK(ovl_world_free(f.world));
}

typedef struct closing {
  ovl_world* world;
  ovl_runtime* runtimes[kRanks];
} closing;

static void* close_rank_0(void* argument) {
  closing* c = argument;
  int code = OVL_INVALID_ARGUMENT;
  while (code == OVL_INVALID_ARGUMENT) code = ovl_runtime_close(c->runtimes[0]);  // until it is its turn
  CHECK_RANK(0, code == OVL_ABORTED);                                             // its peer does not come to close
  CHECK_RANK(0, strstr(ovl_error_text(), "beside close") != NULL);
  return NULL;
}

static void* open_rank_1(void* argument) {
  closing* c = argument;
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  options.heap_bytes = 1 << 20;
  options.timeout_ms = 20000;
  EXPECT_OK_RANK(1, ovl_runtime_open_thread(c->world, 1, &options, &c->runtimes[1]));
  return NULL;
}

/// While close waits for a peer, the handle is there for an abort, which ends that wait.
static void test_abort_beside_close(void) {
  closing c;
  pthread_t thread;
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  options.heap_bytes = 1 << 20;
  options.timeout_ms = 20000;
  memset(&c, 0, sizeof c);
  EXPECT_OK(ovl_world_create(kRanks, &c.world));
  pthread_create(&thread, NULL, open_rank_1, &c);
  EXPECT_OK_RANK(0, ovl_runtime_open_thread(c.world, 0, &options, &c.runtimes[0]));
  pthread_join(thread, NULL);
  pthread_create(&thread, NULL, close_rank_0, &c);
  int code = OVL_OK;
  const time_t begin = time(NULL);
  while (code == OVL_OK && time(NULL) < begin + 20) code = ovl_runtime_check(c.runtimes[0]);  // until it is inside
  CHECK_RANK(1, code == OVL_INVALID_ARGUMENT);
  CHECK_RANK(1, ovl_runtime_abort(c.runtimes[0], "beside close") == OVL_OK);
  pthread_join(thread, NULL);
  CHECK_RANK(1, time(NULL) < begin + 20);
  CHECK_RANK(1, ovl_runtime_abort(c.runtimes[0], "late") == OVL_CLOSED);
  CHECK_RANK(1, ovl_runtime_close(c.runtimes[1]) == OVL_ABORTED);
  EXPECT_OK(ovl_world_free(c.world));
}

/// A data loader's process may not use what it inherited, and does no harm to its parent.
static void test_fork(fixture* f) {
#if defined(__SANITIZE_THREAD__)
  (void)f;  // its child of a process with threads may do nothing
#else
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int size = 0;
    const int right = ovl_runtime_check(f->runtime) == OVL_FORKED && ovl_runtime_close(f->runtime) == OVL_FORKED &&
                      ovl_team_size(f->team, &size) == OVL_CLOSED;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  EXPECT_OK(ovl_runtime_check(f->runtime));
#endif
}

static void test_closed(fixture* f) {
  int size = 0;
  char byte = 0;
  EXPECT_OK(ovl_world_free(f->world));
  EXPECT_ERROR(OVL_CLOSED, "ovl_world_free: world was closed before this call", ovl_world_free(f->world));
  EXPECT_OK(ovl_runtime_close(f->runtime));
  EXPECT_ERROR(OVL_CLOSED, "ovl_runtime_close: runtime was closed before this call", ovl_runtime_close(f->runtime));
  EXPECT_ERROR(OVL_CLOSED, "ovl_runtime_check: runtime was closed before this call", ovl_runtime_check(f->runtime));
  EXPECT_ERROR(OVL_CLOSED, "ovl_runtime_abort: runtime was closed before this call",
               ovl_runtime_abort(f->runtime, "late"));
  EXPECT_ERROR(OVL_CLOSED, "ovl_team_size: team was closed before this call", ovl_team_size(f->team, &size));
  EXPECT_ERROR(OVL_CLOSED, "ovl_put: channel was closed before this call", ovl_put(f->channel, 0, 0, &byte, 1));
  EXPECT_ERROR(OVL_CLOSED, "ovl_call: channel was closed before this call", call_ag(f->channel, &f->args, f->schedule));
  EXPECT_OK(ovl_schedule_free(f->schedule));
}

int main(void) {
  fixture f;
  CHECK(strcmp(ovl_error_text(), "") == 0);
  open_fixture(&f);
  test_handles(&f);
  test_open(&f);
  test_gather();
  test_heap(&f);
  test_signals(&f);
  test_schedules(&f);
  test_tensors(&f);
  test_arguments_by_name(&f);
  test_norm(&f);
  test_collectives(&f);
  EXPECT_OK(call_ag(f.channel, &f.args, f.schedule));  // after all that
  test_fork(&f);
  test_closed(&f);
  test_second_thread();
  test_abort_beside_close();
  run_ranks(one_is_wrong);
  run_ranks(abort_ends_waits);
  return finish("bad_input_test", 140);
}
