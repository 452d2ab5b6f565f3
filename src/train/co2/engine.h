// What a rank does next, without doing it: inner steps go in, actions come out. No memory, no transport, no clock.
//
// The order of a boundary is data: the engine lays it out when the last inner step of a round was counted, and the
// driver does one action after the other. What must hold of tickets (I1: waited exactly once; I2: no bucket is written
// while its ticket is open) is asserted here; what is issued is hashed (I5: equal on all ranks).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "overlace/co2.h"
#include "src/base/status.h"
#include "src/runtime/hash.h"
#include "src/train/co2/control_pod.h"
#include "src/train/co2/pass.h"

namespace overlace::train {

struct Action {
  /// wait: for a ticket; begin: judge the header, take the scalars; pass: over one bucket; launch: its all-reduce;
  /// end: make the header; reduce_sums: add the sums of tensors inside the group; moved: an increment is in, the anchor
  /// is where it will stay for a round; anchor: a = x, m = 0;
  /// average_inner: mean of the inner optimizer's moments over the groups, blocking; none: go on with inner steps.
  enum class Kind { none, wait, begin, pass, launch, end, reduce_sums, moved, anchor, average_inner } kind = Kind::none;
  int bucket = 0;     // of wait, pass, launch; kHeader: the header
  int64_t round = 0;  // of the increment that is waited for or launched, and of begin and end
  PassMode mode = PassMode::fused;
  bool is_flush = false;
  int64_t steps = 0;  // of end, and of a pass that makes an increment: inner steps of the round
  static constexpr int kHeader = -1;

  bool operator==(const Action&) const = default;
  std::string to_string() const;
};

/// Everything that an engine remembers between inner steps; part of a checkpoint.
struct EngineState {
  int64_t steps = 0;          // inner steps so far, in all phases
  int64_t round = 0;          // t
  int64_t step = 0;           // k: inner steps of this round
  int64_t pending_steps = 0;  // inner steps of the round that is on its way
  int32_t has_pending = 0;    // the increment of round t - 1 is on its way
  int32_t phase = 0;          // Engine::Phase
  int64_t merged = 0;         // of streaming: steps at which all groups were alike last

  bool operator==(const EngineState&) const = default;
};

class Engine {
 public:
  enum class Phase : int32_t { warmup, rounds, cooldown };

  /// `options` are resolved. `buckets`: of this rank; shard_degree: ranks of a group; fragment_of: by bucket, where the
  /// rule is streaming, whose rounds are counted by exchange.
  Engine(const Co2Options& options, int64_t groups, int buckets, int shard_degree, std::vector<int> fragment_of = {});

  /// Before an inner step: gradients are averaged over the groups first (warm-up, cool-down).
  bool wants_gradient_mean() const { return phase() != Phase::rounds; }
  /// After it. Errc::invalid_argument while actions are due.
  base::Status on_inner_step();
  /// The next inner step will be one behind which something is due.
  bool next_step_has_actions() const;
  /// The pipeline is emptied: a partial round ends, what is on its way goes in. Errc as above.
  base::Status flush();

  /// The first action that is due; Kind::none: go on.
  Action next() const;
  /// It was done. Errc::internal if it is not the first one due, or breaks I1 or I2.
  void done(const Action& action);

  /// The knobs of an action `begin`; `lr_ratio` as KnobsPod has it.
  KnobsPod knobs(const Action& begin, double lr_ratio) const;
  const EngineState& state() const { return state_; }
  Phase phase() const { return static_cast<Phase>(state_.phase); }
  /// Buckets that were launched and not waited for, Action::kHeader among them.
  std::vector<int> open_tickets() const;
  /// A hash of all waits and launches so far, in their order (I5).
  uint64_t issued() const { return issued_; }

  /// From a checkpoint taken while nothing was due. Tickets of the pending round count as launched.
  base::Status load(const EngineState& state);

 private:
  void plan(const Action& action) { due_.push_back(action); }
  void plan_boundary();
  void plan_stale_boundary();
  void plan_blocking_boundary();
  void plan_streaming_step();
  void plan_streaming_take();
  void plan_streaming_flush();
  void plan_send(int64_t round, int fragment);
  void plan_take(int64_t round, int fragment, bool is_flush);
  void plan_flush();
  void enter_phases();
  base::Status check_idle(const char* call) const;
  static constexpr int kAllFragments = -1;
  bool is_in(int bucket, int fragment) const {
    return fragment == kAllFragments || fragment_of_[static_cast<size_t>(bucket)] == fragment;
  }
  int fragment_at(int64_t round) const { return static_cast<int>(round % options_->fragments); }
  char& ticket(int bucket) { return open_[static_cast<size_t>(bucket + 1)]; }

  const std::shared_ptr<const Co2Options> options_;  // an engine is copied to look a step ahead
  const int64_t groups_;
  const int buckets_, shard_degree_;
  const std::vector<int> fragment_of_;
  EngineState state_, after_;  // after_: once all that is due was done
  std::vector<Action> due_;
  size_t num_done_ = 0;
  std::vector<char> open_;  // by bucket, the header first
  uint64_t issued_ = runtime::kHashSeed;
};

}  // namespace overlace::train
