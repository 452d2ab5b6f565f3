#include "src/gnn/levels/restore.h"

#include <algorithm>
#include <utility>

namespace overlace::gnn {
namespace {

constexpr uint32_t kNone = 0xffffffffu;

/// Moves whose targets are overwritten after they were read; a ring of moves goes through the spare slot.
std::vector<SlotMove> in_sequence(std::vector<uint32_t> source, std::span<const uint32_t> target) {
  std::vector<SlotMove> moves;
  const auto spare = static_cast<uint32_t>(source.size());
  // Fills `to`, which nobody has to read any more, then the slot that this frees, and so on.
  const auto follow = [&](uint32_t to) {
    while (source[to] != kNone) {
      const uint32_t from = std::exchange(source[to], kNone);
      moves.push_back({from, to});
      if (from == spare) return;
      to = from;
    }
  };
  for (uint32_t s = 0; s < spare; ++s)
    if (source[s] != kNone && target[s] == kNone) follow(s);
  for (uint32_t s = 0; s < spare; ++s) {
    if (source[s] == kNone) continue;
    moves.push_back({s, spare});
    source[target[s]] = spare;
    follow(s);
  }
  return moves;
}

}  // namespace

Restore restore_of(std::span<const uint32_t> now, std::span<const uint32_t> wanted) {
  OVERLACE_ASSERT(now.size() == wanted.size());
  std::vector<std::pair<uint32_t, uint32_t>> resident, missing;  // (vertex, slot) where the two differ
  for (size_t s = 0; s < now.size(); ++s) {
    if (now[s] == wanted[s]) continue;
    resident.push_back({now[s], static_cast<uint32_t>(s)});
    missing.push_back({wanted[s], static_cast<uint32_t>(s)});
  }
  std::sort(resident.begin(), resident.end());
  std::sort(missing.begin(), missing.end());
  Restore out;
  std::vector<uint32_t> source(now.size(), kNone), target(now.size(), kNone);
  auto at = resident.begin();
  for (const auto& [vertex, slot] : missing) {
    while (at != resident.end() && at->first < vertex) ++at;
    if (at != resident.end() && at->first == vertex) {
      source[slot] = at->second;
      target[at->second] = slot;
    } else {
      out.loads.push_back({static_cast<uint32_t>(out.rows.size()), slot});
      out.rows.push_back(vertex);
    }
  }
  out.moves = in_sequence(std::move(source), target);
  return out;
}

}  // namespace overlace::gnn
