/* The C API: everything of overlace that is no template, for C and for languages that load shared objects.
 *
 * Every function that can fail returns a code of enum ovl_code, 0 where it succeeded, and never throws, prints, aborts
 * or waits without a deadline. ovl_error_text() says what went wrong. Output arguments are written on success only.
 *
 * Handles are values that are never used twice: one that was closed, or that belongs to something else, is refused.
 * Teams, channels, regions and timelines end with their runtime. A runtime and what belongs to it is used by one thread
 * at a time.
 *
 * Structs that may grow begin with struct_size: set it by OVL_INIT(type). What a field means in detail says the C++
 * header that is named beside it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Grows when a function is added or a struct grows: programs made for a smaller number are compiled again. */
#define OVL_API_VERSION 5
#define OVL_INIT(type) \
  { .struct_size = sizeof(type) }

/* ---- errors: docs/reference/errors.md ---- */

enum ovl_code {
  OVL_OK = 0,
  OVL_INVALID_ARGUMENT,
  OVL_LAYOUT_MISMATCH,
  OVL_CLOSED,
  OVL_FORKED,
  OVL_CAPTURE,
  OVL_BAD_SCHEDULE,
  OVL_PLAN_MISMATCH,
  OVL_NOT_SUPPORTED,
  OVL_CO_RESIDENCY,
  OVL_VERSION_MISMATCH,
  OVL_TIMEOUT,
  OVL_PEER_LOST,
  OVL_ABORTED,
  OVL_BOOTSTRAP,
  OVL_DESYNC,
  OVL_IO,
  OVL_CORRUPT,
  OVL_STALE,
  OVL_CUDA,
  OVL_ENGINE,
  OVL_HEAP_EXHAUSTED,
  OVL_OUT_OF_MEMORY,
  OVL_NON_FINITE,
  OVL_INTERNAL
};

/* OVL_API_VERSION of the library that was loaded; "0.1.0". */
int ovl_api_version(void);
const char* ovl_version(void);
/* Message of this thread's last call that failed, "" if none did; until its next one fails. */
const char* ovl_error_text(void);
/* "invalid_argument"; "unknown" for what is no code. */
const char* ovl_error_name(int code);
/* Exit status of a program that ends with this error. */
int ovl_exit_code(int code);

/* ---- runtime: overlace/runtime.h, overlace/bootstrap.h ---- */

typedef struct ovl_world ovl_world;
typedef struct ovl_runtime ovl_runtime;
typedef struct ovl_team ovl_team;
typedef struct ovl_channel ovl_channel;
typedef struct ovl_region ovl_region;
typedef struct ovl_schedule ovl_schedule;
typedef struct ovl_timeline ovl_timeline;

enum ovl_backend { OVL_BACKEND_AUTO = 0, OVL_BACKEND_CPU = 1, OVL_BACKEND_CUDA_PEER = 2 };

/* 0 and null take the OVERLACE_* variable, or the default. */
typedef struct ovl_options {
  size_t struct_size;
  int32_t backend;         /* enum ovl_backend */
  int32_t has_device;      /* 1: take `device`; 0: the local rank */
  int32_t device;          /* CUDA ordinal */
  uint32_t num_signal_ids; /* 64 to 2^20 */
  uint64_t heap_bytes;     /* at open; it may grow to max_heap_bytes: RuntimeOptions */
  uint64_t max_heap_bytes;
  int64_t timeout_ms;     /* 1 to 86400000 */
  const char* link;       /* CPU ranks: "2GB/s,20us", or "none" */
  const char* adversary;  /* CPU ranks: "seed=7" */
  const char* checks;     /* "sync,calls" */
  const char* net_engine; /* "auto", "nccl", "mpi", "none" */
  const char* machine;    /* that schedules are chosen for: overlace::ContextOptions; rank 0's counts */
} ovl_options;

/* All ranks are started by somebody who can gather: each call gives `bytes` bytes of every rank, in rank order, to all.
 * Returns 0, or anything else where it failed; it keeps a deadline of its own. */
typedef int (*ovl_allgather)(void* user, const void* mine, size_t bytes, void* all);
typedef struct ovl_given {
  size_t struct_size;
  int32_t rank, size;
  const char* token; /* the same on all ranks, another for each job */
  ovl_allgather allgather;
  void* user;
} ovl_given;

/* Ranks that are threads of this process: one world, and one runtime of each rank, opened by its thread. Freed after
 * the runtimes were opened. */
int ovl_world_create(int ranks, ovl_world** world);
int ovl_world_free(ovl_world* world);

/* Collective. Who we are stands in the environment (overlace run, torchrun, mpirun, srun), else there is one rank.
 * `options` may be null. */
int ovl_runtime_open(const ovl_options* options, ovl_runtime** runtime);
int ovl_runtime_open_thread(ovl_world* world, int rank, const ovl_options* options, ovl_runtime** runtime);
int ovl_runtime_open_given(const ovl_given* given, const ovl_options* options, ovl_runtime** runtime);
/* Collective unless aborted. The handle ends in any case; gives the first cause if nobody saw it yet. */
int ovl_runtime_close(ovl_runtime* runtime);
/* The first cause if the runtime was aborted. */
int ovl_runtime_check(ovl_runtime* runtime);
/* Waits for everything that this rank issued. */
int ovl_runtime_synchronize(ovl_runtime* runtime);
/* Any thread, at any time: all waits of all ranks return, those of ovl_runtime_close too. OVL_CLOSED, and nothing
 * happens, once that has returned; nothing either in its last steps, which wait for nobody. */
int ovl_runtime_abort(ovl_runtime* runtime, const char* why);

typedef struct ovl_info {
  size_t struct_size;
  int32_t rank, size, backend, device; /* device: -1 on CPU ranks */
  int32_t is_emulated;                 /* an emulated link or emulated hosts */
  uint64_t heap_bytes, heap_in_use;
  uint64_t max_heap_bytes;
  uint64_t calls, serialised_calls, moved_calls; /* overlace::Stats */
  uint64_t preparations, evictions, heap_growths, smaller_plans, shared_blocks;
} ovl_info;
int ovl_runtime_info(ovl_runtime* runtime, ovl_info* info);
/* The machine that schedules are chosen for and where it comes from, in words; lives as long as the runtime. */
int ovl_runtime_machine(ovl_runtime* runtime, const char** origin);

/* ---- teams and channels: overlace/team.h, overlace/channel.h ---- */

int ovl_runtime_world(ovl_runtime* runtime, ovl_team** team);
/* Collective on `team`; ranks that are not among `ranks` get null. */
int ovl_team_sub(ovl_team* team, const int* ranks, int count, const char* name, ovl_team** sub);
int ovl_team_rank(ovl_team* team, int* rank);
int ovl_team_size(ovl_team* team, int* size);
int ovl_team_barrier(ovl_team* team);
/* Host all-gather, at most 64 KiB a rank: `all` takes size x bytes. */
int ovl_team_exchange(ovl_team* team, const void* mine, size_t bytes, void* all);
/* Collective: all ranks open their channels in the same order. stream: a cudaStream_t on GPUs, null on CPU ranks, where
 * calls run on the calling thread. sm_budget 0: all SMs. */
int ovl_channel_open(ovl_team* team, void* stream, int sm_budget, ovl_channel** channel);
int ovl_channel_use(ovl_channel* channel, void* stream);

/* ---- memory: overlace/symmetric.h ---- */

typedef struct ovl_buffer {
  uint64_t offset, bytes;
} ovl_buffer;

/* All ranks make the same calls in the same order; peers may write into it after a barrier. align: a power of two, 0
 * for 256. name may be null. */
int ovl_heap_alloc(ovl_runtime* runtime, uint64_t bytes, uint64_t align, const char* name, ovl_buffer* buffer);
int ovl_heap_free(ovl_runtime* runtime, ovl_buffer buffer);
/* Collective: all ranks made the same calls. */
int ovl_heap_verify(ovl_runtime* runtime);
/* Address of `buffer` in the heap of that member; null where loads and stores do not reach it. */
int ovl_peer_ptr(ovl_team* team, ovl_buffer buffer, int peer, void** address);
/* Collective. peers[r]: where this rank reaches the memory of rank r of the world. The caller keeps it until close. */
int ovl_heap_adopt(ovl_runtime* runtime, const char* name, void* local, uint64_t bytes, void* const* peers,
                   ovl_region** region);

/* ---- puts and signals of CPU ranks: overlace/signal.h ---- */

/* A range of signal ids, the same on all ranks; their channel owns it. */
int ovl_signal_ids(ovl_channel* channel, uint32_t count, const char* name, uint32_t* first);
/* What kernels of the caller get by value, for overlace/device: `handle` takes the channel's ChannelPod
 * (overlace/handle_pod.h), of `bytes` bytes. With `count` above 0 also a range of signal ids for them, the same on all
 * ranks, which the channel owns; `first` may be null without. On CPU ranks the ids are those of ovl_signal_ids. */
int ovl_channel_handle(ovl_channel* channel, uint32_t count, void* handle, uint64_t bytes, uint32_t* first);
int ovl_put(ovl_channel* channel, int peer, uint64_t dst_offset, const void* src, uint64_t bytes);
int ovl_put_signal(ovl_channel* channel, int peer, uint64_t dst_offset, const void* src, uint64_t bytes, uint32_t id);
int ovl_region_put(ovl_channel* channel, ovl_region* region, int peer, uint64_t dst_offset, const void* src,
                   uint64_t bytes);
int ovl_signal_add(ovl_channel* channel, int peer, uint32_t id, uint32_t delta);
/* Until `sender` has added `delta` more than was consumed of its signals to `id`; consumes them. */
int ovl_signal_take(ovl_channel* channel, int sender, uint32_t id, uint32_t delta);
int ovl_fence(ovl_channel* channel, int peer);
int ovl_flush(ovl_channel* channel);
int ovl_barrier(ovl_channel* channel);

/* ---- schedules: overlace/schedule.h, overlace/plan.h ---- */

enum ovl_dtype { OVL_FP64, OVL_FP32, OVL_FP16, OVL_BF16, OVL_E4M3, OVL_E5M2, OVL_I64, OVL_I32, OVL_I8, OVL_U8 };
enum ovl_layout { OVL_NK = 0, OVL_KN = 1 };
enum ovl_activation { OVL_NO_ACTIVATION = 0, OVL_SWIGLU = 1 }; /* overlace::spec::Activation */
enum ovl_exchange { OVL_ROWS = 0, OVL_COLS = 1 };              /* overlace::spec::Exchange */

/* overlace::spec::OpSpec. M of the team; N and K as one rank sees them. */
typedef struct ovl_op {
  size_t struct_size;
  const char* name; /* of an operator: ovl_operators_json lists them */
  int64_t m, n, k;
  int32_t ranks;
  int32_t dtype, out_dtype;   /* enum ovl_dtype */
  int32_t b_layout;           /* enum ovl_layout */
  int32_t has_bias;           /* 0 or 1 */
  int32_t has_a;              /* 0 or 1: the rows that came are a result too (ag_gemm, ag_wgrad, a2a_gemm) */
  int32_t activation;         /* enum ovl_activation; of ag_gemm */
  const int64_t* row_offsets; /* ranks + 1 entries from 0 to m; null: as even as it goes */
  const int64_t* splits;      /* gemm_a2a, a2a_gemm: ranks x ranks entries, rows from rank s to rank d at s * ranks + d,
                                 which sum to m; null: as even as it goes. OVL_COLS: ranks entries, rows of each */
  int32_t exchange;           /* enum ovl_exchange; of gemm_a2a, a2a_gemm */
  int32_t num_blocks;         /* entries of blocks */
  const int64_t* blocks;      /* OVL_COLS: the columns that travel in blocks, overlace::spec::OpSpec; null: one */
} ovl_op;

/* All operators with their arguments (name, role, shape), fields and families, as JSON: overlace/operator.h. The text
 * lives until the library is unloaded. */
int ovl_operators_json(const char** json);
/* A family by name; degree: chunks per shard, from 1. */
int ovl_schedule_make(const ovl_op* op, const char* family, int degree, ovl_schedule** schedule);
/* What the runtime's planner takes for this problem (overlace::Context). It may take something else when a call finds
 * that the heap has no room for it, or that the ranks' choices differ: one channel and one thread use the handle. */
int ovl_schedule_choose(ovl_runtime* runtime, const ovl_op* op, ovl_schedule** schedule);
/* Read, expanded and checked: OVL_BAD_SCHEDULE names the place, or the check, the task and the reason. */
int ovl_schedule_from_json(const char* json, ovl_schedule** schedule);
int ovl_schedule_free(ovl_schedule* schedule);
/* These texts live as long as the schedule. reason: why it was chosen, "" where it was not. */
int ovl_schedule_json(ovl_schedule* schedule, const char** json);
int ovl_schedule_text(ovl_schedule* schedule, const char** text);
int ovl_schedule_reason(ovl_schedule* schedule, const char** reason);
/* OVL_OK if the operator takes `schedule` for this problem on this channel, else why not. */
int ovl_schedule_supported(ovl_schedule* schedule, ovl_channel* channel, const ovl_op* op);
/* Local and symmetric bytes that the first call takes. */
int ovl_schedule_memory(ovl_schedule* schedule, const ovl_op* op, int rank, uint64_t* workspace, uint64_t* heap);

/* ---- operators: overlace/tensor.h, overlace/ops ---- */

/* Strides in elements. ndim 0: not there. */
typedef struct ovl_tensor {
  void* data;    /* on the context's GPU, or managed; on CPU ranks of the host */
  int32_t dtype; /* enum ovl_dtype */
  int32_t ndim;  /* 0 to 4 */
  int64_t sizes[4], strides[4];
} ovl_tensor;

/* A row-major matrix without gaps; and the same memory with its dimensions swapped, as a weight (N, K) is given as b.
 */
int ovl_matrix(void* data, int dtype, int64_t rows, int64_t columns, ovl_tensor* tensor);
int ovl_transpose(ovl_tensor* tensor);

/* What an argument of a call is: a tensor, or the value of a field; a flag is an integer, 0 or 1. */
enum ovl_arg_kind { OVL_ARG_TENSOR, OVL_ARG_INTEGER, OVL_ARG_REAL, OVL_ARG_TEXT, OVL_ARG_LIST };

/* An argument by its name, as ovl_operators_json lists them for each operator. Besides: "row_offsets", a list of ranks
 * + 1 entries, where an operator splits rows; "splits", ranks x ranks entries, where it exchanges them, "exchange",
 * the text "rows" or "cols", and "blocks", a list, there too; "activation", the text "none" or "swiglu", where it takes
 * one. */
typedef struct ovl_arg {
  const char* name;
  int32_t kind;      /* enum ovl_arg_kind: which of the members below holds the value */
  int32_t count;     /* entries of list */
  ovl_tensor tensor; /* ndim 0: as if it were not given */
  int64_t integer;
  double real;
  const char* text;
  const int64_t* list; /* null: as if it were not given */
} ovl_arg;

static inline ovl_arg ovl_tensor_arg(const char* name, ovl_tensor tensor) {
  ovl_arg arg = {name, OVL_ARG_TENSOR, 0, tensor, 0, 0, NULL, NULL};
  return arg;
}
static inline ovl_arg ovl_no_arg_(const char* name, int32_t kind) {
  ovl_tensor none = {NULL, 0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}};
  ovl_arg arg = ovl_tensor_arg(name, none);
  arg.kind = kind;
  return arg;
}
static inline ovl_arg ovl_integer_arg(const char* name, int64_t integer) {
  ovl_arg arg = ovl_no_arg_(name, OVL_ARG_INTEGER);
  arg.integer = integer;
  return arg;
}
static inline ovl_arg ovl_real_arg(const char* name, double real) {
  ovl_arg arg = ovl_no_arg_(name, OVL_ARG_REAL);
  arg.real = real;
  return arg;
}
static inline ovl_arg ovl_text_arg(const char* name, const char* text) {
  ovl_arg arg = ovl_no_arg_(name, OVL_ARG_TEXT);
  arg.text = text;
  return arg;
}
static inline ovl_arg ovl_list_arg(const char* name, const int64_t* list, int32_t count) {
  ovl_arg arg = ovl_no_arg_(name, OVL_ARG_LIST);
  arg.list = list, arg.count = count;
  return arg;
}

/* A call of the operator `op`: overlace/ops/call.h. Collective; queued on the channel's stream, done on return on CPU
 * ranks. Arguments may stand in any order.
 * plan: "" or null: what the runtime's planner takes for this problem (`library` where the channel cannot run that);
 * "family=NAME" or "family=NAME,degree=N"; or a schedule in JSON. Schedules of the channel's last 4096 problems are
 * kept. Arguments whose shapes do not fit are refused on this rank alone, and its peers wait for the call until their
 * deadline; where memory is wrong and the schedule is new to them, they learn of it. */
int ovl_run(ovl_channel* channel, const char* op, const ovl_arg* args, int count, const char* plan);
/* A call with a schedule that the caller holds. Where it is the schedule's first call, all ranks learn that the
 * arguments of one are wrong. */
int ovl_call(ovl_channel* channel, const char* op, const ovl_arg* args, int count, ovl_schedule* schedule);

/* Who multiplies tiles of CPU ranks, process-wide: "auto" (oneDNN where it is found), "reference" or "onednn". Beside a
 * library that brings a oneDNN of its own, such as torch: "reference", before the first operator. */
int ovl_cpu_gemm(const char* provider);

/* ---- timelines: overlace/timeline.h ---- */

/* Records what this rank runs on the channel, until it is written or the runtime ends; one per channel at a time. */
int ovl_timeline_begin(ovl_channel* channel, ovl_timeline** timeline);
int ovl_timeline_label(ovl_timeline* timeline, const char* label);
/* Collective; rank 0 writes the spans of all ranks to `path` (.json, .pftrace). The handle ends in any case. */
int ovl_timeline_write(ovl_timeline* timeline, const char* path);

/* ---- collectives of the team's engine: overlace/net_engine.h; counts in elements ---- */

int ovl_all_gather(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
int ovl_reduce_scatter(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
int ovl_all_reduce(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
int ovl_all_to_all(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
/* Block p of send, send_counts[p] elements, goes to rank p, behind it block p + 1; recv has what comes in rank order,
 * recv_counts[p] elements of rank p. Counts have an entry per rank, 0 or more. What a rank sends to a peer must be what
 * that peer's recv_counts say: they are not compared. */
int ovl_all_to_allv(ovl_channel* channel, const void* send, const int64_t* send_counts, void* recv,
                    const int64_t* recv_counts, int dtype);
int ovl_broadcast(ovl_channel* channel, void* buffer, int64_t count, int dtype, int root);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
