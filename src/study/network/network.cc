#include "src/study/network/network.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "src/base/ceil_div_pod.h"

namespace overlace::study {
namespace {

constexpr int kMostRanks = 1 << 16;

base::Status check_ranks(std::string_view what, int64_t ranks, int64_t least) {
  if (ranks >= least && ranks <= kMostRanks) return {};
  return base::invalid_argument("{}: {} ranks, wanted {} to {}", what, ranks, least, kMostRanks);
}

base::Status check_link(std::string_view what, const LinkFigures& link) {
  if (link.GBps >= kLeastGBps && link.GBps <= kMostGBps && link.alpha_us >= 0 && link.alpha_us <= kMostAlphaUs)
    return {};
  return base::invalid_argument("{}: link of {} GB/s and {} us, wanted {} to {} and 0 to {}", what, link.GBps,
                                link.alpha_us, kLeastGBps, kMostGBps, kMostAlphaUs);
}

Network empty(std::string name, int ranks, int vertices, int per_host) {
  Network network;
  network.name = std::move(name);
  network.ranks = ranks;
  network.vertices = vertices;
  network.per_host = per_host;
  return network;
}

void join(Network* network, int a, int b, const LinkFigures& link) {
  network->links.push_back({a, b, link});
  network->links.push_back({b, a, link});
}

}  // namespace

base::Result<Network> nvswitch(int ranks, LinkFigures link) {
  OVERLACE_TRY(check_ranks("nvswitch", ranks, 1));
  OVERLACE_TRY(check_link("nvswitch", link));
  Network network = empty(base::format("nvswitch({})", ranks), ranks, ranks + 1, ranks);
  network.is_star = true;
  for (int rank = 0; rank < ranks; ++rank) join(&network, rank, ranks, link);
  return network;
}

base::Result<Network> nvl72() {
  base::Result<Network> network = nvswitch(72, kNvlink5);
  network->name = "nvl72";
  return network;
}

base::Result<Network> full_mesh(int ranks, LinkFigures link) {
  OVERLACE_TRY(check_ranks("fullmesh", ranks, 2));
  OVERLACE_TRY(check_link("fullmesh", link));
  if (ranks > 1024) return base::invalid_argument("fullmesh: {} ranks, wanted 2 to 1024", ranks);
  Network network = empty(base::format("fullmesh({}, {})", ranks, link.GBps), ranks, ranks, ranks);
  for (int a = 0; a < ranks; ++a)
    for (int b = a + 1; b < ranks; ++b) join(&network, a, b, link);
  return network;
}

base::Result<Network> torus(std::vector<int> dims, LinkFigures link) {
  std::string name = "torus(";
  int64_t ranks = 1;
  for (const int size : dims) {
    if (size < 2 || size > 4096) return base::invalid_argument("torus: dimension of {}, wanted 2 to 4096", size);
    ranks *= size;
    name += base::format("{}, ", size);
  }
  if (dims.empty() || dims.size() > 3)
    return base::invalid_argument("torus: {} dimensions, wanted 1 to 3", dims.size());
  OVERLACE_TRY(check_ranks("torus", ranks, 2));
  OVERLACE_TRY(check_link("torus", link));
  Network network = empty(name + base::format("{})", link.GBps), static_cast<int>(ranks), static_cast<int>(ranks), 1);
  // NOTE: Router::torus_path relies on this order: per rank and dimension one link up, one down.
  for (int rank = 0; rank < network.ranks; ++rank) {
    int stride = 1;
    for (const int size : dims) {
      const int at = rank / stride % size, base = rank - at * stride;
      network.links.push_back({rank, base + (at + 1) % size * stride, link});
      network.links.push_back({rank, base + (at + size - 1) % size * stride, link});
      stride *= size;
    }
  }
  network.dims = std::move(dims);
  return network;
}

base::Result<Network> ring(int ranks, LinkFigures link) {
  base::Result<Network> network = torus({ranks}, link);
  if (network.ok()) network->name = base::format("ring({}, {})", ranks, link.GBps);
  return network;
}

base::Result<Network> rail_fat_tree(int hosts, int per_host, double nic_GBps, int radix, double oversub) {
  OVERLACE_TRY(check_ranks("rail_fat_tree", int64_t{hosts} * per_host, 2));
  OVERLACE_TRY(check_link("rail_fat_tree", {nic_GBps, 0}));
  if (hosts < 1 || per_host < 1 || radix < 2 || !(oversub >= 1) || !(oversub <= 1024))
    return base::invalid_argument(
        "rail_fat_tree: {} hosts of {} GPUs, radix {}, oversub {}, wanted >= 1, 1, 2, 1 to 1024", hosts, per_host,
        radix, oversub);
  const int ranks = hosts * per_host, per_leaf = radix / 2, leaves = base::ceil_div(hosts, per_leaf);
  const int first_leaf = ranks + hosts, first_spine = first_leaf + per_host * leaves;
  Network network = empty(base::format("rail_fat_tree({}, {}, {}, {}, {})", hosts, per_host, nic_GBps, radix, oversub),
                          ranks, leaves > 1 ? first_spine + 1 : first_spine, per_host);
  const LinkFigures nic = {nic_GBps, kNic.alpha_us};
  for (int rank = 0; rank < ranks; ++rank) {
    const int host = rank / per_host, rail = rank % per_host;
    join(&network, rank, ranks + host, kNvlink);
    join(&network, rank, first_leaf + rail * leaves + host / per_leaf, nic);
  }
  for (int leaf = 0; leaves > 1 && leaf < per_host * leaves; ++leaf)
    join(&network, first_leaf + leaf, first_spine, {nic_GBps * per_leaf / oversub, kNic.alpha_us});
  return network;
}

// ---- text ----

base::Result<Network> network_of(std::string_view text) {
  const size_t open = text.find('(');
  const std::string_view name = text.substr(0, open);
  std::vector<double> numbers;
  if (open != std::string_view::npos) {
    if (text.back() != ')') return base::invalid_argument("topology \"{}\": wanted ) at the end", text);
    std::string_view rest = text.substr(open + 1, text.size() - open - 2);
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
      double value = 0;
      const auto [stop, code] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
      if (code != std::errc() || !std::isfinite(value) || std::abs(value) > kMostRanks)
        return base::invalid_argument("topology \"{}\": \"{}\", wanted a number", text, rest);
      numbers.push_back(value);
      rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
      if (rest.empty()) break;
      if (rest[0] != ',') return base::invalid_argument("topology \"{}\": \"{}\", wanted a comma", text, rest);
      rest.remove_prefix(1);
    }
  }
  const auto whole = [&](size_t i) { return static_cast<int>(numbers[i]); };
  const size_t count = numbers.size();
  const bool takes_fractions = name == "rail_fat_tree";
  for (size_t i = 0; i < count && !takes_fractions; ++i)
    if ((i + 1 < count || name == "nvswitch") && numbers[i] != std::floor(numbers[i]))
      return base::invalid_argument("topology \"{}\": {}, wanted a whole number", text, numbers[i]);
  if (name == "nvswitch" && count == 1) return nvswitch(whole(0));
  if (name == "nvl72" && count == 0) return nvl72();
  if (name == "fullmesh" && count == 2) return full_mesh(whole(0), {numbers[1], kNvlink.alpha_us});
  if (name == "ring" && count == 2) return ring(whole(0), {numbers[1], kNvlink.alpha_us});
  if (name == "torus" && count >= 2) {
    std::vector<int> dims;
    for (size_t i = 0; i + 1 < count; ++i) dims.push_back(whole(i));
    return torus(std::move(dims), {numbers.back(), kNvlink.alpha_us});
  }
  if (name == "rail_fat_tree" && count == 5) return rail_fat_tree(whole(0), whole(1), numbers[2], whole(3), numbers[4]);
  return base::invalid_argument(
      "topology is \"{}\", wanted nvswitch(ranks), nvl72, fullmesh(ranks, GBps), ring(ranks, GBps), "
      "torus(a, b, GBps) or rail_fat_tree(hosts, ranks per host, nic GBps, radix, oversubscription)",
      text);
}

// ---- ways ----

Router::Router(const Network& network, uint64_t seed) : network_(&network), seed_(seed) {
  if (network.is_star || !network.dims.empty()) return;
  out_.resize(static_cast<size_t>(network.vertices));
  distance_.resize(static_cast<size_t>(network.ranks));
  for (size_t i = 0; i < network.links.size(); ++i)
    out_[static_cast<size_t>(network.links[i].from)].push_back(static_cast<uint32_t>(i));
}

void Router::search(int to) {
  std::vector<int>& distance = distance_[static_cast<size_t>(to)];
  distance.assign(static_cast<size_t>(network_->vertices), std::numeric_limits<int>::max());
  std::vector<std::vector<int>> in(static_cast<size_t>(network_->vertices));
  for (const NetworkLink& link : network_->links) in[static_cast<size_t>(link.to)].push_back(link.from);
  std::vector<int> reached = {to};
  distance[static_cast<size_t>(to)] = 0;
  for (size_t i = 0; i < reached.size(); ++i) {
    const int vertex = reached[i];
    for (const int before : in[static_cast<size_t>(vertex)]) {
      int& known = distance[static_cast<size_t>(before)];
      if (known != std::numeric_limits<int>::max()) continue;
      known = distance[static_cast<size_t>(vertex)] + 1;
      reached.push_back(before);
    }
  }
}

void Router::torus_path(int from, int to, std::vector<uint32_t>* links) const {
  const auto dims = network_->dims.size();
  int stride = 1, rank = from;
  for (size_t dim = 0; dim < dims; ++dim) {
    const int size = network_->dims[dim];
    const int want = to / stride % size;
    int steps = (want - rank / stride % size + size) % size;
    const bool goes_up = 2 * steps <= size;
    if (!goes_up) steps = size - steps;
    for (; steps > 0; --steps) {
      const size_t link = (static_cast<size_t>(rank) * dims + dim) * 2 + (goes_up ? 0 : 1);
      links->push_back(static_cast<uint32_t>(link));
      rank = network_->links[link].to;
    }
    stride *= size;
  }
}

void Router::path(int from, int to, std::vector<uint32_t>* links) {
  links->clear();
  if (from == to) return;
  if (network_->is_star) {
    links->push_back(static_cast<uint32_t>(2 * from));
    links->push_back(static_cast<uint32_t>(2 * to + 1));
    return;
  }
  if (!network_->dims.empty()) return torus_path(from, to, links);
  if (distance_[static_cast<size_t>(to)].empty()) search(to);
  const std::vector<int>& distance = distance_[static_cast<size_t>(to)];
  for (int vertex = from; vertex != to;) {
    const int left = distance[static_cast<size_t>(vertex)];
    OVERLACE_ASSERT(left != std::numeric_limits<int>::max());
    uint32_t best = 0;
    uint64_t least = std::numeric_limits<uint64_t>::max();
    for (const uint32_t link : out_[static_cast<size_t>(vertex)]) {
      if (distance[static_cast<size_t>(network_->links[link].to)] != left - 1) continue;
      // NOTE: a hash of what a flow is, so that a flow keeps its way and others spread (ECMP).
      uint64_t hash = seed_ ^ (static_cast<uint64_t>(from) << 40 | static_cast<uint64_t>(to) << 20 | link);
      hash = (hash ^ hash >> 31) * 0x9e3779b97f4a7c15ull;
      hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
      hash ^= hash >> 32;
      if (hash > least) continue;
      least = hash;
      best = link;
    }
    links->push_back(best);
    vertex = network_->links[best].to;
  }
}

}  // namespace overlace::study
