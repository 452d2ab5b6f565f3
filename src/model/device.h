// What a stack needs of the machine it runs on, besides the operators. One object per rank; calls are queued on the
// channel's stream in order (cpu: done on return).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "overlace/channel.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/model/config.h"
#include "src/model/weights_pod.h"

namespace overlace::model {

/// x += delta where delta is defined, rounded to x's dtype; then out = norm(x) where out is defined. fp32 inside.
struct AddNormArgs {
  TensorView x;      // (rows, hidden)   contiguous rows, as all below
  TensorView delta;  // (rows, hidden) or undefined
  TensorView out;    // (rows, hidden) or undefined
  Norm kind = Norm::rms;
  double eps = 0;
  TensorView weight;  // (hidden)
  TensorView bias;    // (hidden) or undefined
};

/// One rank's heads of all tokens: q of `heads` heads, then k, then v of `kv_heads` heads, side by side in a row.
struct HeadsView {
  TensorView qkv;  // (tokens, (heads + 2 kv_heads) * head_dim)
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t sequence_length = 0;  // tokens is a multiple of it
};

/// In place on q and k: RMS norm of each head where q_norm is defined, then rotation by the token's position in its
/// sequence where cosine is defined. fp32 inside, one rounding at the end.
struct RopeArgs {
  HeadsView heads;
  TensorView cosine, sine;  // (sequence_length, head_dim / 2) fp32 or undefined; element i pairs with i + head_dim / 2
  TensorView q_norm, k_norm;  // (head_dim) or undefined
  double eps = 0;
};

/// Causal within each sequence; with a window, key j is seen by query i if i - j < window. Softmax in fp32.
struct AttentionArgs {
  HeadsView heads;
  TensorView out;      // (tokens, heads * head_dim)
  int64_t window = 0;  // 0: none
};

/// swiglu: in is (rows, 2 n), gate then up, out = silu(gate) * up (rows, n). Others: out = f(in), same shape.
struct ActivationArgs {
  Activation kind = Activation::swiglu;
  TensorView in, out;
};

class Device {
 public:
  virtual ~Device() = default;
  /// 256-byte aligned, not initialised. out_of_memory with the bytes asked and `what`.
  virtual base::Result<void*> alloc(int64_t bytes, std::string_view what) = 0;
  virtual void free(void* block) = 0;
  /// `host` may be reused on return.
  virtual base::Status upload(const void* host, void* device, int64_t bytes) = 0;
  /// Waits for earlier work.
  virtual base::Status download(const void* device, void* host, int64_t bytes) = 0;
  virtual base::Status copy(const void* from, void* to, int64_t bytes) = 0;
  virtual base::Status synchronize() = 0;

  /// out (rows, cols) contiguous, any floating dtype: the part that `matrix` names, rounded to nearest even.
  virtual base::Status fill(const SeededMatrix& matrix, const TensorView& out) = 0;
  virtual base::Status add_norm(const AddNormArgs& args) = 0;
  virtual base::Status rope(const RopeArgs& args) = 0;
  virtual base::Status attention(const AttentionArgs& args) = 0;
  virtual base::Status activation(const ActivationArgs& args) = 0;
};

std::unique_ptr<Device> make_cpu_device();
#ifdef OVERLACE_HAS_CUDA
/// On the device and stream of the channel.
base::Result<std::unique_ptr<Device>> make_cuda_device(Channel& channel);
#endif

}  // namespace overlace::model
