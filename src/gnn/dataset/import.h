// Graphs of others become datasets, out of core: edges by passes under a memory limit, features streamed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "src/base/status.h"
#include "src/gnn/dataset/dataset.h"

namespace overlace::gnn {

/// Layouts that are read. `pyg`: what a PyG Data holds, each attribute saved as .npy: x, edge_index; y; train_mask,
/// val_mask, test_mask or train, valid, test with ids. `igb`: processed/paper/node_feat.npy with node_label_19.npy or
/// node_label_2K.npy, processed/paper__cites__paper/edge_index.npy; vertices are split 60, 20, 20 % in their order, as
/// IGB does. Edges are (2, E) or (E, 2), i32 or i64, source first.
struct ImportOptions {
  std::string layout = "auto";  // auto, pyg or igb
  bool both_directions = false;
  bool bf16 = false;  // 16-bit words of features are bf16
  int64_t num_classes = 0;
  int64_t memory_bytes = int64_t{1} << 30;
  int threads = 0;
  std::function<void(std::string_view what, double share)> progress = {};
};

/// invalid_argument with file, field, seen and wanted; arrays and edges are checked before anything is written.
base::Result<Described> import_dataset(const std::string& source, const std::string& directory,
                                       const ImportOptions& options = {});

}  // namespace overlace::gnn
