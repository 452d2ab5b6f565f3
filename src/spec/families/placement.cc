#include "src/spec/families/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "src/base/json.h"

namespace overlace::spec {
namespace {

using base::Json;

/// One of the two lists, while it is read.
class Reader {
 public:
  Reader(const char* list, size_t at, const Json& json)
      : where_(base::format("placement: {}[{}]", list, at)), json_(json) {}

  base::Status keys(std::initializer_list<std::string_view> known) const {
    if (!json_.is_object()) return base::invalid_argument("{} is {}, wanted an object", where_, json_.type_name());
    for (const auto& member : json_.as_object())
      if (std::find(known.begin(), known.end(), member.first) == known.end())
        return base::invalid_argument("{} has an unknown key '{}'", where_, member.first);
    return {};
  }
  /// `fallback` below 0 that `least` forbids: the key must be there.
  base::Status integer(const char* key, int64_t least, int64_t most, int64_t fallback, int64_t* out) const {
    const Json* value = json_.find(key);
    if (value == nullptr && fallback >= least) return *out = fallback, base::Status();
    if (value == nullptr) return base::invalid_argument("{} has no {}", where_, key);
    if (!value->is_int()) return base::invalid_argument("{}.{} is {}, wanted an integer", where_, key, value->dump());
    *out = value->as_int();
    if (*out >= least && *out <= most) return {};
    return base::invalid_argument("{}.{} is {}, wanted {} to {}", where_, key, *out, least, most);
  }

 private:
  const std::string where_;
  const Json& json_;
};

constexpr int64_t kMissing = std::numeric_limits<int64_t>::min();
constexpr int64_t kMostRows = int64_t{1} << 40, kMostColumns = int64_t{1} << 20;

base::Status read_table(const Reader& reader, EmbeddingTable* out) {
  OVERLACE_TRY(reader.keys({"rows", "dim", "padding"}));
  OVERLACE_TRY(reader.integer("rows", 1, kMostRows, kMissing, &out->rows));
  OVERLACE_TRY(reader.integer("dim", 1, kMostColumns, kMissing, &out->dim));
  return reader.integer("padding", -1, out->rows - 1, -1, &out->padding);
}

base::Status read_feature(const Reader& reader, const std::vector<EmbeddingTable>& tables, int ranks, int64_t columns,
                          EmbeddingFeature* out) {
  OVERLACE_TRY(reader.keys({"table", "rank", "first", "width", "column"}));
  OVERLACE_TRY(reader.integer("table", 0, std::ssize(tables) - 1, kMissing, &out->table));
  OVERLACE_TRY(reader.integer("rank", 0, ranks - 1, kMissing, &out->rank));
  const int64_t dim = tables[static_cast<size_t>(out->table)].dim;
  OVERLACE_TRY(reader.integer("first", 0, dim - 1, 0, &out->first));
  OVERLACE_TRY(reader.integer("width", 1, dim - out->first, dim - out->first, &out->width));
  return reader.integer("column", 0, columns - out->width, kMissing, &out->column);
}

/// Each column of the result is that of one feature.
base::Status check_columns(const std::vector<EmbeddingFeature>& features, int64_t columns) {
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const EmbeddingFeature& f : features) taken.emplace_back(f.column, f.column + f.width);
  taken.emplace_back(columns, columns);
  std::sort(taken.begin(), taken.end());
  int64_t end = 0;
  for (const auto& [first, last] : taken) {
    if (first != end)
      return base::invalid_argument("placement: columns {} to {} of the result have {} features, wanted one",
                                    std::min(first, end), std::max(first, end), first > end ? "no" : "several");
    end = last;
  }
  return {};
}

}  // namespace

std::pair<size_t, size_t> Placement::features_of(int64_t rank) const {
  const auto below = [](const EmbeddingFeature& f, int64_t r) { return f.rank < r; };
  const auto begin = std::lower_bound(features.begin(), features.end(), rank, below);
  const auto end = std::lower_bound(begin, features.end(), rank + 1, below);
  return {static_cast<size_t>(begin - features.begin()), static_cast<size_t>(end - features.begin())};
}

std::vector<int64_t> Placement::slices(int64_t rank, int64_t* elements) const {
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> known;
  std::vector<int64_t> out;
  *elements = 0;
  const auto [begin, end] = features_of(rank);
  for (size_t f = begin; f < end; ++f) {
    const EmbeddingFeature& feature = features[f];
    const auto [at, is_new] = known.emplace(std::tuple(feature.table, feature.first, feature.width), *elements);
    if (is_new) *elements += tables[static_cast<size_t>(feature.table)].rows * feature.width;
    out.push_back(at->second);
  }
  return out;
}

base::Result<Placement> read_placement(std::string_view text, int ranks, int64_t columns) {
  base::Result<Json> json = Json::parse(text, "placement");
  if (!json.ok()) return base::invalid_argument("{}", json.status().message());
  const Json *tables = json->find("tables"), *features = json->find("features"), *entries = json->find("entries");
  for (const auto& [name, list] : {std::pair("tables", tables), std::pair("features", features)})
    if (list == nullptr || !list->is_array() || list->as_array().empty())
      return base::invalid_argument("placement: {} is {}, wanted a list of one or more", name,
                                    list == nullptr ? "missing" : list->dump());
  Placement out;
  if (entries != nullptr && (!entries->is_int() || entries->as_int() < 0 || entries->as_int() > kMostColumns))
    return base::invalid_argument("placement: entries is {}, wanted an integer from 0 to {}", entries->dump(),
                                  kMostColumns);
  if (entries != nullptr) out.entries = entries->as_int();
  for (size_t i = 0; i < tables->as_array().size(); ++i)
    OVERLACE_TRY(read_table({"tables", i, tables->as_array()[i]}, &out.tables.emplace_back()));
  for (size_t i = 0; i < features->as_array().size(); ++i)
    OVERLACE_TRY(read_feature({"features", i, features->as_array()[i]}, out.tables, ranks, columns,
                              &out.features.emplace_back()));
  OVERLACE_TRY(check_columns(out.features, columns));
  std::stable_sort(out.features.begin(), out.features.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return out;
}

}  // namespace overlace::spec
