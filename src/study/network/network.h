// Networks: ranks and switches joined by directed links, blueprints of common ones, and ways through them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/json.h"
#include "src/base/status.h"

namespace overlace::study {

struct LinkFigures {
  double GBps = 0;
  double alpha_us = 0;
};

/// What a link may have, and what a collective may move (bytes): times stay far below what 64 bits of ps hold.
inline constexpr double kLeastGBps = 0.01, kMostGBps = 1e6, kMostAlphaUs = 1e6;
inline constexpr uint64_t kMostBytes = uint64_t{1} << 40;

/// Unmeasured defaults (priors): per direction and GPU; half a switch's delay on each side of it.
inline constexpr LinkFigures kNvlink = {360, 0.25}, kNvlink5 = {720, 0.25}, kNic = {48.5, 0.25};

struct NetworkLink {
  int from = 0, to = 0;  // vertices
  LinkFigures figures;
};

/// Vertices 0 to ranks - 1 are the ranks; the others are switches.
struct Network {
  std::string name;
  int ranks = 0, vertices = 0;
  int per_host = 0;       // ranks that share a host
  std::vector<int> dims;  // of a torus; empty for others
  bool is_star = false;   // rank r sends over link 2 r and receives over link 2 r + 1
  std::vector<NetworkLink> links;
};

/// All: Errc::invalid_argument with the value got and the range wanted.
base::Result<Network> nvswitch(int ranks, LinkFigures link = kNvlink);
base::Result<Network> nvl72();
base::Result<Network> full_mesh(int ranks, LinkFigures link);
base::Result<Network> torus(std::vector<int> dims, LinkFigures link);
base::Result<Network> ring(int ranks, LinkFigures link);
/// GPU i of every host reaches the switches of rail i through its own NIC. `radix` / 2 hosts share a leaf switch;
/// leaves are joined by spines that spray packets evenly, `oversub` times slower than the leaf's NICs together.
base::Result<Network> rail_fat_tree(int hosts, int per_host, double nic_GBps, int radix, double oversub);

/// "nvswitch(4)", "nvl72", "fullmesh(8, 64)", "ring(8, 25)", "torus(16, 8, 25)" (the last: GB/s),
/// "rail_fat_tree(16, 8, 48.5, 64, 1)".
base::Result<Network> network_of(std::string_view text);
/// {"name": .., "ranks": n, "vertices": v, "links": [{"from": .., "to": .., "GBps": .., "alpha_us": ..}, ..]},
/// directed. Errc::corrupt names `source`, key, value and range; unconnected ranks and unknown keys are refused.
base::Result<Network> network_from_json(const base::Json& json, std::string_view source);

/// Shortest ways, on tori in the order of the dimensions; a hash of seed, ends and vertex picks among equal ones.
class Router {
 public:
  explicit Router(const Network& network, uint64_t seed = 0);
  /// Links from rank to rank, in order; empty for the same rank. Precondition: connected (blueprints and JSON are).
  void path(int from, int to, std::vector<uint32_t>* links);

 private:
  void search(int to);
  void torus_path(int from, int to, std::vector<uint32_t>* links) const;
  const Network* network_;
  uint64_t seed_;
  std::vector<std::vector<uint32_t>> out_;  // links that leave a vertex
  std::vector<std::vector<int>> distance_;  // [destination][vertex], filled on demand
};

}  // namespace overlace::study
