// Counts in device memory that calls of a schedule move on, and what its fused kernel gets instead.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "overlace/handle_pod.h"
#include "src/exec/program.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"
#include "src/runtime/backend/cuda_peer/nodes.h"

namespace overlace::exec {

/// A word at a peer: signal, slot, rank.
using Word = std::tuple<int, int64_t, int>;

/// Per Shared: what moves on at the end of a call, copy by copy, and the next totals of the words that copies post.
/// Words that a fused kernel waits for are its own.
struct Cells {
  uint64_t* totals = nullptr;                      // (copies, posts)
  runtime::cuda_peer::TicketAdd* moves = nullptr;  // (copies, num_moves): tickets, totals
  uint32_t num_moves = 0;
  std::map<Word, size_t> posts;  // words with one add per call, made by a copy lane
  runtime::cuda_peer::LocalMemory memory_of_totals, memory_of_moves;
};
base::Result<std::shared_ptr<Cells>> make_cells(const Program& program, const Team& team);

/// The index of a word in the private arrays, whose dimensions are (id, the rank at its other end).
size_t word_index(const TeamPod& pod, const Program& program, int copy, const Word& word);

/// Without bindings.
KernelContext kernel_context(Channel& channel, Program& program);

}  // namespace overlace::exec
