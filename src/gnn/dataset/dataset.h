// A dataset: graph, features, labels and vertices of each split, as .npy files in a directory with a dataset.json.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "overlace/gnn.h"
#include "src/base/npy.h"
#include "src/base/status.h"
#include "src/gnn/dataset/description.h"
#include "src/gnn/graph.h"

namespace overlace::gnn {

const char* split_name(Split split);

/// Mapped, never read whole: opening touches headers and a sample of the pages. Features are not mapped; who wants them
/// reads feature_path() by src/io.
class Dataset {
 public:
  /// invalid_argument with file, field, seen and wanted where a file is missing, cut or no fit; stale where files
  /// changed since dataset.json was written; version_mismatch for another format.
  static base::Result<Dataset> open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const Description& description() const { return description_; }
  std::string feature_path() const { return directory_ + "/" + description_.features.file; }
  /// Not checked edge by edge; describe() did that.
  CscView graph() const;
  /// One per vertex, -1: none; empty where the dataset has no labels.
  std::span<const int64_t> labels() const;
  /// Vertices of a split; empty where the dataset does not have it.
  VertexSpan split(Split split) const;

 private:
  std::string directory_;
  Description description_;
  std::optional<base::NpyFile> indptr_, indices_, labels_;
  std::optional<base::NpyFile> splits_[3];
};

struct DescribeOptions {
  int64_t num_classes = 0;  // 0: largest label + 1
  bool bf16 = false;        // 16-bit words of features are bf16; without it they are refused
  bool count_nan = true;    // reads all features
};
struct Described {
  Description description;
  int64_t nan_rows = 0, isolated = 0, unlabelled = 0;
};
/// Reads and checks all files of a directory (features, indptr, indices; labels, train, valid, test where they are
/// there), then writes dataset.json, durably. Nothing is written before all checks pass.
base::Result<Described> describe(const std::string& directory, const DescribeOptions& options = {});

}  // namespace overlace::gnn
