// dataset.json: what lies in a dataset's directory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "overlace/dtype_pod.h"
#include "src/base/status.h"

namespace overlace::gnn {

struct Description {
  std::string id;  // digest of fingerprint and sizes, 32 hex digits
  int64_t num_vertices = 0, num_edges = 0, num_classes = 0;
  struct Features {
    std::string file = "features.npy";
    DType dtype = DType::fp32;
    int64_t dim = 0, row_bytes = 0, data_offset = 0, bytes = 0;
  } features;
  std::string indptr = "indptr.npy", indices = "indices.npy";
  std::string sampled, full;  // fingerprints; empty: not made
};

std::string description_json(const Description& description);

/// invalid_argument with source, key, value and what is wanted; version_mismatch for another format. Every key is
/// checked against the others: sizes that multiply beyond 64 bits, names that leave the directory and unknown keys are
/// refused.
base::Result<Description> parse_description(std::string_view text, std::string_view source);

}  // namespace overlace::gnn
