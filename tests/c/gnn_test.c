// Packs through the C API alone: made, verified, opened, read, and trained from. By itself every row, class and edge is
// compared with the arrays of the dataset's files, and losses with those from these arrays; `c_gnn DATASET ARTEFACT`
// prints the losses of three training epochs, for who has others of the same packs.
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "overlace/capi_gnn.h"
#include "tests/c/check.h"

#define INVALID(text, call) EXPECT_ERROR(OVL_INVALID_ARGUMENT, text, call)

enum { kVertices = 3000, kDim = 12, kBatch = 50, kEpochs = 3, kMostClasses = 64, kMostDim = 64 };
static const double kRate = 0.5;

/// The values of a .npy file, `bytes` of them; to be freed.
static void* values_of(const char* directory, const char* name, size_t bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE* const file = fopen(path, "rb");
  void* const values = malloc(bytes);
  const int is_read = file != NULL && values != NULL && fseek(file, -(long)bytes, SEEK_END) == 0 &&
                      fread(values, 1, bytes, file) == bytes;
  if (file != NULL) fclose(file);
  if (is_read) return values;
  free(values);
  return NULL;
}

typedef struct {
  float* features;
  int64_t *labels, *indptr;
  int32_t* indices;
} graph;

static void free_graph(graph* g) { free(g->features), free(g->labels), free(g->indptr), free(g->indices); }

static int read_graph(const char* directory, graph* g) {
  g->features = values_of(directory, "features.npy", sizeof(float) * kVertices * kDim);
  g->labels = values_of(directory, "labels.npy", sizeof(int64_t) * kVertices);
  g->indptr = values_of(directory, "indptr.npy", sizeof(int64_t) * (kVertices + 1));
  g->indices = NULL;
  if (g->indptr == NULL || g->indptr[0] != 0) return 0;
  g->indices = values_of(directory, "indices.npy", sizeof(int32_t) * (size_t)g->indptr[kVertices]);
  return g->features != NULL && g->labels != NULL && g->indices != NULL;
}

/// Classes by a linear map of a seed's own row and of the mean over the rows that its edges come from.
typedef struct {
  double weights[kMostClasses][2 * kMostDim];
} model;

/// The mean loss of a batch before a step of gradient descent on it. Row i of the batch is rows[row_of[i]], or rows[i].
static double step(model* m, const ovl_gnn_batch* b, int64_t dim, int64_t classes, const float* rows,
                   const int64_t* row_of) {
  static model gradient;
  memset(&gradient, 0, sizeof gradient);
  double loss = 0;
  for (int64_t seed = 0; seed < b->num_seeds; ++seed) {
    double x[2 * kMostDim] = {0}, p[kMostClasses] = {0}, whole = 0;
    int64_t degree = 0;
    for (int64_t e = 0; e < b->num_edges; ++e) {
      if (b->edges[b->num_edges + e] != seed) continue;
      const int64_t from = row_of == NULL ? b->edges[e] : row_of[b->edges[e]];
      for (int64_t d = 0; d < dim; ++d) x[dim + d] += (double)rows[from * dim + d];
      ++degree;
    }
    const int64_t own = row_of == NULL ? seed : row_of[seed];
    for (int64_t d = 0; d < dim; ++d) {
      x[d] = (double)rows[own * dim + d];
      if (degree > 0) x[dim + d] /= (double)degree;
    }
    for (int64_t c = 0; c < classes; ++c) {
      double sum = 0;
      for (int64_t d = 0; d < 2 * dim; ++d) sum += m->weights[c][d] * x[d];
      whole += p[c] = exp(sum);
    }
    const int64_t wanted = b->classes[seed];
    loss -= log(p[wanted] / whole);
    for (int64_t c = 0; c < classes; ++c)
      for (int64_t d = 0; d < 2 * dim; ++d) gradient.weights[c][d] += (p[c] / whole - (c == wanted ? 1 : 0)) * x[d];
  }
  for (int64_t c = 0; c < classes; ++c)
    for (int64_t d = 0; d < 2 * dim; ++d) m->weights[c][d] -= kRate * gradient.weights[c][d] / (double)b->num_seeds;
  return loss / (double)b->num_seeds;
}

/// 1 where the batch has the rows, classes and edges of the dataset.
static int is_of(const graph* g, const ovl_gnn_batch* b) {
  int wrong = 0;
  for (int64_t i = 0; i < b->num_inputs; ++i) {
    const float* const row = (const float*)b->rows + i * kDim;
    wrong += b->ids[i] != (int64_t)b->inputs[i] || b->ids[i] >= kVertices;
    if (wrong == 0) wrong += memcmp(row, g->features + b->ids[i] * kDim, sizeof(float) * kDim) != 0;
  }
  for (int64_t i = 0; i < b->num_seeds && wrong == 0; ++i)
    wrong += b->classes[i] != g->labels[b->ids[i]] || b->classes[i] != (int64_t)b->labels[i];
  for (int64_t e = 0; e < b->num_edges && wrong == 0; ++e) {
    const int64_t from = b->ids[b->edges[e]], to = b->ids[b->edges[b->num_edges + e]];
    int is_edge = 0;
    for (int64_t k = g->indptr[to]; k < g->indptr[to + 1]; ++k) is_edge |= g->indices[k] == from;
    wrong += !is_edge;
  }
  return wrong == 0;
}

/// Trains from the packs of an artefact; prints each batch's loss where there is no graph, else compares it.
static void trains(const char* artefact, const graph* g, const char* packs) {
  ovl_gnn_loader_options o = OVL_INIT(ovl_gnn_loader_options);
  o.artefact = artefact, o.packs = packs;
  ovl_gnn_loader* loader = NULL;
  ovl_gnn_loader_info info = OVL_INIT(ovl_gnn_loader_info);
  if (!EXPECT_OK(ovl_gnn_loader_open(&o, &loader)) || !EXPECT_OK(ovl_gnn_loader_info_of(loader, &info))) return;
  if (!CHECK(info.dim <= kMostDim && info.num_classes <= kMostClasses && strcmp(info.dtype, "fp32") == 0)) return;
  static model from_packs, from_files;
  memset(&from_packs, 0, sizeof from_packs);
  memset(&from_files, 0, sizeof from_files);
  int64_t batches = 0;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    EXPECT_OK(ovl_gnn_loader_start(loader, epoch, 0));
    for (int32_t has_one = 1;;) {
      ovl_gnn_batch b = OVL_INIT(ovl_gnn_batch);
      if (!EXPECT_OK(ovl_gnn_loader_next(loader, &b, &has_one)) || !has_one) break;
      const double loss = step(&from_packs, &b, info.dim, info.num_classes, b.rows, NULL);
      if (g == NULL) printf("%.17g\n", loss);
      if (g != NULL) {
        CHECK(is_of(g, &b));
        CHECK(loss == step(&from_files, &b, info.dim, info.num_classes, g->features, b.ids));
      }
      EXPECT_OK(ovl_gnn_loader_release(loader));
      ++batches;
    }
  }
  CHECK(batches == kEpochs * info.num_batches);
  ovl_gnn_stats stats = OVL_INIT(ovl_gnn_stats);
  EXPECT_OK(ovl_gnn_loader_stats(loader, &stats));
  CHECK(stats.batches == info.num_batches && stats.ring_rows > 0 && stats.cpu_rows > 0 && stats.read_s > 0);
  INVALID("ovl_gnn_loader_trace: path is null, wanted an address", ovl_gnn_loader_trace(loader, NULL));
  INVALID("trace file t.txt: wanted a name that ends in .json, .pftrace or .perfetto-trace",
          ovl_gnn_loader_trace(loader, "t.txt"));
  if (g != NULL) {
    char path[512];
    snprintf(path, sizeof path, "%s.%s.json", artefact, packs);
    EXPECT_OK(ovl_gnn_loader_trace(loader, path));
    char begin[2] = {0};
    FILE* const file = fopen(path, "rb");
    CHECK(file != NULL && fread(begin, 1, 1, file) == 1 && begin[0] == '{' && fclose(file) == 0);
  }
  EXPECT_OK(ovl_gnn_loader_close(loader));
}

/// A dataset is described anew from its arrays alone; what is no import is refused.
static void imports(const char* dataset) {
  ovl_gnn_import import = OVL_INIT(ovl_gnn_import);
  ovl_gnn_imported found = OVL_INIT(ovl_gnn_imported);
  import.source = dataset;
  EXPECT_OK(ovl_gnn_import_dataset(&import, &found));
  CHECK(found.isolated > 0 && found.isolated < kVertices / 10 && found.unlabelled == 0 && found.nan_rows == 0);
  EXPECT_OK(ovl_gnn_import_dataset(&import, NULL));
  import.both_directions = 2;
  INVALID("ovl_gnn_import_dataset: both_directions is 2, wanted 0 to 1", ovl_gnn_import_dataset(&import, NULL));
  import.both_directions = 0, import.directory = "/nowhere/g", import.layout = "csv";
  INVALID("import: layout is \"csv\", wanted auto, pyg, igb, or ogb once it is unpacked",
          ovl_gnn_import_dataset(&import, &found));
  import.source = NULL;
  INVALID("ovl_gnn_import_dataset: source is null, wanted an address", ovl_gnn_import_dataset(&import, &found));
}

static void makes(const char* dataset, const char* artefact) {
  ovl_gnn_generate make = OVL_INIT(ovl_gnn_generate);
  make.directory = dataset, make.num_vertices = kVertices, make.dim = kDim, make.seed = 3, make.threads = 1;
  EXPECT_OK(ovl_gnn_make_dataset(&make));
  imports(dataset);
  const int32_t fanouts[] = {5, 3};
  ovl_gnn_sample sample = OVL_INIT(ovl_gnn_sample);
  sample.dataset = dataset, sample.artefact = artefact, sample.fanouts = fanouts, sample.num_fanouts = 2;
  sample.batch_size = kBatch, sample.splits = 1 << OVL_GNN_TRAIN, sample.threads = 1;
  EXPECT_OK(ovl_gnn_make_samples(&sample));
  ovl_gnn_pack pack = OVL_INIT(ovl_gnn_pack);
  pack.dataset = dataset, pack.artefact = artefact, pack.segment_batches = 4;
  pack.cpu_bytes = kVertices / 10 * kDim * (int64_t)sizeof(float), pack.policy = OVL_GNN_BELADY;
  for (pack.order = OVL_GNN_FIXED; pack.order <= OVL_GNN_SEGMENTS; ++pack.order) EXPECT_OK(ovl_gnn_make_packs(&pack));
  EXPECT_OK(ovl_gnn_verify(artefact, dataset));
  sample.num_fanouts = 0;
  CHECK(ovl_gnn_make_samples(&sample) == OVL_INVALID_ARGUMENT);
}

/// A byte of the packs is another one: verifying says so, and repairing writes it anew.
static void sees_damage(const char* artefact, const char* dataset) {
  char path[512];
  snprintf(path, sizeof path, "%s/packs-fixed.ovk", artefact);
  FILE* const file = fopen(path, "r+b");
  if (!CHECK(file != NULL)) return;
  const int was = fgetc(file);
  rewind(file);
  CHECK(fputc(was ^ 1, file) >= 0 && fclose(file) == 0);
  CHECK(ovl_gnn_verify(artefact, NULL) == OVL_CORRUPT);
  int64_t num_packs = -1;
  CHECK(ovl_gnn_repair(artefact, NULL, &num_packs) == OVL_INVALID_ARGUMENT && num_packs == -1);
  EXPECT_OK(ovl_gnn_repair(artefact, dataset, &num_packs));
  CHECK(num_packs == 1);
  EXPECT_OK(ovl_gnn_verify(artefact, dataset));
  EXPECT_OK(ovl_gnn_repair(artefact, dataset, NULL));
}

int main(int argc, char** argv) {
  if (argc == 3) {
    EXPECT_OK(ovl_gnn_verify(argv[2], argv[1]));
    trains(argv[2], NULL, "fixed");
    return finish("gnn", 4);
  }
  char folder[] = "/tmp/c_gnn_XXXXXX", dataset[64], artefact[64];
  if (!CHECK(mkdtemp(folder) != NULL)) return finish("gnn", 1);
  snprintf(dataset, sizeof dataset, "%s/g", folder);
  snprintf(artefact, sizeof artefact, "%s/g.ovg", folder);
  makes(dataset, artefact);
  graph g = {0};
  if (CHECK(read_graph(dataset, &g))) {
    trains(artefact, &g, "fixed");
    trains(artefact, &g, "segments");
  }
  free_graph(&g);
  ovl_gnn_loader* loader = NULL;
  INVALID("ovl_gnn_loader_open: options is null, wanted an address", ovl_gnn_loader_open(NULL, &loader));
  sees_damage(artefact, dataset);
  return finish("gnn", 200);
}
