// How the GPUs of a host are joined, from what each says of its links. Pure.
#pragma once

#include <string>
#include <vector>

namespace overlace::cli {

/// Active links of a rank.
struct RankLinks {
  int to_switches = 0, elsewhere = 0;
  std::vector<int> to_ranks = {};  // by rank
  bool operator==(const RankLinks&) const = default;
};

/// Reads texts like "00000000:18:00.0 switch switch 00000000:2a:00.0 ?": the rank's own bus id, then an active link a
/// word: to a switch, to whom a bus id belongs, or to who knows what. Letters in lower case. An empty text: no links.
std::vector<RankLinks> links_of(const std::vector<std::string>& texts);

/// "nvswitch(4)" where all ranks have links to switches, "fullmesh(4)" where each has links to each other one, else
/// nothing.
std::string topology_of(const std::vector<RankLinks>& links);

}  // namespace overlace::cli
