#include "src/train/co2/options.h"

#include <cmath>

namespace overlace {

Co2Options Co2Options::stable(int64_t tau) {
  Co2Options options;
  options.tau = tau;
  return options;
}

Co2Options Co2Options::paper(int64_t tau, int gpus) {
  Co2Options options;
  options.tau = tau;
  options.kappa = 0;
  options.gap = StalenessGap::adaptive;
  options.outer_momentum = gpus <= 16 ? 0 : gpus <= 32 ? 0.2 : gpus <= 64 ? 0.5 : 0.6;
  return options;
}

}  // namespace overlace

namespace overlace::train {
namespace {

using base::Result;
using base::Status;

double beta_of(const Co2Options& options) {
  switch (options.rule) {
    case OuterRule::local_sgd:
      return 0;
    case OuterRule::slow_mo:
      return 0.2;
    case OuterRule::diloco:
      return 0.9;
    case OuterRule::co2:
      return options.kappa > 0 ? 0.8 : 0;
  }
  return 0;
}

Status check_rule(const Co2Options& options) {
  if (options.rule == OuterRule::local_sgd && (options.outer_momentum != 0 || options.outer_lr != 1))
    return base::invalid_argument("local_sgd has no outer momentum and outer_lr 1, got {} and {}; wanted: slow_mo",
                                  options.outer_momentum, options.outer_lr);
  if (options.rule != OuterRule::co2 && options.gap != StalenessGap::none)
    return base::invalid_argument("gap is {} with rule {}, which has no stale increments; wanted: none",
                                  kStalenessGapNames[static_cast<int>(options.gap)],
                                  kOuterRuleNames[static_cast<int>(options.rule)]);
  return Status::success();
}

}  // namespace

Result<Co2Options> resolve(const Co2Options& given) {
  Co2Options options = given;
  if (options.outer_lr == Co2Options::kOfRule) options.outer_lr = options.rule == OuterRule::diloco ? 0.7 : 1;
  if (options.outer_momentum == Co2Options::kOfRule) options.outer_momentum = beta_of(options);
  if (options.phi == Co2Options::kOfRule) options.phi = options.kappa > 0 ? 3 : 1;
  if (options.rule != OuterRule::co2) {
    options.kappa = 0;
    options.clip = MomentumClip::none;
  }
  if (options.tau < 1) return base::invalid_argument("tau is {}, wanted: at least 1", options.tau);
  if (!(options.outer_momentum >= 0 && options.outer_momentum < 1))
    return base::invalid_argument("outer_momentum is {}, wanted: 0 or more and below 1", options.outer_momentum);
  if (!(options.outer_lr > 0) || !std::isfinite(options.outer_lr))
    return base::invalid_argument("outer_lr is {}, wanted: more than 0", options.outer_lr);
  if (!(options.phi > 0)) return base::invalid_argument("phi is {}, wanted: more than 0", options.phi);
  if (!(options.kappa >= 0 && options.kappa <= 1))
    return base::invalid_argument("kappa is {}, wanted: 0 to 1", options.kappa);
  if (!(options.gap_value >= 1) || !std::isfinite(options.gap_value))
    return base::invalid_argument("gap_value is {}, wanted: at least 1", options.gap_value);
  if (options.warmup_sync_steps < 0)
    return base::invalid_argument("warmup_sync_steps is {}, wanted: 0 or more", options.warmup_sync_steps);
  if (options.cooldown_sync_steps < 0)
    return base::invalid_argument("cooldown_sync_steps is {}, wanted: 0 or more", options.cooldown_sync_steps);
  if (options.total_steps < 0)
    return base::invalid_argument("total_steps is {}, wanted: 0 or more", options.total_steps);
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
  return base::format(
      "rule={} tau={} outer_lr={} outer_momentum={} kappa={} gap={} gap_value={} clip={} phi={} warmup={} cooldown={} "
      "total={} check_every={}",
      kOuterRuleNames[static_cast<int>(o.rule)], o.tau, o.outer_lr, o.outer_momentum, o.kappa,
      kStalenessGapNames[static_cast<int>(o.gap)], o.gap_value, kMomentumClipNames[static_cast<int>(o.clip)], o.phi,
      o.warmup_sync_steps, o.cooldown_sync_steps, o.total_steps, o.check_every);
}

std::string warning_of(const Co2Options& o) {
  if (o.rule != OuterRule::co2 || o.kappa > 0 || o.outer_momentum == 0 || o.gap != StalenessGap::none) return "";
  return base::format(
      "kappa 0 with outer_momentum {} and no gap is stable only while a round shrinks an error by less than a factor "
      "of {}; take kappa 1, or a gap",
      o.outer_momentum, o.outer_momentum);
}

bool is_stable(double kappa, double alpha, double beta, double lambda, double c) {
  const double b = beta - kappa * alpha / lambda, pull = alpha * c / lambda;
  return b + pull < 1 && 2 * (1 + b) + pull > 0;
}

}  // namespace overlace::train
