// Ranks that are threads of this process, each with a runtime of its own.
#pragma once

#include <pthread.h>

#include "tests/c/check.h"

enum { kRanks = 2 };

/// ovl_options.machine of the ranks; NULL leaves it to the environment.
static const char* rank_machine = "10MB/s,1GFLOP/s";

typedef struct rank_context {
  ovl_world* world;
  void (*body)(ovl_runtime*, ovl_team*, int);
  int rank;
} rank_context;

/// Arguments of ag_gemm, to be spoilt one by one.
typedef struct ag_args {
  ovl_tensor a_shard, b, c;
  const int64_t* row_offsets;
  const char* activation;
} ag_args;

static inline int call_ag(ovl_channel* channel, const ag_args* args, ovl_schedule* schedule) {
  const ovl_arg all[] = {ovl_tensor_arg("a_shard", args->a_shard), ovl_tensor_arg("b", args->b),
                         ovl_tensor_arg("c", args->c), ovl_list_arg("row_offsets", args->row_offsets, kRanks + 1),
                         ovl_text_arg("activation", args->activation == NULL ? "none" : args->activation)};
  return ovl_call(channel, "ag_gemm", all, 5, schedule);
}

/// Elements of c (rows, columns) that are not those of ag_gemm where row i of rank r's shard is (i + 3 r) % 5
/// throughout and column n of the weight is n % 3 + least.
static inline int wrong_products(const float* c, int rows, int columns, int depth, int least) {
  int wrong = 0;
  for (int i = 0; i < rows; ++i) {
    const int from = i / (rows / kRanks), row = i % (rows / kRanks);
    for (int n = 0; n < columns; ++n)
      wrong += c[i * columns + n] != (float)(depth * ((row + from * 3) % 5) * (n % 3 + least));
  }
  return wrong;
}

/// Checks of two threads would race: one of them counts at a time.
static pthread_mutex_t check_mutex = PTHREAD_MUTEX_INITIALIZER;
#define CHECK_RANK(rank, condition)                                                         \
  do {                                                                                      \
    const int holds_ = (condition) ? 1 : 0;                                                 \
    pthread_mutex_lock(&check_mutex);                                                       \
    check(holds_, #condition, (rank) == 0 ? " (rank 0)" : " (rank 1)", __FILE__, __LINE__); \
    pthread_mutex_unlock(&check_mutex);                                                     \
  } while (0)
#define EXPECT_OK_RANK(rank, call)                       \
  do {                                                   \
    const int got_ = (call);                             \
    pthread_mutex_lock(&check_mutex);                    \
    expect(OVL_OK, "", got_, #call, __FILE__, __LINE__); \
    pthread_mutex_unlock(&check_mutex);                  \
  } while (0)

static void* run_rank(void* argument) {
  const rank_context* context = argument;
  ovl_options options = OVL_INIT(ovl_options);
  options.backend = OVL_BACKEND_CPU;
  options.heap_bytes = 8 << 20;
  options.timeout_ms = 20000;
  options.machine = rank_machine;
  ovl_runtime* runtime = NULL;
  ovl_team* team = NULL;
  EXPECT_OK_RANK(context->rank, ovl_runtime_open_thread(context->world, context->rank, &options, &runtime));
  EXPECT_OK_RANK(context->rank, ovl_runtime_world(runtime, &team));
  context->body(runtime, team, context->rank);
  EXPECT_OK_RANK(context->rank, ovl_runtime_close(runtime));
  return NULL;
}

static inline void run_ranks(void (*body)(ovl_runtime*, ovl_team*, int)) {
  ovl_world* world = NULL;
  pthread_t threads[kRanks];
  rank_context contexts[kRanks];
  EXPECT_OK(ovl_world_create(kRanks, &world));
  for (int r = 0; r < kRanks; ++r) {
    contexts[r] = (rank_context){world, body, r};
    pthread_create(&threads[r], NULL, run_rank, &contexts[r]);
  }
  for (int r = 0; r < kRanks; ++r) pthread_join(threads[r], NULL);
  EXPECT_OK(ovl_world_free(world));
}
