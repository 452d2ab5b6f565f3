// include/overlace/gnn.h around the steps and the loader of this layer.
#include "overlace/gnn.h"

#include <utility>

#include "src/base/trace.h"
#include "src/gnn/dataset/dataset.h"
#include "src/gnn/generate/generate.h"
#include "src/gnn/pipeline/loader.h"
#include "src/gnn/store/artefact.h"

namespace overlace::gnn {
namespace {

std::unique_ptr<Loader> open_loader(const std::string& artefact, const PackedLoaderOptions& given) {
  LoaderOptions options;
  options.packs = given.packs;
  options.split = given.split;
  options.rank = given.rank;
  options.ranks = given.ranks;
  options.order_seed = given.order_seed;
  options.checks_sums = given.checks_sums;
  options.source = given.source;
  options.memory_bytes = given.memory_bytes;
  options.io.engine = given.engine;
  options.io.pace_bytes_per_s = given.pace_bytes_per_s;
  if (given.gpu) options.device = open_gpu(*given.gpu).value();
  return Loader::open(artefact, std::move(options)).value();
}

}  // namespace

void make_dataset(const GenerateOptions& options, const std::string& directory) {
  generate(options, directory).status().or_throw();
}

void make_samples(const std::string& dataset, const std::string& artefact, const SampleRequest& request) {
  sample_artefact(Dataset::open(dataset).value(), artefact, request).status().or_throw();
}

void make_packs(const std::string& dataset, const std::string& artefact, const ArtefactPackRequest& request) {
  pack_artefact(Dataset::open(dataset).value(), artefact, request).status().or_throw();
}

void verify(const std::string& artefact, const std::string& dataset) {
  std::optional<Dataset> deep;
  if (!dataset.empty()) deep = Dataset::open(dataset).value();
  verify_artefact(artefact, deep ? &*deep : nullptr).status().or_throw();
}

std::vector<std::string> repair(const std::string& artefact, const std::string& dataset) {
  return repair_artefact(Dataset::open(dataset).value(), artefact).value();
}

struct PackedLoader::Impl {
  std::unique_ptr<Loader> loader;
};

PackedLoader::PackedLoader(const std::string& artefact, const PackedLoaderOptions& options)
    : impl_(std::make_unique<Impl>(Impl{open_loader(artefact, options)})) {}
PackedLoader::~PackedLoader() = default;
PackedLoader::PackedLoader(PackedLoader&&) noexcept = default;
PackedLoader& PackedLoader::operator=(PackedLoader&&) noexcept = default;

int64_t PackedLoader::num_batches() const { return impl_->loader->num_batches(); }
int64_t PackedLoader::num_classes() const { return impl_->loader->manifest().num_classes; }
int64_t PackedLoader::dim() const { return impl_->loader->manifest().dim; }
std::string PackedLoader::dtype() const { return impl_->loader->manifest().dtype; }
int64_t PackedLoader::sampled_epochs() const { return impl_->loader->plan().sampled_epochs(); }
int64_t PackedLoader::row_bytes() const { return impl_->loader->manifest().row_bytes; }
int64_t PackedLoader::memory_bytes() const { return impl_->loader->bytes().host(); }
int64_t PackedLoader::device_bytes() const { return impl_->loader->bytes().device(); }

void PackedLoader::start(int64_t epoch, int64_t position) { impl_->loader->start(epoch, position).or_throw(); }
void PackedLoader::use_stream(void* stream) { impl_->loader->use_stream(stream); }
std::optional<LoadedBatch> PackedLoader::next() { return impl_->loader->next().value(); }
void PackedLoader::release() { impl_->loader->release(); }
LoaderStats PackedLoader::stats() const { return impl_->loader->stats(); }
void PackedLoader::trace(const std::string& path) const {
  base::write_trace(impl_->loader->timeline(), path).or_throw();
}

}  // namespace overlace::gnn
