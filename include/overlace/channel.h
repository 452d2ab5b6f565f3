// (team, stream): owner of signal ids; the unit of concurrency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "overlace/stream.h"

namespace overlace {

struct ChannelPod;
struct ChannelState;
class Team;

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// A range of signal ids, the same on all ranks of the team.
struct SignalIds {
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Who writes the slots of an id: fixed at allocation, never mixed.
enum class Domain { cpu, stream, device };

struct ChannelOptions {
  int sm_budget = 0;  // 0: all SMs
};

/// Calls on one channel run in the order in which they were made, which must be the same on all ranks.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual Team& team() const = 0;
  virtual StreamRef stream() const = 0;
  virtual const ChannelOptions& options() const = 0;
  /// Deterministic, in call order, no communication. Throws OutOfMemory (`heap_exhausted`) when no ids are left.
  virtual SignalIds ids(uint32_t count, Domain domain, const char* name) = 0;
  virtual void release(SignalIds ids) = 0;
  virtual const ChannelPod& pod() const = 0;
  /// Type-erased cache of whoever is layered above (prepared schedules); destroyed before the heap goes.
  virtual std::shared_ptr<void>& attachment() = 0;
};

#pragma GCC visibility pop

}  // namespace overlace
