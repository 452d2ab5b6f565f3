#include "src/model/offload_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "src/model/layer_stream.h"
#include "src/model/sharding.h"

namespace overlace::model {
namespace {

using base::Result;

double real(int64_t value) { return static_cast<double>(value); }

/// With that micro-batch; out_of_memory where it does not fit.
Result<OffloadPlan> plan_with(const ModelConfig& config, Problem problem, int ranks, int64_t micro_batch,
                              int64_t host_bytes, const OffloadRates& rates) {
  problem.micro_batch = micro_batch;
  const auto shard = make_shard(config, problem, 0, ranks);
  if (!shard.ok()) return shard.status();
  const auto placement = place_layers(config, problem, *shard);
  if (!placement.ok()) return placement.status();
  OffloadPlan out;
  out.micro_batch = micro_batch;
  out.layer_bytes = placement->layer_bytes;
  out.activation_bytes = placement->activation_bytes;
  const int64_t streamed = placement->streamed();
  out.resident = problem.layers - streamed;
  out.resting_bytes = placement->resting_bytes;
  const int64_t host_room = std::max<int64_t>(host_bytes - out.resting_bytes * ranks, 0);
  out.host = std::min(streamed, host_room / (placement->layer_bytes * ranks));
  out.disk = streamed - out.host;
  const double bytes = real(out.layer_bytes);
  out.compute_s = real(problem.layers) * layer_flops(config, problem, ranks, problem.tokens) / rates.flops_per_s;
  const double weights_s = real(streamed) * bytes / rates.host_bytes_per_s;
  // Each way: the streams are one of the two halves of what rests.
  const double activations_s = real(problem.layers) * real(out.resting_bytes) / 2 / rates.host_bytes_per_s;
  // The link carries both ways at a time, but a slot for activations is empty only when those before have left it.
  out.host_s = activations_s + std::max(weights_s, activations_s);
  out.disk_s = real(out.disk) * bytes * ranks / rates.disk_bytes_per_s;
  const auto hiding = [&](double fixed_s, double compute_s) {
    return std::ceil(real(problem.tokens) * fixed_s / compute_s);
  };
  if (2 * activations_s > out.compute_s) {
    out.hiding_tokens.reset();
  } else {
    out.hiding_tokens = static_cast<int64_t>(
        std::max(hiding(weights_s, out.compute_s - activations_s), hiding(out.disk_s, out.compute_s)));
  }
  return out;
}

}  // namespace

double OffloadPlan::total_s() const { return std::max({compute_s, host_s, disk_s}); }

std::string OffloadPlan::binds() const {
  if (compute_s >= total_s()) return "compute";
  return disk_s >= total_s() ? "disk" : "host link";
}

double layer_flops(const ModelConfig& config, const Problem& problem, int ranks, int64_t tokens) {
  double elements = 0;
  for (const Weight weight : {Weight::q, Weight::k, Weight::v, Weight::o, Weight::gate, Weight::up, Weight::down}) {
    if (!has_weight(config, weight)) continue;
    const WeightBox shape = weight_shape(config, weight);
    elements += real(shape.rows) * real(shape.cols);
  }
  const double attention = 2 * real(config.heads * config.head_dim) * real(problem.sequence_length) / 2;
  return 2 * real(tokens) * (elements + attention) / ranks;
}

Result<OffloadPlan> plan_offload(const ModelConfig& config, const Problem& problem, int ranks, int64_t host_bytes,
                                 const OffloadRates& rates) {
  for (const double rate : {rates.flops_per_s, rates.host_bytes_per_s, rates.disk_bytes_per_s})
    if (!(rate > 0) || !std::isfinite(rate)) return base::invalid_argument("a rate is {}, wanted more than 0", rate);
  if (host_bytes < 0) return base::invalid_argument("host memory is {}, wanted 0 or more", host_bytes);
  std::vector<OffloadPlan> found;
  std::optional<base::Status> first_failure;
  for (int64_t batch = problem.sequence_length;; batch = std::min(2 * batch, problem.tokens)) {
    auto plan = plan_with(config, problem, ranks, batch, host_bytes, rates);
    if (plan.ok()) {
      found.push_back(std::move(*plan));
    } else if (!first_failure) {
      first_failure = plan.status();
    }
    if (batch >= problem.tokens) break;
  }
  if (found.empty()) return *first_failure;
  // Activations want host memory, for which the disk is no substitute as it is for layers.
  const auto fits_host = [&](const OffloadPlan& p) { return p.resting_bytes * ranks <= host_bytes; };
  if (std::any_of(found.begin(), found.end(), fits_host))
    std::erase_if(found, [&](const OffloadPlan& p) { return !fits_host(p); });
  const auto faster = [](const OffloadPlan& a, const OffloadPlan& b) { return a.total_s() < b.total_s(); };
  const double best_s = std::min_element(found.begin(), found.end(), faster)->total_s();
  constexpr double kAsGood = 1.01;
  const auto is_as_good = [&](const OffloadPlan& p) { return p.total_s() <= kAsGood * best_s; };
  const auto stays = [&](const OffloadPlan& p) { return is_as_good(p) && p.resting_bytes == 0; };
  const auto beside = std::find_if(found.rbegin(), found.rend(), stays);
  return beside != found.rend() ? *beside : *std::find_if(found.rbegin(), found.rend(), is_as_good);
}

}  // namespace overlace::model
