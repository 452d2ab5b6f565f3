// A machine: limits, rates and latencies against which schedules are checked, planned and simulated.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace overlace::spec {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// The origin of a number. `measured` means on this machine; `prior` means elsewhere: a similar machine, a data sheet
/// or an assumption.
enum class Source { prior, measured };

/// One number and its origin. The value 0 means that the machine lacks what the number describes.
struct Figure {
  double value = 0;
  Source source = Source::prior;
  bool operator==(const Figure&) const = default;
};

/// A number that depends on a size, given by points with growing x. Values between two points are linear on logarithmic
/// axes. Below the first point the value is that of the first point; above the last one the slope of the last two
/// points continues.
struct Curve {
  std::vector<std::array<double, 2>> points;
  Source source = Source::prior;
  bool empty() const { return points.empty(); }
  double at(double x) const;
  bool operator==(const Curve&) const = default;
};

/// A kind of work, as far as it slows other work of the same rank.
enum class Load { gemm_tensor, gemm_mem, gemv, gather, reduce, ce_out, ce_in, sm_copy, epi_store, epi_red, spin };
inline constexpr int kNumLoads = 11;

/// Work of kind `slowed` takes `factor` times as long while work of kind `by` runs at its full rate on the same rank.
struct Contention {
  Load slowed = Load::gemm_tensor, by = Load::ce_in;
  Figure factor = {1};
  bool operator==(const Contention&) const = default;
};

/// A GEMM tile of `rows` x `cols` elements. A wave of them, one on each SM, takes wave_us + k * k_ns / 1000 us for a
/// summed dimension of length k.
struct GemmTile {
  int64_t rows = 0, cols = 0;
  Figure wave_us, k_ns;
  bool operator==(const GemmTile&) const = default;
};

/// The median and the 90th percentile of |predicted / measured - 1|.
struct ModelError {
  double p50 = 0, p90 = 0;
  bool operator==(const ModelError&) const = default;
};

/// The whole description. Times are in us and rates in decimal GB/s per rank and direction, unless a name says
/// otherwise. Every number is for sustained work, after clocks have settled.
struct Machine {
  // These are limits.
  std::string name = "cpu2";
  bool is_gpu = false;
  int ranks = 2;                // GPUs, or CPU ranks
  int compute_capability = 90;  // 10 * major + minor of its GPUs: 90 is 9.0 (Hopper), which alone has fused kernels
  int hosts = 1;                // hosts of equal size, set for a team and not by a file
  int sms = 1;                  // SMs of a GPU, one for each CTA of a fused kernel; on CPU ranks cores of a rank
  bool has_copy_engine = true;  // on CPU ranks the rank's own agent or its wire thread
  bool has_net_engine = true;   // tasks of kind `collective` have a NetEngine
  int max_connections = 8;      // CUDA_DEVICE_MAX_CONNECTIONS; 1 forbids queue waits (S8)
  int64_t heap_bytes = int64_t{1} << 30;
  int64_t num_signal_ids = 4096;

  /// Name of a shipped machine whose figures apply to GEMMs with few rows (small M), which were not measured on this
  /// one. Empty: this machine's figures apply.
  std::string small_m_machine = {};

  // These texts say where the numbers below come from.
  std::string device = {}, driver = {}, cuda = {}, nccl = {}, topology = {}, date = {}, git = {};

  /// Costs of a GEMM. On n SMs it takes start_us + max(waves of tiles, operations / sustained rate, bytes / stream
  /// rate).
  struct Gemm {
    std::vector<GemmTile> tiles;  // tiles of the library; the fastest one for a shape counts
    Figure start_us;              // the first loads and the last stores, which no other tile hides
    Figure sustained_TFLOPs;      // rate that the power limit allows; 0: no such limit
    Figure stream_GBps;           // operands and result that no cache holds
    Figure sm_stream_GBps;        // stream rate of one SM
    // Products of fused-kernel families take unaligned_rows times as long (0: 1) where rows of the operands do not
    // begin with a sector of memory (32 bytes). A tile takes 1 + empty_rows times the square of its share of empty
    // rows.
    Figure unaligned_rows, empty_rows;
    Figure fp8_speedup = {1.8};  // how many times as fast operands of one byte are multiplied as the tiles' are
    bool operator==(const Gemm&) const = default;
  } gemm = {};

  /// Costs of copies by copy engines (on CPU ranks by the rank's agent).
  struct Copy {
    Curve pair_us;      // bytes -> time of one copy to one peer
    Curve local_us;     // bytes -> time of one copy inside a rank; empty: start_us and bytes / local_GBps
    Figure start_us;    // part of a copy's time that does not depend on its bytes
    Figure peer_GBps;   // rate to one peer
    Figure all_GBps;    // all ranks at once, to all peers
    Figure local_GBps;  // inside one rank; with local_us, the highest rate of any size
    Figure row_us;      // additional time per row of a 2-D copy
    Figure trigger_us;  // additional time if the copy waits on its lane for a word or another lane
    Figure post_us;     // time of the signal behind a copy, on its lane
    // Factor of a copy's time where those of several ranks do not keep in step: copies that all ranks start at once do,
    // and each rank gets from one peer at a time; those behind products, and several chunks of a shard, do not. 0: 1.
    Figure out_of_step;
    // GPUs: groups of chunks (families grouped_*) are estimated while both passes of the rows over the links take at
    // most so many times the GEMM. Beyond, copies of several groups slow each other down, which no model sees: at
    // gemm_ar M 16384 N 8192 K 2048 four H200 took 18 % longer with groups than without.
    Figure most_grouped = {1.1};
    bool operator==(const Copy&) const = default;
  } copy = {};

  /// The kernels of family `one_shot`, which gather few rows or send sums of few rows: time until weights stream and
  /// from the last of them on, and the rate at which one SM streams its own. Without rates `library` takes few rows.
  struct FewRows {
    Figure gather_start_us, gather_sm_GBps, sum_start_us, sum_sm_GBps;
    Figure measured_rows = {64};  // up to which it was measured beside the library: planners take it for no more
    bool operator==(const FewRows&) const = default;
  } few_rows = {};

  /// Rates of stores by SMs to a peer: number of CTAs -> GB/s.
  struct Transport {
    Curve store_GBps, tma_GBps;
    bool operator==(const Transport&) const = default;
  } transport = {};

  /// Rates of the links of one rank, and its memory.
  struct Link {
    Figure egress_GBps, ingress_GBps;
    bool operator==(const Link&) const = default;
  } link = {};
  struct Memory {
    Figure hbm_GBps;     // limit of all work of the rank together; calibrated: the highest rate seen, caches included
    Figure reduce_GBps;  // bytes read and written by a reduction
    Curve reduce_us;     // bytes -> time of a reduction, as caches hold small ones; empty: at reduce_GBps
    int64_t l2_bytes = 0;
    bool operator==(const Memory&) const = default;
  } memory = {};

  /// Times of library collectives: bytes -> time, with the bytes of the whole result (all_gather) or of one rank's
  /// input (the others).
  struct Collectives {
    Curve all_gather_us, reduce_scatter_us, all_reduce_us, all_to_all_us;
    bool operator==(const Collectives&) const = default;
  } collectives = {};

  /// Times between tasks, on the device and (names with host_) on the thread that queues them.
  struct Latency {
    Figure launch_us;   // from the end of a kernel to the begin of the next one on its stream
    Figure event_us;    // from the end of a task to the begin of one on another stream
    Figure flag_us;     // from a store at one rank to the polling reader at another
    Figure wait_us;     // a kernel that waits for words, without the wait itself
    Figure signal_us;   // a kernel that adds to words
    Figure barrier_us;  // a barrier of all ranks
    Figure call_us;     // once per call: forks, joins, the count of calls
    Figure host_kernel_us, host_copy_us, host_collective_us, host_call_us;
    Figure host_lanes_us;  // once per call that has work on other streams than the caller's
    bool operator==(const Latency&) const = default;
  } latency = {};

  /// Reads and writes of a disk of the host, past the page cache, which all of its ranks share. No schedule needs them.
  struct Storage {
    Curve read_GBps;    // bytes of a request -> rate of as many requests at a time as read most
    Figure read_kIOPS;  // requests of 4 KiB at random, in thousands a second
    Figure write_GBps;  // requests of 1 MiB in order
    Figure start_us;    // a request of 4 KiB alone
    bool operator==(const Storage&) const = default;
  } storage = {};
  /// Copies from pinned memory of the host to one GPU. No schedule needs them.
  struct HostLink {
    Curve to_device_us;  // bytes -> time of one copy behind others
    bool operator==(const HostLink&) const = default;
  } host = {};

  std::vector<Contention> contention = {};

  /// The spread of kernel times (sigma of a log-normal factor) and of the ranks' starts.
  struct Noise {
    Figure kernel_sigma, start_skew_us;
    bool operator==(const Noise&) const = default;
  } noise = {};

  /// Errors of predictions against measurements that no fit has seen, by operator, then by family: of the simulator in
  /// `errors`, of the planner's recurrence in `recurrence_errors`.
  using Errors = std::map<std::string, std::map<std::string, ModelError, std::less<>>, std::less<>>;
  Errors errors = {}, recurrence_errors = {};

  bool operator==(const Machine&) const = default;
  /// True if the machine has what a prediction needs: costs of GEMMs, copies and links.
  bool has_costs() const { return !gemm.tiles.empty() && copy.peer_GBps.value > 0 && link.egress_GBps.value > 0; }
};

/// The rates that are known of a machine without a file.
struct MachineRates {
  bool is_gpu = false;
  double link_bytes_per_s = 0;  // per direction and rank; 0: copies take the computing core itself (CPU, no link)
  double flops_per_s = 0;       // sustained, per rank, for the dtype that is multiplied; 0: unknown
  int hosts = 1;  // hosts of equal size; if several, the link leads from host to host and their ranks share it
};
/// Returns a machine called "rates", without costs (has_costs() is false). The planner's tier `rule` alone can use it.
Machine rated_machine(const MachineRates& rates);

/// Returns canonical JSON, without `hosts`. Every key carries its unit; figures are [value, "measured" | "prior"].
std::string to_json(const Machine& machine, int indent = -1);
/// Reads a machine. Keys "x-..." are skipped. Throws InvalidArgument with `source`, the place of the value, the value
/// and what is allowed: for an unknown key, a missing unit, a value <= 0, or a curve that falls where it must grow.
Machine machine_from_json(std::string_view text, std::string_view source = "machine");
/// Returns a shipped machine by its name ("h200x4"), or that of a file if the name ends in .json. Throws
/// InvalidArgument with the names of all shipped machines, or with what is wrong with the file.
Machine find_machine(std::string_view name);
/// Returns the names of all shipped machines.
std::vector<std::string> shipped_machines();
/// Returns a hash of the canonical JSON without date and git, and without `storage` and `host`, by which no schedule is
/// chosen, as 32 hex digits.
std::string digest(const Machine& machine);

#pragma GCC visibility pop

}  // namespace overlace::spec
