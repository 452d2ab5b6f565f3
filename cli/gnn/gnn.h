// `overlace gnn`: training on graphs whose features do not fit: datasets, artefacts, and what their disk does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/gnn/rates.h"
#include "src/base/json.h"

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
  std::string directory, size = "1GiB", machine, json;  // machine: file that gets the figures, or none
  double seconds = 1;
  bool quiet = false;
};

struct GnnSampleWords {
  std::string dataset, out, splits = "train", json;
  std::vector<int32_t> fanouts = {10, 5, 5};
  int64_t batch_size = 1024, epochs = 1;
  uint64_t seed = 0;
  bool replace = false, quiet = false;
  int threads = 0;
};

/// Words of `plan` and `pack`.
struct GnnPackWords {
  std::string artefact, dataset;  // dataset: empty, where the artefact was sampled from
  std::string gpu_cache = "0", cpu_cache = "0", disk = "0", memory = "1GiB", json;
  std::string policy = "belady", order = "auto";
  int64_t segment_batches = 256, page_bytes = 4096, ranks = 1;
  int depth = 3, threads = 0;
  GnnRateWords rates;
  bool quiet = false, is_dry = false;
  bool fits = false;  // plan: caches of the memory that is at hand
};

struct GnnVerifyWords {
  std::string artefact, dataset, memory = "1GiB", json;
  bool deep = false, repairs = false, quiet = false;
};

struct GnnWords {
  GnnSampleWords sample;
  GnnPackWords plan, pack;
  GnnVerifyWords verify;
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
int gnn_sample(const GnnSampleWords& words);
int gnn_plan(const GnnPackWords& words);
int gnn_pack(const GnnPackWords& words);
int gnn_verify(const GnnVerifyWords& words);
/// Becomes python3 -m overlace.gnn.train with these words; returns only where there is no python3.
int gnn_train(const std::vector<std::string>& words);
/// Whether a directory has a manifest.json, and what it holds then.
bool is_artefact(const std::string& directory);
int gnn_artefact_info(const GnnInfoWords& words);

std::string line(std::string_view key, std::string_view value);
std::string gigabytes(int64_t bytes);

}  // namespace overlace::cli
