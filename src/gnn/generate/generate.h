// Graphs with features and labels, made from a seed: the same files for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "overlace/gnn.h"
#include "src/base/status.h"
#include "src/gnn/dataset/csc_builder.h"
#include "src/gnn/dataset/dataset.h"

namespace overlace::gnn {

/// "papers", "mag", "friendster", "igb" or "products": sizes of a row and skew of accesses of these graphs at any
/// number of vertices. invalid_argument for another name.
base::Result<GenerateOptions> like(std::string_view name);

/// The edges alone.
base::Result<EdgeBlocks> edge_blocks(const GenerateOptions& options);
/// The community of each vertex; label = community mod classes. With rmat it is drawn evenly.
std::vector<int32_t> communities_of(const GenerateOptions& options);

/// Makes `directory` and a dataset in it. invalid_argument with name and value before anything is written; a directory
/// that has a dataset is refused.
base::Result<Described> generate(const GenerateOptions& options, const std::string& directory);

}  // namespace overlace::gnn
