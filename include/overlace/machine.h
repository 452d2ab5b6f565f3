// What a schedule is checked against, planned for and simulated on: limits, rates and latencies of one machine.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace overlace::spec {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Where a number comes from: this machine, or elsewhere (a similar machine, a data sheet, an assumption).
enum class Source { prior, measured };

/// One number. 0 means that the machine has none of it.
struct Figure {
  double value = 0;
  Source source = Source::prior;
  bool operator==(const Figure&) const = default;
};

/// A number that depends on a size: points with growing x, linear between them on logarithmic axes. Below the first
/// point it is that point's value, above the last one the slope of the last two goes on.
struct Curve {
  std::vector<std::array<double, 2>> points;
  Source source = Source::prior;
  bool empty() const { return points.empty(); }
  double at(double x) const;
  bool operator==(const Curve&) const = default;
};

/// What keeps a part of a rank busy, as far as others feel it.
enum class Load { gemm_tensor, gemm_mem, gemv, gather, reduce, ce_out, ce_in, sm_copy, epi_store, epi_red, spin };
inline constexpr int kNumLoads = 11;

/// `slowed` takes `factor` times as long while `by` runs at its full rate on the same rank.
struct Contention {
  Load slowed = Load::gemm_tensor, by = Load::ce_in;
  Figure factor = {1};
  bool operator==(const Contention&) const = default;
};

/// A wave of `rows` x `cols` tiles, one on each SM, takes wave_us + k * k_ns / 1000.
struct GemmTile {
  int64_t rows = 0, cols = 0;
  Figure wave_us, k_ns;
  bool operator==(const GemmTile&) const = default;
};

/// Median and 90th percentile of |predicted / measured - 1|.
struct ModelError {
  double p50 = 0, p90 = 0;
  bool operator==(const ModelError&) const = default;
};

/// Times in us, rates in decimal GB/s per rank and direction, unless a name says otherwise. Every number is for the
/// state in which the machine works for long (clocks settled).
struct Machine {
  // Limits.
  std::string name = "cpu2";
  bool is_gpu = false;
  int ranks = 2;                // GPUs, or CPU ranks
  int hosts = 1;                // of equal size, of the team rather than of a file; several: copies go between hosts
  int sms = 1;                  // SM lanes' budget; CPU: cores of a rank
  bool has_copy_engine = true;  // CPU: the rank's own agent or its wire thread
  bool has_net_engine = true;   // a NetEngine for `collective`
  int max_connections = 8;      // CUDA_DEVICE_MAX_CONNECTIONS; 1 forbids queue waits (S8)
  int64_t heap_bytes = int64_t{1} << 30;
  int64_t num_signal_ids = 4096;

  /// A shipped machine whose figures are those for few rows (small M), where this one's were not measured; "": these.
  std::string small_m_machine = {};

  // Where the numbers below come from.
  std::string device = {}, driver = {}, cuda = {}, nccl = {}, topology = {}, date = {}, git = {};

  /// A GEMM on n SMs takes start_us + max(waves of tiles, operations / sustained rate, bytes / stream rate).
  struct Gemm {
    std::vector<GemmTile> tiles;  // the library's: the one that is fastest for a shape is taken
    Figure start_us;              // the first loads and the last stores, which no other tile hides
    Figure sustained_TFLOPs;      // what power allows; 0: no such limit
    Figure stream_GBps;           // operands and result, through memory: what no cache holds
    Figure sm_stream_GBps;        // the same, of one SM
    bool operator==(const Gemm&) const = default;
  } gemm = {};

  /// Copies by copy engines (CPU ranks: by the rank's agent).
  struct Copy {
    Curve pair_us;      // bytes -> time of one copy to one peer
    Curve local_us;     // the same inside one rank; empty: its start and its bytes at local_GBps
    Figure start_us;    // of a copy, besides its bytes
    Figure peer_GBps;   // to one peer
    Figure all_GBps;    // all ranks at once, to all peers
    Figure local_GBps;  // inside one rank; where there is a curve, the most that any size reaches
    Figure row_us;      // 2-D: more per row
    Figure trigger_us;  // more where the copy waits on its lane for a word or another lane
    Figure post_us;     // the signal behind a copy, on its lane
    bool operator==(const Copy&) const = default;
  } copy = {};

  /// Stores of SMs to a peer: CTAs -> GB/s.
  struct Transport {
    Curve store_GBps, tma_GBps;
    bool operator==(const Transport&) const = default;
  } transport = {};

  /// Links of one rank to the others, and its memory.
  struct Link {
    Figure egress_GBps, ingress_GBps;
    bool operator==(const Link&) const = default;
  } link = {};
  struct Memory {
    Figure hbm_GBps;     // of all that runs on the rank together; calibrated: what anything reached, caches among it
    Figure reduce_GBps;  // bytes read and written by a reduction
    Curve reduce_us;     // the same by how many, as caches hold few; empty: at reduce_GBps
    int64_t l2_bytes = 0;
    bool operator==(const Memory&) const = default;
  } memory = {};

  /// Library collectives: bytes of the whole result (all_gather) or of one rank's input (the others) -> time.
  struct Collectives {
    Curve all_gather_us, reduce_scatter_us, all_reduce_us, all_to_all_us;
    bool operator==(const Collectives&) const = default;
  } collectives = {};

  /// What comes between tasks, on the device and (host_...) on the thread that queues them.
  struct Latency {
    Figure launch_us;   // from the end of a kernel to the begin of the next on its stream
    Figure event_us;    // from the end of a task to the begin of one on another stream
    Figure flag_us;     // from a store at one rank to the reader at another that polls
    Figure wait_us;     // a kernel on the stream that waits for words, besides the wait
    Figure signal_us;   // a kernel on the stream that adds to words
    Figure barrier_us;  // of all ranks
    Figure call_us;     // once a call: forks, joins, the count of calls
    Figure host_kernel_us, host_copy_us, host_collective_us, host_call_us;
    bool operator==(const Latency&) const = default;
  } latency = {};

  std::vector<Contention> contention = {};

  /// Spread of kernel times (sigma of a log-normal factor) and of the ranks' starts.
  struct Noise {
    Figure kernel_sigma, start_skew_us;
    bool operator==(const Noise&) const = default;
  } noise = {};

  /// By operator, then family: of the simulator's predictions, and of the planner's recurrence, against measurements
  /// that no fit has seen.
  using Errors = std::map<std::string, std::map<std::string, ModelError, std::less<>>, std::less<>>;
  Errors errors = {}, recurrence_errors = {};

  bool operator==(const Machine&) const = default;
  /// True if the machine has what a prediction needs: costs of GEMMs, copies and links.
  bool has_costs() const { return !gemm.tiles.empty() && copy.peer_GBps.value > 0 && link.egress_GBps.value > 0; }
};

/// Rates of a machine that has no file.
struct MachineRates {
  bool is_gpu = false;
  double link_bytes_per_s = 0;  // per direction and rank; 0: copies cost the computing core itself (CPU, no link)
  double flops_per_s = 0;       // sustained, per rank, of the type that is multiplied; 0: unknown
  int hosts = 1;  // of equal size; several: the link is that from one host to another, and their ranks share it
};
/// A machine without costs (has_costs() is false), called "rates": the planner's rule is all that knows it.
Machine rated_machine(const MachineRates& rates);

/// Canonical JSON, without `hosts`: every key carries its unit; figures are [value, "measured" | "prior"].
std::string to_json(const Machine& machine, int indent = -1);
/// Throws InvalidArgument with `source`, the place of the value, what it is and what is allowed: unknown key, missing
/// unit, value <= 0, a curve that falls where it must grow. Keys "x-..." are passed over.
Machine machine_from_json(std::string_view text, std::string_view source = "machine");
/// Returns a shipped machine by its name ("h200x4"), or that of a file if the name ends in .json. Throws
/// InvalidArgument with the names that there are, or what is wrong with the file.
Machine find_machine(std::string_view name);
std::vector<std::string> shipped_machines();
/// Returns a hash of the canonical JSON without date and git, as 32 hex digits.
std::string digest(const Machine& machine);

#pragma GCC visibility pop

}  // namespace overlace::spec
