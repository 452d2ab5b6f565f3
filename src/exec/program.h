// A schedule prepared on a channel: expanded for this rank, with its buffers, signal ids and lanes. Backend-neutral.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/symmetric.h"
#include "overlace/team.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/exec/holds.h"
#include "src/exec/run.h"
#include "src/spec/expand.h"
#include "src/spec/heap_layout.h"
#include "src/spec/issue.h"
#include "src/spec/operators.h"
#include "src/spec/products.h"

namespace overlace::exec {

/// Memory of the symmetric heap. It belongs to one agreement, or is shared by several of one channel: then each call
/// that uses it begins with a barrier of the team, behind which nobody reads or writes for an earlier one.
struct Block {
  SymBuffer memory;
  bool is_shared = false;
};

/// What the programs of one agreement share with the peers: a block of the symmetric heap and a range of signal ids,
/// each cut into `copies` equal parts that rotate over the calls. Same on all ranks.
struct Shared {
  std::string digest;            // spec::fingerprint of the schedule without what may differ
  std::string agreement;         // what must be equal besides the schedule
  std::string key;               // agreement and digest
  uint64_t key_hash = 0;         // what peers are told that have no program for a call of this one
  spec::Schedule schedule;       // with the value of what may differ of the rank's first call
  std::shared_ptr<Block> block;  // of copies * copy_bytes at least; null where that is 0
  bool keeps_memory = false;     // what lies there between calls matters: no other agreement may write there
  uint64_t copy_bytes = 0;
  std::vector<uint64_t> offsets;   // per Schedule::buffers, inside a copy; only of symmetric ones
  SignalIds ids;                   // copies * words
  uint32_t words = 0;              // ids of a copy: one per (signal, slot)
  std::vector<uint32_t> first_id;  // per Schedule::signals, inside a copy
  int copies = 1;
  uint64_t calls = 0;            // made so far; call c uses copy c % copies, and is that copy's epoch c / copies + 1
  uint64_t last_use = 0;         // stamp of the channel's call counter: who goes first when the heap is full
  std::shared_ptr<void> cells;   // of the executor: counts in device memory
  std::shared_ptr<void> kernel;  // of the operator's fused kernel
  bool lacks_heap = false;       // the last attempt to allocate it failed for want of heap, not of ids

  uint64_t offset() const { return block == nullptr ? 0 : block->memory.offset; }
  /// What it needs of the block; saturates.
  uint64_t bytes() const { return spec::HeapLayout{{}, copy_bytes, copies}.bytes(); }
  Holds holds;  // of captured calls
};

using spec::is_part;

struct Program {
  spec::Schedule schedule;
  uint64_t serial = 0;  // as in known_program, of the last one that asked
  std::string agreement;
  spec::Expansion expansion;
  std::shared_ptr<Shared> shared;
  std::vector<spec::LaneQueue> lanes;
  std::vector<std::vector<spec::ProductRows>> products;  // per instance: of gemm tasks
  std::vector<uint64_t> local;          // per Schedule::buffers: offset of a local one in the workspace
  std::vector<uint32_t> first_counter;  // per Schedule::signals, and the end: the counters of those of scope device
  uint64_t workspace_bytes = 0;
  void* workspace = nullptr;                            // of the executor
  std::shared_ptr<void> prepared;                       // of the executor: plans, streams, events
  std::shared_ptr<void> note;                           // of the caller (note_of)
  Holds holds;                                          // of captured calls
  uint64_t capture = 0;                                 // of the executor: the last one that holds it
  std::list<std::unique_ptr<Program>>::iterator place;  // where the channel keeps it

  int rank() const { return expansion.rank; }
  int ranks() const { return expansion.ranks; }
  const spec::Task& task(const spec::Instance& instance) const {
    return schedule.tasks[static_cast<size_t>(instance.task)];
  }
  /// The products of an instance of the expansion.
  const std::vector<spec::ProductRows>& products_of(const spec::Instance& instance) const {
    return products[static_cast<size_t>(&instance - expansion.instances.data())];
  }
  /// Whether its words are counters of this rank, beside the heap.
  bool is_counter(int signal) const {
    return schedule.signals[static_cast<size_t>(signal)].scope == spec::Scope::device;
  }
  size_t counter(int signal, int64_t slot) const {
    return size_t{first_counter[static_cast<size_t>(signal)]} + static_cast<size_t>(slot);
  }
  /// Id of a word of copy `copy`; a channel id, the same on all ranks. Not of a counter.
  uint32_t id(int copy, int signal, int64_t slot) const {
    return shared->ids.first + static_cast<uint32_t>(copy) * shared->words +
           shared->first_id[static_cast<size_t>(signal)] + static_cast<uint32_t>(slot);
  }
  std::string word_name(int signal, int64_t slot) const { return spec::word_name(schedule, signal, slot); }
  /// Symmetric memory of `buffer` in copy `copy`: the same block on every rank.
  SymBuffer symmetric(int buffer, int copy) const;
};

/// A hash of what most schedules differ in.
size_t hash_of_sizes(const spec::Schedule& schedule);

/// Its calls begin with a barrier.
inline bool shares_memory(const Program& program) {
  return program.shared->block != nullptr && program.shared->block->is_shared;
}

/// One call of a program.
struct Call {
  Program& program;
  const Bindings& bindings;
  const Bodies& bodies;
  int copy = 0;
  uint64_t epoch = 1;  // of the copy
  base::Trace* trace = nullptr;
  struct Out {
    TensorView from, to;
    bool is_buffer;  // `from` is in this call's copy of a symmetric buffer
  };
  std::vector<Out> copies_out;  // after all tasks
  std::string_view label = {};  // of its spans; lives as long as the channel
  /// Set by the executor before the first piece of work that peers may see or miss.
  mutable bool has_begun = false;
};

/// expansion, lanes and the places of local buffers; `shared` and memory are still missing.
base::Result<std::unique_ptr<Program>> expand_program(const spec::Schedule& schedule, std::string_view agreement,
                                                      int rank, int ranks);
/// Fills everything of Shared but block and ids: sizes that the heap and the channel are asked for.
Shared shared_layout(const Program& program);
/// Every argument buffer is bound with the schedule's shape and dtype (vectors: any floating dtype).
base::Status check_bindings(const Program& program, const Bindings& bindings);

/// The memory of `box`, which lies on `team.rank()` or in symmetric memory of a peer. Leading dimensions of one element
/// are dropped down to two dimensions. data is null for a peer that loads and stores do not reach.
TensorView view_of(const Call& call, const Team& team, const spec::Box& box);
/// Offset of the first element of a symmetric box from the start of its rank's heap space (SymBuffer::offset).
uint64_t symmetric_offset(const Call& call, const spec::Box& box);

/// What a body gets for `instance`.
BodyContext body_context(const Call& call, const Team& team, const spec::Instance& instance, StreamRef stream);

/// A product of one launch: `batch` equally spaced row blocks that share b and bias.
struct GemmBlock {
  TensorView a, b, c, bias;     // of the first batch element
  TensorView a_scale, b_scale;  // undefined: none; (1), or (rows of a, 1) of the first batch element and (1, N)
  int64_t batch = 1;
  int64_t batch_stride_a = 0, batch_stride_c = 0, batch_stride_scale = 0;  // elements; of the scales of rows
  bool accumulate = false;
  bool a_is_km = false;  // a is stored (K, M): M contiguous
  double flops() const;
};
/// The products of a gemm instance: touching row boxes are merged, equally spaced ones of one size are batched; empty
/// ones are left out. Task parameter "accumulate": c += a b.
base::Result<std::vector<GemmBlock>> gemm_blocks(const Call& call, const Team& team, const spec::Instance& instance);

/// Floating-point operations of a gemm instance; from its regions.
double gemm_flops(const Program& program, const spec::Instance& instance);

}  // namespace overlace::exec
