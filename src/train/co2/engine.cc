#include "src/train/co2/engine.h"

#include <algorithm>

namespace overlace::train {
namespace {

using base::Status;
using Kind = Action::Kind;

constexpr const char* kKindNames[] = {"none", "wait",        "begin", "pass",   "launch",
                                      "end",  "reduce_sums", "moved", "anchor", "average_inner"};

}  // namespace

std::string Action::to_string() const {
  const char* const name = kKindNames[static_cast<int>(kind)];
  if (kind != Kind::wait && kind != Kind::pass && kind != Kind::launch) return base::format("{} round {}", name, round);
  if (bucket == kHeader) return base::format("{} header of round {}", name, round);
  return base::format("{} bucket {} of round {}", name, bucket, round);
}

Engine::Engine(const Co2Options& options, int64_t groups, int buckets, int shard_degree)
    : options_(options),
      groups_(groups),
      buckets_(buckets),
      shard_degree_(shard_degree),
      open_(static_cast<size_t>(buckets) + 1) {
  OVERLACE_ASSERT(groups > 0 && buckets >= 0 && shard_degree > 0);
  after_ = state_;
  enter_phases();
  if (due_.empty()) state_ = after_;
}

/// Phases that begin after the steps so far.
void Engine::enter_phases() {
  const bool has_cooldown = options_.cooldown_sync_steps > 0;
  if (after_.phase == static_cast<int32_t>(Phase::warmup) && after_.steps >= options_.warmup_sync_steps) {
    after_.phase = static_cast<int32_t>(Phase::rounds);
    plan({.kind = Kind::anchor, .round = after_.round});
  }
  if (has_cooldown && after_.phase == static_cast<int32_t>(Phase::rounds) &&
      after_.steps >= options_.total_steps - options_.cooldown_sync_steps) {
    plan_flush();
    plan({.kind = Kind::average_inner, .round = after_.round});
    after_.phase = static_cast<int32_t>(Phase::cooldown);
  }
}

Status Engine::check_idle(const char* call) const {
  if (due_.empty()) return Status::success();
  return base::invalid_argument("{} while {} of {} actions are not done, the first: {}; wanted: all of them done", call,
                                due_.size() - num_done_, due_.size(), due_[num_done_].to_string());
}

Status Engine::on_inner_step() {
  OVERLACE_TRY(check_idle("on_inner_step"));
  after_ = state_;
  ++after_.steps;
  if (phase() == Phase::rounds) {
    ++after_.step;
    if (after_.step >= options_.tau) plan_boundary();
  }
  enter_phases();
  if (due_.empty()) state_ = after_;
  return Status::success();
}

Status Engine::flush() {
  OVERLACE_TRY(check_idle("flush"));
  after_ = state_;
  if (phase() == Phase::rounds) plan_flush();
  if (due_.empty()) state_ = after_;
  return Status::success();
}

void Engine::plan_boundary() {
  if (options_.rule == OuterRule::co2)
    plan_stale_boundary();
  else
    plan_blocking_boundary();
}

void Engine::plan_stale_boundary() {
  const int64_t t = after_.round;
  const bool waits = after_.has_pending != 0;
  if (waits) plan({.kind = Kind::wait, .bucket = Action::kHeader, .round = t - 1});
  plan({.kind = Kind::begin, .round = t});
  for (int b = 0; b < buckets_; ++b) {
    if (waits) plan({.kind = Kind::wait, .bucket = b, .round = t - 1});
    plan({.kind = Kind::pass, .bucket = b, .round = t, .mode = PassMode::fused});
    plan({.kind = Kind::launch, .bucket = b, .round = t});
  }
  if (shard_degree_ > 1) plan({.kind = Kind::reduce_sums, .round = t});
  plan({.kind = Kind::moved, .round = t});
  plan({.kind = Kind::end, .round = t, .steps = after_.step});
  plan({.kind = Kind::launch, .bucket = Action::kHeader, .round = t});
  after_.pending_steps = after_.step;
  after_.has_pending = 1;
  after_.step = 0;
  ++after_.round;
}

void Engine::plan_blocking_boundary() {
  const int64_t t = after_.round;
  for (int b = 0; b < buckets_; ++b) {
    plan({.kind = Kind::pass, .bucket = b, .round = t, .mode = PassMode::delta});
    plan({.kind = Kind::launch, .bucket = b, .round = t});
  }
  if (shard_degree_ > 1) plan({.kind = Kind::reduce_sums, .round = t});
  plan({.kind = Kind::end, .round = t, .steps = after_.step});
  plan({.kind = Kind::launch, .bucket = Action::kHeader, .round = t});
  plan({.kind = Kind::wait, .bucket = Action::kHeader, .round = t});
  plan({.kind = Kind::begin, .round = t});
  for (int b = 0; b < buckets_; ++b) {
    plan({.kind = Kind::wait, .bucket = b, .round = t});
    plan({.kind = Kind::pass, .bucket = b, .round = t, .mode = PassMode::apply});
  }
  plan({.kind = Kind::moved, .round = t});
  after_.step = 0;
  ++after_.round;
}

void Engine::plan_flush() {
  if (after_.step > 0) plan_boundary();
  if (after_.has_pending == 0) return;
  const int64_t t = after_.round;
  plan({.kind = Kind::wait, .bucket = Action::kHeader, .round = t - 1});
  plan({.kind = Kind::begin, .round = t, .is_flush = true});
  for (int b = 0; b < buckets_; ++b) {
    plan({.kind = Kind::wait, .bucket = b, .round = t - 1});
    plan({.kind = Kind::pass, .bucket = b, .round = t, .mode = PassMode::apply, .is_flush = true});
  }
  if (shard_degree_ > 1) plan({.kind = Kind::reduce_sums, .round = t});
  plan({.kind = Kind::moved, .round = t, .is_flush = true});
  after_.has_pending = 0;
  after_.pending_steps = 0;
}

Action Engine::next() const { return due_.empty() ? Action{} : due_[num_done_]; }

void Engine::done(const Action& action) {
  OVERLACE_ASSERT(!due_.empty() && action == due_[num_done_]);
  if (action.kind == Kind::wait || action.kind == Kind::launch) {
    char& is_open = ticket(action.bucket);
    const bool is_launch = action.kind == Kind::launch;
    OVERLACE_ASSERT(is_open == (is_launch ? 0 : 1));  // I1
    is_open = is_launch ? 1 : 0;
    issued_ = runtime::hash_word(static_cast<uint64_t>(action.kind), issued_);
    issued_ = runtime::hash_word(static_cast<uint64_t>(action.bucket), issued_);
    issued_ = runtime::hash_word(static_cast<uint64_t>(action.round), issued_);
  }
  if (action.kind == Kind::pass) OVERLACE_ASSERT(ticket(action.bucket) == 0);   // I2
  if (action.kind == Kind::end) OVERLACE_ASSERT(ticket(Action::kHeader) == 0);  // I2, of the header
  if (++num_done_ < due_.size()) return;
  due_.clear();
  num_done_ = 0;
  state_ = after_;
}

KnobsPod Engine::knobs(const Action& begin, double lr_ratio) const {
  KnobsPod knobs;
  knobs.groups = groups_;
  knobs.boundary = begin.round;
  knobs.alpha = options_.outer_lr;
  knobs.beta = options_.outer_momentum;
  knobs.kappa = options_.kappa;
  knobs.phi = options_.phi;
  knobs.gap_value = options_.gap_value;
  knobs.lr_ratio = lr_ratio;
  knobs.gap = static_cast<int32_t>(options_.gap);
  knobs.clip = static_cast<int32_t>(options_.clip);
  knobs.is_flush = begin.is_flush ? 1 : 0;
  knobs.is_nesterov = options_.rule == OuterRule::diloco ? 1 : 0;
  return knobs;
}

std::vector<int> Engine::open_tickets() const {
  std::vector<int> open;
  for (size_t i = 0; i < open_.size(); ++i)
    if (open_[i] != 0) open.push_back(static_cast<int>(i) - 1);
  return open;
}

Status Engine::load(const EngineState& state) {
  const bool is_sound = state.steps >= 0 && state.round >= 0 && state.step >= 0 && state.step < options_.tau &&
                        state.phase >= 0 && state.phase <= static_cast<int32_t>(Phase::cooldown) &&
                        (state.has_pending == 0 || (state.has_pending == 1 && options_.rule == OuterRule::co2)) &&
                        state.round >= state.has_pending;
  if (!is_sound)
    return base::error(
        Errc::corrupt,
        "state of the outer rule: steps {}, round {}, step {}, pending {}, phase {} with tau {}; wanted: "
        "what a run with these options can be in",
        state.steps, state.round, state.step, state.has_pending, state.phase, options_.tau);
  due_.clear();
  num_done_ = 0;
  state_ = after_ = state;
  std::fill(open_.begin(), open_.end(), state.has_pending != 0 ? 1 : 0);
  return Status::success();
}

}  // namespace overlace::train
