// `overlace gnn`: datasets for training on graphs whose features do not fit, and what their disk does.
#pragma once

#include <cstdint>
#include <string>

namespace overlace::cli {

struct GnnGenerateWords {
  std::string out, model = "dcsbm", like;  // like: empty, or whose sizes and skew
  int64_t num_vertices = 0, dim = 0;       // 0: of the model
  uint64_t seed = 1;
  std::string memory = "1GiB", json;
  int threads = 0;
  bool quiet = false;
};

struct GnnImportWords {
  std::string from, out, layout = "auto";
  bool in_place = false, both_directions = false, bf16 = false, quiet = false;
  int64_t num_classes = 0;
  std::string memory = "1GiB", json;
};

struct GnnInfoWords {
  std::string dataset, json;
};

struct GnnDiskbenchWords {
  std::string directory, size = "1GiB", json;
  double seconds = 1;
  bool quiet = false;
};

struct GnnWords {
  GnnGenerateWords generate;
  GnnImportWords import;
  GnnInfoWords info;
  GnnDiskbenchWords diskbench;
};

/// Exit codes; failures are thrown as overlace::Error.
int gnn_generate(const GnnGenerateWords& words);
int gnn_import(const GnnImportWords& words);
int gnn_info(const GnnInfoWords& words);
int gnn_diskbench(const GnnDiskbenchWords& words);

/// "8GiB", "512MiB", "1000000": bytes; invalid_argument names `option`.
int64_t parse_size(const std::string& option, const std::string& text);

}  // namespace overlace::cli
