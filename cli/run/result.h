// What `overlace run` found out, as data, as a table and as JSON (schema overlace.run/1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "overlace/dtype_pod.h"
#include "overlace/schedule.h"
#include "src/base/json.h"

namespace overlace::cli {

struct RunPlan;

/// Times of one site in us; each a median over repetitions of the maximum over ranks, all from one run
/// (docs/reference/benchmarks.md says what each one is).
struct SiteTimes {
  double compute_us = 0, comm_us = 0;  // each side alone
  double limit_us = 0;                 // both side by side without dependence; at most serial_us
  double library_us = 0;
  double serial_us = 0;  // the better of the families `serial` and `library`
  double overlapped_us = 0;
  /// (serial - overlapped) / min(compute, comm), not clipped; nothing where the shorter side is below 2 % of serial.
  std::optional<double> hidden() const;
};

/// The site `moe`: router, experts with their exchange, shared expert. It takes no schedule, so of its times there are
/// serial_us, which is overlapped_us too, and nothing that is to be beside another.
struct ExpertsResult {
  int64_t count = 0, per_token = 0;
  double load = 0;  // copies of tokens that the busiest rank computes, over the mean; 0: not measured
};

struct SiteResult {
  std::string name;    // "qkv"
  spec::OpSpec op;     // as one rank sees it
  int64_t layers = 1;  // that have it
  std::string chosen;  // "hetero_fused_1d:4"
  std::string reason;
  SiteTimes times;
  std::optional<ExpertsResult> experts{};  // of site `moe` alone
};

/// Layers that do not fit and stream behind those before them; times of one pass over all layers.
struct WeightsResult {
  std::string source;  // "host" or "disk"
  int64_t device_bytes = 0, layer_bytes = 0, resident_layers = 0, streamed_layers = 0;
  double transfer_us = 0;  // to bring what streams, on a thread of its own
  double waited_us = 0;    // that the layers waited for it
  double disk_us = 0;      // of the transfer, for the disk
  /// (transfer - waited) / transfer; nothing where nothing streams.
  std::optional<double> hidden() const;
  /// What a pass would have to be faster at: "compute", "host memory", "disk".
  std::string binds() const;
};

/// Residual streams that do not fit and rest in host memory; times of one pass over all layers.
struct ActivationsResult {
  int64_t resting_bytes = 0;  // of a rank
  double transfer_us = 0;     // to bring them and to take them away
  double waited_us = 0;       // that the layers waited for it
  /// (transfer - waited) / transfer; nothing before anything was timed.
  std::optional<double> hidden() const;
};

struct RunResult {
  std::string version, backend, provider;  // provider: what multiplies matrices
  std::string link;                        // "200MB/s,20us" where it is emulated, else empty
  int ranks = 1, hosts = 1;
  std::string model, part = "all";                                       // part: what of a layer ran, "all" or "moe"
  int64_t layers = 0, tokens = 0, sequence_length = 0, micro_batch = 0;  // micro_batch 0: all tokens
  std::optional<WeightsResult> weights;                                  // with a limit of device memory
  std::optional<ActivationsResult> activations;                          // where they do not fit into it
  DType dtype = DType::fp32;
  uint64_t seed = 0;
  int repetitions = 0;
  std::vector<SiteResult> sites;
  double total_serial_us = 0, total_overlapped_us = 0;  // all layers, everything between the GEMMs included
  /// All layers with every site's transfers beside its GEMM without dependence; at most serial. Not the sum of the
  /// sites' limits: ranks run apart between sites, so that one's transfers meet another's computation.
  double stack_limit_us = 0;
  double error = 0, baseline_error = 0;  // largest error against the oracle / rms of the oracle
  double error_limit = 0;                // what `error` may be
  bool ok = false;
  std::string why_not;  // empty if ok

  bool is_emulated() const { return !link.empty(); }
  /// Serial time less what the sites could hide if each reached the limit that it has alone. No limit of all layers.
  double sites_limit_us() const;
  /// The hidden share of all sites together, weighted by what each could hide.
  std::optional<double> total_hidden() const;
};

/// The block of experts, which stands behind the sites that have schedules. Nothing of it is timed yet.
SiteResult experts_site(const RunPlan& plan);

/// Family and degree: "hetero_fused_1d:4", "library".
std::string schedule_name(const spec::Schedule& schedule);

base::Json to_json(const RunResult& result);
/// Aligned columns for a terminal of 100 characters or more, ending with a newline.
std::string to_table(const RunResult& result);

}  // namespace overlace::cli
