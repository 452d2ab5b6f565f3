#include "src/gnn/dataset/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "src/base/file.h"
#include "src/base/half.h"
#include "src/gnn/dataset/fingerprint.h"
#include "src/io/stream.h"

namespace overlace::gnn {
namespace {

using base::NpyFile;

constexpr const char* kDescription = "dataset.json";
constexpr const char* kLabels = "labels.npy";

std::string split_file(Split split) { return std::string(split_name(split)) + ".npy"; }

/// A file of the directory itself: links that lead out of it, or in a circle, are refused.
base::Status check_place(const std::string& directory, const std::string& name) {
  std::error_code failed;
  const std::filesystem::path home = std::filesystem::canonical(directory, failed);
  if (failed) return base::invalid_argument("{}: {}", directory, failed.message());
  const std::filesystem::path file = std::filesystem::canonical(home / name, failed);
  if (failed)
    return unreadable(directory + "/" + name, base::invalid_argument("{}/{}: {}", directory, name, failed.message()));
  if (file.parent_path() != home)
    return base::invalid_argument("{}/{}: leads to {}, wanted a file of the directory", directory, name, file.string());
  return {};
}

base::Result<NpyFile> open_array(const std::string& directory, const std::string& name) {
  OVERLACE_TRY(check_place(directory, name));
  auto file = NpyFile::open(directory + "/" + name);
  if (!file.ok()) return unreadable(directory + "/" + name, file.status());
  return file;
}

/// One dimension of one of the types; `length` < 0: any.
base::Status check_vector(const NpyFile& file, std::initializer_list<DType> types, int64_t length) {
  const base::NpyArray& array = file.array();
  if (std::find(types.begin(), types.end(), array.dtype) == types.end())
    return base::invalid_argument("{}: dtype is {}, wanted {}", file.path(), dtype_name(array.dtype),
                                  types.size() == 1 ? dtype_name(*types.begin()) : "i32 or i64");
  if (array.shape.size() != 1 || (length >= 0 && array.shape[0] != length))
    return base::invalid_argument("{}: shape is {}, wanted ({},)", file.path(), array.shape_text(),
                                  length >= 0 ? base::format("{}", length) : "n");
  if (!file.is_aligned(dtype_bytes(array.dtype)))
    return base::invalid_argument("{}: data begin at offset {}, wanted a multiple of {}", file.path(),
                                  array.data_offset, dtype_bytes(array.dtype));
  return {};
}

VertexSpan vertices_of(const NpyFile& file) {
  if (file.array().dtype == DType::i32) return file.values<int32_t>();
  return file.values<int64_t>();
}

base::Status check_labels(const NpyFile& file, int64_t num_classes, int64_t* largest, int64_t* unlabelled) {
  const std::span<const int64_t> labels = file.values<int64_t>();
  for (size_t v = 0; v < labels.size(); ++v) {
    if (labels[v] < -1 || (num_classes > 0 && labels[v] >= num_classes))
      return base::invalid_argument("{}: label {} of vertex {}, wanted -1 or one of [0, {})", file.path(), labels[v], v,
                                    num_classes > 0 ? base::format("{}", num_classes) : "classes");
    *largest = std::max(*largest, labels[v]);
    *unlabelled += labels[v] < 0;
  }
  return {};
}

base::Status check_seeds(const NpyFile& file, int64_t num_vertices) {
  if (file.array().elements == 0)
    return base::invalid_argument("{}: 0 vertices, wanted at least one, or no such file", file.path());
  std::vector<bool> seen(static_cast<size_t>(num_vertices));
  return std::visit(
      [&](auto seeds) -> base::Status {
        for (size_t i = 0; i < seeds.size(); ++i) {
          const auto v = static_cast<int64_t>(seeds[i]);
          if (v < 0 || v >= num_vertices)
            return base::invalid_argument("{}: vertex {} at position {}, wanted one of [0, {})", file.path(), v, i,
                                          num_vertices);
          if (seen[static_cast<size_t>(v)])
            return base::invalid_argument("{}: vertex {} at position {} is repeated, wanted each at most once",
                                          file.path(), v, i);
          seen[static_cast<size_t>(v)] = true;
        }
        return {};
      },
      vertices_of(file));
}

/// Rows with a value that is no number, in one pass past the page cache.
base::Result<int64_t> count_nan_rows(const std::string& path, const Description& d) {
  if (d.features.dtype == DType::i8) return int64_t{0};
  auto engine = io::IoEngine::open();
  if (!engine.ok()) return engine.status();
  auto file = (*engine)->open_file(path, io::FileMode::read);
  if (!file.ok()) return file.status();
  auto reader =
      io::StreamReader::open(engine->get(), *file, d.features.data_offset, d.features.bytes - d.features.data_offset);
  if (!reader.ok()) return reader.status();
  const auto element = static_cast<int64_t>(dtype_bytes(d.features.dtype));
  std::vector<float> values;
  std::vector<std::byte> carry;  // elements may be cut where chunks end
  int64_t rows = 0, last_row = -1, at = 0;
  while (true) {
    const auto chunk = (*reader)->next();
    if (!chunk.ok()) return chunk.status();
    if (chunk->empty()) return rows;
    carry.insert(carry.end(), chunk->begin(), chunk->end());
    const int64_t n = static_cast<int64_t>(carry.size()) / element;
    values.resize(static_cast<size_t>(n));
    base::convert_to_float(reinterpret_cast<const char*>(carry.data()), d.features.dtype, values.data(), n);
    for (int64_t i = 0; i < n; ++i)
      if (!std::isfinite(values[static_cast<size_t>(i)]) && (at + i) / d.features.dim != last_row)
        ++rows, last_row = (at + i) / d.features.dim;
    at += n;
    carry.erase(carry.begin(), carry.begin() + static_cast<ptrdiff_t>(n * element));
  }
}

base::Result<Description::Features> feature_shape(const std::string& directory, bool bf16, int64_t num_vertices) {
  Description::Features f;
  auto file = open_array(directory, f.file);
  if (!file.ok()) return file.status();
  const base::NpyArray& array = file->array();
  const bool is_known = array.dtype == DType::fp32 || array.dtype == DType::fp16 || array.dtype == DType::i8 ||
                        (array.dtype == DType::bf16 && bf16);
  if (!is_known)
    return base::invalid_argument("{}: dtype is {}, wanted fp32, fp16, i8, or 16-bit words said to be bf16",
                                  file->path(), array.dtype == DType::bf16 ? "u16" : dtype_name(array.dtype));
  if (array.shape.size() != 2 || array.shape[0] != num_vertices || array.shape[1] < 1)
    return base::invalid_argument("{}: shape is {}, wanted ({}, dim): a row for each vertex of indptr.npy",
                                  file->path(), array.shape_text(), num_vertices);
  f.dtype = array.dtype;
  f.dim = array.shape[1];
  f.row_bytes = f.dim * static_cast<int64_t>(dtype_bytes(f.dtype));
  f.data_offset = array.data_offset;
  f.bytes = array.data_offset + array.bytes();
  return f;
}

std::vector<std::string> files_of(const std::string& directory, const Description& d) {
  std::vector<std::string> names = {d.features.file, d.indptr, d.indices};
  std::vector<std::string> optional = {kLabels, "scales.npy"};
  for (const Split split : kSplits) optional.push_back(split_file(split));
  for (const std::string& name : optional)
    if (std::filesystem::exists(directory + "/" + name)) names.push_back(name);
  return names;
}

}  // namespace

const char* split_name(Split split) {
  return split == Split::train ? "train" : split == Split::valid ? "valid" : "test";
}

CscView Dataset::graph() const { return {indptr_->values<int64_t>(), vertices_of(*indices_)}; }

std::span<const int64_t> Dataset::labels() const {
  return labels_ ? labels_->values<int64_t>() : std::span<const int64_t>();
}

VertexSpan Dataset::split(Split split) const {
  const std::optional<NpyFile>& file = splits_[static_cast<size_t>(split)];
  return file ? vertices_of(*file) : VertexSpan(std::span<const int64_t>());
}

base::Result<Dataset> Dataset::open(const std::string& directory) {
  const std::string source = directory + "/" + kDescription;
  const auto text = base::read_file(source);
  if (!text.ok())
    return unreadable(source, base::invalid_argument("{}: no dataset: {}", directory, text.status().message()));
  auto parsed = parse_description(*text, source);
  if (!parsed.ok()) return parsed.status();
  Dataset dataset;
  dataset.directory_ = directory;
  dataset.description_ = std::move(*parsed);
  const Description& d = dataset.description_;
  for (const std::string& name : files_of(directory, d)) OVERLACE_TRY(check_place(directory, name));
  const auto sampled = sampled_fingerprint(directory, files_of(directory, d));
  if (!sampled.ok()) return sampled.status();
  if (*sampled != d.sampled)
    return base::error(Errc::stale, "{}: fingerprint of the files is {}, wanted {}: they changed since it was written",
                       source, *sampled, d.sampled);
  const auto take = [&](const std::string& name, std::optional<NpyFile>* out, std::initializer_list<DType> types,
                        int64_t length) -> base::Status {
    auto file = open_array(directory, name);
    if (!file.ok()) return file.status();
    OVERLACE_TRY(check_vector(*file, types, length));
    *out = std::move(*file);
    return {};
  };
  OVERLACE_TRY(take(d.indptr, &dataset.indptr_, {DType::i64}, d.num_vertices + 1));
  OVERLACE_TRY(take(d.indices, &dataset.indices_, {DType::i32, DType::i64}, d.num_edges));
  const auto exists = [&](const std::string& name) { return std::filesystem::exists(directory + "/" + name); };
  if (exists(kLabels)) OVERLACE_TRY(take(kLabels, &dataset.labels_, {DType::i64}, d.num_vertices));
  for (const Split split : kSplits)
    if (exists(split_file(split)))
      OVERLACE_TRY(take(split_file(split), &dataset.splits_[static_cast<size_t>(split)], {DType::i32, DType::i64}, -1));
  const auto features = feature_shape(directory, d.features.dtype == DType::bf16, d.num_vertices);
  if (!features.ok()) return features.status();
  if (features->dtype != d.features.dtype || features->dim != d.features.dim || features->bytes != d.features.bytes)
    return base::invalid_argument("{}: features are {} of {} columns, wanted {} of {}", source,
                                  dtype_name(features->dtype), features->dim, dtype_name(d.features.dtype),
                                  d.features.dim);
  return dataset;
}

base::Result<Described> describe(const std::string& directory, const DescribeOptions& options) {
  Described made;
  Description& d = made.description;
  const auto indptr = open_array(directory, d.indptr), indices = open_array(directory, d.indices);
  if (!indptr.ok()) return indptr.status();
  if (!indices.ok()) return indices.status();
  OVERLACE_TRY(check_vector(*indptr, {DType::i64}, -1));
  OVERLACE_TRY(check_vector(*indices, {DType::i32, DType::i64}, -1));
  const CscView graph{indptr->values<int64_t>(), vertices_of(*indices)};
  if (const base::Status checked = check_graph(graph); !checked.ok())
    return base::invalid_argument("{}: {}", directory, checked.message());
  d.num_vertices = graph.num_vertices();
  d.num_edges = graph.num_edges();
  if (d.num_vertices < 1) return base::invalid_argument("{}: 0 vertices, wanted at least one", indptr->path());
  for (int64_t v = 0; v < d.num_vertices; ++v) made.isolated += graph.degree(v) == 0;
  const auto features = feature_shape(directory, options.bf16, d.num_vertices);
  if (!features.ok()) return features.status();
  d.features = *features;
  int64_t largest = -1;
  if (std::filesystem::exists(directory + "/" + kLabels)) {
    const auto labels = open_array(directory, kLabels);
    if (!labels.ok()) return labels.status();
    OVERLACE_TRY(check_vector(*labels, {DType::i64}, d.num_vertices));
    OVERLACE_TRY(check_labels(*labels, options.num_classes, &largest, &made.unlabelled));
  }
  d.num_classes = options.num_classes > 0 ? options.num_classes : largest + 1;
  for (const Split split : kSplits) {
    if (!std::filesystem::exists(directory + "/" + split_file(split))) continue;
    const auto seeds = open_array(directory, split_file(split));
    if (!seeds.ok()) return seeds.status();
    OVERLACE_TRY(check_vector(*seeds, {DType::i32, DType::i64}, -1));
    OVERLACE_TRY(check_seeds(*seeds, d.num_vertices));
  }
  if (options.count_nan) {
    const auto rows = count_nan_rows(directory + "/" + d.features.file, d);
    if (!rows.ok()) return rows.status();
    made.nan_rows = *rows;
  }
  const auto sampled = sampled_fingerprint(directory, files_of(directory, d));
  if (!sampled.ok()) return sampled.status();
  d.sampled = *sampled;
  d.id = dataset_id(d);
  OVERLACE_TRY(base::write_file_durably(directory + "/" + kDescription, description_json(d)));
  return made;
}

}  // namespace overlace::gnn
