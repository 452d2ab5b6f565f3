// Block streams of the C API: bytes of a file and of memory, and what a caller can do wrong.
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <unistd.h>

#include "overlace/capi_offload.h"
#include "tests/c/check.h"

#define INVALID(text, call) EXPECT_ERROR(OVL_INVALID_ARGUMENT, text, call)

enum { kFileBytes = 20000 };

static char path[] = "/tmp/c_offload_XXXXXX";
static unsigned char memory[300];

static unsigned char byte_at(size_t i) { return (unsigned char)(i * 7 + i / 251); }

static int make_file(void) {
  const int fd = mkstemp(path);
  if (fd < 0) return 0;
  unsigned char data[kFileBytes];
  for (size_t i = 0; i < sizeof data; ++i) data[i] = byte_at(i);
  const int is_whole = write(fd, data, sizeof data) == (ssize_t)sizeof data;
  for (size_t i = 0; i < sizeof memory; ++i) memory[i] = (unsigned char)(255 - i % 256);
  return close(fd) == 0 && is_whole;
}

/// Three blocks: two pieces of the file, one of memory, none.
static const char* const names[] = {"a", "b", "empty"};
static const int32_t first_piece[] = {0, 2, 3, 3};
static const char* paths[] = {path, path, NULL};
static const int64_t offsets[] = {5, 9000, 0};
static const int64_t bytes[] = {6000, 11000, 300};
static const void* const memories[] = {NULL, NULL, memory};
static const int32_t order[] = {0, 1, 2};

static ovl_block_stream_options options_of_three(void) {
  ovl_block_stream_options o = OVL_INIT(ovl_block_stream_options);
  o.num_blocks = 3, o.names = names, o.first_piece = first_piece;
  o.paths = paths, o.offsets = offsets, o.bytes = bytes, o.memory = memories;
  o.order = order, o.order_length = 3, o.slots = 2;
  return o;
}

static void gives_bytes(void) {
  const ovl_block_stream_options o = options_of_three();
  ovl_block_stream* stream = NULL;
  if (!EXPECT_OK(ovl_block_stream_open(&o, &stream))) return;
  const void* pieces[2];
  for (int pass = 0; pass < 3; ++pass) {
    if (pass == 2) EXPECT_OK(ovl_block_stream_restart(stream));
    EXPECT_OK(ovl_block_stream_acquire(stream, 0, pieces, 2));
    int wrong = 0;
    for (int p = 0; p < 2; ++p)
      for (int64_t i = 0; i < bytes[p]; ++i)
        wrong += ((const unsigned char*)pieces[p])[i] != byte_at((size_t)(offsets[p] + i)) ? 1 : 0;
    CHECK(wrong == 0);
    EXPECT_OK(ovl_block_stream_release(stream, 0));
    EXPECT_OK(ovl_block_stream_acquire(stream, 1, pieces, 1));
    CHECK(memcmp(pieces[0], memory, sizeof memory) == 0);
    EXPECT_OK(ovl_block_stream_release(stream, 1));
    EXPECT_OK(ovl_block_stream_acquire(stream, 2, pieces, 0));
    EXPECT_OK(ovl_block_stream_release(stream, 2));
  }
  EXPECT_ERROR(OVL_DESYNC, "block stream: block b was asked for, wanted a, the next of the order",
               ovl_block_stream_acquire(stream, 1, pieces, 1));
  INVALID("ovl_block_stream_acquire: num_pieces is 1, wanted 2, those of block 0",
          ovl_block_stream_acquire(stream, 0, pieces, 1));
  INVALID("ovl_block_stream_acquire: pieces is null, wanted an address", ovl_block_stream_acquire(stream, 0, NULL, 2));
  ovl_block_stream_stats stats = OVL_INIT(ovl_block_stream_stats);
  EXPECT_OK(ovl_block_stream_stats_of(stream, &stats));
  CHECK(stats.blocks == 9 && stats.bytes == 3 * 17300 && stats.memory_bytes == 2 * 5 * 4096);
  INVALID("ovl_block_stream_stats_of: out is null, wanted an address", ovl_block_stream_stats_of(stream, NULL));
  EXPECT_OK(ovl_block_stream_close(stream));
  CHECK(ovl_block_stream_close(stream) == OVL_CLOSED);
}

static void refuses(void) {
  ovl_block_stream* stream = NULL;
  ovl_block_stream_options o = options_of_three();
  INVALID("ovl_block_stream_open: options is null, wanted an address", ovl_block_stream_open(NULL, &stream));
  INVALID("ovl_block_stream_open: out is null, wanted an address", ovl_block_stream_open(&o, NULL));
  o.num_blocks = 0;
  INVALID("ovl_block_stream_open: num_blocks is 0, wanted 1 or more", ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.order_length = 0;
  INVALID("ovl_block_stream_open: order_length is 0, wanted 1 or more", ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.names = NULL;
  INVALID("ovl_block_stream_open: names is null, wanted an address", ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.bytes = NULL;
  INVALID("ovl_block_stream_open: bytes is null, wanted an address", ovl_block_stream_open(&o, &stream));
  const int32_t falling[] = {0, 2, 1, 3};
  o = options_of_three(), o.first_piece = falling;
  INVALID("ovl_block_stream_open: first_piece[2] is 1, wanted 2 or more", ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.memory = NULL;
  INVALID("block stream: block b has a piece with 0 sources, wanted one of path, memory, fill",
          ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.slots = 1;
  INVALID("block stream: slots is 1, wanted 2 or more", ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.slot_bytes = 4096;
  INVALID("block stream: block a takes 20480 bytes in whole pages, a slot has 4096",
          ovl_block_stream_open(&o, &stream));
  o = options_of_three(), o.struct_size = 8;
  CHECK(ovl_block_stream_open(&o, &stream) == OVL_VERSION_MISMATCH);
  CHECK(stream == NULL);
}

int main(void) {
  if (!CHECK(make_file())) return finish("offload", 1);
  gives_bytes();
  refuses();
  CHECK(unlink(path) == 0);
  return finish("offload", 40);
}
