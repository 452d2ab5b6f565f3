// Where the tables of embedding_a2a lie: a text in JSON, equal on all ranks, and what it says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace overlace::spec {

/// A table of embeddings. Entries of a bag that are `padding` are left out; -1: none are.
struct EmbeddingTable {
  int64_t rows = 0, dim = 0, padding = -1;
};

/// Columns [first, first + width) of a table, which `rank` holds and pools; they become columns [column, column +
/// width) of the result.
struct EmbeddingFeature {
  int64_t table = 0, rank = 0, first = 0, width = 0, column = 0;
};

/// Tables and features, the features in the order of their ranks. On a rank, bags lie feature by feature, and weights
/// slice by slice: a slice is a table's columns that one or more features of the rank pool, stored (rows, width), in
/// the order of the features that name it first.
struct Placement {
  std::vector<EmbeddingTable> tables;
  std::vector<EmbeddingFeature> features;
  int64_t entries = 1;  // expected length of a bag, by which schedules are timed

  /// The features of a rank: [begin, end).
  std::pair<size_t, size_t> features_of(int64_t rank) const;
  /// Where the slice of each feature of a rank begins in the rank's weights, and how many elements these have in all.
  std::vector<int64_t> slices(int64_t rank, int64_t* elements) const;
};

/// Reads {"tables": [{"rows", "dim", "padding"}], "features": [{"table", "rank", "first", "width", "column"}],
/// "entries"}; padding, first, width and entries may be left out. InvalidArgument names the value got and the value
/// wanted. Features must cover columns 0 to `columns` of the result, each once.
base::Result<Placement> read_placement(std::string_view text, int ranks, int64_t columns);

}  // namespace overlace::spec
