#include "src/gnn/dataset/import.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "src/base/ceil_div_pod.h"
#include "src/base/file.h"
#include "src/base/npy.h"
#include "src/gnn/dataset/csc_builder.h"
#include "src/gnn/dataset/fingerprint.h"
#include "src/io/stream.h"

namespace overlace::gnn {
namespace {

using base::NpyFile;

constexpr int64_t kEdgesPerBlock = 1 << 16;

struct Sources {
  std::string features, edges, labels;  // labels: empty where there are none
  std::string splits[3];                // ids or masks; empty: none
  bool splits_in_order = false;         // 60, 20, 20 %
};

bool exists(const std::string& path) { return std::filesystem::exists(path); }

/// The first that is there, or empty.
std::string first_of(const std::string& folder, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (exists(folder + "/" + name)) return folder + "/" + name;
  return {};
}

base::Result<Sources> find_sources(const std::string& folder, std::string layout) {
  const std::string igb = folder + "/processed/paper/node_feat.npy", pyg = folder + "/edge_index.npy";
  if (layout == "auto") layout = exists(igb) ? "igb" : exists(pyg) ? "pyg" : layout;
  Sources s;
  if (layout == "igb") {
    s.features = igb;
    s.edges = folder + "/processed/paper__cites__paper/edge_index.npy";
    s.labels = first_of(folder + "/processed/paper", {"node_label_19.npy", "node_label_2K.npy"});
    s.splits_in_order = true;
    return s;
  }
  if (layout == "pyg") {
    s.features = folder + "/x.npy";
    s.edges = pyg;
    s.labels = first_of(folder, {"y.npy"});
    s.splits[0] = first_of(folder, {"train.npy", "train_mask.npy"});
    s.splits[1] = first_of(folder, {"valid.npy", "val_mask.npy"});
    s.splits[2] = first_of(folder, {"test.npy", "test_mask.npy"});
    return s;
  }
  if (layout == "auto")
    return base::invalid_argument(
        "import: {} has none of edge_index.npy (pyg), processed/paper/node_feat.npy (igb), raw/data.npz and"
        " raw/edge.csv.gz (ogb)",
        folder);
  return base::invalid_argument("import: layout is \"{}\", wanted auto, pyg, igb, or ogb once it is unpacked", layout);
}

base::Result<NpyFile> open_foreign_array(const std::string& path) {
  auto file = NpyFile::open(path);
  if (!file.ok()) return unreadable(path, file.status());
  return file;
}

/// Any array of integers, or of floats that are whole, as i64: some publish labels as floats.
base::Result<std::vector<int64_t>> integers(const NpyFile& file) {
  const base::NpyArray& array = file.array();
  std::vector<int64_t> out(static_cast<size_t>(array.elements));
  const auto take = [&]<class T>(T) -> base::Status {
    const char* data = file.data();
    for (size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, data + i * sizeof(T), sizeof(T));
      if constexpr (std::is_floating_point_v<T>) {
        // NOTE: a label that is no number means none, as in published sets.
        if (std::isnan(value)) value = -1;
        if (std::floor(value) != value || std::fabs(static_cast<double>(value)) > 9e15)
          return base::invalid_argument("{}: element {} is {}, wanted a whole number", file.path(), i,
                                        static_cast<double>(value));
      }
      out[i] = static_cast<int64_t>(value);
    }
    return {};
  };
  base::Status status;
  switch (array.dtype) {
    case DType::i64:
      status = take(int64_t{});
      break;
    case DType::i32:
      status = take(int32_t{});
      break;
    case DType::i8:
      status = take(int8_t{});
      break;
    case DType::u8:
      status = take(uint8_t{});
      break;
    case DType::fp32:
      status = take(float{});
      break;
    case DType::fp64:
      status = take(double{});
      break;
    default:
      status = base::invalid_argument("{}: dtype is {}, wanted integers", file.path(), dtype_name(array.dtype));
  }
  if (!status.ok()) return status;
  return out;
}

/// (n,) or (n, 1)
base::Status check_length(const NpyFile& file, int64_t length) {
  const std::vector<int64_t>& shape = file.array().shape;
  if (!shape.empty() && file.array().elements == shape[0] && (length < 0 || shape[0] == length)) return {};
  return base::invalid_argument("{}: shape is {}, wanted ({},)", file.path(), file.array().shape_text(),
                                length < 0 ? "n" : base::format("{}", length));
}

template <class T>
base::Status write_vector(const std::string& path, const std::vector<T>& values) {
  std::string bytes = base::npy_header(DType::i64, {static_cast<int64_t>(values.size())}, kDataOffset);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return base::write_file_durably(path, bytes);
}

base::Result<EdgeBlocks> edges_of(const NpyFile& file) {
  const base::NpyArray& array = file.array();
  const bool has_rows = array.shape.size() == 2 && array.shape[0] == 2;  // (2, E); (2, 2) is taken so
  const bool has_pairs = array.shape.size() == 2 && array.shape[1] == 2;
  if ((array.dtype != DType::i32 && array.dtype != DType::i64) || !file.is_aligned(dtype_bytes(array.dtype)))
    return base::invalid_argument("{}: dtype is {}, wanted i32 or i64", file.path(), dtype_name(array.dtype));
  if (!has_rows && !has_pairs)
    return base::invalid_argument("{}: shape is {}, wanted (2, edges) or (edges, 2)", file.path(), array.shape_text());
  const int64_t num_edges = array.elements / 2;
  const int64_t step = has_rows ? 1 : 2, second = has_rows ? num_edges : 1;
  const auto blocks = [&](auto values) {
    return EdgeBlocks{base::ceil_div(num_edges, kEdgesPerBlock), [=](int64_t block, std::vector<Edge>* edges) {
                        const int64_t first = block * kEdgesPerBlock,
                                      last = std::min(first + kEdgesPerBlock, num_edges);
                        edges->resize(static_cast<size_t>(last - first));
                        for (int64_t e = first; e < last; ++e)
                          (*edges)[static_cast<size_t>(e - first)] = {
                              static_cast<int64_t>(values[static_cast<size_t>(e * step)]),
                              static_cast<int64_t>(values[static_cast<size_t>(e * step + second)])};
                        return base::Status();
                      }};
  };
  return array.dtype == DType::i32 ? blocks(file.values<int32_t>()) : blocks(file.values<int64_t>());
}

/// Vertices of a split: ids as they are, a mask by its places.
base::Result<std::vector<int64_t>> seeds_of(const std::string& path, int64_t num_vertices) {
  const auto file = open_foreign_array(path);
  if (!file.ok()) return file.status();
  const bool is_mask = path.ends_with("_mask.npy");
  OVERLACE_TRY(check_length(*file, is_mask ? num_vertices : -1));
  auto values = integers(*file);
  if (!values.ok() || !is_mask) return values;
  std::vector<int64_t> ids;
  for (size_t v = 0; v < values->size(); ++v)
    if ((*values)[v] != 0) ids.push_back(static_cast<int64_t>(v));
  return ids;
}

base::Status copy_features(const NpyFile& from, const std::string& to, const ImportOptions& options) {
  const base::NpyArray& array = from.array();
  auto reading = io::IoEngine::open(), writing = io::IoEngine::open();
  if (!reading.ok()) return reading.status();
  if (!writing.ok()) return writing.status();
  auto source = (*reading)->open_file(from.path(), io::FileMode::read);
  if (!source.ok()) return source.status();
  auto target = (*writing)->open_file(to, io::FileMode::create);
  if (!target.ok()) return target.status();
  const std::string header = base::npy_header(array.dtype, array.shape, kDataOffset);
  OVERLACE_TRY((*target)->allocate(static_cast<int64_t>(header.size()) + array.bytes()));
  auto reader = io::StreamReader::open(reading->get(), *source, array.data_offset, array.bytes());
  if (!reader.ok()) return reader.status();
  auto writer = io::StreamWriter::open(writing->get(), *target);
  if (!writer.ok()) return writer.status();
  OVERLACE_TRY((*writer)->append(std::as_bytes(std::span(header))));
  int64_t done = 0;
  while (true) {
    const auto chunk = (*reader)->next();
    if (!chunk.ok()) return chunk.status();
    if (chunk->empty()) return (*writer)->finish();
    OVERLACE_TRY((*writer)->append(*chunk));
    done += static_cast<int64_t>(chunk->size());
    if (options.progress)
      options.progress("features",
                       static_cast<double>(done) / static_cast<double>(std::max<int64_t>(array.bytes(), 1)));
  }
}

/// All but edges, read and checked.
struct Loaded {
  std::optional<NpyFile> features;
  std::vector<int64_t> labels, splits[3];
  int64_t num_vertices = 0;
};

base::Result<Loaded> load(const Sources& sources) {
  Loaded loaded;
  auto features = open_foreign_array(sources.features);
  if (!features.ok()) return features.status();
  if (features->array().shape.size() != 2)
    return base::invalid_argument("{}: shape is {}, wanted (vertices, dim)", features->path(),
                                  features->array().shape_text());
  loaded.num_vertices = features->array().shape[0];
  loaded.features = std::move(*features);
  if (!sources.labels.empty()) {
    const auto file = open_foreign_array(sources.labels);
    if (!file.ok()) return file.status();
    OVERLACE_TRY(check_length(*file, loaded.num_vertices));
    auto labels = integers(*file);
    if (!labels.ok()) return labels.status();
    loaded.labels = std::move(*labels);
  }
  for (const Split split : kSplits) {
    const std::string& path = sources.splits[static_cast<size_t>(split)];
    if (path.empty()) continue;
    auto seeds = seeds_of(path, loaded.num_vertices);
    if (!seeds.ok()) return seeds.status();
    loaded.splits[static_cast<size_t>(split)] = std::move(*seeds);
  }
  if (sources.splits_in_order)
    for (int64_t v = 0; v < loaded.num_vertices; ++v)
      loaded.splits[v < loaded.num_vertices * 6 / 10 ? 0 : v < loaded.num_vertices * 8 / 10 ? 1 : 2].push_back(v);
  return loaded;
}

/// What lies in the directory and is not written would become a part of the dataset.
base::Status check_leftovers(const Loaded& loaded, const std::string& directory) {
  const auto check = [&](const std::string& name, bool is_written) -> base::Status {
    if (is_written || !exists(directory + "/" + name)) return {};
    return base::invalid_argument(
        "import: {}/{} is there already and not of the source, wanted it gone or another directory", directory, name);
  };
  OVERLACE_TRY(check("labels.npy", !loaded.labels.empty()));
  for (const Split split : kSplits)
    OVERLACE_TRY(check(std::string(split_name(split)) + ".npy", !loaded.splits[static_cast<size_t>(split)].empty()));
  return {};
}

base::Result<Described> write_dataset(const Loaded& loaded, const EdgeBlocks& blocks, const std::string& directory,
                                      const ImportOptions& options) {
  CscOptions csc;
  csc.num_vertices = loaded.num_vertices;
  csc.both_directions = options.both_directions;
  csc.memory_bytes = options.memory_bytes / 2;
  csc.threads = options.threads;
  if (options.progress) options.progress("edges", 0);
  const auto edges = build_csc(blocks, csc, directory);
  if (!edges.ok()) return edges.status();
  OVERLACE_TRY(copy_features(*loaded.features, directory + "/features.npy", options));
  if (!loaded.labels.empty()) OVERLACE_TRY(write_vector(directory + "/labels.npy", loaded.labels));
  for (const Split split : kSplits)
    if (const auto& seeds = loaded.splits[static_cast<size_t>(split)]; !seeds.empty())
      OVERLACE_TRY(write_vector(directory + "/" + split_name(split) + ".npy", seeds));
  if (options.progress) options.progress("check", 0);
  DescribeOptions describing;
  describing.num_classes = options.num_classes;
  describing.bf16 = options.bf16;
  return describe(directory, describing);
}

}  // namespace

base::Result<Described> import_dataset(const std::string& source, const std::string& directory,
                                       const ImportOptions& options) {
  if (options.memory_bytes < (1 << 20))
    return base::invalid_argument("import: memory is {} bytes, wanted at least {}", options.memory_bytes, 1 << 20);
  if (exists(directory + "/dataset.json"))
    return base::invalid_argument("import: {} has a dataset, wanted another directory", directory);
  const auto sources = find_sources(source, options.layout);
  if (!sources.ok()) return sources.status();
  const auto loaded = load(*sources);
  if (!loaded.ok()) return loaded.status();
  OVERLACE_TRY(check_leftovers(*loaded, directory));
  const auto edge_file = open_foreign_array(sources->edges);
  if (!edge_file.ok()) return edge_file.status();
  const auto blocks = edges_of(*edge_file);
  if (!blocks.ok()) return blocks.status();
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) return base::error(Errc::io, "cannot create {}: {}", directory, failed.message());
  auto made = write_dataset(*loaded, *blocks, directory, options);
  if (!made.ok()) std::filesystem::remove(directory, failed);  // where nothing was written into it
  return made;
}

}  // namespace overlace::gnn
