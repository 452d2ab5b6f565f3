#include "src/runtime/call_board.h"

#include <atomic>

namespace overlace::runtime {
namespace {

constexpr int kPartBits = 24, kRowBits = 16;
constexpr uint64_t kPartMask = (uint64_t{1} << kPartBits) - 1;

}  // namespace

/// Key, number, which of the channels of this row: never 0, which is an empty place.
uint64_t CallBoard::word_of(const PostedCall& call) {
  const uint64_t channel = (call.channel / kRows + 1) & ((uint64_t{1} << kRowBits) - 1);
  return key_bits(call.key) << (kPartBits + kRowBits) | (call.number & kPartMask) << kRowBits | channel;
}

/// NOTE: a total order with the loads of other_key: of two ranks that post, then look, one sees the other's call.
void CallBoard::post(const PostedCall& call) {
  std::atomic_ref(words_[place_of(call)]).store(word_of(call), std::memory_order_seq_cst);
}

std::optional<uint64_t> CallBoard::other_key(const PostedCall& call) const {
  auto& word = const_cast<uint64_t&>(words_[place_of(call)]);
  const uint64_t theirs = std::atomic_ref(word).load(std::memory_order_seq_cst), mine = word_of(call);
  constexpr uint64_t kCall = (uint64_t{1} << (kPartBits + kRowBits)) - 1;
  if ((theirs & kCall) != (mine & kCall) || theirs == mine) return std::nullopt;
  return theirs >> (kPartBits + kRowBits);
}

}  // namespace overlace::runtime
