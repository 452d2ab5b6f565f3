/* CO2 and the rules beside it, for C and for languages that load shared objects (overlace/co2.h,
 * overlace/async_collective.h).
 *
 * The rules for handles, codes and structs are those of overlace/capi.h. A handle is used by one thread at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct ovl_co2 ovl_co2;

enum ovl_co2_rule {
  OVL_CO2_LOCAL_SGD = 0,
  OVL_CO2_SLOW_MO,
  OVL_CO2_DILOCO,
  OVL_CO2_CO2,
  OVL_CO2_EAGER,
  OVL_CO2_STREAMING
};
enum ovl_co2_gap { OVL_CO2_GAP_NONE = 0, OVL_CO2_GAP_CONSTANT, OVL_CO2_GAP_ADAPTIVE };
enum ovl_co2_clip { OVL_CO2_CLIP_NONE = 0, OVL_CO2_CLIP_ABSOLUTE, OVL_CO2_CLIP_RELATIVE };

/* overlace::Co2Knobs. */
typedef struct ovl_co2_knobs {
  int64_t tau;
  double outer_lr, outer_momentum; /* -1: the rule's own */
} ovl_co2_knobs;

/* The fields of overlace::Co2Options and what a rank needs in addition. The value -1 of outer_lr, outer_momentum,
 * keep and phi takes the rule's own value. */
typedef struct ovl_co2_options {
  size_t struct_size;
  int32_t rule, gap, clip;
  int32_t wire_dtype; /* OVL_FP32 or OVL_BF16; OVL_I8 over the transport host only */
  int64_t tau, warmup_sync_steps, cooldown_sync_steps, total_steps, check_every;
  int64_t fragments, delay; /* rule streaming only; fragments 0: chosen */
  double outer_lr, outer_momentum, kappa, keep, gap_value, phi, mix;
  int64_t bucket_bytes; /* 0: 32 MiB */
  int64_t timeout_ms;   /* longest wait for the other groups; 0: 300000 */
  int32_t threads;      /* threads of the pass over the parameters; 0: chosen */
  /* Averages the state of the inner optimizer over the groups. Called at the switch to cool-down if
   * cooldown_sync_steps is above 0. Returns 0 on success. */
  int (*average_inner)(void* user);
  void* user;
  int32_t shard_degree; /* ranks of a group; 0: 1 */
  /* Sums `values` over the ranks of the group, in place. Needed if shard_degree is above 1. Returns 0 on success. */
  int (*reduce_in_group)(void* user, double* values, uint64_t count);
  /* If 1, the deadline of a wait adapts after 16 rounds: it is the median of past waits plus ten median absolute
   * deviations, at least 10 s and at most timeout_ms. */
  int32_t auto_timeout;
  /* The number of samples that this group sees in an inner step; 0: groups are equal. Otherwise tau may differ between
   * groups, and means are weighted by the samples that each has seen: Co2Options::samples. */
  double samples;
  /* If 1, a call that fails because another group is lost leaves the anchor of before or after a boundary, never a part
   * of both, at the price that a boundary waits for all its data before it uses any. With shard_degree
   * 1, the groups that are left may compare ovl_co2_stats.rounds then, take the anchor of one that has most, close and
   * open anew among themselves. */
  int32_t whole_boundaries;
  /* If 1, parameters are memory of the GPU `device` (CUDA ordinal), and so is the state beside them. Boundaries are
   * queued on `stream` (cudaStream_t) and on what ovl_co2_use_stream names later: calls do not wait for the device, but
   * for the boundary before, and with auto_timeout, whole_boundaries or several ranks of a group for the other groups.
   * What ovl_co2_stats_last gives, and errors, are of the boundary before. If 0, parameters are memory of the host. */
  int32_t on_device, device;
  void* stream;
  /* Knobs of rounds 0 to num_scheduled - 1; later rounds have tau, outer_lr and outer_momentum. Read at opening. */
  const ovl_co2_knobs* schedule;
  uint64_t num_scheduled;
  int32_t momentum_over_lr; /* 1, rule slow_mo: Co2Options::momentum_over_lr */
} ovl_co2_options;

/* A parameter in memory of the host or of a GPU, which must outlive the handle. If a rank holds nothing of a parameter,
 * count is 0 and data is null. */
typedef struct ovl_co2_parameter {
  const char* name;
  void* data;
  int64_t count;
  int32_t dtype;       /* OVL_FP32, OVL_BF16 or OVL_FP16 */
  int64_t group_count; /* elements that all ranks of the group hold together; 0: count */
} ovl_co2_parameter;

/* A transport that the program supplies. Each function returns 0 or a code of enum ovl_code and is called by the
 * thread that calls ovl_co2_*. all_reduce begins a sum over all ranks, in place, does not wait for it, and gives any
 * number as `*ticket`. wait returns once the sum is complete, or OVL_TIMEOUT. abort ends all open sums here and at
 * the other ranks. */
typedef struct ovl_collective {
  size_t struct_size;
  int32_t rank, size;
  int (*all_reduce)(void* user, void* data, uint64_t count, int32_t dtype, const char* what, uint64_t* ticket);
  int (*wait)(void* user, uint64_t ticket, int64_t timeout_ms);
  int (*abort)(void* user, int code, const char* why);
  void* user;
} ovl_collective;

/* Figures of the last round whose increment was taken in. Times are in milliseconds (names with `ms`), `exposed_ms`
 * is the part that the rank waited. */
typedef struct ovl_co2_stats {
  size_t struct_size;
  int64_t rounds; /* rounds so far; if 0 the other fields are not set */
  int64_t round, steps, bytes;
  double round_ms, comm_ms, exposed_ms, pass_ms, lambda, clipped, increment_norm, mean_norm, momentum_norm;
  int32_t last_rank, is_dropped;
  int64_t link_bytes; /* bytes that an emulated link carried from this rank, by its own count; 0 without one */
} ovl_co2_stats;

/* Opens CO2 over the transport `host`. Collective over the groups, whose ranks `given` can gather. `runtime` has the
 * link and other options as in ovl_runtime_open_given; it may be null. */
int ovl_co2_open_host(const ovl_co2_options* options, const ovl_co2_parameter* parameters, uint64_t num_parameters,
                      const ovl_given* given, const ovl_options* runtime, ovl_co2** co2);
/* Opens CO2 over NCCL, with a communicator of its own. Collective over the groups, each of which has a GPU for itself.
 * `max_ctas`: the number of CTAs that an all-reduce may hold while it waits for the others; 0: 2. options.on_device is
 * 1. */
int ovl_co2_open_nccl(const ovl_co2_options* options, const ovl_co2_parameter* parameters, uint64_t num_parameters,
                      const ovl_given* given, int32_t max_ctas, ovl_co2** co2);
/* Gives 1 for each transport that takes options.on_device here, else 0. Local. */
int ovl_co2_device_transports(int32_t* host, int32_t* nccl);
/* Opens CO2 over a transport of the program, for memory of the host. Collective over the groups. */
int ovl_co2_open_collective(const ovl_co2_options* options, const ovl_co2_parameter* parameters,
                            uint64_t num_parameters, const ovl_collective* collective, ovl_co2** co2);
/* Ends the run for a rank that cannot go on. Whatever other groups wait for fails with OVL_ABORTED and `why`, here
 * too, and closing waits for nobody. A transport of the program learns of it by its `abort`. */
int ovl_co2_abort(ovl_co2* co2, const char* why);
/* Closes the handle, which ends even if the call fails. Collective over transport `host`, unless something has
 * failed. */
int ovl_co2_close(ovl_co2* co2);
/* Gives 1 if the program must average gradients over the groups before the next inner step, else 0. */
int ovl_co2_wants_gradient_mean(ovl_co2* co2, int32_t* wants);
/* Names the stream (cudaStream_t) of later calls, behind what was queued so far. Only with options.on_device. */
int ovl_co2_use_stream(ovl_co2* co2, void* stream);
/* Gives 1 if the next ovl_co2_on_inner_step reads or writes parameters, else 0: a program whose parameters are
 * elsewhere brings them to the memory that it named at opening before that call, and takes them from there after it.
 * Opening, ovl_co2_flush and ovl_co2_save read them too, ovl_co2_load writes them. */
int ovl_co2_needs_parameters(ovl_co2* co2, int32_t* needs);
/* Counts an inner step; call it after each attempted one. `lr` is the learning rate of that step. At the end of a
 * round the call does the exchange that is due. */
int ovl_co2_on_inner_step(ovl_co2* co2, double lr);
/* Gives the number of the round that the next inner step belongs to, from 0 at opening: the place in
 * ovl_co2_options.schedule. */
int ovl_co2_round(ovl_co2* co2, int64_t* round);
/* Takes in what is on its way. Collective over the groups; afterwards all of them have equal parameters. */
int ovl_co2_flush(ovl_co2* co2);
/* Gives how often parameters were written since the handle was opened. If a call makes the number grow, the
 * parameters of the group have changed. */
int ovl_co2_writes(ovl_co2* co2, int64_t* writes);
/* Copies the anchor, which all groups share, to `data`: all parameters in their order, without gaps. `count` must be
 * their number of elements. */
int ovl_co2_anchor(ovl_co2* co2, float* data, uint64_t count);
/* Gives the figures of the last round. */
int ovl_co2_stats_last(ovl_co2* co2, ovl_co2_stats* stats);
/* Gives the rounds of this rank so far as text, in which the spans bear the number `rank`. The text is valid until
 * the next call with this handle. */
int ovl_co2_trace(ovl_co2* co2, int32_t rank, const char** text);
/* Writes the texts of ovl_co2_trace of several ranks as one timeline to `path`, whose ending chooses the format:
 * .json (Chrome) or .pftrace (Perfetto). */
int ovl_co2_trace_write(const char* const* texts, uint64_t count, const char* path);
/* Gives the whole state, parameters included, as bytes that are valid until the next call with this handle.
 * ovl_co2_load takes such bytes and replaces the state and the parameters. */
int ovl_co2_save(ovl_co2* co2, const void** data, uint64_t* bytes);
int ovl_co2_load(ovl_co2* co2, const void* data, uint64_t bytes);

/* Input and output of ovl_co2_plan_tau: how long a round must be to hide its all-reduce. Every group has a link to
 * each other group. */
typedef struct ovl_co2_plan {
  size_t struct_size;
  double parameters; /* number of parameters of the model */
  int32_t shard_degree, groups;
  double wire_bytes, step_ms;               /* bytes per parameter on the link; inner step */
  double link_bytes_per_s, link_latency_us; /* between two groups */
  int64_t tau_min;                          /* out: steps of a round a tenth longer than the all-reduce */
  double all_reduce_ms;                     /* out */
  int64_t taus[5];                          /* out: tau_min / 4 to 4 tau_min, at least 1 */
  double exposed[5];                        /* out: share of a round of taus[i] that waits for it */
  int64_t tau;                              /* a value of the program; 0: none */
  double exposed_of_tau;                    /* out: that share for tau, 0 if tau is 0 */
} ovl_co2_plan;
/* Fills the fields marked `out`. Local and without communication. Returns OVL_INVALID_ARGUMENT, with the range, for
 * a bad value. */
int ovl_co2_plan_tau(ovl_co2_plan* plan);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
