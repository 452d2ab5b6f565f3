#include "src/train/co2/options.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "src/runtime/hash.h"

namespace overlace {

Co2Options Co2Options::stable(int64_t tau) {
  Co2Options options;
  options.tau = tau;
  return options;
}

Co2Options Co2Options::paper(int64_t tau, int gpus) {
  Co2Options options;
  options.tau = tau;
  options.kappa = options.keep = 0;
  options.gap = StalenessGap::adaptive;
  options.outer_momentum = gpus <= 16 ? 0 : gpus <= 32 ? 0.2 : gpus <= 64 ? 0.5 : 0.6;
  return options;
}

}  // namespace overlace

namespace overlace::train {
namespace {

using base::Result;
using base::Status;

constexpr double kKeep = 0.8;  // docs/lab/co2-loss.md

double beta_of(const Co2Options& options) {
  switch (options.rule) {
    case OuterRule::local_sgd:
      return 0;
    case OuterRule::slow_mo:
      return 0.2;
    case OuterRule::diloco:
    case OuterRule::streaming:
      return 0.9;
    case OuterRule::co2:
      return options.kappa > 0 ? 0.8 : 0;
    case OuterRule::eager:
      return 0;
  }
  return 0;
}

/// With the rule's own values where none were given.
Co2Knobs resolve(const Co2Knobs& given, const Co2Options& options) {
  Co2Knobs knobs = given;
  if (knobs.outer_lr == Co2Options::kOfRule)
    knobs.outer_lr = options.rule == OuterRule::diloco || options.rule == OuterRule::streaming ? 0.7 : 1;
  if (knobs.outer_momentum == Co2Options::kOfRule) knobs.outer_momentum = beta_of(options);
  return knobs;
}

/// `where`: which rounds they are of, as " in round 3".
Status check_knobs(const Co2Knobs& knobs, const std::string& where, const Co2Options& options) {
  if (knobs.tau < 1) return base::invalid_argument("tau is {}{}, wanted: at least 1", knobs.tau, where);
  if (!(knobs.outer_momentum >= 0 && knobs.outer_momentum < 1))
    return base::invalid_argument("outer_momentum is {}{}, wanted: 0 or more and below 1", knobs.outer_momentum, where);
  if (!(knobs.outer_lr > 0) || !std::isfinite(knobs.outer_lr))
    return base::invalid_argument("outer_lr is {}{}, wanted: more than 0", knobs.outer_lr, where);
  if (options.rule == OuterRule::local_sgd && (knobs.outer_momentum != 0 || knobs.outer_lr != 1))
    return base::invalid_argument("local_sgd has no outer momentum and outer_lr 1, got {} and {}{}; wanted: slow_mo",
                                  knobs.outer_momentum, knobs.outer_lr, where);
  if (knobs.tau != options.tau && (options.rule == OuterRule::streaming || options.samples > 0))
    return base::invalid_argument("tau is {}{} with {}, wanted: {} in all rounds", knobs.tau, where,
                                  options.samples > 0 ? "samples" : "rule streaming", options.tau);
  return Status::success();
}

Status check_rule(const Co2Options& options) {
  const std::string_view rule = kOuterRuleNames[static_cast<int>(options.rule)];
  if (options.rule != OuterRule::co2 && options.gap != StalenessGap::none)
    return base::invalid_argument("gap is {} with rule {}, wanted: none, or rule co2",
                                  kStalenessGapNames[static_cast<int>(options.gap)], rule);
  const bool is_of_equals = options.rule == OuterRule::eager || options.rule == OuterRule::streaming;
  if (options.samples > 0 && is_of_equals)
    return base::invalid_argument("samples is {} with rule {}, wanted: 0, or co2, local_sgd, slow_mo or diloco",
                                  options.samples, rule);
  if (options.samples > 0 && options.warmup_sync_steps + options.cooldown_sync_steps > 0)
    return base::invalid_argument(
        "samples is {} with warmup_sync_steps {} and cooldown_sync_steps {}, wanted: none, as steps of unequal groups "
        "do not meet",
        options.samples, options.warmup_sync_steps, options.cooldown_sync_steps);
  if (options.samples > 0 && options.gap == StalenessGap::adaptive)
    return base::invalid_argument(
        "samples is {} with gap adaptive, which follows learning rates that unequal groups "
        "do not have alike; wanted: none or constant",
        options.samples);
  if (options.momentum_over_lr && options.rule != OuterRule::slow_mo)
    return base::invalid_argument("momentum_over_lr is set with rule {}, wanted: not, or slow_mo", rule);
  if (options.momentum_over_lr && options.samples > 0)
    return base::invalid_argument(
        "samples is {} with momentum_over_lr, which follows learning rates that unequal groups do not have alike; "
        "wanted: one of them",
        options.samples);
  if (!is_stale(options.rule) && options.keep != 0)
    return base::invalid_argument("keep is {} with rule {}, which has no stale increments; wanted: none", options.keep,
                                  rule);
  return Status::success();
}

Status resolve_fragments(Co2Options& options) {
  if (options.rule != OuterRule::streaming) {
    options.fragments = 1;
    options.delay = 0;
    options.mix = 0;
    return Status::success();
  }
  if (options.fragments == 0)
    for (options.fragments = 4; options.tau % options.fragments != 0;) --options.fragments;
  if (options.fragments < 1 || options.tau % options.fragments != 0)
    return base::invalid_argument("fragments is {} with tau {}, wanted: a divisor of it", options.fragments,
                                  options.tau);
  if (options.delay < 0 || options.delay > options.tau / options.fragments)
    return base::invalid_argument("delay is {} with tau {} and {} fragments, wanted: 0 to {}, until the next is sent",
                                  options.delay, options.tau, options.fragments, options.tau / options.fragments);
  if (!(options.mix >= 0 && options.mix < 1))
    return base::invalid_argument("mix is {}, wanted: 0 or more and below 1", options.mix);
  return Status::success();
}

}  // namespace

Co2Knobs knobs_of(const Co2Options& options, int64_t round) {
  const auto i = static_cast<size_t>(round / options.fragments);  // 1 but for streaming
  if (i < options.schedule.size()) return options.schedule[i];
  return {options.tau, options.outer_lr, options.outer_momentum};
}

int64_t steps_of_exchange(const Co2Options& options, int64_t round) {
  return knobs_of(options, round).tau / options.fragments;
}

bool has_momentum(const Co2Options& options) {
  return options.outer_momentum > 0 || std::any_of(options.schedule.begin(), options.schedule.end(),
                                                   [](const Co2Knobs& knobs) { return knobs.outer_momentum > 0; });
}

bool is_stale(OuterRule rule) { return rule == OuterRule::co2 || rule == OuterRule::eager; }

double keep_of(const Co2Options& options, int64_t groups) {
  return options.keep == Co2Options::kOfRule ? 1 / static_cast<double>(groups) : options.keep;
}

Result<Co2Options> resolve(const Co2Options& given) {
  Co2Options options = given;
  const Co2Knobs last = resolve({options.tau, options.outer_lr, options.outer_momentum}, options);
  options.outer_lr = last.outer_lr;
  options.outer_momentum = last.outer_momentum;
  for (Co2Knobs& knobs : options.schedule) knobs = resolve(knobs, options);
  // Rule eager keeps a share of one over the groups: keep_of().
  if (options.keep == Co2Options::kOfRule && options.rule != OuterRule::eager)
    options.keep = options.rule == OuterRule::co2 && options.kappa == 0 ? kKeep : 0;
  if (options.phi == Co2Options::kOfRule) options.phi = options.kappa == 0 && options.keep == 0 ? 1 : 3;
  if (options.rule != OuterRule::co2) {
    options.kappa = 0;
    options.clip = MomentumClip::none;
  }
  for (size_t i = 0; i < options.schedule.size(); ++i)
    OVERLACE_TRY(check_knobs(options.schedule[i], base::format(" in round {}", i), options));
  OVERLACE_TRY(check_knobs(last, "", options));
  OVERLACE_TRY(resolve_fragments(options));
  if (!(options.phi > 0)) return base::invalid_argument("phi is {}, wanted: more than 0", options.phi);
  if (!(options.kappa >= 0 && options.kappa <= 1))
    return base::invalid_argument("kappa is {}, wanted: 0 to 1", options.kappa);
  if (options.keep != Co2Options::kOfRule && !(options.keep >= 0 && options.keep <= 1))
    return base::invalid_argument("keep is {}, wanted: 0 to 1", options.keep);
  if (!(options.gap_value >= 1) || !std::isfinite(options.gap_value))
    return base::invalid_argument("gap_value is {}, wanted: at least 1", options.gap_value);
  if (options.warmup_sync_steps < 0)
    return base::invalid_argument("warmup_sync_steps is {}, wanted: 0 or more", options.warmup_sync_steps);
  if (options.cooldown_sync_steps < 0)
    return base::invalid_argument("cooldown_sync_steps is {}, wanted: 0 or more", options.cooldown_sync_steps);
  if (options.total_steps < 0)
    return base::invalid_argument("total_steps is {}, wanted: 0 or more", options.total_steps);
  if (!(options.samples >= 0 && options.samples <= 1e15))
    return base::invalid_argument("samples is {}, wanted: 0 to 1e15", options.samples);
  if (options.check_every < 0)
    return base::invalid_argument("check_every is {}, wanted: 0 or more", options.check_every);
  if (options.cooldown_sync_steps > 0 && options.total_steps < options.warmup_sync_steps + options.cooldown_sync_steps)
    return base::invalid_argument(
        "total_steps is {} with cooldown_sync_steps {} and warmup_sync_steps {}; wanted: at least their sum",
        options.total_steps, options.cooldown_sync_steps, options.warmup_sync_steps);
  if (Status status = check_rule(options); !status.ok()) return status;
  return options;
}

std::string to_text(const Co2Options& o) {
  uint64_t schedule = runtime::kHashSeed;
  for (const Co2Knobs& knobs : o.schedule)
    for (const uint64_t word : {o.samples > 0 ? 0 : static_cast<uint64_t>(knobs.tau),
                                std::bit_cast<uint64_t>(knobs.outer_lr), std::bit_cast<uint64_t>(knobs.outer_momentum)})
      schedule = runtime::hash_word(word, schedule);
  return base::format(
      "rule={} tau={} outer_lr={} outer_momentum={} kappa={} keep={} gap={} gap_value={} clip={} phi={} warmup={} "
      "cooldown={} total={} check_every={} fragments={} delay={} mix={} momentum_over_lr={} schedule of {} rounds={}",
      kOuterRuleNames[static_cast<int>(o.rule)], o.samples > 0 ? "own" : std::to_string(o.tau), o.outer_lr,
      o.outer_momentum, o.kappa, o.keep, kStalenessGapNames[static_cast<int>(o.gap)], o.gap_value,
      kMomentumClipNames[static_cast<int>(o.clip)], o.phi, o.warmup_sync_steps, o.cooldown_sync_steps, o.total_steps,
      o.check_every, o.fragments, o.delay, o.mix, o.momentum_over_lr, o.schedule.size(), schedule);
}

std::string warning_of(const Co2Options& o) {
  if (!is_stale(o.rule) || o.kappa > 0 || o.gap != StalenessGap::none || !has_momentum(o)) return "";
  Co2Knobs most{o.tau, o.outer_lr, o.outer_momentum};
  for (const Co2Knobs& knobs : o.schedule)
    if (knobs.outer_momentum > most.outer_momentum) most = knobs;
  // The least c with which it is not stable. Between two groups keep is the most that it is between more of them.
  constexpr int kSteps = 100;
  int c = 1;
  while (c < kSteps &&
         is_stable(0, most.outer_lr, most.outer_momentum, 1, static_cast<double>(c) / kSteps, keep_of(o, 2)))
    ++c;
  if (c == kSteps) return "";
  return base::format(
      "kappa 0 with outer_momentum {} and no gap is stable only while a round shrinks an error by less than a factor "
      "of {}; take kappa 1, a gap, or less momentum",
      most.outer_momentum, 1 - static_cast<double>(c) / kSteps);
}

bool is_stable(double kappa, double alpha, double beta, double lambda, double c, double keep) {
  const double b = beta - kappa * alpha / lambda, pull = alpha * c / lambda, kept = alpha * keep * c;
  if (keep == 0) return b + pull < 1 && 2 * (1 + b) + pull > 0;
  // (z - 1)(z + kept)(z - b) + pull z, by Jury's criterion; groups differ from their mean by -kept of the round before.
  const double p2 = kept - 1 - b, p1 = b - kept - b * kept + pull, p0 = b * kept;
  return kept < 1 && pull > 0 && 1 - p2 + p1 - p0 > 0 && std::abs(p0) < 1 && 1 - p0 * p0 > std::abs(p0 * p2 - p1);
}

}  // namespace overlace::train
