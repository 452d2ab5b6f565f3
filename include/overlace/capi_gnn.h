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
  int32_t epochs;  /* of train, each sampled anew, which training takes in turn; 0: one */
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
  int32_t ranks;      /* that train together, each with packs and caches of its own; 0: one */
  ovl_gnn_progress progress;
  void* user;
} ovl_gnn_pack;

/* The steps of `overlace gnn`: each can be repeated, and goes on where a killed one was. */
int ovl_gnn_make_dataset(const ovl_gnn_generate* request);
int ovl_gnn_make_samples(const ovl_gnn_sample* request);
int ovl_gnn_make_packs(const ovl_gnn_pack* request);
/* `dataset` not null: every packed byte is made anew and compared. */
int ovl_gnn_verify(const char* artefact, const char* dataset);

typedef struct ovl_gnn_gather {
  size_t struct_size;
  const void* table; /* rows one behind the other */
  int64_t num_rows, row_bytes;
  const void* ids; /* of int32_t or int64_t */
  int64_t num_ids;
  int32_t id_bytes; /* 4 or 8 */
  int32_t threads;  /* 0: the cores */
  void* out;        /* num_ids rows */
} ovl_gnn_gather;

/* Row i of `out` becomes row ids[i] of the table. Nothing is written where this fails. */
int ovl_gnn_gather_rows(const ovl_gnn_gather* request);

/* Rows of a dataset from its disk, by their numbers. Any thread may read, one reads at a time. */
typedef struct ovl_gnn_rows ovl_gnn_rows;

typedef struct ovl_gnn_rows_options {
  size_t struct_size;
  const char* dataset;
  const int64_t* cached; /* vertices whose rows stay in memory */
  int64_t num_cached;
  const char* engine; /* as of a loader */
} ovl_gnn_rows_options;

typedef struct ovl_gnn_rows_stats {
  size_t struct_size;
  int64_t rows, cached_rows; /* asked for; of them from memory */
  int64_t reads, bytes_read; /* of neighbouring pages together; bytes of pages */
} ovl_gnn_rows_stats;

int ovl_gnn_rows_open(const ovl_gnn_rows_options* options, ovl_gnn_rows** out);
/* Row i of `out` becomes row ids[i]; out_bytes are those of all of them. */
int ovl_gnn_rows_read(ovl_gnn_rows* rows, const int64_t* ids, int64_t num_ids, void* out, int64_t out_bytes);
int ovl_gnn_rows_stats_of(ovl_gnn_rows* rows, ovl_gnn_rows_stats* out);
int ovl_gnn_rows_close(ovl_gnn_rows* rows);

typedef struct ovl_gnn_loader ovl_gnn_loader;

typedef struct ovl_gnn_loader_options {
  size_t struct_size;
  const char* artefact;
  const char* packs; /* name, or null: the first of the split */
  int32_t split;
  const char* engine; /* auto, uring, pread, buffered, or null: OVERLACE_IO */
  uint64_t order_seed;
  int64_t memory_bytes;     /* that may be taken; 0: no limit */
  int64_t pace_bytes_per_s; /* plays a disk of this rate; 0: as fast as it is */
  int32_t rank, ranks;      /* whose share of the batches; ranks 0: one. `packs` is then named without the rank */
} ovl_gnn_loader_options;

typedef struct ovl_gnn_loader_info {
  size_t struct_size;
  int64_t num_batches; /* of a training epoch */
  int64_t num_vertices, num_classes, dim, row_bytes, memory_bytes;
  int64_t bytes_read;     /* by a cycle: as many training epochs as are sampled */
  int64_t feature_bytes;  /* of them, rows of features */
  int64_t sampled_epochs; /* training epoch n has the batches of sampled epoch n mod sampled_epochs */
  char dtype[8];
  char packs[32];
} ovl_gnn_loader_info;

/* Arrays are the loader's, until the batch is released. */
typedef struct ovl_gnn_batch {
  size_t struct_size;
  int64_t number, position; /* of the batch in the trace of its sampled epoch, in the training epoch */
  int64_t sampled_epoch;
  int64_t is_repeated; /* 1: a batch of the first ranks once more, so that all ranks do as many steps */
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
