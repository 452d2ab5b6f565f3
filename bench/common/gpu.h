// One rank's GPU in a bench.
#pragma once

#include <memory>

#include "bench/common/device.h"

namespace overlace::bench {

class Gpu : public Device {
 public:
  static base::Result<std::unique_ptr<Gpu>> open(int device);
  bool is_gpu() const override { return true; }
};

}  // namespace overlace::bench
