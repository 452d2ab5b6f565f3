// The place where work is queued: a borrowed CUDA stream, or the calling CPU thread.
#pragma once

namespace overlace {

/// A borrowed stream, never owned. On backend `cpu` operators run on the calling thread and return when they are
/// complete.
struct StreamRef {
  enum class Kind { cpu, cuda } kind = Kind::cpu;
  void* cuda_stream = nullptr;  // cudaStream_t

  static StreamRef cpu() { return {}; }
  static StreamRef cuda(void* stream) { return {Kind::cuda, stream}; }
};

}  // namespace overlace
