/* Blocks of bytes that pass through a ring of slots ahead of who uses them (overlace/offload.h), for C and for
 * languages that load shared objects. Rules of handles, codes and structs as in overlace/capi.h. A handle is used by
 * one thread at a time. Only on hosts; nothing here needs a runtime. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct ovl_block_stream ovl_block_stream;

/* Block b has pieces first_piece[b] to first_piece[b + 1]. A piece is bytes[p] of the file paths[p] from offsets[p] on,
 * or, where paths[p] is null, of memory[p], which outlives the stream. */
typedef struct ovl_block_stream_options {
  size_t struct_size;
  int32_t num_blocks;
  const char* const* names;   /* num_blocks */
  const int32_t* first_piece; /* num_blocks + 1, from 0, never less than the one before */
  const char* const* paths;
  const int64_t* offsets;
  const int64_t* bytes;
  const void* const* memory; /* null where all pieces have paths */
  const int32_t* order;      /* of use, over and over */
  int32_t order_length;
  int32_t slots;      /* 2 or more */
  int64_t slot_bytes; /* 0: as the largest block needs */
  const char* engine; /* auto, uring, pread, buffered, or null: OVERLACE_IO */
  int64_t timeout_ms; /* longest that a block may take; 0: OVERLACE_TIMEOUT_S */
} ovl_block_stream_options;

typedef struct ovl_block_stream_stats {
  size_t struct_size;
  int64_t blocks, bytes, waits; /* acquired; acquires that had to wait */
  int64_t memory_bytes;         /* of all slots */
  const void* memory;           /* of the first slot: programs may pin it */
  double waited_s, filled_s;    /* in waits; copying memory */
} ovl_block_stream_stats;

/* Reading begins at once. */
int ovl_block_stream_open(const ovl_block_stream_options* options, ovl_block_stream** out);
/* Waits for the block, which must be the next of the order; pieces[0] to pieces[num_pieces - 1], as many as the block
 * has, point to its bytes until it is released. */
int ovl_block_stream_acquire(ovl_block_stream* stream, int32_t block, const void** pieces, int32_t num_pieces);
/* Gives back the one of the blocks in use that was acquired first. */
int ovl_block_stream_release(ovl_block_stream* stream, int32_t block);
/* The order begins again; no block is in use any more. */
int ovl_block_stream_restart(ovl_block_stream* stream);
int ovl_block_stream_stats_of(ovl_block_stream* stream, ovl_block_stream_stats* out);
int ovl_block_stream_close(ovl_block_stream* stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
