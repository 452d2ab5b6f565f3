// A group of ranks that share a symmetric heap, on one backend.
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

enum class Backend { automatic, cpu, cuda_peer };
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
  /// "seed=7,delay_us=50,pieces=4,window=8,late_read=1,weak_signal=1"; each key may be left out.
  static AdversaryOptions parse(std::string_view text);
};

/// An emulated link of CPU ranks, one per directed pair of ranks or one per directed pair of hosts, which their ranks
/// share. Every result obtained with it is labelled `emulated`.
struct LinkOptions {
  bool enabled = false;
  double bytes_per_s = 0;
  double latency_s = 0;
  bool between_hosts = false;
  /// "2GB/s,20us" (B, KB, MB, GB per second, powers of ten; ns, us, ms, s), "2GB/s,20us,hosts" (between hosts), "none".
  static LinkOptions parse(std::string_view text);
  std::string to_string() const;
};

/// Extra checks of every operator call, for tests and for finding ranks whose calls differ.
struct CheckOptions {
  bool sync = false;   // wait for the call's work, then Runtime::check()
  bool calls = false;  // before each call all ranks compare its number and operation, or Desync on all of them
  /// "sync,calls"; a comma-separated list, "" for none.
  static CheckOptions parse(std::string_view text);
  std::string to_string() const;
};

struct RuntimeOptions {
  Backend backend = Backend::automatic;
  int device = -1;              // CUDA ordinal; -1: the local rank
  size_t heap_bytes = 0;        // of the symmetric heap at open; 0: 1 GiB on cuda_peer, 64 MiB on cpu
  size_t max_heap_bytes = 0;    // largest size of the heap; 0: 16 times heap_bytes if that is 0, else heap_bytes
  uint32_t num_signal_ids = 0;  // 0: 65536 on cuda_peer, 4096 on cpu; a sub-team gets a sixteenth of them
  int64_t timeout_ms = 0;       // 0: OVERLACE_TIMEOUT_S, 300 s by default
  WaitPolicy wait = WaitPolicy::automatic;
  AdversaryOptions adversary{};
  LinkOptions link{};
  std::string net_engine = "auto";  // nccl | mpi | none | auto
  CheckOptions checks{};
  /// Argument > variable > default: fields left at their default are taken from OVERLACE_* variables.
  static RuntimeOptions from_environment();
};

/// What a backend can do towards one peer. The backend states it; nothing is assumed.
struct Caps {
  bool load_store = false;
  bool device_initiated = false;
  bool multi_writer_signals = false;
  bool remote_add = false;
  bool copy_engine = false;
  bool stream_wait = false;
  bool collectives = false;
};

/// What this rank did since it was opened.
struct Stats {
  uint64_t calls = 0;             // of operators
  uint64_t serialised_calls = 0;  // that waited for calls of other channels, for want of SMs
  uint64_t moved_calls = 0;       // that waited because their channel was used from another stream before
  uint64_t preparations = 0;      // of schedules: first calls with a shape, and calls whose preparation was given up
  uint64_t evictions = 0;         // memory of prepared schedules that was given up to make room on the heap
  uint64_t heap_growths = 0;      // of the symmetric heap
  uint64_t smaller_plans = 0;     // taken in place of a chosen schedule that the heap had no room for (C API, PyTorch)
  uint64_t shared_blocks = 0;     // schedules that use memory of others, for want of heap: a barrier each call
};

struct RuntimeState;

/// Move-only owner. All methods but `abort` belong to the thread that opened it.
class Runtime {
 public:
  /// Collective. Throws what went wrong on this rank; the others learn it within their deadline.
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

  /// Throws the first cause if this runtime was aborted by a rank, a dead peer or a timeout.
  void check();
  /// Waits until everything issued by this rank has completed, then check().
  void synchronize();
  /// Throws Internal with the first signal of this rank that was not consumed (slot != ticket). For tests.
  void check_quiescent();
  /// Any thread, beside close() too (not beside the destructor). All waits of all ranks return `aborted`; nothing
  /// happens once the runtime is closed.
  void abort(Errc code, std::string_view why);
  /// Collective unless aborted. Idempotent. Where a CUDA graph of any rank still holds NCCL's calls, all ranks leave
  /// what NCCL has to the process.
  void close();

  RuntimeState& state() { return *state_; }

 private:
  explicit Runtime(std::unique_ptr<RuntimeState> state);
  std::unique_ptr<RuntimeState> state_;
};

#pragma GCC visibility pop

}  // namespace overlace
