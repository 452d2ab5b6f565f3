// The runtime: a group of ranks that share a symmetric heap, on one backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "overlace/bootstrap.h"
#include "overlace/errc_pod.h"
#include "overlace/symmetric.h"
#include "overlace/team.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Where ranks live. `automatic` takes GPUs if there are any.
enum class Backend { automatic, cpu, cuda_peer };
/// How CPU ranks wait. `automatic` sleeps at once if more threads wait than there are cores, else it spins first.
enum class WaitPolicy { automatic, spin, futex };

/// Options of a wire thread of CPU ranks, which delivers puts late, split and out of order, so that missing order shows
/// as an error.
struct AdversaryOptions {
  bool enabled = false;
  uint64_t seed = 0;
  int max_delay_us = 50;    // each piece waits up to this long
  int max_pieces = 4;       // a put is split at random bytes into up to this many pieces
  int reorder_window = 8;   // pieces that may overtake each other
  bool late_read = true;    // the source is read at delivery: catches reuse without flush
  bool weak_signal = true;  // a put_signal waits only for its own put's pieces unless fenced
  int workers = 0;          // draw the items of a fused kernel side by side, in any order; 0: 1 to 3, by the seed
  /// Parses "seed=7,delay_us=50,pieces=4,window=8,late_read=1,weak_signal=1,workers=2", each of which may be left out.
  /// Throws InvalidArgument.
  static AdversaryOptions parse(std::string_view text);
};

/// An emulated link of CPU ranks, one per directed pair of ranks or one per directed pair of hosts, which their ranks
/// share. Every result obtained with it is labelled `emulated`.
struct LinkOptions {
  bool enabled = false;
  double bytes_per_s = 0;
  double latency_s = 0;
  bool between_hosts = false;
  /// Parses "2GB/s,20us" (B, KB, MB, GB per second, powers of ten; ns, us, ms, s), "2GB/s,20us,hosts" (between hosts)
  /// or "none". Throws InvalidArgument.
  static LinkOptions parse(std::string_view text);
  std::string to_string() const;
};

/// Extra checks of every operator call, for tests and for finding ranks whose calls differ.
struct CheckOptions {
  bool sync = false;   // wait for the call's work, then Runtime::check()
  bool calls = false;  // before each call all ranks compare its number and operation; a difference is Desync on all
  /// Parses a comma-separated list such as "sync,calls"; "" is none. Throws InvalidArgument.
  static CheckOptions parse(std::string_view text);
  std::string to_string() const;
};

/// Options of a runtime.
struct RuntimeOptions {
  Backend backend = Backend::automatic;
  int device = -1;              // CUDA ordinal; -1: the local rank
  size_t heap_bytes = 0;        // size of the symmetric heap at open; 0: 1 GiB on cuda_peer, 64 MiB on cpu
  size_t max_heap_bytes = 0;    // largest size of the heap; 0: 16 times heap_bytes if that is 0, else heap_bytes
  uint32_t num_signal_ids = 0;  // 0: 65536 on cuda_peer, 4096 on cpu; a sub-team gets a sixteenth of them
  int64_t timeout_ms = 0;       // 0: OVERLACE_TIMEOUT_S, 300 s by default
  WaitPolicy wait = WaitPolicy::automatic;
  AdversaryOptions adversary{};
  LinkOptions link{};
  std::string net_engine = "auto";  // nccl | mpi | none | auto
  int net_max_ctas = 0;             // CTAs of the world's network engine on GPUs; 0: its default
  CheckOptions checks{};
  /// Argument > variable > default: fields left at their default are taken from OVERLACE_* variables.
  static RuntimeOptions from_environment();
};

/// The capabilities of a backend towards one peer. The backend states them; nothing is assumed.
struct Caps {
  bool load_store = false;
  bool device_initiated = false;
  bool multi_writer_signals = false;
  bool remote_add = false;
  bool copy_engine = false;
  bool stream_wait = false;
  bool collectives = false;
  int compute_capability = 0;  // 10 * major + minor of the GPU of that rank: 90 is 9.0; 0 on CPU ranks
};

/// Counters of what this rank did since its runtime was opened.
struct Stats {
  uint64_t calls = 0;             // calls of operators
  uint64_t serialised_calls = 0;  // calls that waited for calls of other channels, for want of SMs
  uint64_t moved_calls = 0;       // calls that waited because their channel was used from another stream before
  uint64_t preparations = 0;      // schedules prepared: at first calls with a shape, and after evictions
  uint64_t evictions = 0;         // prepared schedules whose memory was freed to make room on the heap
  uint64_t heap_growths = 0;      // how often the symmetric heap grew
  uint64_t smaller_plans = 0;     // schedules taken for want of heap in place of the chosen ones
  uint64_t shared_blocks = 0;     // schedules that share memory for want of heap, with a barrier at each call
};

struct RuntimeState;

/// The runtime of one rank, a move-only owner. All methods but `abort` belong to the thread that opened it.
class Runtime {
 public:
  /// Opens the runtime. Collective. Throws what went wrong on this rank; the other ranks get the error within their
  /// deadline.
  static Runtime open(Bootstrap& bootstrap, const RuntimeOptions& options = RuntimeOptions::from_environment());
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;
  ~Runtime();  // closes without throwing; peers of a rank that left without close() see peer_lost (left)

  Team& world();
  SymmetricHeap& heap();
  Backend backend() const;
  int device() const;  // CUDA ordinal, -1 on cpu
  Caps caps(int peer) const;
  const RuntimeOptions& options() const;  // after defaults were filled in
  Stats stats() const;
  /// True if an emulated link is in force, or ranks of one machine claim to be on several hosts: whatever is measured
  /// must say so.
  bool is_emulated() const;

  /// Throws the first cause if this runtime was aborted by a rank, a dead peer or a timeout; InvalidArgument, once,
  /// what a kernel of this rank that has ended found wrong with its arguments.
  void check();
  /// Waits until all work that this rank issued is complete, then calls check().
  void synchronize();
  /// Throws Internal with the first signal of this rank that was not consumed (slot != ticket). For tests.
  void check_quiescent();
  /// Makes all waits of all ranks return `aborted`. Any thread may call it, also during close() but not during the
  /// destructor. It has no effect after the runtime was closed.
  void abort(Errc code, std::string_view why);
  /// Closes the runtime. Collective unless aborted; later calls have no effect. If a CUDA graph of any rank still holds
  /// calls of NCCL, all ranks leave the resources of NCCL to the process.
  void close();

  RuntimeState& state() { return *state_; }

 private:
  explicit Runtime(std::unique_ptr<RuntimeState> state);
  std::unique_ptr<RuntimeState> state_;
};

#pragma GCC visibility pop

}  // namespace overlace
