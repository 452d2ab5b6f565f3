/* CO2 and its peers for C and for languages that load shared objects: overlace/co2.h, overlace/async_collective.h.
 * Rules of handles, codes and structs as in overlace/capi.h. A handle is used by one thread at a time. */
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

/* Co2Options and what a rank needs beside; -1 in outer_lr, outer_momentum, keep, phi: the rule's own. */
typedef struct ovl_co2_options {
  size_t struct_size;
  int32_t rule, gap, clip;
  int32_t wire_dtype; /* enum of ovl_tensor.dtype: fp32, bf16; i8 over transport host alone */
  int64_t tau, warmup_sync_steps, cooldown_sync_steps, total_steps, check_every;
  int64_t fragments, delay; /* of rule streaming; fragments 0: chosen */
  double outer_lr, outer_momentum, kappa, keep, gap_value, phi, mix;
  int64_t bucket_bytes; /* 0: 32 MiB */
  int64_t timeout_ms;   /* of a wait for the other groups; 0: 300 s */
  int32_t threads;      /* of the pass; 0: chosen */
  /* At the switch to cool-down, where cooldown_sync_steps > 0: the mean of the inner optimizer's state. 0: done. */
  int (*average_inner)(void* user);
  void* user;
  int32_t shard_degree; /* ranks of a group; 0: 1 */
  /* Adds `values` up over the ranks of the group, in place; needed where shard_degree > 1. 0: done. */
  int (*reduce_in_group)(void* user, double* values, uint64_t count);
  /* 1: from 16 rounds on a wait ends at what they were waited for, median and 10 median distances from it, at least 10
   * s and at most timeout_ms. */
  int32_t auto_timeout;
  /* That this group sees in an inner step; 0: groups are equal. Otherwise tau may differ between groups, and means are
   * weighted by what each has seen: Co2Options::samples. */
  double samples;
} ovl_co2_options;

/* Memory of the host that outlives the handle. What a rank holds of a parameter may be nothing: count 0, data null. */
typedef struct ovl_co2_parameter {
  const char* name;
  void* data;
  int64_t count;
  int32_t dtype;       /* fp32, bf16, fp16 */
  int64_t group_count; /* elements that all ranks of the group hold; 0: count */
} ovl_co2_parameter;

/* A transport of the caller. Each function returns 0 or a code of enum ovl_code; they are called by the thread that
 * calls ovl_co2_*. all_reduce: the sum over all ranks, in place, begun and not waited for; `*ticket` is any number.
 * wait: until the sum is there, or OVL_TIMEOUT. */
typedef struct ovl_collective {
  size_t struct_size;
  int32_t rank, size;
  int (*all_reduce)(void* user, void* data, uint64_t count, int32_t dtype, const char* what, uint64_t* ticket);
  int (*wait)(void* user, uint64_t ticket, int64_t timeout_ms);
  int (*abort)(void* user, int code, const char* why);
  void* user;
} ovl_collective;

/* RoundStats of the last round whose increment came in. */
typedef struct ovl_co2_stats {
  size_t struct_size;
  int64_t rounds; /* so far; 0: the others are not set */
  int64_t round, steps, bytes;
  double round_ms, comm_ms, exposed_ms, pass_ms, lambda, clipped, increment_norm, mean_norm, momentum_norm;
  int32_t last_rank, is_dropped;
  int64_t link_bytes; /* that an emulated link carried from this rank, by its own count; 0 without one */
} ovl_co2_stats;

/* Collective over the groups, which exchange over transport `host`, with ranks that the caller can gather for;
 * `runtime` and its link as in ovl_runtime_open_given, may be null. */
int ovl_co2_open_host(const ovl_co2_options* options, const ovl_co2_parameter* parameters, uint64_t num_parameters,
                      const ovl_given* given, const ovl_options* runtime, ovl_co2** co2);
/* Collective over the groups, which exchange over the caller's own transport. */
int ovl_co2_open_collective(const ovl_co2_options* options, const ovl_co2_parameter* parameters,
                            uint64_t num_parameters, const ovl_collective* collective, ovl_co2** co2);
/* For a rank that cannot go on: whatever the others wait for fails with `aborted` and `why`, here too, and closing
 * waits for nobody. A caller's transport is told by its own `abort`. */
int ovl_co2_abort(ovl_co2* co2, const char* why);
/* The handle ends in any case. Collective over transport `host`, unless something failed. */
int ovl_co2_close(ovl_co2* co2);
/* 1: gradients are averaged over the groups before the next inner step. */
int ovl_co2_wants_gradient_mean(ovl_co2* co2, int32_t* wants);
/* After each attempted inner step. Does the boundary where one is due. */
int ovl_co2_on_inner_step(ovl_co2* co2, double lr);
int ovl_co2_flush(ovl_co2* co2);
/* How often parameters were written since the handle was opened: where a call makes it grow, the ranks of a group have
 * other values now. */
int ovl_co2_writes(ovl_co2* co2, int64_t* writes);
/* Copies: the parameters in their order, without gaps. `count` must be that of all of them. */
int ovl_co2_anchor(ovl_co2* co2, float* data, uint64_t count);
int ovl_co2_stats_last(ovl_co2* co2, ovl_co2_stats* stats);
/* Rounds of this rank so far as text, its spans those of `rank`; valid until the next call with this handle. */
int ovl_co2_trace(ovl_co2* co2, int32_t rank, const char** text);
/* What ovl_co2_trace gave on several ranks, as one timeline in `path`: .json (Chrome), .pftrace (Perfetto). */
int ovl_co2_trace_write(const char* const* texts, uint64_t count, const char* path);
/* Everything, parameters included; valid until the next call with this handle. */
int ovl_co2_save(ovl_co2* co2, const void** data, uint64_t* bytes);
int ovl_co2_load(ovl_co2* co2, const void* data, uint64_t bytes);

/* How long a round must be to hide the all-reduce; groups have a link to each other group. */
typedef struct ovl_co2_plan {
  size_t struct_size;
  double parameters; /* of the model */
  int32_t shard_degree, groups;
  double wire_bytes, step_ms;
  double link_bytes_per_s, link_latency_us; /* between two groups */
  int64_t tau_min;                          /* out: a tenth longer than the all-reduce takes */
  double all_reduce_ms;                     /* out */
  int64_t taus[5];                          /* out: a quarter of tau_min to four times that, at least 1 */
  double exposed[5];                        /* out: share of the round that the all-reduce shows */
  int64_t tau;                              /* of the caller's own choice; 0: none */
  double exposed_of_tau;                    /* out, where tau is given */
} ovl_co2_plan;
int ovl_co2_plan_tau(ovl_co2_plan* plan);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
