/* Striped matrices for C and for languages that load shared objects: output of any kernel that lies at its owners while
 * it is written. The rules are those of overlace/capi.h; overlace/ops/striped.h explains order, turns and captures. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct ovl_striped ovl_striped;

/* overlace::ops::StripedSpec. */
typedef struct ovl_stripe_spec {
  size_t struct_size;
  int64_t blocks;        /* blocks of rows, each with one owner; 0: one for each rank */
  int64_t rows, cols;    /* extents of a block */
  int32_t dtype;         /* enum ovl_dtype */
  int32_t is_batched;    /* 1: each block begins at a page edge; 0: all are one matrix */
  const int32_t* owners; /* a rank for each block; null: as many for each rank, in rank order */
  const int64_t* used;   /* rows of each block that are results; null: all */
} ovl_stripe_spec;

/* A part of a range of addresses (overlace::StripePiece): of a rank's own range `rank` has the memory, of what a rank
 * owns `rank` has the part in its range. */
typedef struct ovl_stripe_part {
  int32_t rank, part;
  void* data;
  uint64_t bytes;
} ovl_stripe_part;

/* Makes the two matrices. Collective of all ranks, outside captures, with the runtime's deadline; `channel` is one of
 * all ranks, `name` appears in messages and may be null. All ranks get the error that one causes: OVL_PLAN_MISMATCH
 * where they differ, OVL_NOT_SUPPORTED where pages cannot be shared so or blocks cannot end at their edges. */
int ovl_stripe(ovl_channel* channel, const ovl_stripe_spec* spec, const char* name, ovl_striped** striped);
/* Unmaps them when all ranks have called this. Collective; nothing uses their memory any more. The handle ends even if
 * the call fails; one that was not freed ends with its runtime. */
int ovl_stripe_free(ovl_striped* striped);
/* Gives the matrix (blocks x rows, cols), or the batch (blocks, rows, cols), that is to be written before the next call
 * below, and its number, 0 or 1; `turn` may be null. */
int ovl_stripe_out(ovl_striped* striped, ovl_tensor* out, int* turn);
/* Gives the rows of this rank's blocks that are results. */
int ovl_stripe_rows(ovl_striped* striped, int64_t* rows);
/* Gives the parts of this rank's range of matrix `turn` or, with `is_owned` 1, the parts of all ranks' ranges that lie
 * in this rank's memory. The array lives as long as the handle. */
int ovl_stripe_parts(ovl_striped* striped, int turn, int is_owned, const ovl_stripe_part** parts, int* count);
/* Returns OVL_INVALID_ARGUMENT, with both ranges of addresses, if `input` has memory of these matrices. */
int ovl_stripe_check_input(ovl_striped* striped, const char* name, ovl_tensor input);
/* `out` (rows of this rank, cols) takes the sum over ranks, in their order, of what they stored; dtype of the matrix,
 * or fp32 where that has 16 bits. Collective, queued on the channel's stream; on CPU ranks complete on return. */
int ovl_stripe_reduce_scatter(ovl_striped* striped, ovl_tensor out);
/* `out` (ranks x rows of this rank, cols) takes what each rank stored for this one, in rank order. Collective. */
int ovl_stripe_all_to_all(ovl_striped* striped, ovl_tensor out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
