// Named places on the way from Runtime::open to a runtime that is alive. Tests make a rank die, stop or fail there.
#pragma once

#include <functional>

namespace overlace::runtime {

/// In the order in which a rank comes past. `connect`: nobody is connected yet; `introduce`: connected to a rank below,
/// which does not yet know who that is (comes once per such rank); `accept`: connected to all below; `descriptors`,
/// `mapping`: processes only; `barrier`: everything is there but the last barrier; `alive`: after it, before the peers
/// are told; `open`: after that.
enum class Phase {
  bootstrap,
  connect,
  introduce,
  accept,
  backend,
  hello,
  heap,
  descriptors,
  mapping,
  team,
  barrier,
  alive,
  open
};

/// Called by the thread that opens. What it throws is the failure of this rank's open.
using PhaseHook = std::function<void(Phase phase, int rank)>;

/// For the whole process; none by default. Not while a runtime is being opened.
void set_phase_hook(PhaseHook hook);

/// Calls the hook.
void come_past(Phase phase, int rank);

}  // namespace overlace::runtime
