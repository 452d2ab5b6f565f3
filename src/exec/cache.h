// The prepared schedules of a channel: found again, prepared with the peers, and given up when room is needed.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/status.h"
#include "src/base/trace.h"
#include "src/exec/agree.h"
#include "src/exec/backend.h"
#include "src/exec/program.h"
#include "src/runtime/call_board.h"

namespace overlace::exec {

/// What the ranks compare before the first call: the agreement in words, and the schedule less its `local_param`.
std::string agreement_key(const spec::Schedule& schedule, std::string_view agreement, std::string_view local_param);

/// Runs `body`; what it throws becomes a status.
template <class Body>
base::Status guarded(const Body& body) {
  try {
    return body();
  } catch (...) {
    return base::status_of_current_exception();
  }
}

class Cache {
 public:
  /// That of the channel, made at its first call.
  static base::Result<Cache*> of(Channel& channel);
  /// Null before the channel's first call.
  static Cache* known(Channel& channel) { return static_cast<Cache*>(channel.attachment().get()); }
  /// Null while the channel is not traced.
  static Cache* traced(Channel& channel);

  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache();

  /// Null if there is none. See exec::known_program.
  Program* find(const spec::Schedule& schedule, uint64_t serial);
  /// The program of this call; where there is none it is prepared, with the peers unless they know its key already.
  base::Result<Program*> find_or_prepare(const spec::Schedule& schedule, const std::function<std::string()>& agreement,
                                         const RunOptions& options, const Bindings& bindings, const Bodies& bodies);
  /// See exec::refuse.
  base::Status refuse(const spec::Schedule& schedule, std::string_view local_param, const base::Status& why);
  /// Keeps the program, its workspace, its memory at all ranks and its signal words until the last copy of the result
  /// goes, on any thread.
  static std::shared_ptr<void> hold(Program& program);
  /// The program of the last call; null before the first.
  Program* last() { return programs_.empty() ? nullptr : programs_.front().get(); }

  /// Why the last call ended on all ranks of the team, if it did for one of these reasons.
  Impasse impasse() const { return impasse_; }
  void begin_call() { impasse_ = Impasse::none; }
  /// Behind Impasse::peers_have_another; the caller puts in what may differ.
  const spec::Schedule& peers_schedule() const { return followed_->schedule; }

  Executor& executor() { return *executor_; }
  base::Trace* trace = nullptr;
  std::string label;           // of its spans
  bool follows_peers = false;  // exec::follow_peers
  std::shared_ptr<void> note;  // of the caller (note_of)

 private:
  using Programs = std::list<std::unique_ptr<Program>>;
  /// Where a shared part is kept.
  struct Place {
    Cache* cache = nullptr;
    size_t index = 0;
  };

  explicit Cache(Channel& channel) : channel_(channel) {}
  base::Status open();
  base::Status prepare(const spec::Schedule& schedule, std::string_view agreement, std::string_view local_param,
                       const Bindings& bindings, const Bodies& bodies);
  base::Status prepare_with_peers(Program& program, bool is_known, const Bindings& bindings, const Bodies& bodies);
  base::Status meet(const base::Status& mine, const Shared& shared, std::string_view rest, CallMeeting* meeting);
  base::Status follow(const CallMeeting& meeting, const base::Status& mine, const Shared& shared);
  base::Status abort_with(const base::Status& cause);
  base::Status pass_by(const Shared& shared);
  base::Status compare_with_neighbours(const runtime::PostedCall& call, const Shared& shared);
  bool has_other_plan(const Shared& shared) const;
  std::shared_ptr<Shared> find_shared(std::string_view agreement, std::string_view key) const;
  base::Status make_ready(Program& program, const Bindings& bindings, const Bodies& bodies);
  base::Status allocate_shared(Shared& shared, const std::string& name, uint64_t least_offset);
  base::Status allocate_workspace(Program& program);
  void keep(std::unique_ptr<Program> program);
  void forget(Programs::iterator program);
  void give_up_workspace(Program& program);
  bool drop_oldest_program();
  std::vector<Cache*> caches_of_team();
  base::Status make_room(Shared* wanted, const base::Status& why);
  bool share_block(Shared& wanted, const std::vector<Place>& places, const std::vector<uint64_t>& holds,
                   const std::vector<uint64_t>& last_use);
  void drop_shared(size_t index);
  void free_shared(Shared& shared);

  Channel& channel_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::shared_ptr<Shared>> shared_;  // in the same order on all ranks
  std::unordered_multimap<size_t, std::shared_ptr<Shared>> by_agreement_;
  Programs programs_;  // most recently used first
  std::unordered_multimap<size_t, Program*> by_sizes_;
  std::unordered_map<uint64_t, Program*> by_serial_;
  Impasse impasse_ = Impasse::none;
  // All ranks count alike the calls that they could begin and the meetings that had no rank in the call already.
  uint64_t group_ = 0;
  uint32_t number_ = 0;
  std::shared_ptr<Shared> followed_;  // whose schedule this rank takes for the call, as its peers are in it
};

}  // namespace overlace::exec
