/* This is the C API of overlace, for C and for languages that load shared objects. It offers what the C++ headers
 * offer, except templates.
 *
 * Every function that can fail returns a code of enum ovl_code, which is 0 on success, and ovl_error_text() says what
 * went wrong. No function throws, prints, aborts or waits without a deadline. Output arguments are written on success
 * only. Names that contain `bytes` or `ms` are in bytes or in milliseconds; other counts are in
 * elements.
 *
 * A handle is a value that is given once. A handle that was closed is refused with OVL_CLOSED; null, or a handle of
 * another kind, is refused with OVL_INVALID_ARGUMENT. Teams, channels, regions and timelines end with their runtime. A
 * runtime and what belongs to it is used by one thread at a time; a second thread is refused.
 *
 * A struct that may grow begins with struct_size, which OVL_INIT(type) sets. The C++ header that a section names
 * explains the fields in detail. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The version grows when a function is added or a struct grows. Programs that were compiled for a smaller version
 * must be compiled again. */
#define OVL_API_VERSION 15
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

/* Returns OVL_API_VERSION of the library that was loaded. */
int ovl_api_version(void);
/* Returns the version of the library as text, such as "0.1.0", or "0.1.0.dev12+g9b9a7870d1f2" between releases. */
const char* ovl_version(void);
/* Returns the message of this thread's last call that failed, or "". It is valid until its next call that fails. */
const char* ovl_error_text(void);
/* Returns the name of a code, such as "invalid_argument", or "unknown" if the value is no code. */
const char* ovl_error_name(int code);
/* Returns the exit status of a program that ends with this error. */
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

/* Options of a runtime. A field that is 0 or null takes its OVERLACE_* variable or, if that is not set, the default. */
typedef struct ovl_options {
  size_t struct_size;
  int32_t backend;         /* enum ovl_backend */
  int32_t has_device;      /* 1: `device` counts; 0: the rank within the host is the device */
  int32_t device;          /* CUDA ordinal */
  uint32_t num_signal_ids; /* 64 to 2^20 */
  uint64_t heap_bytes;     /* size of the heap at open; it may grow to max_heap_bytes */
  uint64_t max_heap_bytes;
  int64_t timeout_ms;     /* 1 to 86400000 */
  const char* link;       /* emulated link of CPU ranks: "2GB/s,20us", or "none" */
  const char* adversary;  /* delivery of puts out of order on CPU ranks: "seed=7" */
  const char* checks;     /* extra checks, a comma-separated list: "sync,calls" */
  const char* net_engine; /* library of collectives: "auto", "nccl", "mpi" or "none" */
  const char* machine;    /* machine that schedules are chosen for (overlace::ContextOptions); rank 0's counts */
} ovl_options;

/* An all-gather that the program supplies, if it has started the ranks itself. Each call gives `bytes` bytes of
 * every rank, in rank order, to all ranks; `all` has room for size x bytes. It returns 0 on success and anything
 * else on failure, and it must have a deadline of its own. */
typedef int (*ovl_allgather)(void* user, const void* mine, size_t bytes, void* all);
typedef struct ovl_given {
  size_t struct_size;
  int32_t rank, size;
  const char* token; /* a text that all ranks of the job share and no other job has */
  ovl_allgather allgather;
  void* user;
} ovl_given;

/* A world makes threads of this process the ranks, 1 to 1024 of them. Each thread opens the runtime of its own rank
 * by ovl_runtime_open_thread. The world may be freed once all runtimes are open. */
int ovl_world_create(int ranks, ovl_world** world);
int ovl_world_free(ovl_world* world);

/* Opens the runtime of this rank. Collective on all ranks. ovl_runtime_open finds rank and size in the environment
 * (overlace run, torchrun, mpirun, srun), or is one rank alone if no launcher set them. `options` may be null. */
int ovl_runtime_open(const ovl_options* options, ovl_runtime** runtime);
int ovl_runtime_open_thread(ovl_world* world, int rank, const ovl_options* options, ovl_runtime** runtime);
int ovl_runtime_open_given(const ovl_given* given, const ovl_options* options, ovl_runtime** runtime);
/* Closes the runtime. Collective unless the runtime was aborted. The handle ends even if the call fails. Returns the
 * first cause of an abort if no earlier call has returned it. */
int ovl_runtime_close(ovl_runtime* runtime);
/* Returns without a wait the first cause of an abort, or once what kernels found wrong in arguments, else OVL_OK. */
int ovl_runtime_check(ovl_runtime* runtime);
/* Waits until all work that this rank issued is complete, then returns what ovl_runtime_check returns. */
int ovl_runtime_synchronize(ovl_runtime* runtime);
/* Ends all waits of all ranks with OVL_ABORTED and `why`, those of ovl_runtime_close too. Any thread may call it at
 * any time. Returns OVL_CLOSED, without effect, after ovl_runtime_close has returned. It has no effect either on the
 * last steps of ovl_runtime_close, which wait for no other rank. */
int ovl_runtime_abort(ovl_runtime* runtime, const char* why);
/* From now on a wait of the calling thread on the host asks `check` ten times a second; anything but 0 ends it with
 * OVL_ABORTED and aborts its runtime on all ranks. For programs whose language learns of signals between two of its own
 * steps only. Null: no more. One for the process; the last one counts. */
int ovl_set_interrupt_check(int (*check)(void));

typedef struct ovl_info {
  size_t struct_size;
  int32_t rank, size, backend, device; /* enum ovl_backend; device is -1 on CPU ranks */
  int32_t is_emulated;                 /* 1 if a link or hosts are emulated */
  uint64_t heap_bytes, heap_in_use;
  uint64_t max_heap_bytes;
  uint64_t calls, serialised_calls, moved_calls; /* counters of overlace::Stats */
  uint64_t preparations, evictions, heap_growths, smaller_plans, shared_blocks;
} ovl_info;
int ovl_runtime_info(ovl_runtime* runtime, ovl_info* info);
/* Says which machine schedules are chosen for and where its figures come from. The text lives as long as the
 * runtime. */
int ovl_runtime_machine(ovl_runtime* runtime, const char** origin);

/* ---- teams and channels: overlace/team.h, overlace/channel.h ---- */

/* Gives the team of all ranks. */
int ovl_runtime_world(ovl_runtime* runtime, ovl_team** team);
/* Makes a team of `count` ranks of `team`. Collective on `team`: ranks that are not among `ranks` call it too and
 * get null. */
int ovl_team_sub(ovl_team* team, const int* ranks, int count, const char* name, ovl_team** sub);
int ovl_team_rank(ovl_team* team, int* rank);
int ovl_team_size(ovl_team* team, int* size);
/* Returns once the host threads of all ranks of the team have called it. Its deadline is timeout_ms of the runtime. */
int ovl_team_barrier(ovl_team* team);
/* Gathers `bytes` bytes of host memory, at most 65536, from each rank of the team; `all` has room for size x bytes. */
int ovl_team_exchange(ovl_team* team, const void* mine, size_t bytes, void* all);
/* Opens a channel, which runs the calls of one team in their order. Collective, in one order on all ranks. `stream` is
 * a cudaStream_t, or null on CPU ranks, whose calls run on their thread. Calls may fill `sm_budget` SMs; 0: all. */
int ovl_channel_open(ovl_team* team, void* stream, int sm_budget, ovl_channel** channel);
/* Queues later calls of the channel on another stream, behind the earlier calls. */
int ovl_channel_use(ovl_channel* channel, void* stream);
/* Limits SMs that fused kernels of later calls fill on this rank, 0: none. `before`, or null, gets the limit so far. */
int ovl_channel_limit_sms(ovl_channel* channel, int sms, int* before);

/* ---- memory: overlace/symmetric.h ---- */

/* A block of the symmetric heap: its offset, which is equal on all ranks, and its size in bytes. */
typedef struct ovl_buffer {
  uint64_t offset, bytes;
} ovl_buffer;

/* Allocates a block of the symmetric heap. All ranks make the same calls in the same order, and peers may write into
 * the block after a barrier. `align` is a power of two up to 2 MiB; 0 stands for 256. `name` appears in messages and
 * may be null. Returns OVL_HEAP_EXHAUSTED if the heap has no room. */
int ovl_heap_alloc(ovl_runtime* runtime, uint64_t bytes, uint64_t align, const char* name, ovl_buffer* buffer);
int ovl_heap_free(ovl_runtime* runtime, ovl_buffer buffer);
/* Checks that all ranks made equal calls of ovl_heap_alloc and ovl_heap_free. Collective. Returns OVL_PLAN_MISMATCH,
 * with the first rank that differs, if they did not. */
int ovl_heap_verify(ovl_runtime* runtime);
/* Gives the address of `buffer` in the heap of rank `peer` of the team, or null if loads and stores do not reach
 * that rank. */
int ovl_peer_ptr(ovl_team* team, ovl_buffer buffer, int peer, void** address);
/* Registers memory that the program made symmetric. Collective. `local` is this rank's memory of `bytes` bytes, and
 * peers[r] is the address at which this rank reaches the memory of rank r of the world. The caller keeps the memory
 * until the runtime is closed. */
int ovl_heap_adopt(ovl_runtime* runtime, const char* name, void* local, uint64_t bytes, void* const* peers,
                   ovl_region** region);

/* ---- puts and signals of CPU ranks: overlace/signal.h ---- */

/* Reserves `count` signal ids on CPU ranks, which are equal on all ranks and belong to the channel. All ranks make
 * the same calls in the same order. Returns OVL_NOT_SUPPORTED on GPUs, for which ovl_channel_handle reserves ids. */
int ovl_signal_ids(ovl_channel* channel, uint32_t count, const char* name, uint32_t* first);
/* Gives what a kernel of the program takes by value to use overlace/device. `handle` takes the ChannelPod of the
 * channel (overlace/handle_pod.h) and has room for `bytes` bytes. If `count` is above 0 the call also reserves a
 * range of signal ids for kernels, which are equal on all ranks and belong to the channel, and `first` takes the
 * first of them; `first` may be null if `count` is 0. On CPU ranks the ids may be used as those of ovl_signal_ids. */
int ovl_channel_handle(ovl_channel* channel, uint32_t count, void* handle, uint64_t bytes, uint32_t* first);
/* This function and the ones below it in this section work on CPU ranks only and return OVL_NOT_SUPPORTED on GPUs.
 * Their meaning and order are those of overlace/signal.h. ovl_put starts a copy of `bytes` bytes from `src` to
 * offset `dst_offset` of the heap of `peer`; the source must not change before ovl_flush. ovl_put_signal adds 1 to
 * signal `id` of `peer` behind its own bytes. */
int ovl_put(ovl_channel* channel, int peer, uint64_t dst_offset, const void* src, uint64_t bytes);
int ovl_put_signal(ovl_channel* channel, int peer, uint64_t dst_offset, const void* src, uint64_t bytes, uint32_t id);
/* Starts a put as ovl_put does, to an offset of memory that ovl_heap_adopt registered. */
int ovl_region_put(ovl_channel* channel, ovl_region* region, int peer, uint64_t dst_offset, const void* src,
                   uint64_t bytes);
/* Adds `delta`, 1 to 2^31 - 1, to signal `id` of `peer`, with release order. Puts are covered only behind ovl_fence. */
int ovl_signal_add(ovl_channel* channel, int peer, uint32_t id, uint32_t delta);
/* Waits until `sender` has added `delta` to signal `id` beyond what this rank has consumed of it, then consumes
 * `delta`. The wait has acquire order. */
int ovl_signal_take(ovl_channel* channel, int sender, uint32_t id, uint32_t delta);
/* Orders earlier puts to `peer` before later signals to it. */
int ovl_fence(ovl_channel* channel, int peer);
/* Returns once the sources of this rank's puts may be reused. */
int ovl_flush(ovl_channel* channel);
/* Barrier of all ranks of the channel's team, with release and acquire order. */
int ovl_barrier(ovl_channel* channel);

/* ---- schedules: overlace/schedule.h, overlace/plan.h ---- */

enum ovl_dtype { OVL_FP64, OVL_FP32, OVL_FP16, OVL_BF16, OVL_E4M3, OVL_E5M2, OVL_I64, OVL_I32, OVL_I8, OVL_U8 };
enum ovl_layout { OVL_NK = 0, OVL_KN = 1 };
enum ovl_activation { OVL_NO_ACTIVATION = 0, OVL_SWIGLU = 1 };                    /* overlace::spec::Activation */
enum ovl_exchange { OVL_ROWS = 0, OVL_COLS = 1 };                                 /* overlace::spec::Exchange */
enum ovl_scales { OVL_NO_SCALES = 0, OVL_TENSOR_SCALES = 1, OVL_ROW_SCALES = 2 }; /* overlace::spec::Scales */
/* The problem that an operator solves (overlace::spec::OpSpec). M counts the rows of the whole team, N and K are as
 * one rank sees them. */
typedef struct ovl_op {
  size_t struct_size;
  const char* name; /* name of an operator: ovl_operators_json lists them */
  int64_t m, n, k;
  int32_t ranks;
  int32_t dtype, out_dtype;   /* enum ovl_dtype */
  int32_t b_layout;           /* enum ovl_layout */
  int32_t has_bias;           /* 0 or 1 */
  int32_t has_a;              /* 0 or 1: the received rows are a result too (ag_gemm, ag_wgrad, a2a_gemm) */
  int32_t activation;         /* enum ovl_activation; ag_gemm only */
  const int64_t* row_offsets; /* ranks + 1 entries from 0 to m; null: torch.tensor_split of m */
  const int64_t* splits;      /* gemm_a2a, a2a_gemm: ranks x ranks entries, which sum to m: s * ranks + d has the rows
                                 from rank s to d; null: torch.tensor_split of each's; OVL_COLS: each rank's rows */
  int32_t exchange;           /* enum ovl_exchange; gemm_a2a and a2a_gemm only */
  int32_t num_blocks;         /* number of entries of blocks */
  const int64_t* blocks; /* OVL_COLS: the columns that travel, in blocks (overlace::spec::OpSpec); null: one block */
  int32_t scales;        /* enum ovl_scales; not OVL_NO_SCALES if dtype is OVL_E4M3, and only then */
} ovl_op;

/* Gives all operators as JSON: arguments (name, role, shape), fields and families (overlace/operator.h). The text
 * lives until the library is unloaded. */
int ovl_operators_json(const char** json);
/* Makes the schedule of a family. `degree` is the number of chunks per shard, 1 or more; families without a degree
 * ignore it. Free the schedule by ovl_schedule_free. */
int ovl_schedule_make(const ovl_op* op, const char* family, int degree, ovl_schedule** schedule);
/* Makes the schedule that the runtime's planner chooses for this problem (overlace::Context). A call may replace it
 * by another one if the heap has no room for it, or if the choices of the ranks differ; therefore use the handle
 * with one channel and from one thread. */
int ovl_schedule_choose(ovl_runtime* runtime, const ovl_op* op, ovl_schedule** schedule);
/* Makes a schedule from JSON, after it was expanded for all ranks and checked. Returns OVL_BAD_SCHEDULE if the text
 * or a check fails; the message names the place in the text, or the check, the task and the reason. */
int ovl_schedule_from_json(const char* json, ovl_schedule** schedule);
int ovl_schedule_free(ovl_schedule* schedule);
/* Give the schedule as canonical JSON, as a few lines for people, and the reason why the planner chose it ("" if the
 * program named the schedule). The texts live as long as the schedule. */
int ovl_schedule_json(ovl_schedule* schedule, const char** json);
int ovl_schedule_text(ovl_schedule* schedule, const char** text);
int ovl_schedule_reason(ovl_schedule* schedule, const char** reason);
/* Returns OVL_OK if the operator can run `schedule` for this problem on this channel, else the code of the reason;
 * ovl_error_text() has the reason in words. */
int ovl_schedule_supported(ovl_schedule* schedule, ovl_channel* channel, const ovl_op* op);
/* Gives the bytes that the first call with this schedule allocates on `rank`: local memory in `workspace`, symmetric
 * heap in `heap`. */
int ovl_schedule_memory(ovl_schedule* schedule, const ovl_op* op, int rank, uint64_t* workspace, uint64_t* heap);

/* ---- operators: overlace/tensor.h, overlace/ops ---- */

/* A matrix or vector, borrowed from the program. Strides are in elements. A tensor with ndim 0 is not given. */
typedef struct ovl_tensor {
  void* data;    /* memory of the runtime's GPU or managed memory; on CPU ranks memory of the host */
  int32_t dtype; /* enum ovl_dtype */
  int32_t ndim;  /* 0 to 4 */
  int64_t sizes[4], strides[4];
} ovl_tensor;

/* ovl_matrix makes a tensor of a row-major matrix (rows, columns) without gaps. ovl_transpose swaps the two
 * dimensions of a matrix and leaves its memory as it is, so that a weight (N, K) can be given as `b` (K, N). */
int ovl_matrix(void* data, int dtype, int64_t rows, int64_t columns, ovl_tensor* tensor);
int ovl_transpose(ovl_tensor* tensor);

/* The kind of value that an argument of a call holds: a tensor, or the value of a field. A flag is an integer, 0 or
 * 1. */
enum ovl_arg_kind { OVL_ARG_TENSOR, OVL_ARG_INTEGER, OVL_ARG_REAL, OVL_ARG_TEXT, OVL_ARG_LIST };

/* An argument of a call, by its name. ovl_operators_json lists the names for each operator. In addition, operators
 * that split rows take "row_offsets", a list of ranks + 1 entries. Operators that exchange take "splits", a list of
 * ranks x ranks entries, "exchange", the text "rows" or "cols", and "blocks", a list. Operators with an activation
 * take "activation", the text "none" or "swiglu". */
typedef struct ovl_arg {
  const char* name;
  int32_t kind;      /* enum ovl_arg_kind: which of the members below holds the value */
  int32_t count;     /* number of entries of list */
  ovl_tensor tensor; /* ndim 0: not given */
  int64_t integer;
  double real;
  const char* text;
  const int64_t* list; /* null: not given */
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

/* Calls the operator `op` (overlace/ops/call.h). Collective. The call is queued on the channel's stream; on CPU ranks
 * it is complete on return. Arguments may stand in any order.
 *
 * `plan` is "auto", "" or null for what the runtime's planner chooses for this problem (`library` if the channel cannot
 * run that), "FAMILY" or "FAMILY:DEGREE" with a degree of 1 or more, or a schedule in JSON. Schedules of the channel's
 * last 4096 problems are cached.
 *
 * If shapes do not fit, this rank alone gets OVL_INVALID_ARGUMENT, and its peers wait for the call until their
 * deadline. If memory or strides are wrong and the schedule is new to the channel, all ranks get the error. */
int ovl_run(ovl_channel* channel, const char* op, const ovl_arg* args, int count, const char* plan);
/* Calls the operator `op` with a schedule that the program holds. If it is the first call with that schedule, all
 * ranks get the error that the arguments of one rank cause. */
int ovl_call(ovl_channel* channel, const char* op, const ovl_arg* args, int count, ovl_schedule* schedule);

/* Chooses what multiplies tiles of CPU ranks, for the whole process: "auto" (oneDNN if it is found), "reference" or
 * "onednn". A program that also loads a library with a oneDNN of its own, such as torch, must choose "reference"
 * before the first operator. */
int ovl_cpu_gemm(const char* provider);

/* ---- timelines: overlace/timeline.h ---- */

/* Records what this rank runs on the channel, which has one at a time, until it is written or the runtime ends. */
int ovl_timeline_begin(ovl_channel* channel, ovl_timeline** timeline);
/* Puts `label` in front of the names of spans from now on. */
int ovl_timeline_label(ovl_timeline* timeline, const char* label);
/* Writes the spans of all ranks. Collective: rank 0 writes the file `path`, whose ending (.json, .pftrace) chooses
 * the format. The handle ends even if the call fails. */
int ovl_timeline_write(ovl_timeline* timeline, const char* path);
/* Makes ranges of NVTX of operators and tasks, `on` 1, or no more, 0; `before` takes what held, or is null. */
int ovl_nvtx(int on, int* before);

/* ---- collectives of the team's engine: overlace/net_engine.h; counts in elements ---- */

/* `recv` takes size x count elements: `count` elements of `send` of every rank, in rank order. */
int ovl_all_gather(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
/* `recv` takes `count` elements: the sum over ranks of elements [rank x count, (rank + 1) x count) of `send`. */
int ovl_reduce_scatter(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
/* `recv` takes `count` elements: the sum over ranks of `send`. */
int ovl_all_reduce(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
/* Sends elements [p x count, (p + 1) x count) of `send` to rank p; `recv` takes the received blocks in rank order. */
int ovl_all_to_all(ovl_channel* channel, const void* send, void* recv, int64_t count, int dtype);
/* Sends block p of `send`, which has send_counts[p] elements and lies behind block p - 1, to rank p. `recv` takes
 * the received blocks in rank order, recv_counts[p] elements from rank p. Both counts have one entry per rank, 0 or
 * more. What a rank sends to a peer must equal what that peer's recv_counts say; this is not compared. */
int ovl_all_to_allv(ovl_channel* channel, const void* send, const int64_t* send_counts, void* recv,
                    const int64_t* recv_counts, int dtype);
/* Copies `count` elements of `buffer` of rank `root` to `buffer` of all ranks. */
int ovl_broadcast(ovl_channel* channel, void* buffer, int64_t count, int dtype, int root);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
