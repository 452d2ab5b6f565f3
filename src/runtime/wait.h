// The only spin loop of CPU code. A waiter spins about 20 us, then sleeps on a doorbell of its rank that every signal,
// word and notify() rings; with more waiters than cores it sleeps at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "overlace/errc_pod.h"
#include "overlace/handle_pod.h"
#include "src/runtime/backend/cpu/futex.h"
#include "src/runtime/interrupt.h"

namespace overlace::runtime {

/// Looks before a wait is taken seriously, about a microsecond: where both sides run, nothing else is touched.
inline constexpr int kGlances = 20;

/// Who waits for what: goes into the TimeoutRecord.
struct WaitSite {
  WaitKind kind = WaitKind::engine;
  uint32_t peer = 0;               // rank of the team
  uint32_t id = 0;                 // signal id, or the operator's wait site
  uint32_t block = 0, call = 0;    // lane and number of the call; 0: not said
  uint64_t expected = 0;           // shown
  const uint64_t* word = nullptr;  // watched for "seen" and "last change"; may be null
  uint64_t extra = 0;
  bool may_lag = false;  // it may still be on its way when the peer has sent all that it will: not a put, nor a signal
};

/// State of one wait that was not satisfied at once.
class Waiter {
 public:
  Waiter(const ChannelPod& channel, const WaitSite& site);
  ~Waiter();
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  /// Before each look at the condition: what changes after it wakes pause().
  void arm();
  /// ok: look again; aborted or forked: leave; timeout, also if what is waited for cannot come any more: look a last
  /// time, then time_out().
  Errc pause();
  /// Writes the record if this is the first wait that failed, and aborts all ranks.
  Errc time_out();

 private:
  void start_sleeping();
  bool comes_no_more() const;

  const ChannelPod& channel_;
  const WaitSite& site_;
  const int64_t start_ns_;
  int64_t last_change_ns_;
  uint64_t last_seen_ = 0;
  uint32_t armed_ = 0, polls_ = 0;
  bool may_spin_ = true, is_sleeping_ = false;
  InterruptClock interrupts_;
};

/// Somebody watches what this rank does (tests, the explorer), and may wait in its place.
bool is_observed(const ChannelPod& channel);
std::optional<Errc> observed_wait(const ChannelPod& channel, const WaitSite& site, const std::function<bool()>& ready);
/// Which of the n > 1 things that it may do this rank does next, if somebody decides that.
std::optional<size_t> observed_pick(const ChannelPod& channel, size_t n);

/// Waits until `ready()` (any callable without arguments; it makes the acquire loads). Each thread of a rank may wait.
/// Several conditions at once are fine: give WaitKind::engine, which every arrival wakes.
template <class Ready>
[[nodiscard]] Errc poll_until(const ChannelPod& channel, const WaitSite& site, Ready ready) {
  for (int i = 0; i < kGlances; ++i) {
    if (ready()) return Errc::ok;
    cpu_relax();
  }
  if (is_observed(channel))
    if (const std::optional<Errc> code = observed_wait(channel, site, ready)) return *code;
  Waiter waiter(channel, site);
  while (true) {
    waiter.arm();
    if (ready()) return Errc::ok;
    const Errc code = waiter.pause();
    if (code == Errc::ok) continue;
    if (code != Errc::timeout) return code;
    return ready() ? Errc::ok : waiter.time_out();
  }
}

/// Wakes waiters of this rank (any thread): something they wait for that is no signal has changed.
void notify(const ChannelPod& channel);

/// Sleeps until `time_ns` of now_ns(), unless aborted.
[[nodiscard]] Errc sleep_until(const ChannelPod& channel, int64_t time_ns);

/// Non-zero once this rank was aborted; acquire.
bool is_aborted(const ChannelPod& channel);

}  // namespace overlace::runtime
