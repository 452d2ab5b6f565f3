// What items of fused kernels do to other ranks: one place for devices, and for the check of a schedule's parts.
#pragma once

#include <cstdint>

#include "src/base/ceil_div_pod.h"
#include "src/spec/work_order_pod.h"

namespace overlace {

/// Whose words: nobody's, those of the rank that owns the item's rows, everybody's.
enum class Whose : int32_t { nobody, owner, everybody };
/// What a word says: rows or partial sums have come; whole sums have come.
enum class Word : int32_t { arrived, ready };
struct Words {
  Whose whose = Whose::nobody;
  Word word = Word::arrived;
};

// ---- GEMM and ReduceScatter; with AllReduce `sums_travel` ----

/// The words that an item waits for: of everybody, this rank too, as its own products are told of in the same way.
constexpr Words awaited_by(Work work) {
  if (work == Work::sum) return {Whose::everybody, Word::arrived};
  if (work == Work::copy) return {Whose::owner, Word::ready};
  return {};
}

/// Whom an item tells that it is done. Sums are told to everybody else.
constexpr Words told_by(Work work, bool sums_travel) {
  if (work == Work::product) return {Whose::owner, Word::arrived};
  if (work == Work::sum && sums_travel) return {Whose::everybody, Word::ready};
  return {};
}

/// Where an item's tile is stored: in this rank's slot of the owner's inbox, else in the result. A sum that is told to
/// everybody is stored in everybody's inbox, too.
constexpr bool goes_to_slot(Work work, bool is_own) { return work == Work::product && !is_own; }

/// The slot of `sender` in the inbox of `owner`: that of the next rank first.
constexpr int64_t slot_of(int64_t sender, int64_t owner, int64_t size) { return (sender - owner - 1 + size) % size; }

// ---- AllGather and GEMM ----

/// The words that a tile waits for, slab by slab of K.
constexpr Words rows_awaited_by(bool is_own) { return is_own ? Words{} : Words{Whose::owner, Word::arrived}; }

/// Blocks of kTileDepth columns in a slab, of so many blocks of K; the last slabs may have fewer, or none.
constexpr int32_t blocks_of_slab(int32_t blocks, int32_t slabs) { return base::ceil_div(blocks, slabs); }

}  // namespace overlace
