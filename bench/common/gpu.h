// One rank's GPU in a bench.
#pragma once

#include <functional>
#include <memory>

#include "bench/common/device.h"

namespace overlace::bench {

class Gpu : public Device {
 public:
  static base::Result<std::unique_ptr<Gpu>> open(int device);
  bool is_gpu() const override { return true; }
  /// Captures what `enqueue` puts on the stream into a graph; replay queues it once.
  virtual base::Status capture(const std::function<base::Status()>& enqueue) = 0;
  virtual base::Status replay() = 0;
};

}  // namespace overlace::bench
