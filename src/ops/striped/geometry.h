// Where the blocks of a striped matrix lie: pure arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/ops/striped.h"
#include "src/base/status.h"

namespace overlace::ops::striped {

struct Block {
  int part = 0;         // of the range
  uint64_t offset = 0;  // of its first row in the part
};

/// Rows of one owner that lie one behind the other.
struct Run {
  int part = 0;
  uint64_t offset = 0;
  int64_t rows = 0;
};

struct Geometry {
  int64_t pitch = 0;              // elements from row to row
  uint64_t block_bytes = 0;       // from a block to the next
  std::vector<StripePart> parts;  // blocks of one owner that follow each other are one part
  std::vector<Block> blocks;
};

/// The owners and used rows that an empty list stands for, and 0 blocks.
StripedSpec with_defaults(const StripedSpec& spec, int ranks);
/// invalid_argument with field and both values; of with_defaults.
base::Status check_spec(const StripedSpec& spec, int ranks);
/// Blocks of a checked spec at edges of pages of `granule` bytes; not_supported with the numbers where one matrix
/// would take more than twice its memory, and more than a page for a block.
base::Result<Geometry> place_blocks(const StripedSpec& spec, uint64_t granule);
/// The used rows of one owner, in the order of blocks.
std::vector<Run> runs_of(const StripedSpec& spec, const Geometry& geometry, int owner);
/// "bf16 (1024, 8192) of 2 blocks": what must be equal on all ranks.
std::string words_of(const StripedSpec& spec);

}  // namespace overlace::ops::striped
