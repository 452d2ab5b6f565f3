// Engines of a rank as its watcher sees them: what fails on its own, and what an abort has to end.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/runtime/control.h"

namespace overlace::runtime {

/// How long a failed engine's cause waits for a better one: that a peer was lost.
inline constexpr int64_t kPeerLostGraceNs = 500'000'000;

/// An engine's asynchronous failures, polled by the watcher. The engine outlives its entry.
class EngineWatch {
 public:
  virtual ~EngineWatch() = default;
  /// Any thread. First failure so far.
  virtual base::Status poll() = 0;
  /// Any thread; does not block for longer than a moment; asked again until the entry is gone.
  virtual void abort() = 0;
  /// Any thread. What the device waits in since the longest time, in words; empty if in nothing.
  virtual std::string pending() = 0;
};

/// What an engine asks of the rank that it works for. Any thread.
class EngineHost {
 public:
  virtual ~EngineHost() = default;
  /// From here on the watcher polls it, and aborts it with the rank.
  virtual void add_engine(EngineWatch* engine) = 0;
  /// Nobody is in a call of it once this has returned.
  virtual void remove_engine(EngineWatch* engine) = 0;
  /// Why the rank was aborted; ok if it was not.
  virtual AbortCause cause() = 0;
};

/// Any thread.
class EngineList {
 public:
  void add(EngineWatch* engine);
  void remove(EngineWatch* engine);
  /// The first failure. That of a foreign library shows up after a grace only, in which the control plane may find out
  /// which peer was lost.
  base::Status poll();
  void abort();
  /// What the first engine that waits is in; empty also while another thread polls or aborts, which may be what asks.
  std::string pending();

 private:
  std::mutex mutex_;
  std::vector<EngineWatch*> engines_;
  int64_t failed_ns_ = 0;  // when one was first seen to have failed; 0: none
};

}  // namespace overlace::runtime
