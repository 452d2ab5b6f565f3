#include "src/gnn/dataset/description.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "src/base/json.h"
#include "src/gnn/json_members.h"

namespace overlace::gnn {
namespace {

using base::Json;

constexpr int64_t kFormat = 1;
constexpr DType kFeatureTypes[] = {DType::fp32, DType::fp16, DType::bf16, DType::i8};

base::Status read_features(const Json* object, const std::string& where, Description* d) {
  const Members features(object, where);
  OVERLACE_TRY(features.check_keys({"file", "dtype", "dim", "row_bytes", "data_offset", "bytes"}));
  Description::Features& f = d->features;
  std::string dtype;
  OVERLACE_TRY(features.file("file", "dataset.json", &f.file));
  OVERLACE_TRY(features.text("dtype", &dtype));
  const auto* type =
      std::find_if(std::begin(kFeatureTypes), std::end(kFeatureTypes), [&](DType t) { return dtype == dtype_name(t); });
  if (type == std::end(kFeatureTypes))
    return base::invalid_argument("{}: dtype is \"{}\", wanted fp32, fp16, bf16 or i8", where, dtype);
  f.dtype = *type;
  OVERLACE_TRY(features.integer("dim", 1, &f.dim));
  OVERLACE_TRY(features.integer("row_bytes", 1, &f.row_bytes));
  OVERLACE_TRY(features.integer("data_offset", 0, &f.data_offset));
  OVERLACE_TRY(features.integer("bytes", 0, &f.bytes));
  const auto element = static_cast<int64_t>(dtype_bytes(f.dtype));
  if (f.dim > std::numeric_limits<int64_t>::max() / element || f.row_bytes != f.dim * element)
    return base::invalid_argument("{}: row_bytes is {}, wanted dim {} times {}", where, f.row_bytes, f.dim, element);
  if (d->num_vertices > (std::numeric_limits<int64_t>::max() - f.data_offset) / f.row_bytes)
    return base::invalid_argument("{}: {} rows of {} bytes, wanted less than 2^63", where, d->num_vertices,
                                  f.row_bytes);
  const int64_t bytes = f.data_offset + d->num_vertices * f.row_bytes;
  if (f.bytes != bytes) return base::invalid_argument("{}: bytes is {}, wanted {}", where, f.bytes, bytes);
  return {};
}

base::Status read_graph(const Json* object, const std::string& where, Description* d) {
  const Members graph(object, where);
  OVERLACE_TRY(graph.check_keys({"layout", "indptr", "indices"}));
  std::string layout;
  OVERLACE_TRY(graph.text("layout", &layout));
  if (layout != "csc") return base::invalid_argument("{}: layout is \"{}\", wanted \"csc\"", where, layout);
  OVERLACE_TRY(graph.file("indptr", "dataset.json", &d->indptr));
  return graph.file("indices", "dataset.json", &d->indices);
}

}  // namespace

std::string description_json(const Description& d) {
  const Json json = Json::Object{
      {"overlace_gnn", kFormat},
      {"kind", "dataset"},
      {"id", d.id},
      {"num_vertices", d.num_vertices},
      {"num_edges", d.num_edges},
      {"num_classes", d.num_classes},
      {"features", Json::Object{{"file", d.features.file},
                                {"dtype", dtype_name(d.features.dtype)},
                                {"dim", d.features.dim},
                                {"row_bytes", d.features.row_bytes},
                                {"data_offset", d.features.data_offset},
                                {"bytes", d.features.bytes}}},
      {"graph", Json::Object{{"layout", "csc"}, {"indptr", d.indptr}, {"indices", d.indices}}},
      {"fingerprint", Json::Object{{"sampled", d.sampled}, {"full", d.full.empty() ? Json() : Json(d.full)}}}};
  return json.dump(2) + "\n";
}

base::Result<Description> parse_description(std::string_view text, std::string_view source) {
  const auto json = Json::parse(text, source);
  if (!json.ok()) return base::invalid_argument("{}", json.status().message());
  const std::string where(source);
  const Members top(&*json, where);
  OVERLACE_TRY(top.check_keys(
      {"overlace_gnn", "kind", "id", "num_vertices", "num_edges", "num_classes", "features", "graph", "fingerprint"}));
  int64_t format = 0;
  std::string kind;
  OVERLACE_TRY(top.integer("overlace_gnn", 1, &format));
  if (format != kFormat)
    return base::error(Errc::version_mismatch, "{}: overlace_gnn is {}, wanted {}", where, format, kFormat);
  OVERLACE_TRY(top.text("kind", &kind));
  if (kind != "dataset") return base::invalid_argument("{}: kind is \"{}\", wanted \"dataset\"", where, kind);
  Description d;
  OVERLACE_TRY(top.text("id", &d.id));
  OVERLACE_TRY(top.integer("num_vertices", 1, &d.num_vertices));
  OVERLACE_TRY(top.integer("num_edges", 0, &d.num_edges));
  OVERLACE_TRY(top.integer("num_classes", 0, &d.num_classes));
  OVERLACE_TRY(read_features(top.find("features"), where + ": features", &d));
  OVERLACE_TRY(read_graph(top.find("graph"), where + ": graph", &d));
  const Members fingerprint(top.find("fingerprint"), where + ": fingerprint");
  OVERLACE_TRY(fingerprint.check_keys({"sampled", "full"}));
  OVERLACE_TRY(fingerprint.text("sampled", &d.sampled));
  OVERLACE_TRY(fingerprint.text("full", &d.full, true));
  return d;
}

}  // namespace overlace::gnn
