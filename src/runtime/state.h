// What Runtime, Team, SymmetricHeap and Channel share: one per rank.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "overlace/runtime.h"
#include "src/runtime/allocator.h"
#include "src/runtime/backend.h"
#include "src/runtime/control.h"
#include "src/runtime/hash.h"
#include "src/runtime/names.h"
#include "src/runtime/operand_places.h"

namespace overlace {

struct ChannelState;

struct TeamState {
  RuntimeState* runtime = nullptr;
  std::vector<int> members;  // world ranks
  int rank = -1;             // mine in this team; -1: not a member
  uint32_t id = 0;
  std::string name;
  TeamPod pod{};
  runtime::Allocator ids;  // signal ids of this team
  std::deque<std::unique_ptr<ChannelState>> channels;
  std::unique_ptr<NetEngine> engine;
  Channel* engine_channel = nullptr;  // not for others
  uint64_t calls = 0;                 // compared so far (CheckOptions::calls)

  TeamState();
  ~TeamState();
};

namespace runtime {

/// What the kernels of one channel found wrong with arguments whose elements only the device could look at. Nobody
/// waits for them: it is asked at check(), and behind each call of an operator.
class Findings {
 public:
  virtual ~Findings() = default;
  /// What was found since the last time and has come to the host by now; each is given once.
  virtual base::Status take() = 0;
};

}  // namespace runtime

struct RegionState {
  std::string name;
  size_t bytes = 0;
  std::vector<char*> bases;  // by world rank
  RuntimeState* runtime = nullptr;
};

struct StripeState {
  std::string name;
  size_t bytes = 0;
  std::vector<StripePiece> parts;
  runtime::StripeMemory memory;
};

struct RuntimeState {
  RuntimeState();
  ~RuntimeState();

  Runtime* owner = nullptr;  // follows moves
  RuntimeOptions options;
  int rank = 0, world = 0;
  uint64_t fork_count = 0;  // at open
  int64_t pid = 0;
  std::atomic<bool> is_closed = false;
  std::mutex abort_mutex;  // an abort may come from another thread while the runtime closes
  bool can_abort = true;   // nothing of what it touches is gone; under abort_mutex
  bool has_thrown_cause = false;
  int num_hosts = 1;
  bool has_emulated_hosts = false;  // several of them are one machine
  std::unique_ptr<runtime::Control> control;
  runtime::Names names;
  std::unique_ptr<runtime::BackendState> backend;
  runtime::OperandPlaces places;  // of callers' memory; on CPU ranks any passes
  runtime::Allocator blocks;
  uint64_t heap_calls = 0, heap_hash = runtime::kHashSeed;
  std::string last_heap_call = "none";
  SymmetricHeap heap;
  std::deque<RegionState> regions;  // addresses stay
  std::vector<std::unique_ptr<StripeState>> stripes;
  uint64_t next_stripe = 0;
  Stats stats;
  std::map<uint32_t, std::unique_ptr<runtime::Findings>> findings;  // by channel
  std::deque<std::shared_ptr<TeamState>> teams;                     // [0]: the world
  Team world_team;
  uint32_t next_team_id = 1, next_team_ids = 0;  // first id of the next sub-team
  uint32_t next_channel_id = 0;

  bool is_forked() const;
  /// What `places` asks. A striped range counts as managed memory, whoever has its pages.
  base::Result<int> place_of(const void* address);
  /// At the entry of every call: forked, closed, or the first cause of an abort.
  void enter();
  /// Waits for all that this rank has issued.
  void synchronize();
  /// The first of all findings that nobody was told of.
  base::Status take_finding();
  base::Status found;  // at the begin of a call, which tells it behind its work
  /// A failed host operation: aborts all ranks unless that has happened, and throws the first cause.
  [[noreturn]] void fail(const base::Status& status);
  /// Any thread; nothing once the runtime is closed, or was before the call could begin.
  void abort(const runtime::AbortCause& cause);
  [[noreturn]] void throw_cause(const runtime::AbortCause& cause);
  std::vector<Bytes> exchange(const TeamState& team, std::span<const std::byte> mine, const std::string& what);
  /// Control::meet of the team's members.
  std::vector<runtime::Attendance> meet(const TeamState& team, uint64_t group, uint32_t number,
                                        std::span<const std::byte> mine, const std::string& what);
  /// Throws `mine`, or what another rank of the world has, on all of them; ok only if all are.
  void agree(const base::Status& mine, const std::string& what);
  /// The lowest place of the symmetric heap at `least` or behind it; throws OutOfMemory as SymmetricHeap::alloc.
  /// `bytes` is not 0, `align` a power of two.
  /// Not a heap call that verify() compares before it is folded: the ranks may still disagree, and give it back.
  SymBuffer allocate(size_t bytes, size_t align, const std::string& name, uint64_t least);
  void give_back(SymBuffer block);
  /// Collective of the world, outside captures: makes the heap larger by `bytes` or more on all ranks, or up to its
  /// limit. False, on all ranks, where it is there already, or where a rank has no memory left.
  base::Result<bool> grow_heap(uint64_t bytes);
  /// Heap calls must be the same on all ranks; verify() compares their hash.
  void fold_heap_call(std::string call);
  /// `capture` if a stream of any channel is captured.
  base::Status check_no_capture(const std::string& call) const;
  /// A new team from agreed values; makes its engine if asked.
  std::shared_ptr<TeamState> make_team(std::vector<int> members, uint32_t id, uint32_t first_id, uint32_t num_ids,
                                       const TeamOptions& team_options);
  /// Collective unless aborted.
  void close();
  base::Status meet_to_close();
  /// Gives everything up. clean: all ranks came here together.
  void release(bool clean);
};

}  // namespace overlace

namespace overlace::runtime {

/// GPUs: a fused kernel takes up to 258 of a team, and a sub-team has room for some.
constexpr uint32_t default_signal_ids(Backend backend) { return backend == Backend::cpu ? 4096 : 65536; }
/// What `heap_bytes` and `max_heap_bytes` of 0 mean.
void fill_in_heap(Backend backend, RuntimeOptions* options);
inline constexpr uint32_t kSubTeamShare = 16;  // of the ids a sub-team gets one part of so many

/// A channel of its own even if the team has one for this stream (engines).
Channel& make_channel(TeamState& team, StreamRef stream, const ChannelOptions& options);

/// The text of the team's first rank, of any length. Collective.
std::string text_of_first(Team& team, const std::string& mine);

/// Around each call of an operator. begin: compares `operation()` where CheckOptions::calls is set (desync on all
/// ranks of the team), and keeps the order of channels that do not fit side by side. end: CheckOptions::sync,
/// and what kernels found in arguments, which is told behind a call that has been made, so that no peer waits for it;
/// `is_captured`: whether the channel's stream is, from who has asked already.
base::Status begin_call(Channel& channel, const std::function<std::string()>& operation);
base::Status end_call(Channel& channel, std::optional<bool> is_captured = {});

/// Spans of the emulated link: peer (world rank), when the link was busy with a transfer, its bytes. Called by the
/// progress thread; set before transfers start. Nothing happens without an emulated link.
using TransferSink = std::function<void(int peer, int64_t begin_ns, int64_t end_ns, size_t bytes)>;
void set_transfer_sink(Runtime& runtime, TransferSink sink);

/// Why this runtime is unusable as a status, ok if it is usable. For waits that returned an Errc.
base::Status cause_status(Runtime& runtime);

}  // namespace overlace::runtime
