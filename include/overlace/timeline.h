// Timelines: when each operator ran on a channel, on all ranks of its team, as a file for a trace viewer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "overlace/channel.h"

namespace overlace {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// Makes ranges of NVTX, in the domain "overlace", of all operators of this process from now on, and inside of their
/// tasks while the host queues them (CPU ranks: computes them): a profiler such as Nsight Systems shows them. Gives
/// what held before, which is what OVERLACE_NVTX says unless this was called. Throws Unsupported where overlace was
/// built without the header of NVTX.
bool set_nvtx(bool on);

/// Records the operators that this rank runs on a channel, from construction until write() or destruction. A channel
/// has one at a time, which must end before the runtime is closed. Captured calls are not recorded.
class Timeline {
 public:
  explicit Timeline(Channel& channel);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  /// Names spans from now on "label task".
  void label(std::string_view text);
  /// Writes the timeline. Collective on the team: it waits for the recorded work, then rank 0 writes the spans of all
  /// ranks and the signals between them to `path`: .json (Chrome), .pftrace or .perfetto-trace (Perfetto). Throws
  /// InvalidArgument, and IoError on rank 0.
  void write(const std::string& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

#pragma GCC visibility pop

}  // namespace overlace
