#include "cli/calibrate/links.h"

#include <algorithm>
#include <sstream>

#include "src/base/format.h"

namespace overlace::cli {

std::vector<RankLinks> links_of(const std::vector<std::string>& texts) {
  std::vector<std::string> bus_ids;
  for (const std::string& text : texts) bus_ids.push_back(text.substr(0, text.find(' ')));
  std::vector<RankLinks> out;
  for (const std::string& text : texts) {
    RankLinks& mine = out.emplace_back();
    mine.to_ranks.assign(texts.size(), 0);
    std::istringstream words(text);
    std::string word;
    words >> word;
    while (words >> word) {
      const auto found = std::find(bus_ids.begin(), bus_ids.end(), word);
      if (word == "switch") {
        ++mine.to_switches;
      } else if (found == bus_ids.end()) {
        ++mine.elsewhere;
      } else {
        ++mine.to_ranks[static_cast<size_t>(found - bus_ids.begin())];
      }
    }
  }
  return out;
}

std::string topology_of(const std::vector<RankLinks>& links) {
  if (links.empty()) return {};
  const bool is_switched =
      std::all_of(links.begin(), links.end(), [](const RankLinks& one) { return one.to_switches > 0; });
  bool is_full = true;
  for (size_t a = 0; a < links.size(); ++a)
    for (size_t b = 0; b < links.size(); ++b) is_full = is_full && (a == b || links[a].to_ranks[b] > 0);
  if (!is_switched && (!is_full || links.size() < 2)) return {};
  return base::format("{}({})", is_switched ? "nvswitch" : "fullmesh", links.size());
}

}  // namespace overlace::cli
