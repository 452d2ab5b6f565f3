// Links that messages hold one after the other: no event is needed to share them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "src/sim/engine/engine.h"

namespace overlace::study {

/// FIFO in the order of the calls, cut-through: a message holds each link of its way for its bytes over that link's
/// rate, and has arrived when the slowest of them has passed the last byte, plus the latencies.
class ReserveLinks {
 public:
  struct Passage {
    sim::Time begin, end;  // of the link's (of a path: the slowest link's) time with the message
    sim::Time arrival;     // end plus latency
  };

  /// Precondition: GBps > 0. Returns the number of the link.
  uint32_t add(double GBps, sim::Time latency_ps) {
    links_.push_back({0, 1e3 / GBps, latency_ps});
    bytes_.push_back(0);
    return static_cast<uint32_t>(links_.size() - 1);
  }
  size_t size() const { return links_.size(); }

  Passage reserve(uint32_t link, sim::Time ready, uint64_t bytes) {
    Link& l = links_[link];
    bytes_[link] += bytes;
    const sim::Time begin = std::max(ready, l.free_at);
    l.free_at = begin + duration(l, bytes);
    return {begin, l.free_at, l.free_at + l.latency};
  }

  /// All links of a way; an empty one is passed at once.
  Passage reserve_path(std::span<const uint32_t> path, sim::Time ready, uint64_t bytes) {
    sim::Time begin = ready, latency = 0, longest = 0;
    for (const uint32_t link : path) begin = std::max(begin, links_[link].free_at);
    for (const uint32_t link : path) {
      Link& l = links_[link];
      const sim::Time held = duration(l, bytes);
      bytes_[link] += bytes;
      l.free_at = begin + held;
      longest = std::max(longest, held);
      latency += l.latency;
    }
    return {begin, begin + longest, begin + longest + latency};
  }

  sim::Time free_at(uint32_t link) const { return links_[link].free_at; }
  /// That passed, or will, the link.
  uint64_t bytes(uint32_t link) const { return bytes_[link]; }
  sim::Time duration(uint32_t link, uint64_t bytes) const { return duration(links_[link], bytes); }

 private:
  struct Link {
    sim::Time free_at;
    double ps_per_byte;
    sim::Time latency;
  };
  static sim::Time duration(const Link& l, uint64_t bytes) {
    return static_cast<sim::Time>(static_cast<double>(bytes) * l.ps_per_byte + 0.5);
  }
  std::vector<Link> links_;
  std::vector<uint64_t> bytes_;
};

}  // namespace overlace::study
