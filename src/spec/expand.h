// From the SPMD template to one rank's instances, in an order in which a single thread may issue them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "overlace/schedule.h"
#include "src/base/status.h"

namespace overlace::spec {

inline constexpr int kMaxDims = 3;

/// A resolved region: a box of one buffer at one rank, in elements.
struct Box {
  int buffer = 0;  // index into Schedule::buffers
  int rank = 0;
  int ndim = 0;
  int64_t begin[kMaxDims] = {};
  int64_t count[kMaxDims] = {};
  int64_t numel() const;
  bool empty() const;
  bool operator==(const Box&) const = default;
};

struct ResolvedWait {
  int signal = 0;
  int64_t slot = 0;
  int from = 0;
  int64_t at_least = 1;
  bool previous = false;  // counts the adds up to the end of the previous epoch
  bool operator==(const ResolvedWait&) const = default;
};
struct ResolvedSet {
  int signal = 0;
  int64_t slot = 0;
  int at = 0;
  int64_t add = 1;
  bool operator==(const ResolvedSet&) const = default;
};

struct Lane {
  Engine engine = Engine::sm;
  int64_t queue = 0;
  auto operator<=>(const Lane&) const = default;
};

/// One point of a task's loops on one rank. An instance whose boxes are all empty moves nothing but still sets its
/// signals.
struct Instance {
  int task = 0;  // index into Schedule::tasks
  Lane lane;
  int64_t order = 0;
  std::vector<int64_t> loop_values;
  std::vector<std::vector<Box>> reads, writes;  // one list per region (one box, or one per value of `each`)
  std::vector<int> deps;                        // indices into the same vector: same rank, already before this one
  std::vector<ResolvedWait> waits;
  std::vector<ResolvedSet> sets;
  /// "gemm_remote[s=2]"
  std::string id(const Schedule& schedule) const;
};

struct Expansion {
  int rank = 0, ranks = 1;
  std::vector<std::vector<int64_t>> buffer_shapes;         // per Schedule::buffers
  std::vector<int64_t> signal_slots;                       // per Schedule::signals: words per sender
  std::vector<Instance> instances;                         // topological: deps and lane predecessors come first
  int64_t adds(int signal, int64_t slot, int from) const;  // A of a word of mine: adds per epoch by `from`
  std::vector<std::vector<int64_t>> adds_table;            // [signal][slot * ranks + from]
  int64_t num_items = 0;  // instances, regions, waits, sets, dependencies, words of signals: what it takes
};

/// bad_schedule with task, rank and the expression that failed; also S1, S2 conditions that prevent resolving.
base::Result<Expansion> expand(const Schedule& schedule, int rank, int ranks);
/// Expands for all ranks at once, which costs less than one by one.
base::Result<std::vector<Expansion>> expand_all(const Schedule& schedule, int ranks);

/// Bytes of boxes, and of all that an instance writes.
int64_t bytes_of(const Schedule& schedule, const std::vector<Box>& boxes);
int64_t bytes_written(const Schedule& schedule, const Instance& instance);
/// Numbers that the words of a sender have: those of signal s are [first[s], first[s + 1]).
std::vector<uint32_t> first_words(const Expansion& expansion);
/// As above, but only signals of `scope` have words there.
std::vector<uint32_t> first_words(const Schedule& schedule, const Expansion& expansion, Scope scope);

/// 128-bit digest of the canonical JSON, as 32 hex digits.
std::string digest(const Schedule& schedule);

}  // namespace overlace::spec
