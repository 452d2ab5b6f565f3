// A device beside the host on which a loader gathers: lanes of work, joined by events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "src/base/status.h"
#include "src/gnn/gather/device_gather.h"

namespace overlace::gnn {

/// A lane does what it is given in that order, and knows of other lanes through events alone. `caller` is the stream of
/// who trains.
enum class Lane { transfer, gather, caller };

/// Several threads use it, each lane one at a time. All but reached() and drain() returns at once.
class LoaderDevice {
 public:
  virtual ~LoaderDevice() = default;
  /// The calling thread works for the device from now on.
  virtual base::Status enter() = 0;
  /// Memory of the device, which goes with this object. out_of_memory.
  virtual base::Result<std::byte*> allocate(int64_t bytes) = 0;
  /// Lanes may read this memory of the host, which outlives the object. not_supported where it cannot be pinned.
  virtual base::Status pin(std::span<std::byte> memory) = 0;
  /// Events 0 to count - 1, none of them recorded.
  virtual base::Status make_events(int count) = 0;
  /// The stream that `caller` stands for from now on.
  virtual void set_caller(void* stream) = 0;

  /// `count` pieces of `bytes`, which begin `pitch` bytes apart in memory of the host, one behind the other to memory
  /// of the device. From memory that is not pinned: drain() before it is written again.
  virtual base::Status copy(Lane lane, std::byte* to, const std::byte* from, int64_t bytes, int64_t pitch,
                            int64_t count) = 0;
  /// Queues what queue_gather_rows() does on the lane; `device` is filled in.
  virtual base::Status gather(Lane lane, DeviceGather gather) = 0;
  /// The event is reached once the lane has done what it was given so far.
  virtual base::Status record(Lane lane, int event) = 0;
  /// What the lane is given from now on waits for the event as it was recorded last.
  virtual base::Status wait(Lane lane, int event) = 0;
  /// The host waits up to so long; whether the event is reached.
  virtual base::Result<bool> reached(int event, int64_t timeout_ms) = 0;
  /// The host waits until `transfer` and `gather` are empty; timeout after OVERLACE_TIMEOUT_S.
  virtual base::Status drain() = 0;
};

/// A GPU by its CUDA ordinal, with streams of its own. not_supported: a build without CUDA, no such GPU.
base::Result<std::unique_ptr<LoaderDevice>> open_gpu(int ordinal);

}  // namespace overlace::gnn
