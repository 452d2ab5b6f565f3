// Networks of a user: {"ranks": .., "vertices": .., "links": [..]}.
#include <algorithm>

#include "src/study/network/network.h"

namespace overlace::study {
namespace {

constexpr int64_t kMostVertices = 1 << 16;

class Reader {
 public:
  Reader(const base::Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  base::Status only(std::initializer_list<std::string_view> keys) const {
    if (!object_.is_object())
      return base::error(Errc::corrupt, "{}: {}, wanted an object", where_, object_.type_name());
    for (const auto& [key, value] : object_.as_object())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        return base::error(Errc::corrupt, "{}: unknown key {}", where_, key);
    return {};
  }
  base::Result<int> whole(std::string_view key, int64_t least, int64_t most) const {
    const base::Json* value = object_.find(key);
    if (value == nullptr || !value->is_int() || value->as_int() < least || value->as_int() > most)
      return base::error(Errc::corrupt, "{}: {} is {}, wanted {} to {}", where_, key, shown(value), least, most);
    return static_cast<int>(value->as_int());
  }
  base::Result<double> number(std::string_view key, double least, double most) const {
    const base::Json* value = object_.find(key);
    const double got = value != nullptr && value->is_number() ? value->as_double() : -1;
    if (!(got >= least && got <= most))
      return base::error(Errc::corrupt, "{}: {} is {}, wanted {} to {}", where_, key, shown(value), least, most);
    return got;
  }

 private:
  static std::string shown(const base::Json* value) { return value == nullptr ? "missing" : value->dump(); }
  const base::Json& object_;
  std::string where_;
};

/// Whether every rank reaches every other: what rank 0 reaches, and what reaches rank 0.
bool is_connected(const Network& network, bool is_reversed) {
  std::vector<std::vector<int>> next(static_cast<size_t>(network.vertices));
  for (const NetworkLink& link : network.links)
    next[static_cast<size_t>(is_reversed ? link.to : link.from)].push_back(is_reversed ? link.from : link.to);
  std::vector<bool> seen(static_cast<size_t>(network.vertices), false);
  std::vector<int> reached = {0};
  seen[0] = true;
  for (size_t i = 0; i < reached.size(); ++i)
    for (const int vertex : next[static_cast<size_t>(reached[i])])
      if (!seen[static_cast<size_t>(vertex)]) {
        seen[static_cast<size_t>(vertex)] = true;
        reached.push_back(vertex);
      }
  return std::all_of(seen.begin(), seen.begin() + network.ranks, [](bool b) { return b; });
}

}  // namespace

base::Result<Network> network_from_json(const base::Json& json, std::string_view source) {
  const Reader reader(json, std::string(source));
  OVERLACE_TRY(reader.only({"name", "ranks", "vertices", "links"}));
  const base::Result<int> ranks = reader.whole("ranks", 2, kMostVertices);
  if (!ranks.ok()) return ranks.status();
  const base::Result<int> vertices = reader.whole("vertices", *ranks, kMostVertices);
  if (!vertices.ok()) return vertices.status();
  Network network;
  const base::Json* name = json.find("name");
  network.name = name != nullptr && name->is_string() ? name->as_string() : std::string(source);
  network.ranks = network.per_host = *ranks;
  network.vertices = *vertices;
  const base::Json* links = json.find("links");
  if (links == nullptr || !links->is_array() || links->as_array().empty())
    return base::error(Errc::corrupt, "{}: links is missing or empty, wanted an array of links", source);
  for (size_t i = 0; i < links->as_array().size(); ++i) {
    const Reader link(links->as_array()[i], base::format("{}: links[{}]", source, i));
    OVERLACE_TRY(link.only({"from", "to", "GBps", "alpha_us"}));
    const base::Result<int> from = link.whole("from", 0, *vertices - 1), to = link.whole("to", 0, *vertices - 1);
    const base::Result<double> rate = link.number("GBps", kLeastGBps, kMostGBps),
                               alpha = link.number("alpha_us", 0, kMostAlphaUs);
    for (const base::Status& status : {from.status(), to.status(), rate.status(), alpha.status()}) OVERLACE_TRY(status);
    network.links.push_back({*from, *to, {*rate, *alpha}});
  }
  if (!is_connected(network, false) || !is_connected(network, true))
    return base::error(Errc::corrupt, "{}: links do not join all {} ranks, wanted a way from each to each", source,
                       network.ranks);
  return network;
}

}  // namespace overlace::study
