// Which call each rank of a host is in, for its peers to compare: calls that all know meet nobody (src/exec/cache.cc).
#pragma once

#include <cstdint>
#include <optional>

namespace overlace::runtime {

/// One call of a channel. Ranks count the calls of a channel alike.
struct PostedCall {
  uint32_t channel = 0;  // the same on all ranks, another one for each channel of a rank
  uint32_t number = 0;
  uint64_t key = 0;  // hash of what all ranks must agree on
};

/// Calls of one rank, in memory that all ranks of its host see; zero at start. Only its owner posts.
/// NOTE: channels share rows, and a row has the last calls alone, so a difference may be missed; but none is made up.
/// 24 bits of a key are compared: one pair of different ones in 17 million passes.
class CallBoard {
 public:
  void post(const PostedCall& call);
  /// Its owner is or was in this call, with another key: what is known of it (key_bits).
  std::optional<uint64_t> other_key(const PostedCall& call) const;
  static constexpr uint64_t key_bits(uint64_t key) { return key >> 40; }

 private:
  static constexpr uint32_t kRows = 61, kKept = 16;  // a prime: ids of channels come at equal distances
  static uint32_t place_of(const PostedCall& call) { return call.channel % kRows * kKept + call.number % kKept; }
  static uint64_t word_of(const PostedCall& call);
  alignas(64) uint64_t words_[kRows * kKept];
};

}  // namespace overlace::runtime
