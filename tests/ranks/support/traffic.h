// What one rank of a team does, step by step, as a program would: calls of all operators on several channels, known
// shapes and new ones, collectives of other teams, blocks of the heap, calls that are refused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "overlace/runtime.h"
#include "tests/ranks/draws.h"

namespace overlace::test {

/// How often something happened, by name.
using Counts = std::map<std::string, int64_t>;

/// One rank. All ranks make the same steps, drawn from one seed; how long a rank hesitates is its own.
class Traffic {
 public:
  /// Collective.
  Traffic(Runtime& runtime, uint64_t seed, const Families& families);
  /// One drawn thing; what is wrong, in words, or "".
  std::string step();
  /// All ranks have made the same steps and come to the same ends: nothing is under way, nothing was left over.
  void settle();
  const Counts& counts() const { return counts_; }
  /// Bytes asked of the symmetric heap, by all shapes so far: more than it has forces evictions.
  uint64_t asked_bytes() const { return asked_bytes_; }

 private:
  /// A channel, and some of the calls that it has made.
  struct Road {
    Channel* channel;
    std::vector<std::unique_ptr<Operands>> known{};
  };
  /// A block of the heap, full of bytes of one value.
  struct Block {
    SymBuffer memory;
    uint8_t value;
  };

  std::string call_new();
  std::string call_known();
  std::string call_that_one_rank_refuses();
  std::string call_that_ranks_make_differently();
  std::string call_of_a_known_shape_refused_here();
  std::string call_beyond_the_heap();
  std::string collective();
  std::string block();

  Road& road() { return roads_[index(roads_.size())]; }
  size_t index(size_t size) { return static_cast<size_t>(dice_.number(0, static_cast<int64_t>(size) - 1)); }
  /// A call that no channel has made before; no shard is empty.
  Case fresh(int ranks);
  /// A call with right operands: "" if the result is right, or if the heap is full (on all ranks: settle compares).
  std::string call(Operands& operands);
  /// Code of what `operands` throws, "ok" if nothing; the text goes to `text`.
  std::string outcome(Operands& operands, std::string* text);
  void hesitate();

  Runtime& runtime_;
  Families families_;
  Dice dice_, own_dice_;
  std::vector<Team> teams_;  // for collectives: the world, all ranks in another order, every other rank
  std::vector<Road> roads_;
  std::vector<Block> blocks_;
  std::string ends_;  // of the calls since the last settle()
  Counts counts_;
  uint64_t asked_bytes_ = 0;
  int64_t calls_ = 0, next_fresh_m_ = 41;
};

}  // namespace overlace::test
