/* Measuring what will run, of the C API of overlace (overlace/capi.h, whose rules hold here too; overlace/tune.h). */
#pragma once

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum ovl_tune_state { OVL_TUNED_NOW, OVL_TUNED_BEFORE, OVL_TUNE_FAILED, OVL_TUNE_LEFT };

/* What became of a problem. Times are medians in microseconds, of the slowest rank; 0 if it was not measured. */
typedef struct ovl_tuned {
  const char* problem; /* in words: "gemm_rs M 4096 N 8192 K 2048 G 2 bf16" */
  const char* usual;   /* what "auto" takes without measurements, and takes now: "FAMILY" or "FAMILY:DEGREE" */
  const char* tuned;
  const char* failure; /* OVL_TUNE_FAILED: why; else "" */
  double usual_us, tuned_us, library_us;
  int32_t state; /* enum ovl_tune_state */
} ovl_tuned;

/* Measures problems on the channel's ranks, after which "auto" takes the winners in all calls of the runtime; captured
 * calls keep what they have. Collective, outside captures. `problems` is an array of `count`, the same on all ranks;
 * null: all for which the runtime has chosen schedules on every rank. No problem is begun after `seconds`; 0: no limit.
 * `*tuned` has `*num_tuned` entries, which live until the next call for this channel. Winners are kept in the file that
 * OVERLACE_PLAN_CACHE names, too. A problem that cannot be read is refused on this rank alone, and its peers wait until
 * their deadline; all else is refused on all ranks. */
int ovl_tune(ovl_channel* channel, const ovl_op* problems, int count, double seconds, const ovl_tuned** tuned,
             int* num_tuned);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
