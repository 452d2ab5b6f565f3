// A small dataset and artefacts made of it.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "src/base/file.h"
#include "src/base/mapped_file.h"
#include "src/gnn/dataset/dataset.h"
#include "src/gnn/generate/generate.h"
#include "src/gnn/store/artefact.h"
#include "tests/unit/gnn/scratch.h"

namespace overlace::gnn::test {

/// The bytes of each file of an artefact by its name, without the lock.
inline std::map<std::string, std::string> files_of(const std::string& directory) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().filename() != "lock") out[entry.path().filename()] = *base::read_file(entry.path());
  return out;
}

inline Dataset small_dataset(const std::string& directory, int64_t num_vertices = 1 << 11, int64_t dim = 25,
                             uint64_t seed = 1) {
  GenerateOptions made;
  made.num_vertices = num_vertices;
  made.dim = dim;
  made.seed = seed;
  made.threads = 1;
  generate(made, directory).status().or_throw();
  return std::move(Dataset::open(directory)).value();
}

inline SampleRequest small_sample() {
  SampleRequest request;
  request.sampler = {.fanouts = {5, 3}, .batch_size = 8, .seed = 2};
  request.splits = {Split::train, Split::valid};
  request.threads = 1;
  return request;
}

/// Caches of 5 % and 8 % of the rows, so that every level is used.
inline ArtefactPackRequest small_pack(const Dataset& dataset, OrderChoice order = {},
                                      CachePolicy policy = CachePolicy::belady) {
  const Description& d = dataset.description();
  ArtefactPackRequest request;
  request.gpu_bytes = d.num_vertices / 20 * d.features.row_bytes;
  request.cpu_bytes = d.num_vertices * 2 / 25 * d.features.row_bytes;
  request.policy = policy;
  request.is_automatic_order = false;
  request.order = order;
  request.depth = 2;
  request.memory_bytes = d.features.bytes / 2;  // several passes
  return request;
}

/// The features of a dataset, row by row.
class Matrix {
 public:
  explicit Matrix(const Dataset& dataset)
      : features_(dataset.description().features),
        file_(std::move(base::MappedFile::open(dataset.feature_path())).value()) {}
  std::span<const std::byte> row(int64_t vertex) const {
    return std::as_bytes(std::span(file_->data(), file_->size()))
        .subspan(static_cast<size_t>(features_.data_offset + vertex * features_.row_bytes),
                 static_cast<size_t>(features_.row_bytes));
  }

 private:
  Description::Features features_;
  std::shared_ptr<base::MappedFile> file_;
};

}  // namespace overlace::gnn::test
