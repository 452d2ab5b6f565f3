// What a context runs: the layer on CPU ranks, and on GPUs one that holds memory, declared without CUDA; builds without
// it have what refuses.
#pragma once

#include <memory>

#include "overlace/ops/moe.h"
#include "src/base/status.h"

namespace overlace::ops::moe {

/// The layer on CPU ranks. `mine`: why this rank refuses the call, or ok.
MoeReport run_met(Channel& channel, const MoeArgs& args, const base::Status& mine);
void run_met(Channel& channel, const MoeGradArgs& args, const base::Status& mine);

class GpuLayer {
 public:
  virtual ~GpuLayer() = default;
  /// Takes the block of the symmetric heap, once all ranks have opened theirs; throws as SymmetricHeap::alloc.
  virtual void take_heap() = 0;
  /// Queues a call whose arguments were checked.
  virtual base::Status run(const MoeArgs& args, const MoeCounts& counts) = 0;
  virtual base::Status run(const MoeGradArgs& args) = 0;
  virtual base::Result<MoeReport> report() = 0;
  virtual size_t heap_bytes() const = 0;
  virtual size_t device_bytes() const = 0;
};

/// Whether this rank's GPU and team can run such a layer: not_supported, or invalid_argument with field and values.
base::Status check_gpu_layer(Channel& channel, const MoeSpec& spec);
/// This rank's memory and kernels.
base::Result<std::unique_ptr<GpuLayer>> open_gpu_layer(Channel& channel, const MoeSpec& spec);

}  // namespace overlace::ops::moe
