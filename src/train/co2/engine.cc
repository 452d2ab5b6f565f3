#include "src/train/co2/engine.h"

#include <algorithm>

#include "src/train/co2/options.h"

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

Engine::Engine(const Co2Options& options, int64_t groups, int buckets, int shard_degree, std::vector<int> fragment_of)
    : options_(std::make_shared<const Co2Options>(options)),
      groups_(groups),
      buckets_(buckets),
      shard_degree_(shard_degree),
      fragment_of_(std::move(fragment_of)),
      open_(static_cast<size_t>(buckets) + 1) {
  OVERLACE_ASSERT(groups > 0 && buckets >= 0 && shard_degree > 0);
  OVERLACE_ASSERT(options.rule != OuterRule::streaming || fragment_of_.size() == static_cast<size_t>(buckets));
  after_ = state_;
  enter_phases();
  if (due_.empty()) state_ = after_;
}

/// Phases that begin after the steps so far.
void Engine::enter_phases() {
  const bool has_cooldown = options_->cooldown_sync_steps > 0;
  if (after_.phase == static_cast<int32_t>(Phase::warmup) && after_.steps >= options_->warmup_sync_steps) {
    after_.phase = static_cast<int32_t>(Phase::rounds);
    plan({.kind = Kind::anchor, .round = after_.round});
    after_.merged = after_.steps;
  }
  if (has_cooldown && after_.phase == static_cast<int32_t>(Phase::rounds) &&
      after_.steps >= options_->total_steps - options_->cooldown_sync_steps) {
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
    if (options_->rule == OuterRule::streaming)
      plan_streaming_step();
    else if (after_.step >= steps_of_exchange(*options_, after_.round))
      plan_boundary();
  }
  enter_phases();
  if (due_.empty()) state_ = after_;
  return Status::success();
}

bool Engine::next_step_has_actions() const {
  Engine next = *this;
  return next.on_inner_step().ok() && next.next().kind != Action::Kind::none;
}

Status Engine::flush() {
  OVERLACE_TRY(check_idle("flush"));
  after_ = state_;
  if (phase() == Phase::rounds) plan_flush();
  if (due_.empty()) state_ = after_;
  return Status::success();
}

void Engine::plan_boundary() {
  if (is_stale(options_->rule))
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
    plan({.kind = Kind::pass, .bucket = b, .round = t, .mode = PassMode::fused, .steps = after_.step});
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
  plan_send(t, kAllFragments);
  plan_take(t, kAllFragments, false);
  after_.step = 0;
  ++after_.round;
}

void Engine::plan_send(int64_t round, int fragment) {
  for (int b = 0; b < buckets_; ++b) {
    if (!is_in(b, fragment)) continue;
    plan({.kind = Kind::pass, .bucket = b, .round = round, .mode = PassMode::delta, .steps = after_.step});
    plan({.kind = Kind::launch, .bucket = b, .round = round});
  }
  if (shard_degree_ > 1) plan({.kind = Kind::reduce_sums, .round = round});
  plan({.kind = Kind::end, .round = round, .steps = after_.step});
  plan({.kind = Kind::launch, .bucket = Action::kHeader, .round = round});
}

void Engine::plan_take(int64_t round, int fragment, bool is_flush) {
  plan({.kind = Kind::wait, .bucket = Action::kHeader, .round = round});
  plan({.kind = Kind::begin, .round = round, .is_flush = is_flush});
  for (int b = 0; b < buckets_; ++b) {
    if (!is_in(b, fragment)) continue;
    plan({.kind = Kind::wait, .bucket = b, .round = round});
    plan({.kind = Kind::pass, .bucket = b, .round = round, .mode = PassMode::apply, .is_flush = is_flush});
  }
  plan({.kind = Kind::moved, .round = round, .is_flush = is_flush});
}

/// After an inner step: a fragment comes in where its delay is over, then the next one goes where its turn has come.
void Engine::plan_streaming_step() {
  if (after_.has_pending != 0 && after_.step >= options_->delay) plan_streaming_take();
  if (after_.step < steps_of_exchange(*options_, after_.round)) return;
  plan_send(after_.round, fragment_at(after_.round));
  after_.has_pending = 1;
  after_.pending_steps = after_.step;
  after_.step = 0;
  ++after_.round;
  if (options_->delay == 0) plan_streaming_take();
}

void Engine::plan_streaming_take() {
  plan_take(after_.round - 1, fragment_at(after_.round - 1), false);
  after_.has_pending = 0;
  after_.pending_steps = 0;
}

/// All fragments are exchanged as they are, so that groups are alike.
void Engine::plan_streaming_flush() {
  if (after_.has_pending != 0) plan_streaming_take();
  if (after_.merged == after_.steps) return;
  plan_send(after_.round, kAllFragments);
  plan_take(after_.round, kAllFragments, true);
  after_.step = 0;
  ++after_.round;
  after_.merged = after_.steps;
}

void Engine::plan_flush() {
  if (options_->rule == OuterRule::streaming) return plan_streaming_flush();
  // Unequal groups are at different steps of a round: all end it, those that have just ended one too.
  if (after_.step > 0 || options_->samples > 0) plan_boundary();
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
  const Co2Knobs of_round = knobs_of(*options_, begin.round);
  KnobsPod knobs;
  knobs.groups = groups_;
  knobs.boundary = begin.round;
  knobs.alpha = of_round.outer_lr;
  knobs.beta = of_round.outer_momentum;
  if (options_->momentum_over_lr) knobs.beta *= lr_ratio;  // what is kept is the momentum times the learning rate
  knobs.kappa = options_->kappa;
  knobs.keep = keep_of(*options_, groups_);
  knobs.phi = options_->phi;
  knobs.gap_value = options_->gap_value;
  knobs.lr_ratio = lr_ratio;
  knobs.gap = static_cast<int32_t>(options_->gap);
  knobs.clip = static_cast<int32_t>(options_->clip);
  knobs.is_flush = begin.is_flush ? 1 : 0;
  knobs.mix = options_->mix;
  knobs.is_weighted = options_->samples > 0 ? 1 : 0;
  const bool is_streaming = options_->rule == OuterRule::streaming;
  knobs.is_nesterov = is_streaming || options_->rule == OuterRule::diloco || options_->rule == OuterRule::eager ? 1 : 0;
  if (is_streaming && begin.is_flush) knobs.alpha = 1;  // the mean of the models as they are
  return knobs;
}

std::vector<int> Engine::open_tickets() const {
  std::vector<int> open;
  for (size_t i = 0; i < open_.size(); ++i)
    if (open_[i] != 0) open.push_back(static_cast<int>(i) - 1);
  return open;
}

Status Engine::load(const EngineState& state) {
  const bool is_streaming = options_->rule == OuterRule::streaming, may_pend = is_streaming || is_stale(options_->rule);
  const bool is_sound =
      state.steps >= 0 && state.round >= 0 && state.step >= 0 &&
      state.step < steps_of_exchange(*options_, state.round) && state.merged >= 0 && state.merged <= state.steps &&
      state.phase >= 0 && state.phase <= static_cast<int32_t>(Phase::cooldown) &&
      (state.has_pending == 0 || (state.has_pending == 1 && may_pend)) && state.round >= state.has_pending;
  if (!is_sound)
    return base::error(
        Errc::corrupt,
        "state of the outer rule: steps {}, round {}, step {}, pending {}, phase {} with tau {}; wanted: "
        "what a run with these options can be in",
        state.steps, state.round, state.step, state.has_pending, state.phase, knobs_of(*options_, state.round).tau);
  due_.clear();
  num_done_ = 0;
  state_ = after_ = state;
  std::fill(open_.begin(), open_.end(), state.has_pending != 0 ? 1 : 0);
  for (int b = 0; b < buckets_ && is_streaming && state.has_pending != 0; ++b)
    ticket(b) = is_in(b, fragment_at(state.round - 1)) ? 1 : 0;
  return Status::success();
}

}  // namespace overlace::train
