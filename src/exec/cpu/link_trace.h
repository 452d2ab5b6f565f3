// Spans of the emulated link, which a thread of the runtime reports while calls run.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "overlace/runtime.h"
#include "src/base/trace.h"

namespace overlace::exec {

/// One per runtime, shared by its channels.
class LinkTrace {
 public:
  /// Null where the runtime has no emulated link.
  static std::shared_ptr<LinkTrace> of(Runtime& runtime, int world_rank);

  /// Keeps spans from now on.
  void start();
  /// Moves what was kept to `trace`, its names labelled, and keeps no more.
  void stop(std::string_view label, base::Trace* trace);

 private:
  void record(base::Span span);

  std::mutex mutex_;
  bool is_on_ = false;
  std::vector<base::Span> spans_;
};

}  // namespace overlace::exec
