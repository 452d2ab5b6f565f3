/* Training of graph networks whose features do not fit in memory, for C and for languages that load shared objects.
 *
 * The rules for handles, codes and structs are those of overlace/capi.h. A handle is used by one thread at a time.
 * Datasets and artefacts are paths of directories. The functions work on host memory and need no runtime. */
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

/* Called now and then during a long step with what is done and the share of it that is complete, 0 to 1. If it
 * returns anything but 0 the step ends with OVL_ABORTED. May be null. */
typedef int (*ovl_gnn_progress)(void* user, const char* what, double share);

typedef struct ovl_gnn_generate {
  size_t struct_size;
  const char* directory;
  const char* like;     /* papers, mag, friendster, igb, products, or null: dcsbm with defaults */
  int64_t num_vertices; /* 0: that of `like` */
  int64_t dim;          /* features of a vertex; 0: that of `like` */
  uint64_t seed;
  int32_t threads; /* 0: one per core */
} ovl_gnn_generate;

/* Arrays of others. Layouts: pyg (x.npy, edge_index.npy; y.npy; train_mask.npy, val_mask.npy, test_mask.npy or
 * train.npy, valid.npy, test.npy), igb (processed/paper, processed/paper__cites__paper). */
typedef struct ovl_gnn_import {
  size_t struct_size;
  const char* source;
  const char* directory; /* where it is made; null: `source` has its arrays already, and only dataset.json is written */
  const char* layout;    /* auto, pyg or igb; null: auto */
  int64_t num_classes;   /* 0: largest label + 1 */
  int64_t memory_bytes;  /* edges in memory at a time; 0: 1 GiB */
  int32_t both_directions; /* 1: each edge is stored as its reverse, too */
  int32_t bf16;            /* 1: 16-bit words of features are bf16 */
  int32_t threads;         /* 0: one per core */
  ovl_gnn_progress progress;
  void* user;
} ovl_gnn_import;

/* What an import has found. */
typedef struct ovl_gnn_imported {
  size_t struct_size;
  int64_t isolated, unlabelled; /* vertices without in-neighbours, and without a class */
  int64_t nan_rows;             /* rows of features with a value that is no finite number */
} ovl_gnn_imported;

typedef struct ovl_gnn_sample {
  size_t struct_size;
  const char *dataset, *artefact;
  const int32_t* fanouts; /* neighbours per vertex and hop, from the seeds outward; -1: all */
  int32_t num_fanouts;
  int32_t replace; /* 1: with replacement */
  int64_t batch_size;
  uint64_t seed;
  int32_t splits;  /* bits: 1 << ovl_gnn_split */
  int32_t threads; /* 0: one per core */
  int32_t epochs;  /* training epochs that are sampled, which training takes in turn; 0: one */
  ovl_gnn_progress progress;
  void* user;
} ovl_gnn_sample;

typedef struct ovl_gnn_pack {
  size_t struct_size;
  const char *dataset, *artefact;
  int64_t gpu_bytes, cpu_bytes; /* sizes of the caches */
  int64_t disk_bytes;           /* most that packs may take; 0: no limit */
  int64_t memory_bytes;         /* features in memory at a time; 0: 1 GiB */
  int64_t segment_batches;
  int32_t policy, order, depth; /* two enums; batches until an admitted row is read from its slot */
  int32_t page_bytes;           /* 0: 4096 */
  int32_t ranks;                /* ranks that train together, each with packs and caches of its own; 0: one */
  ovl_gnn_progress progress;
  void* user;
} ovl_gnn_pack;

/* The steps of `overlace gnn`. Each may be repeated, and goes on where an interrupted one ended. */
int ovl_gnn_make_dataset(const ovl_gnn_generate* request);
/* Makes a dataset of arrays that others wrote, after all of them are checked. `out` may be null. */
int ovl_gnn_import_dataset(const ovl_gnn_import* request, ovl_gnn_imported* out);
int ovl_gnn_make_samples(const ovl_gnn_sample* request);
int ovl_gnn_make_packs(const ovl_gnn_pack* request);
/* Checks an artefact against its checksums. If `dataset` is not null, every packed byte is also made anew from it
 * and compared. The message names file and place of the first difference. */
int ovl_gnn_verify(const char* artefact, const char* dataset);

/* Packs anew, from the dataset, the packs that are missing, cut or damaged, and gives their number. The files are then
 * as they were first. `num_packs` may be null. */
int ovl_gnn_repair(const char* artefact, const char* dataset, int64_t* num_packs);

typedef struct ovl_gnn_gather {
  size_t struct_size;
  const void* table; /* num_rows rows without gaps */
  int64_t num_rows, row_bytes;
  const void* ids; /* num_ids numbers, int32_t or int64_t */
  int64_t num_ids;
  int32_t id_bytes; /* 4 or 8 */
  int32_t threads;  /* 0: one per core */
  void* out;        /* num_ids rows */
} ovl_gnn_gather;

/* Copies row ids[i] of the table to row i of `out`. Returns OVL_INVALID_ARGUMENT for an id out of range; `out` is
 * then unchanged. */
int ovl_gnn_gather_rows(const ovl_gnn_gather* request);

/* Rows one behind the other in memory that a GPU reads: its own, pinned memory of the host, that of a peer. */
typedef struct ovl_gnn_row_source {
  const void* rows;
  int64_t num_rows;
} ovl_gnn_row_source;

typedef struct ovl_gnn_device_gather {
  size_t struct_size;
  const ovl_gnn_row_source* sources; /* 1 to 16; their rows are numbered one source behind the other */
  int64_t num_sources, row_bytes;
  const void* ids; /* num_ids numbers, int32_t or int64_t, in memory that the device reads */
  int64_t num_ids;
  int32_t id_bytes;    /* 4 or 8 */
  int32_t device;      /* CUDA ordinal */
  int32_t ctas;        /* most blocks of the kernel; 0: as many as the device runs at a time */
  void* out;           /* num_ids rows, in memory that the device writes */
  uint64_t* first_bad; /* a word of the device that holds UINT64_MAX, or null */
  void* stream;        /* a cudaStream_t of the device */
} ovl_gnn_device_gather;

/* Queues the copy of row ids[i] of the sources to row i of `out`, which may be captured. Sources and ids must stay
 * until the stream is past it. If an id is out of range, `first_bad` becomes the place of the first one and nothing is
 * written, by later calls neither, until the word is UINT64_MAX again. If `first_bad` is null, rows of such ids are
 * left as they are. Returns OVL_NOT_SUPPORTED if a source lies on a device that this one cannot read. */
int ovl_gnn_gather_rows_on_device(const ovl_gnn_device_gather* request);

/* Reads rows of a dataset from its disk by their numbers. Any thread may read; reads are done one at a time. */
typedef struct ovl_gnn_rows ovl_gnn_rows;

typedef struct ovl_gnn_rows_options {
  size_t struct_size;
  const char* dataset;
  const int64_t* cached; /* vertices whose rows stay in memory */
  int64_t num_cached;
  const char* engine; /* auto, uring, pread, buffered, or null: OVERLACE_IO */
} ovl_gnn_rows_options;

typedef struct ovl_gnn_rows_stats {
  size_t struct_size;
  int64_t rows, cached_rows; /* rows asked for, and those of them that came from memory */
  int64_t reads, bytes_read; /* reads of adjacent pages, and bytes of these pages */
} ovl_gnn_rows_stats;

/* Opens a dataset for reading. */
int ovl_gnn_rows_open(const ovl_gnn_rows_options* options, ovl_gnn_rows** out);
/* Copies row ids[i] of the dataset to row i of `out`. `out_bytes` must be the bytes of all num_ids rows. */
int ovl_gnn_rows_read(ovl_gnn_rows* rows, const int64_t* ids, int64_t num_ids, void* out, int64_t out_bytes);
/* Gives what was read so far. */
int ovl_gnn_rows_stats_of(ovl_gnn_rows* rows, ovl_gnn_rows_stats* out);
/* Ends the handle. */
int ovl_gnn_rows_close(ovl_gnn_rows* rows);

/* Reads the packs of an artefact, batch by batch, ahead of their use. */
typedef struct ovl_gnn_loader ovl_gnn_loader;

typedef struct ovl_gnn_loader_options {
  size_t struct_size;
  const char* artefact;
  const char* packs;  /* name of the packs, or null: the first ones of the split */
  int32_t split;      /* enum ovl_gnn_split */
  const char* engine; /* auto, uring, pread, buffered, or null: OVERLACE_IO */
  uint64_t order_seed;
  int64_t memory_bytes;     /* most memory that the loader may take; 0: no limit */
  int64_t pace_bytes_per_s; /* slows reads down to this rate; 0: not at all */
  int32_t rank, ranks;      /* whose share of the batches is read; ranks 0: one. `packs` has no rank in its name */
  int32_t on_gpu;           /* 1: rows of the GPU's cache lie in memory of a GPU, and batches are gathered there */
  int32_t device;           /* CUDA ordinal of that GPU */
  int32_t gather_ctas;      /* most blocks of its kernel where rows come over the link; 0: 64 */
  int32_t unchecked;        /* 1: checksums of what is read are not looked at, indices are */
  const char* source;       /* dataset whose rows replace those whose checksum is wrong twice; null: an error */
} ovl_gnn_loader_options;

typedef struct ovl_gnn_loader_info {
  size_t struct_size;
  int64_t num_batches; /* batches of a training epoch */
  int64_t num_vertices, num_classes, dim, row_bytes, memory_bytes;
  int64_t bytes_read;     /* by one cycle, which is sampled_epochs training epochs */
  int64_t feature_bytes;  /* rows of features among bytes_read */
  int64_t sampled_epochs; /* training epoch n has the batches of sampled epoch n mod sampled_epochs */
  int64_t device_bytes;   /* memory of the GPU; memory_bytes is that of the host */
  const void* outputs;    /* rows, ids, edges and classes of all batches lie in these outputs_bytes */
  int64_t outputs_bytes;
  char dtype[8];
  char packs[32];
} ovl_gnn_loader_info;

/* A batch. Its arrays belong to the loader and are valid until the batch is released. With a GPU, `rows`, `ids`,
 * `edges` and `classes` are in its memory. */
typedef struct ovl_gnn_batch {
  size_t struct_size;
  int64_t number, position; /* place in its sampled epoch, and in the training epoch */
  int64_t sampled_epoch;
  int64_t is_repeated; /* 1: another rank has had this batch; it makes all ranks do equally many steps */
  int64_t num_inputs, num_seeds, hops;
  int64_t num_edges;
  int64_t bytes;           /* from `rows` to behind `classes`: one piece of memory */
  const void* rows;        /* (num_inputs, dim) of dtype */
  const int64_t* ids;      /* num_inputs: vertex of each row, as `inputs` */
  const int64_t* edges;    /* (2, num_edges): rows that edges come from, rows that they lead to */
  const int64_t* classes;  /* num_seeds, as `labels` */
  const uint32_t* inputs;  /* num_inputs: vertex of each row, seeds first */
  const uint32_t* reached; /* hops + 1: reached[h] rows are known after h hops; reached[0] is num_seeds */
  const uint32_t* indptr;  /* reached[hops - 1] + 1: offsets in `indices` of the in-neighbours of each row */
  const uint32_t* indices; /* num_edges: numbers of rows */
  const int32_t* labels;   /* num_seeds: class of each seed; -1: it has none */
} ovl_gnn_batch;

/* Counters of a loader: rows by the level that they came from, and seconds of the loop's parts. */
typedef struct ovl_gnn_stats {
  size_t struct_size;
  int64_t batches, bytes_read, requests, read_again, gpu_rows, cpu_rows, ring_rows, admitted;
  double verify_s, gather_s, admit_s, waited_s;
  double read_s;       /* with reads under way, of those that have ended */
  int64_t mended_rows; /* rows that came from the dataset, as those of the packs were damaged */
} ovl_gnn_stats;

/* Opens a loader and takes all memory that it will need. Returns OVL_OUT_OF_MEMORY, with a list of what takes how
 * much, if that is more than memory_bytes. */
int ovl_gnn_loader_open(const ovl_gnn_loader_options* options, ovl_gnn_loader** out);
/* Gives what is known of the packs before any batch is read. */
int ovl_gnn_loader_info_of(ovl_gnn_loader* loader, ovl_gnn_loader_info* out);
/* Begins a training epoch at the batch `position`. A training epoch that is under way ends, and its batches are
 * released. OVL_TIMEOUT if a GPU is not done with what it was given for it; it may then be called again. */
int ovl_gnn_loader_start(ovl_gnn_loader* loader, int64_t epoch, int64_t position);
/* Sets the stream of the GPU that uses batches from now on, a cudaStream_t; at first the default stream. The stream
 * waits for each batch that ovl_gnn_loader_next gives, and what it was given before ovl_gnn_loader_release or
 * ovl_gnn_loader_start still reads the batch. To go on with another stream: release all batches that the one before
 * reads, or start; then set the stream; then take the next batch. Does nothing without a GPU. */
int ovl_gnn_loader_use_stream(ovl_gnn_loader* loader, void* stream);
/* Waits for the next batch. At the end of the training epoch `*has_one` is 0 and `out` is unchanged. */
int ovl_gnn_loader_next(ovl_gnn_loader* loader, ovl_gnn_batch* out, int32_t* has_one);
/* Releases the oldest batch that was given and not released yet. */
int ovl_gnn_loader_release(ovl_gnn_loader* loader);
/* Gives what the loader has done so far. */
int ovl_gnn_loader_stats(ovl_gnn_loader* loader, ovl_gnn_stats* out);
/* Writes what each stage did when since ovl_gnn_loader_start, as a timeline: .json of Chrome or .pftrace of Perfetto,
 * by the ending of `path`. Spans have the names of those of `overlace sim graph gnn`. */
int ovl_gnn_loader_trace(ovl_gnn_loader* loader, const char* path);
/* Ends the handle, after reads that are under way. */
int ovl_gnn_loader_close(ovl_gnn_loader* loader);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
