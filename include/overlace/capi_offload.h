/* Block streams (overlace/offload.h), for C and for languages that load shared objects: blocks of bytes pass through a
 * ring of slots in memory, read ahead of their use.
 *
 * The rules for handles, codes and structs are those of overlace/capi.h. A handle is used by one thread at a time.
 * The functions work on host memory and need no runtime. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct ovl_block_stream ovl_block_stream;

/* Block b has pieces first_piece[b] to first_piece[b + 1] - 1. Piece p is bytes[p] bytes of the file paths[p] from
 * offset offsets[p] on. If paths[p] is null it is bytes[p] bytes at memory[p], which must outlive the stream. */
typedef struct ovl_block_stream_options {
  size_t struct_size;
  int32_t num_blocks;
  const char* const* names;   /* num_blocks entries; messages show them */
  const int32_t* first_piece; /* num_blocks + 1 entries from 0, none less than the one before */
  const char* const* paths;
  const int64_t* offsets;
  const int64_t* bytes;
  const void* const* memory; /* may be null if all pieces have paths */
  const int32_t* order;      /* blocks in their order of use, which repeats */
  int32_t order_length;
  int32_t slots;      /* blocks in memory at a time, 2 or more */
  int64_t slot_bytes; /* size of a slot; 0: what the largest block needs */
  const char* engine; /* auto, uring, pread, buffered, or null: OVERLACE_IO */
  int64_t timeout_ms; /* longest that a block may take; 0: OVERLACE_TIMEOUT_S */
} ovl_block_stream_options;

typedef struct ovl_block_stream_stats {
  size_t struct_size;
  int64_t blocks, bytes, waits; /* acquired blocks, their bytes, and acquires that waited */
  int64_t memory_bytes;         /* size of all slots together */
  const void* memory;           /* address of the first slot: programs may pin the slots */
  double waited_s, filled_s;    /* seconds in waits; seconds of copying from `memory` */
} ovl_block_stream_stats;

/* Opens a stream, which begins to read at once. Returns OVL_INVALID_ARGUMENT for a bad option and OVL_IO for a file
 * that is missing or too short. */
int ovl_block_stream_open(const ovl_block_stream_options* options, ovl_block_stream** out);
/* Waits for the block, which must be the next of the order, else the call returns OVL_DESYNC. pieces[0] to
 * pieces[num_pieces - 1], as many as the block has, then point to its bytes until the block is released. */
int ovl_block_stream_acquire(ovl_block_stream* stream, int32_t block, const void** pieces, int32_t num_pieces);
/* Releases `block`, which must be the one in use that was acquired first, else the call returns OVL_DESYNC. */
int ovl_block_stream_release(ovl_block_stream* stream, int32_t block);
/* Begins the order again. Blocks in use are released. */
int ovl_block_stream_restart(ovl_block_stream* stream);
/* Gives what the stream has done so far. */
int ovl_block_stream_stats_of(ovl_block_stream* stream, ovl_block_stream_stats* out);
/* Ends the handle, after reads that are under way. */
int ovl_block_stream_close(ovl_block_stream* stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
