/* Training on graphs whose features do not fit, for C and for languages that load shared objects.
 * Rules of handles, codes and structs as in overlace/capi.h. A handle is used by one thread at a time. All paths are
 * directories. Only on hosts; nothing here needs a runtime. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum ovl_gnn_split { OVL_GNN_TRAIN = 0, OVL_GNN_VALID, OVL_GNN_TEST };
enum ovl_gnn_policy { OVL_GNN_NONE = 0, OVL_GNN_STATIC, OVL_GNN_LRU, OVL_GNN_BELADY };
enum ovl_gnn_order { OVL_GNN_AUTO = 0, OVL_GNN_FIXED, OVL_GNN_SEGMENTS, OVL_GNN_SHUFFLE };

/* Called now and then during a long step; if it returns anything but 0 the step ends with OVL_ABORTED. May be null. */
typedef int (*ovl_gnn_progress)(void* user, const char* what, double share);

typedef struct ovl_gnn_generate {
  size_t struct_size;
  const char* directory;
  const char* like;     /* papers, mag, friendster, igb, products, or null: dcsbm with defaults */
  int64_t num_vertices; /* 0: of the model */
  int64_t dim;          /* 0: of the model */
  uint64_t seed;
  int32_t threads; /* 0: the cores */
} ovl_gnn_generate;

typedef struct ovl_gnn_sample {
  size_t struct_size;
  const char *dataset, *artefact;
  const int32_t* fanouts; /* from the seeds outward; -1: all */
  int32_t num_fanouts;
  int32_t replace;
  int64_t batch_size;
  uint64_t seed;
  int32_t splits;  /* bits: 1 << ovl_gnn_split */
  int32_t threads; /* 0: the cores */
  ovl_gnn_progress progress;
  void* user;
} ovl_gnn_sample;

typedef struct ovl_gnn_pack {
  size_t struct_size;
  const char *dataset, *artefact;
  int64_t gpu_bytes, cpu_bytes; /* of the caches */
  int64_t disk_bytes;           /* 0: no limit */
  int64_t memory_bytes;         /* 0: 1 GiB */
  int64_t segment_batches;
  int32_t policy, order, depth;
  int32_t page_bytes; /* 0: 4096 */
  ovl_gnn_progress progress;
  void* user;
} ovl_gnn_pack;

/* The steps of `overlace gnn`: each can be repeated, and goes on where a killed one was. */
int ovl_gnn_make_dataset(const ovl_gnn_generate* request);
int ovl_gnn_make_samples(const ovl_gnn_sample* request);
int ovl_gnn_make_packs(const ovl_gnn_pack* request);
/* `dataset` not null: every packed byte is made anew and compared. */
int ovl_gnn_verify(const char* artefact, const char* dataset);

typedef struct ovl_gnn_loader ovl_gnn_loader;

typedef struct ovl_gnn_loader_options {
  size_t struct_size;
  const char* artefact;
  const char* packs; /* name, or null: the first of the split */
  int32_t split;
  const char* engine; /* auto, uring, pread, buffered, or null: OVERLACE_IO */
  uint64_t order_seed;
  int64_t memory_bytes; /* that may be taken; 0: no limit */
} ovl_gnn_loader_options;

typedef struct ovl_gnn_loader_info {
  size_t struct_size;
  int64_t num_batches, num_vertices, num_classes, dim, row_bytes, memory_bytes, bytes_read;
  char dtype[8];
  char packs[32];
} ovl_gnn_loader_info;

/* Arrays are the loader's, until the batch is released. */
typedef struct ovl_gnn_batch {
  size_t struct_size;
  int64_t number, position; /* of the batch in the trace, in the training epoch */
  int64_t num_inputs, num_seeds, hops;
  int64_t num_edges;
  const void* rows;        /* (num_inputs, dim) of dtype */
  const uint32_t* inputs;  /* vertex of each row, seeds first */
  const uint32_t* reached; /* hops + 1: rows known after so many hops; reached[0] seeds */
  const uint32_t* indptr;  /* reached[hops - 1] + 1: in-neighbours of a row */
  const uint32_t* indices; /* num_edges rows */
  const int32_t* labels;   /* num_seeds; -1: none */
} ovl_gnn_batch;

typedef struct ovl_gnn_stats {
  size_t struct_size;
  int64_t batches, bytes_read, requests, read_again, gpu_rows, cpu_rows, ring_rows, admitted;
  double verify_s, gather_s, admit_s, waited_s;
} ovl_gnn_stats;

int ovl_gnn_loader_open(const ovl_gnn_loader_options* options, ovl_gnn_loader** out);
int ovl_gnn_loader_info_of(ovl_gnn_loader* loader, ovl_gnn_loader_info* out);
/* Begins a training epoch at a position; one that is under way ends. */
int ovl_gnn_loader_start(ovl_gnn_loader* loader, int64_t epoch, int64_t position);
/* *has_one is 0 at the end of the training epoch. */
int ovl_gnn_loader_next(ovl_gnn_loader* loader, ovl_gnn_batch* out, int32_t* has_one);
/* The oldest batch that was given is not used any more. */
int ovl_gnn_loader_release(ovl_gnn_loader* loader);
int ovl_gnn_loader_stats(ovl_gnn_loader* loader, ovl_gnn_stats* out);
int ovl_gnn_loader_close(ovl_gnn_loader* loader);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
