/* The part of the C API that gives what a kernel needs to reach peers as 64-bit words, for languages whose kernels take
 * no structs (python/overlace/triton). */
#pragma once

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The places of the words. Addresses are those of this rank. */
enum ovl_word {
  OVL_WORD_RANK,
  OVL_WORD_SIZE,        /* ranks of the team */
  OVL_WORD_SLOTS,       /* offset of slot (0, 0) in every heap (TeamPod::sig_off) */
  OVL_WORD_SLOT_PITCH,  /* bytes from a slot to the next */
  OVL_WORD_SLOT_STRIDE, /* slots, and tickets, of an id */
  OVL_WORD_NUM_IDS,
  OVL_WORD_CAPS,
  OVL_WORD_TEAM_ID,
  OVL_WORD_SENT,
  OVL_WORD_TICKETS,
  OVL_WORD_ABORT_WORD,
  OVL_WORD_RECORD, /* TimeoutRecord */
  OVL_WORD_TIMEOUT_NS,
  OVL_WORD_CLAIM, /* 0 on CPU ranks */
  OVL_WORD_CHANNEL_ID,
  OVL_WORD_BARRIER_ID,
  OVL_WORD_FIRST_ID, /* `first` */
  OVL_WORD_BASES     /* one word for each rank of the team: its heap */
};
/* Gives the fields of a ChannelPod as words. `handle` has `bytes` bytes and is what ovl_channel_handle gave, as is
 * `first`. `words` takes `count` words: OVL_WORD_BASES plus the size of the team. */
int ovl_handle_words(const void* handle, uint64_t bytes, uint32_t first, int64_t* words, uint32_t count);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
