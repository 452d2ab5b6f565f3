// Causal attention by cuDNN, opened at run time; built where cuDNN's frontend headers are found.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "overlace/dtype_pod.h"
#include "src/base/status.h"

namespace overlace::model {

/// q (batch * sequence, heads, head_dim), k and v (batch * sequence, kv_heads, head_dim), rows `pitch` elements apart;
/// out (batch * sequence, heads, head_dim) with out_pitch. Position i sees j <= i, and j > i - window where window > 0.
struct AttentionShape {
  int64_t batch = 1, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t pitch = 0, out_pitch = 0, window = 0;
  DType dtype = DType::bf16;
  auto operator<=>(const AttentionShape&) const = default;
};

class CudnnAttention {
 public:
  /// not_supported with the reason: not built, library missing.
  static base::Result<std::unique_ptr<CudnnAttention>> open();
  virtual ~CudnnAttention() = default;
  virtual std::string version() const = 0;  // "cudnn 9.13.0"
  /// Plans at the first use of a shape (not inside capture); not_supported where cuDNN has no engine for it (fp32,
  /// ...).
  virtual base::Status run(const AttentionShape& shape, const void* q, const void* k, const void* v, void* out,
                           void* cuda_stream) = 0;
};

}  // namespace overlace::model
