// Out-of-core GNN training of the C API.
#include <algorithm>
#include <cstring>
#include <limits>

#include "overlace/capi_gnn.h"
#include "src/capi/handles.h"
#include "src/gnn/dataset/import.h"
#include "src/gnn/gather/device_gather.h"
#include "src/gnn/gather/gather_rows.h"
#include "src/gnn/generate/generate.h"
#include "src/gnn/pipeline/loader.h"
#include "src/gnn/rows/row_store.h"
#include "src/gnn/store/artefact.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

struct RowsObject : Object {
  static constexpr std::string_view kName = "gnn_rows";
  std::unique_ptr<gnn::RowStore> store;
};

struct LoaderObject : Object {
  static constexpr std::string_view kName = "gnn_loader";
  std::mutex busy;
  std::unique_ptr<gnn::Loader> loader;
};

gnn::StepProgress progress_of(ovl_gnn_progress progress, void* user) {
  if (progress == nullptr) return {};
  return [progress, user](std::string_view what, double share) {
    if (progress(user, std::string(what).c_str(), share) != 0)
      throw_error(Errc::aborted, base::format("{}: ended by the caller", what));
  };
}

base::Status check_word(std::string_view call, std::string_view field, int32_t value, int32_t last) {
  if (value >= 0 && value <= last) return {};
  return base::invalid_argument("{}: {} is {}, wanted 0 to {}", call, field, value, last);
}

base::Status make_dataset(const ovl_gnn_generate* given) {
  OVERLACE_TRY(check_struct({"ovl_gnn_make_dataset", "request"}, given));
  OVERLACE_TRY(check_not_null({"ovl_gnn_make_dataset", "directory"}, given->directory));
  gnn::GenerateOptions options;
  if (given->like != nullptr) {
    auto like = gnn::like(given->like);
    if (!like.ok()) return like.status();
    options = std::move(*like);
  }
  if (given->num_vertices != 0) options.num_vertices = given->num_vertices;
  if (given->dim != 0) options.dim = given->dim;
  options.seed = given->seed;
  options.threads = given->threads;
  return gnn::generate(options, given->directory).status();
}

base::Result<gnn::Described> described(const ovl_gnn_import* given) {
  if (given->directory == nullptr)
    return gnn::describe(given->source, {.num_classes = given->num_classes, .bf16 = given->bf16 != 0});
  gnn::ImportOptions options;
  if (given->layout != nullptr) options.layout = given->layout;
  options.both_directions = given->both_directions != 0;
  options.bf16 = given->bf16 != 0;
  options.num_classes = given->num_classes;
  if (given->memory_bytes != 0) options.memory_bytes = given->memory_bytes;
  options.threads = given->threads;
  options.progress = progress_of(given->progress, given->user);
  return gnn::import_dataset(given->source, given->directory, options);
}

base::Status import_dataset(const ovl_gnn_import* given, ovl_gnn_imported* out) {
  constexpr const char* kCall = "ovl_gnn_import_dataset";
  OVERLACE_TRY(check_struct({kCall, "request"}, given));
  OVERLACE_TRY(check_not_null({kCall, "source"}, given->source));
  if (out != nullptr) OVERLACE_TRY(check_struct({kCall, "out"}, out));
  OVERLACE_TRY(check_word(kCall, "both_directions", given->both_directions, 1));
  OVERLACE_TRY(check_word(kCall, "bf16", given->bf16, 1));
  if (given->num_classes < 0 || given->threads < 0)
    return base::invalid_argument("{}: num_classes is {} and threads {}, wanted at least 0", kCall, given->num_classes,
                                  given->threads);
  const auto made = described(given);
  if (!made.ok()) return made.status();
  if (out != nullptr) *out = {sizeof(ovl_gnn_imported), made->isolated, made->unlabelled, made->nan_rows};
  return {};
}

base::Status make_samples(const ovl_gnn_sample* given) {
  constexpr const char* kCall = "ovl_gnn_make_samples";
  OVERLACE_TRY(check_struct({kCall, "request"}, given));
  OVERLACE_TRY(check_not_null({kCall, "dataset"}, given->dataset));
  OVERLACE_TRY(check_not_null({kCall, "artefact"}, given->artefact));
  if (given->num_fanouts > 0) OVERLACE_TRY(check_not_null({kCall, "fanouts"}, given->fanouts));
  OVERLACE_TRY(check_word(kCall, "splits", given->splits, 7));
  const auto dataset = gnn::Dataset::open(given->dataset);
  if (!dataset.ok()) return dataset.status();
  gnn::SampleRequest request;
  request.sampler.fanouts.assign(given->fanouts, given->fanouts + std::max(given->num_fanouts, 0));
  request.sampler.batch_size = given->batch_size;
  request.sampler.seed = given->seed;
  request.sampler.replace = given->replace != 0;
  request.splits.clear();
  for (const gnn::Split split : gnn::kSplits)
    if ((given->splits >> static_cast<int>(split) & 1) != 0) request.splits.push_back(split);
  request.threads = given->threads;
  if (given->epochs != 0) request.epochs = given->epochs;
  request.progress = progress_of(given->progress, given->user);
  return gnn::sample_artefact(*dataset, given->artefact, request).status();
}

base::Status make_packs(const ovl_gnn_pack* given) {
  constexpr const char* kCall = "ovl_gnn_make_packs";
  OVERLACE_TRY(check_struct({kCall, "request"}, given));
  OVERLACE_TRY(check_not_null({kCall, "dataset"}, given->dataset));
  OVERLACE_TRY(check_not_null({kCall, "artefact"}, given->artefact));
  OVERLACE_TRY(check_word(kCall, "policy", given->policy, OVL_GNN_BELADY));
  OVERLACE_TRY(check_word(kCall, "order", given->order, OVL_GNN_SHUFFLE));
  const auto dataset = gnn::Dataset::open(given->dataset);
  if (!dataset.ok()) return dataset.status();
  gnn::ArtefactPackRequest request;
  request.policy = static_cast<gnn::CachePolicy>(given->policy);
  request.gpu_bytes = given->gpu_bytes;
  request.cpu_bytes = given->cpu_bytes;
  request.disk_bytes = given->disk_bytes;
  if (given->page_bytes != 0) request.page_bytes = given->page_bytes;
  if (given->memory_bytes != 0) request.memory_bytes = given->memory_bytes;
  request.is_automatic_order = given->order == OVL_GNN_AUTO;
  if (!request.is_automatic_order) {
    request.order.order = static_cast<gnn::BatchOrder>(given->order - OVL_GNN_FIXED);
    if (request.order.order == gnn::BatchOrder::segments) request.order.segment_batches = given->segment_batches;
  }
  request.depth = given->depth;
  if (given->ranks != 0) request.ranks = given->ranks;
  request.progress = progress_of(given->progress, given->user);
  return gnn::pack_artefact(*dataset, given->artefact, request).status();
}

base::Status verify(const char* artefact, const char* dataset) {
  OVERLACE_TRY(check_not_null({"ovl_gnn_verify", "artefact"}, artefact));
  if (dataset == nullptr) return gnn::verify_artefact(artefact, nullptr).status();
  const auto opened = gnn::Dataset::open(dataset);
  if (!opened.ok()) return opened.status();
  return gnn::verify_artefact(artefact, &*opened).status();
}

base::Status repair(const char* artefact, const char* dataset, int64_t* num_packs) {
  OVERLACE_TRY(check_not_null({"ovl_gnn_repair", "artefact"}, artefact));
  OVERLACE_TRY(check_not_null({"ovl_gnn_repair", "dataset"}, dataset));
  const auto opened = gnn::Dataset::open(dataset);
  if (!opened.ok()) return opened.status();
  const auto names = gnn::repair_artefact(*opened, artefact);
  if (!names.ok()) return names.status();
  if (num_packs != nullptr) *num_packs = std::ssize(*names);
  return {};
}

base::Status open_loader(const ovl_gnn_loader_options* given, ovl_gnn_loader** out) {
  constexpr const char* kCall = "ovl_gnn_loader_open";
  OVERLACE_TRY(check_struct({kCall, "options"}, given));
  OVERLACE_TRY(check_not_null({kCall, "artefact"}, given->artefact));
  OVERLACE_TRY(check_not_null({kCall, "out"}, out));
  OVERLACE_TRY(check_word(kCall, "split", given->split, OVL_GNN_TEST));
  gnn::LoaderOptions options;
  if (given->packs != nullptr) options.packs = given->packs;
  options.split = static_cast<gnn::Split>(given->split);
  if (given->engine != nullptr) options.io.engine = given->engine;
  options.order_seed = given->order_seed;
  options.memory_bytes = given->memory_bytes;
  options.io.pace_bytes_per_s = given->pace_bytes_per_s;
  options.rank = given->rank;
  if (given->ranks != 0) options.ranks = given->ranks;
  OVERLACE_TRY(check_word(kCall, "unchecked", given->unchecked, 1));
  options.checks_sums = given->unchecked == 0;
  if (given->source != nullptr) options.source = given->source;
  OVERLACE_TRY(check_word(kCall, "on_gpu", given->on_gpu, 1));
  if (given->gather_ctas < 0)
    return base::invalid_argument("{}: gather_ctas is {}, wanted at least 0", kCall, given->gather_ctas);
  if (given->gather_ctas > 0) options.gather_ctas = given->gather_ctas;
  if (given->on_gpu == 1) {
    auto gpu = gnn::open_gpu(given->device);
    if (!gpu.ok()) return gpu.status();
    options.device = std::move(*gpu);
  }
  auto loader = gnn::Loader::open(given->artefact, std::move(options));
  if (!loader.ok()) return loader.status();
  auto object = std::make_shared<LoaderObject>();
  object->loader = std::move(*loader);
  give(std::move(object), out);
  return {};
}

base::Status gather_rows(const ovl_gnn_gather* given) {
  constexpr const char* kCall = "ovl_gnn_gather_rows";
  OVERLACE_TRY(check_struct({kCall, "request"}, given));
  if (given->num_rows > 0) OVERLACE_TRY(check_not_null({kCall, "table"}, given->table));
  if (given->num_ids > 0) OVERLACE_TRY(check_not_null({kCall, "ids"}, given->ids));
  if (given->num_ids > 0) OVERLACE_TRY(check_not_null({kCall, "out"}, given->out));
  if (given->num_ids < 0 || (given->id_bytes != 4 && given->id_bytes != 8))
    return base::invalid_argument("{}: {} ids of {} bytes, wanted at least 0 of 4 or 8", kCall, given->num_ids,
                                  given->id_bytes);
  if (given->row_bytes < 1 || given->num_ids > std::numeric_limits<int64_t>::max() / given->row_bytes)
    return base::invalid_argument("{}: row_bytes is {}, wanted at least 1 and {} rows within 64 bits", kCall,
                                  given->row_bytes, given->num_ids);
  const auto count = static_cast<size_t>(given->num_ids);
  gnn::RowIds ids = std::span(static_cast<const int64_t*>(given->ids), count);
  if (given->id_bytes == 4) ids = std::span(static_cast<const int32_t*>(given->ids), count);
  return gnn::gather_rows({static_cast<const std::byte*>(given->table), given->num_rows, given->row_bytes}, ids,
                          given->threads,
                          {static_cast<std::byte*>(given->out), count * static_cast<size_t>(given->row_bytes)});
}

base::Status gather_rows_on_device(const ovl_gnn_device_gather* given) {
  constexpr const char* kCall = "ovl_gnn_gather_rows_on_device";
  OVERLACE_TRY(check_struct({kCall, "request"}, given));
  OVERLACE_TRY(check_not_null({kCall, "sources"}, given->sources));
  if (given->num_sources < 1)
    return base::invalid_argument("{}: num_sources is {}, wanted at least 1", kCall, given->num_sources);
  std::vector<gnn::DeviceRows> sources;
  for (const ovl_gnn_row_source& source : std::span(given->sources, static_cast<size_t>(given->num_sources)))
    sources.push_back({source.rows, source.num_rows});
  return gnn::queue_gather_rows({.sources = sources,
                                 .row_bytes = given->row_bytes,
                                 .ids = given->ids,
                                 .num_ids = given->num_ids,
                                 .id_bytes = given->id_bytes,
                                 .out = given->out,
                                 .first_bad = given->first_bad,
                                 .device = given->device,
                                 .ctas = given->ctas},
                                given->stream);
}

base::Status open_rows(const ovl_gnn_rows_options* given, ovl_gnn_rows** out) {
  constexpr const char* kCall = "ovl_gnn_rows_open";
  OVERLACE_TRY(check_struct({kCall, "options"}, given));
  OVERLACE_TRY(check_not_null({kCall, "dataset"}, given->dataset));
  OVERLACE_TRY(check_not_null({kCall, "out"}, out));
  if (given->num_cached < 0)
    return base::invalid_argument("{}: num_cached is {}, wanted at least 0", kCall, given->num_cached);
  if (given->num_cached > 0) OVERLACE_TRY(check_not_null({kCall, "cached"}, given->cached));
  const auto dataset = gnn::Dataset::open(given->dataset);
  if (!dataset.ok()) return dataset.status();
  gnn::RowStoreOptions options;
  options.cached = {given->cached, static_cast<size_t>(given->num_cached)};
  if (given->engine != nullptr) options.io.engine = given->engine;
  auto store = gnn::RowStore::open(*dataset, std::move(options));
  if (!store.ok()) return store.status();
  auto object = std::make_shared<RowsObject>();
  object->store = std::move(*store);
  give(std::move(object), out);
  return {};
}

base::Status read_rows(ovl_gnn_rows* handle, const int64_t* ids, int64_t num_ids, void* out, int64_t out_bytes) {
  constexpr const char* kCall = "ovl_gnn_rows_read";
  const auto found = find<RowsObject>({kCall, "rows"}, handle);
  if (!found.ok()) return found.status();
  if (num_ids < 0 || out_bytes < 0)
    return base::invalid_argument("{}: {} ids and {} bytes, wanted at least 0 of both", kCall, num_ids, out_bytes);
  if (num_ids > 0) OVERLACE_TRY(check_not_null({kCall, "ids"}, ids));
  if (out_bytes > 0) OVERLACE_TRY(check_not_null({kCall, "out"}, out));
  return (*found)->store->read({ids, static_cast<size_t>(num_ids)},
                               {static_cast<std::byte*>(out), static_cast<size_t>(out_bytes)});
}

/// Finds a loader and calls `body` with it, one thread at a time.
template <class Body>
int with_loader(const char* call, ovl_gnn_loader* handle, Body body) {
  return guarded([&]() -> base::Status {
    const auto found = find<LoaderObject>({call, "loader"}, handle);
    if (!found.ok()) return found.status();
    const std::unique_lock lock((*found)->busy, std::try_to_lock);
    if (!lock) return base::invalid_argument("{}: loader is used by another thread, wanted one at a time", call);
    return body(*(*found)->loader);
  });
}

void copy_text(const std::string& text, std::span<char> out) {
  std::fill(out.begin(), out.end(), '\0');
  std::copy_n(text.begin(), std::min(text.size(), out.size() - 1), out.begin());
}

base::Status info_of(const gnn::Loader& loader, ovl_gnn_loader_info* out) {
  OVERLACE_TRY(check_struct({"ovl_gnn_loader_info_of", "out"}, out));
  const gnn::Manifest& manifest = loader.manifest();
  out->num_batches = loader.num_batches();
  out->sampled_epochs = loader.plan().sampled_epochs();
  out->num_vertices = manifest.num_vertices;
  out->num_classes = manifest.num_classes;
  out->dim = manifest.dim;
  out->row_bytes = manifest.row_bytes;
  out->memory_bytes = loader.bytes().host();
  out->device_bytes = loader.bytes().device();
  out->outputs = loader.outputs().data();
  out->outputs_bytes = std::ssize(loader.outputs());
  const gnn::PackEntry* packs = manifest.pack(loader.packs());
  out->bytes_read = packs == nullptr ? 0 : packs->bytes_read;
  out->feature_bytes = packs == nullptr ? 0 : packs->feature_bytes;
  copy_text(manifest.dtype, out->dtype);
  copy_text(loader.packs(), out->packs);
  return {};
}

base::Status next_of(gnn::Loader& loader, ovl_gnn_batch* out, int32_t* has_one) {
  OVERLACE_TRY(check_struct({"ovl_gnn_loader_next", "out"}, out));
  OVERLACE_TRY(check_not_null({"ovl_gnn_loader_next", "has_one"}, has_one));
  *has_one = 0;
  const auto next = loader.next();
  if (!next.ok()) return next.status();
  if (!next->has_value()) return {};
  const gnn::LoadedBatch& batch = **next;
  const gnn::BatchView& blocks = batch.blocks;
  out->number = batch.number;
  out->position = batch.position;
  out->sampled_epoch = batch.sampled_epoch;
  out->is_repeated = batch.is_repeated ? 1 : 0;
  out->num_inputs = std::ssize(blocks.inputs);
  out->num_seeds = blocks.num_seeds();
  out->hops = std::max<int64_t>(std::ssize(blocks.reached) - 1, 0);
  out->num_edges = std::ssize(blocks.indices);
  out->bytes = batch.bytes;
  out->rows = batch.rows.data();
  out->ids = batch.ids.data();
  out->edges = batch.edges.data();
  out->classes = batch.classes.data();
  out->inputs = blocks.inputs.data();
  out->reached = blocks.reached.data();
  out->indptr = blocks.indptr.data();
  out->indices = blocks.indices.data();
  out->labels = batch.labels.data();
  *has_one = 1;
  return {};
}

base::Status stats_of(const gnn::Loader& loader, ovl_gnn_stats* out) {
  OVERLACE_TRY(check_struct({"ovl_gnn_loader_stats", "out"}, out));
  const gnn::LoaderStats s = loader.stats();
  *out = {sizeof(ovl_gnn_stats), s.batches,  s.bytes_read, s.requests, s.read_again, s.gpu_rows, s.cpu_rows,
          s.ring_rows,           s.admitted, s.verify_s,   s.gather_s, s.admit_s,    s.waited_s, s.read_s,
          s.mended_rows};
  return {};
}

}  // namespace

extern "C" {

int ovl_gnn_make_dataset(const ovl_gnn_generate* request) {
  return guarded([&] { return make_dataset(request); });
}
int ovl_gnn_import_dataset(const ovl_gnn_import* request, ovl_gnn_imported* out) {
  return guarded([&] { return import_dataset(request, out); });
}
int ovl_gnn_make_samples(const ovl_gnn_sample* request) {
  return guarded([&] { return make_samples(request); });
}
int ovl_gnn_make_packs(const ovl_gnn_pack* request) {
  return guarded([&] { return make_packs(request); });
}
int ovl_gnn_verify(const char* artefact, const char* dataset) {
  return guarded([&] { return verify(artefact, dataset); });
}
int ovl_gnn_repair(const char* artefact, const char* dataset, int64_t* num_packs) {
  return guarded([&] { return repair(artefact, dataset, num_packs); });
}
int ovl_gnn_gather_rows(const ovl_gnn_gather* request) {
  return guarded([&] { return gather_rows(request); });
}
int ovl_gnn_gather_rows_on_device(const ovl_gnn_device_gather* request) {
  return guarded([&] { return gather_rows_on_device(request); });
}
int ovl_gnn_rows_open(const ovl_gnn_rows_options* options, ovl_gnn_rows** out) {
  return guarded([&] { return open_rows(options, out); });
}
int ovl_gnn_rows_read(ovl_gnn_rows* rows, const int64_t* ids, int64_t num_ids, void* out, int64_t out_bytes) {
  return guarded([&] { return read_rows(rows, ids, num_ids, out, out_bytes); });
}
int ovl_gnn_rows_stats_of(ovl_gnn_rows* rows, ovl_gnn_rows_stats* out) {
  return guarded([&]() -> base::Status {
    const auto found = find<RowsObject>({"ovl_gnn_rows_stats_of", "rows"}, rows);
    if (!found.ok()) return found.status();
    OVERLACE_TRY(check_struct({"ovl_gnn_rows_stats_of", "out"}, out));
    const gnn::RowStoreStats s = (*found)->store->stats();
    *out = {sizeof(ovl_gnn_rows_stats), s.rows, s.cached_rows, s.reads, s.bytes_read};
    return {};
  });
}
int ovl_gnn_rows_close(ovl_gnn_rows* rows) {
  return guarded([&]() -> base::Status {
    const auto found = find<RowsObject>({"ovl_gnn_rows_close", "rows"}, rows);
    if (!found.ok()) return found.status();
    Registry::instance().remove(number_of(rows));
    return {};
  });
}
int ovl_gnn_loader_open(const ovl_gnn_loader_options* options, ovl_gnn_loader** out) {
  return guarded([&] { return open_loader(options, out); });
}
int ovl_gnn_loader_info_of(ovl_gnn_loader* loader, ovl_gnn_loader_info* out) {
  return with_loader("ovl_gnn_loader_info_of", loader, [&](gnn::Loader& l) { return info_of(l, out); });
}
int ovl_gnn_loader_start(ovl_gnn_loader* loader, int64_t epoch, int64_t position) {
  return with_loader("ovl_gnn_loader_start", loader, [&](gnn::Loader& l) { return l.start(epoch, position); });
}
int ovl_gnn_loader_use_stream(ovl_gnn_loader* loader, void* stream) {
  return with_loader("ovl_gnn_loader_use_stream", loader,
                     [&](gnn::Loader& l) { return l.use_stream(stream), base::Status(); });
}
int ovl_gnn_loader_next(ovl_gnn_loader* loader, ovl_gnn_batch* out, int32_t* has_one) {
  return with_loader("ovl_gnn_loader_next", loader, [&](gnn::Loader& l) { return next_of(l, out, has_one); });
}
int ovl_gnn_loader_release(ovl_gnn_loader* loader) {
  return with_loader("ovl_gnn_loader_release", loader, [](gnn::Loader& l) { return l.release(), base::Status(); });
}
int ovl_gnn_loader_stats(ovl_gnn_loader* loader, ovl_gnn_stats* out) {
  return with_loader("ovl_gnn_loader_stats", loader, [&](gnn::Loader& l) { return stats_of(l, out); });
}
int ovl_gnn_loader_trace(ovl_gnn_loader* loader, const char* path) {
  return with_loader("ovl_gnn_loader_trace", loader, [&](gnn::Loader& found) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_gnn_loader_trace", "path"}, path));
    return base::write_trace(found.timeline(), path);
  });
}
int ovl_gnn_loader_close(ovl_gnn_loader* loader) {
  return guarded([&]() -> base::Status {
    const auto found = find<LoaderObject>({"ovl_gnn_loader_close", "loader"}, loader);
    if (!found.ok()) return found.status();
    Registry::instance().remove(number_of(loader));
    return {};
  });
}

}  // extern "C"
