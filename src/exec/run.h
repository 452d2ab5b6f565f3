// Runs a Schedule on a channel: lanes, waits, signals, copies, collectives and library GEMMs. Operators bring bodies
// for `reduce` and `tiles`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "overlace/channel.h"
#include "overlace/handle_pod.h"
#include "overlace/schedule.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/spec/expand.h"

namespace overlace::exec {

/// Memory of buffers of Space::argument by name: a handful, found by looking at each. Whoever keeps one binds the next
/// call's memory to the same names without an allocation. Peers' argument buffers are never touched.
class Bindings {
 public:
  using Bound = std::pair<std::string, TensorView>;

  Bindings() = default;
  Bindings(std::initializer_list<Bound> list) : list_(list) {}

  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  std::vector<Bound>::const_iterator find(std::string_view name) const {
    return std::find_if(list_.begin(), list_.end(), [&](const Bound& bound) { return bound.first == name; });
  }
  bool contains(std::string_view name) const { return find(name) != end(); }
  /// Undefined where the name is new.
  TensorView& operator[](std::string_view name) {
    const auto at = static_cast<size_t>(find(name) - begin());
    return at < list_.size() ? list_[at].second : list_.emplace_back(std::string(name), TensorView{}).second;
  }

 private:
  std::vector<Bound> list_;
};

/// Takes a value out of its place, where an empty one stays, and gives it back when this goes: whoever comes to the
/// place meanwhile, as a call inside a call does, has a value to itself. What the value has allocated is kept.
template <class T>
class TakenOut {
 public:
  explicit TakenOut(T& place) : value(std::exchange(place, T{})), place_(place) {}
  ~TakenOut() { place_ = std::move(value); }
  TakenOut(const TakenOut&) = delete;
  TakenOut& operator=(const TakenOut&) = delete;

  T value;

 private:
  T& place_;
};

/// What a part of a fused kernel does by itself on CPU ranks, where its body runs instance by instance.
struct PartAccess {
  /// Until those of the instance's waits hold that are for earlier epochs, or for this one. The kernel's copies go on
  /// meanwhile.
  std::function<base::Status(bool previous)> wait;
  /// `from` to (row, col) of the box that the instance writes, at whichever rank it lies. `from` may change then.
  std::function<void(const TensorView& from, int64_t row, int64_t col)> store;
  std::vector<char>* sums = nullptr;  // the body's, from part to part of a call
};

/// What a body gets: one view per resolved box, in region order; empty boxes are left out.
struct BodyContext {
  const spec::Schedule& schedule;
  const spec::Task& task;
  std::vector<std::vector<TensorView>> reads, writes;
  StreamRef stream;  // of the lane
  int rank = 0;
  int64_t first_row = 0;             // of the first box that it writes, in its buffer
  const PartAccess* part = nullptr;  // of a task with wait_by: kernel on CPU ranks
};
using Body = std::function<base::Status(const BodyContext&)>;

/// What a fused kernel on a GPU gets: it waits, sets and moves on the tickets of all that its tasks wait for, and
/// counts its calls on the device. So call c uses the part c % copies of the memory even where a graph replays it, and
/// the words of the first part for all of them.
struct KernelContext {
  Channel& channel;
  const spec::Schedule& schedule;
  const spec::Expansion& expansion;
  const Bindings* bindings = nullptr;                     // null in prepare
  std::map<std::string, uint64_t, std::less<>> memory{};  // symmetric buffers: offset of the first part in every heap
  std::map<std::string, void*, std::less<>> local{};      // local buffers
  uint64_t pitch = 0;                                     // from a part to the next
  int copies = 1;
  std::map<std::string, uint32_t, std::less<>> ids{};  // signals: id of slot 0; of scope device: number of its counter
  CountersPod counters{};                              // those of scope device: 0 when a call begins
  std::shared_ptr<void>* state = nullptr;              // the kernel's own, alike for all programs that share the words
  std::shared_ptr<void>* of_schedule = nullptr;        // the kernel's own, of this schedule
  std::shared_ptr<void>* of_channel = nullptr;         // the kernels' own, of the channel
};
/// All tasks with wait_by: kernel of a schedule. `prepare`: before any rank makes the first call; may allocate.
/// `copy_out`: behind a launch, rows of the part of the memory that it used; `from` is their place in the first part.
/// `keeps_memory`: whether the kernel of this schedule reads what an earlier call of it left in symmetric memory; null:
/// none does. `is_loaded`: whether prepare() of this schedule finds its kernel on the current device; null: it may not.
/// `counted`: behind prepare(), what a call adds to a counter that its schedule sets, of scope device; null: it has
/// none.
struct Kernel {
  std::function<base::Status(const KernelContext&)> prepare, launch;
  std::function<base::Status(const KernelContext&, const TensorView& from, const TensorView& to)> copy_out;
  std::function<bool(const spec::Schedule&)> keeps_memory;
  std::function<bool(const Channel&, const spec::Schedule&)> is_loaded;
  std::function<uint64_t(const KernelContext&, std::string_view signal, int64_t slot)> counted;
};

/// What an operator brings.
struct Bodies {
  std::map<spec::Kind, Body> by_kind{};
  Kernel kernel{};  // on GPUs
};

/// After all tasks: rows of this rank's memory to a caller's tensor of the same shape and dtype.
struct CopyOut {
  std::string buffer{};  // of the schedule, its rows [first_row, first_row + to.dim(0)); empty: `from`
  int64_t first_row = 0;
  TensorView from{};
  TensorView to{};
};

struct Program;

struct RunOptions {
  base::Trace* trace = nullptr;    // cpu: filled on return. cuda: filled by collect_trace()
  std::string_view local_param{};  // the schedule's parameter that may differ between ranks: "N" of ag_gemm, "K"
  std::vector<CopyOut> copies_out{};
  std::optional<Program*> known{};  // known_program, if the caller has asked
};

/// What a schedule needs on one rank before its first call: bytes of the symmetric heap and signal ids (the same on all
/// ranks), and local workspace.
struct Footprint {
  uint64_t heap_bytes = 0;
  uint64_t workspace_bytes = 0;
  uint32_t signal_ids = 0;
};
base::Result<Footprint> footprint(const spec::Schedule& schedule, int rank, int ranks);

/// Collective in the sense of the channel: all ranks run the same schedules in the same order. The first call with a
/// schedule (by digest) allocates its symmetric buffers and signal ids, agrees with the peers (plan_mismatch on all)
/// and warms up. When the heap is full it grows up to RuntimeOptions::max_heap_bytes; then the schedule uses the memory
/// of another one of this channel, and calls of both begin with a barrier; then the least recently used are given up,
/// collectively, but none that a captured graph of any rank holds; heap_exhausted where nothing helps. cpu:
/// returns when this rank's part is done. cuda: queued on the channel's stream; capturable after the first call with
/// this schedule, and the graph then holds what the call uses until it is destroyed. An error behind the first piece of
/// work that was queued aborts the runtime: the peers would wait for the rest.
/// `agreement`: what must be equal on all ranks besides the schedule (less its `local_param`), in words; calls of one
/// schedule have one.
base::Status run(Channel& channel, const spec::Schedule& schedule, const std::function<std::string()>& agreement,
                 const Bindings& bindings, const Bodies& bodies, const RunOptions& options = {});
base::Status run(Channel& channel, const spec::Schedule& schedule, std::string_view agreement, const Bindings& bindings,
                 const Bodies& bodies, const RunOptions& options = {});

/// What the channel keeps of its earlier calls with this schedule, until its next call; null if it has made none.
/// `serial`, not 0: of a schedule that never changes; schedules with one number are equal, and not compared.
Program* known_program(Channel& channel, const spec::Schedule& schedule, uint64_t serial = 0);
/// What the caller keeps with it.
std::shared_ptr<void>& note_of(Program& program);
/// What the caller keeps with the channel; null before its first call.
std::shared_ptr<void>* note_of(Channel& channel);

/// Why the channel's last call could not be made, known to all ranks of the team or to none, so that they may meet
/// again and agree on another schedule.
/// peers_have_another: those that have made calls like this one before, with another N or K of this rank, are in it
/// already with the schedule that is theirs; this rank follows with agreed_schedule, or aborts.
enum class Impasse { none, schedules_differ, heap_is_full, peers_have_another };
Impasse impasse(Channel& channel);
/// Whether the caller's next calls follow where peers have another schedule. Where not, which is so unless this says
/// otherwise, such a call aborts the runtime: the peers are in the call and would wait for this rank.
void follow_peers(Channel& channel, bool follows);
/// Behind Impasse::peers_have_another: theirs, for this rank's `value` of the parameter that may differ.
spec::Schedule agreed_schedule(Channel& channel, std::string_view local_param, int64_t value);

/// What a captured graph holds of the channel's last call: nothing of it is given up until the last copy of the result
/// goes, on any thread. Null before the first call. For whoever replays a call by other means than CUDA graphs.
std::shared_ptr<void> hold_last_call(Channel& channel);

/// In place of `run` by a rank whose arguments are wrong; gives back `why`. Where the call agrees with all ranks, the
/// peers learn of it there: they get the same error, naming this rank, and nothing has moved. A schedule that this
/// channel has run before agrees with nobody: then only this rank knows, and its peers wait for the call. If ranks may
/// meet all the same, as this channel runs the like by another schedule, too, this rank waits until they are there.
base::Status refuse(Channel& channel, const spec::Schedule& schedule, std::string_view local_param,
                    const base::Status& why);

/// What traced calls of this channel recorded and did not append themselves (cuda; synchronises the device).
base::Result<base::Trace> collect_trace(Channel& channel);

/// Calls traced on several ranks give halves of arrows (the sender's and the receiver's); pairs become whole in place,
/// the rest is dropped. For the merged trace, before it is written.
void join_arrows(base::Trace& trace);

/// Traces every run on this channel until turned off (a null pointer). cpu: spans are appended at once; cuda: by
/// collect_trace; captured calls are not traced.
void set_trace(Channel& channel, base::Trace* trace);
/// Spans from now on are called "label name", until another label or an empty one. Nothing while there is no trace.
void set_trace_label(Channel& channel, std::string_view label);
/// Runs `work`, which queues (cpu: does) something outside schedules on the channel's stream, as a span of category
/// `other` where the channel is traced.
base::Status run_traced(Channel& channel, const char* name, const std::function<base::Status()>& work);

}  // namespace overlace::exec
