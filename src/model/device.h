// What a stack needs of the machine it runs on, besides the operators. One object per rank; calls are queued on the
// channel's stream in order (cpu: done on return).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "overlace/channel.h"
#include "overlace/tensor.h"
#include "src/base/status.h"
#include "src/base/trace.h"
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

/// Copies between host and device, either way, beside its computation. Two queues, each of which runs in its order.
/// Which of the two comes first only events say: numbers from 0 to one less than the lane was made for. One thread
/// queues copies, another one may queue computation.
class CopyLane {
 public:
  enum class Queue { computation, copies };
  /// Seconds, of what has ended: in copies, and of computation between begin_wait() and the event that it waits for.
  struct Times {
    double copied_s = 0, waited_s = 0;
  };

  /// Waits for the copies.
  virtual ~CopyLane() = default;
  /// Once, on a thread that will queue copies and has nothing else to do.
  virtual base::Status enter() = 0;
  /// One of both is of Device::alloc_host, the other one of Device::alloc; they stay as they are until the copy has
  /// run. `span`: its times are missing.
  virtual base::Status copy(const void* from, void* to, int64_t bytes, base::Span span) = 0;
  /// The event comes behind what the queue has now. An event is always of the same queue.
  virtual base::Status record(Queue queue, int event) = 0;
  /// What the queue gets from now on comes behind the event as it was recorded last; nothing where it never was.
  virtual base::Status wait(Queue queue, int event) = 0;
  /// Computation has come to where it wants what the next wait() of its queue is for.
  virtual base::Status begin_wait() = 0;
  /// The host waits for an event; timeout after as long as the runtime waits for a peer.
  virtual base::Status synchronize(int event) = 0;
  virtual Times times() = 0;
  /// Spans of copies since the last call, none at the first one; of many the first ones. Synchronises the device.
  virtual base::Result<std::vector<base::Span>> take_spans() = 0;
};

/// Spans of copies that are kept for a timeline.
inline constexpr size_t kMostTransfers = 4096;

class Device {
 public:
  virtual ~Device() = default;
  /// 256-byte aligned, not initialised. out_of_memory with the bytes asked and `what`.
  virtual base::Result<void*> alloc(int64_t bytes, std::string_view what) = 0;
  virtual void free(void* block) = 0;
  /// Memory of the host, from and to which a lane copies; else as alloc() gives it.
  virtual base::Result<void*> alloc_host(int64_t bytes, std::string_view what) = 0;
  virtual void free_host(void* block) = 0;
  /// With so many events. Null where computation reads memory of the host as it is.
  virtual base::Result<std::unique_ptr<CopyLane>> make_copy_lane(int events) = 0;
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
  /// What computed the last attention(): "cpu"; on GPUs "plain kernel", such as "cudnn 9.13.0", or empty.
  virtual std::string attention_by() const = 0;
  virtual base::Status activation(const ActivationArgs& args) = 0;
};

std::unique_ptr<Device> make_cpu_device();
#ifdef OVERLACE_HAS_CUDA
/// On the device and stream of the channel.
base::Result<std::unique_ptr<Device>> make_cuda_device(Channel& channel);
#endif

}  // namespace overlace::model
