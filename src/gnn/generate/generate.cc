#include "src/gnn/generate/generate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>

#include "src/base/file.h"
#include "src/base/npy.h"
#include "src/gnn/generate/draws.h"
#include "src/gnn/parallel.h"
#include "src/io/stream.h"

namespace overlace::gnn {
namespace {

constexpr size_t kDataOffset = 4096;
constexpr double kCentreDistance =
    1.36;  // how far apart classes lie; fitted so that neighbours tell more than features

base::Status check(const GenerateOptions& o) {
  if (o.model != "dcsbm" && o.model != "rmat")
    return base::invalid_argument("generate: model is \"{}\", wanted dcsbm or rmat", o.model);
  const auto in_range = [](const char* name, int64_t value, int64_t least, int64_t most) -> base::Status {
    if (value >= least && value <= most) return {};
    return base::invalid_argument("generate: {} is {}, wanted {} to {}", name, value, least, most);
  };
  OVERLACE_TRY(in_range("num_vertices", o.num_vertices, 2, std::numeric_limits<int32_t>::max()));
  OVERLACE_TRY(in_range("edges_per_vertex", o.edges_per_vertex, 1, 4096));
  OVERLACE_TRY(in_range("dim", o.dim, 1, 1 << 16));
  OVERLACE_TRY(in_range("num_classes", o.num_classes, 1, 1 << 20));
  OVERLACE_TRY(in_range("communities", o.communities, 1, 1 << 20));
  OVERLACE_TRY(in_range("memory_bytes", o.memory_bytes, 1 << 20, std::numeric_limits<int64_t>::max()));
  if (o.model == "rmat" && !std::has_single_bit(static_cast<uint64_t>(o.num_vertices)))
    return base::invalid_argument("generate: num_vertices is {}, wanted a power of two for rmat", o.num_vertices);
  if (!(o.alpha > 1) || !(o.weight_cap > 0) || !(o.inside >= 0 && o.inside <= 1))
    return base::invalid_argument("generate: alpha {}, weight_cap {}, inside {}; wanted > 1, > 0, 0 to 1", o.alpha,
                                  o.weight_cap, o.inside);
  if (!(o.train > 0) || !(o.valid >= 0) || !(o.test >= 0) || !(o.train + o.valid + o.test <= 1))
    return base::invalid_argument(
        "generate: train {}, valid {}, test {}; wanted shares > 0, >= 0, >= 0, at most 1 "
        "together",
        o.train, o.valid, o.test);
  return {};
}

template <class T>
base::Status write_vector(const std::string& path, DType dtype, const std::vector<T>& values) {
  std::string bytes = base::npy_header(dtype, {static_cast<int64_t>(values.size())}, kDataOffset);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return base::write_file_durably(path, bytes);
}

/// Rows in blocks, made by threads, written in order.
base::Status write_features(const GenerateOptions& o, const std::vector<int32_t>& communities,
                            const std::string& path) {
  const Draws centre(o.seed, Stream::centre), noise(o.seed, Stream::feature);
  const auto dim = static_cast<size_t>(o.dim);
  const auto half = (dim + 1) / 2;  // a word gives two numbers
  std::vector<float> centres(static_cast<size_t>(o.num_classes) * dim);
  const auto scale = static_cast<float>(kCentreDistance / std::sqrt(static_cast<double>(o.dim)));
  for (size_t c = 0; c < static_cast<size_t>(o.num_classes); ++c)
    for (size_t d = 0; d < dim; ++d) {
      const auto [first, second] = centre.normals(c * half + d / 2);
      centres[c * dim + d] = scale * (d % 2 == 0 ? first : second);
    }
  auto engine = io::IoEngine::open();
  if (!engine.ok()) return engine.status();
  auto file = (*engine)->open_file(path, io::FileMode::create);
  if (!file.ok()) return file.status();
  const std::string header = base::npy_header(DType::fp32, {o.num_vertices, o.dim}, kDataOffset);
  OVERLACE_TRY((*file)->allocate(static_cast<int64_t>(header.size()) + o.num_vertices * o.dim * 4));
  auto writer = io::StreamWriter::open(engine->get(), *file);
  if (!writer.ok()) return writer.status();
  OVERLACE_TRY((*writer)->append(std::as_bytes(std::span(header))));
  constexpr int64_t kParts = 64;
  const int64_t rows = std::clamp<int64_t>(o.memory_bytes / 8 / (o.dim * 4), 1, 1 << 16);
  std::vector<float> values;
  for (int64_t first = 0; first < o.num_vertices; first += rows) {
    const int64_t n = std::min(rows, o.num_vertices - first);
    values.resize(static_cast<size_t>(n) * dim);
    OVERLACE_TRY(parallel_each(kParts, thread_count(o.threads), [&](int64_t part, int) -> base::Status {
      for (int64_t r = n * part / kParts; r < n * (part + 1) / kParts; ++r) {
        const auto v = static_cast<size_t>(first + r);
        const float* mu = &centres[static_cast<size_t>(communities[v] % o.num_classes) * dim];
        float* row = &values[static_cast<size_t>(r) * dim];
        for (size_t d = 0; d < dim; d += 2) {
          const auto [a, b] = noise.normals(v * half + d / 2);
          row[d] = mu[d] + a;
          if (d + 1 < dim) row[d + 1] = mu[d + 1] + b;
        }
      }
      return {};
    }));
    OVERLACE_TRY((*writer)->append(std::as_bytes(std::span(values))));
    if (o.progress) o.progress(0.4 + 0.5 * static_cast<double>(first + n) / static_cast<double>(o.num_vertices));
  }
  return (*writer)->finish();
}

/// Vertices with an edge, by one draw each.
base::Status write_splits(const GenerateOptions& o, const std::string& directory) {
  const auto indptr = base::NpyFile::open(directory + "/indptr.npy");
  if (!indptr.ok()) return indptr.status();
  const std::span<const int64_t> offsets = indptr->values<int64_t>();
  const Draws draws(o.seed, Stream::split);
  std::vector<int64_t> parts[3];
  const double until[3] = {o.train, o.train + o.valid, o.train + o.valid + o.test};
  for (size_t v = 0; v + 1 < offsets.size(); ++v) {
    if (offsets[v] == offsets[v + 1]) continue;
    const auto* part = std::upper_bound(until, until + 3, draws.uniform(v));
    if (part != until + 3) parts[part - until].push_back(static_cast<int64_t>(v));
  }
  for (const Split split : kSplits) {
    const std::vector<int64_t>& part = parts[static_cast<size_t>(split)];
    if (!part.empty()) OVERLACE_TRY(write_vector(directory + "/" + split_name(split) + ".npy", DType::i64, part));
  }
  return {};
}

}  // namespace

base::Result<Described> generate(const GenerateOptions& o, const std::string& directory) {
  OVERLACE_TRY(check(o));
  if (std::filesystem::exists(directory + "/dataset.json"))
    return base::invalid_argument("generate: {} has a dataset, wanted another directory", directory);
  for (const auto& [split, share] : {std::pair{Split::valid, o.valid}, {Split::test, o.test}})
    if (const std::string left = directory + "/" + split_name(split) + ".npy";
        share == 0 && std::filesystem::exists(left))
      return base::invalid_argument("generate: {} is there already, wanted it gone or another directory", left);
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) return base::error(Errc::io, "cannot create {}: {}", directory, failed.message());
  const auto blocks = edge_blocks(o);
  if (!blocks.ok()) return blocks.status();
  CscOptions csc;
  csc.num_vertices = o.num_vertices;
  csc.both_directions = csc.drop_loops = true;
  csc.memory_bytes = o.memory_bytes / 2;
  csc.threads = o.threads;
  const auto edges = build_csc(*blocks, csc, directory);
  if (!edges.ok()) return edges.status();
  if (o.progress) o.progress(0.4);
  const std::vector<int32_t> communities = communities_of(o);
  std::vector<int64_t> labels(communities.begin(), communities.end());
  for (int64_t& label : labels) label %= o.num_classes;
  OVERLACE_TRY(write_vector(directory + "/labels.npy", DType::i64, labels));
  OVERLACE_TRY(write_splits(o, directory));
  OVERLACE_TRY(write_features(o, communities, directory + "/features.npy"));
  DescribeOptions describing;
  describing.num_classes = o.num_classes;
  describing.count_nan = false;
  return describe(directory, describing);
}

}  // namespace overlace::gnn
