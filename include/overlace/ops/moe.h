// Mixture of experts whose experts are spread over the ranks: dispatch, experts, combine; and the router before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "overlace/channel.h"
#include "overlace/tensor.h"

namespace overlace::ops {

#pragma GCC visibility push(default)  // exported by liboverlace.so

/// The forward of a layer of E experts on a team of R ranks, of which this is r and owns E_loc experts:
/// out[t] = sum over j of weights[t, j] expert(idx[t, j])(x[t]), with expert(v) = act(v w1^T + b1) w2^T + b2, or of
/// gated experts (act(v gate^T) * (v up^T)) w2^T. Ranks may have different numbers of tokens, none too.
struct MoeArgs {
  TensorView x{};                   // (T, H) fp32 | bf16 | fp16
  TensorView idx{};                 // (T, k) i32: experts 0 to E - 1, or -1 for none; an expert may stand there twice
  TensorView weights{};             // (T, k) fp32
  TensorView w1{};                  // (E_loc, I, H) dtype of x; gated: (E_loc, 2 I, H), gate rows, then up rows
  TensorView w2{};                  // (E_loc, H, I) dtype of x
  TensorView b1{};                  // (E_loc, I) dtype of x; or undefined; not with gated
  TensorView b2{};                  // (E_loc, H) dtype of x; or undefined; not with gated
  TensorView out{};                 // (T, H) dtype of x | fp32
  int64_t num_experts = 0;          // E
  std::string activation = "silu";  // silu | gelu_tanh | gelu_erf | relu
  bool gated = true;
  double capacity_factor = 0;           // 0: dropless; else an expert takes ceil(factor T k / E) copies of each rank
  std::vector<int64_t> expert_begin{};  // (R + 1), equal on all ranks: rank r owns [r], [r + 1]; empty: floor(r E / R)
};

/// What a call did on this rank.
struct MoeReport {
  std::vector<int64_t> load{};  // (E_loc) copies that each expert of this rank computed
  int64_t dropped = 0;          // copies of this rank's tokens beyond the capacity
};

/// Runs the layer. Collective; on CPU ranks the call is complete on return, GPUs need a MoeContext. It works as
/// users of a library of collectives do: counts are read on the host, rows go by grouped sends and receives of the
/// team's engine, nothing overlaps. A token goes once to each rank that owns experts of it. Sums are taken in fp32: of
/// one rank in the order of choices, rounded to the dtype of x for the wire, then in rank order. Equal inputs on as
/// many ranks give equal bits. Throws InvalidArgument (argument, value got, value wanted), PlanMismatch or Unsupported
/// before anything moves, on all ranks.
MoeReport run(Channel& channel, const MoeArgs& args);

/// Where a call of a MoeContext writes what it did, in stream order, each if it is not null: memory of the device that
/// runs it, on CPU ranks of the host.
struct MoeCounts {
  int64_t* load = nullptr;     // (E_loc), as MoeReport has it
  int64_t* dropped = nullptr;  // (1)
};

/// The sizes of a layer for which a MoeContext holds memory, equal on all ranks.
struct MoeSpec {
  int64_t max_tokens = 0;   // T of a rank in a call, at most
  int64_t hidden = 0;       // H
  int64_t inter = 0;        // I
  int64_t num_experts = 0;  // E
  int top_k = 0;            // k
  DType dtype = DType::bf16;
  std::vector<int64_t> expert_begin{};  // as MoeArgs has it
  bool gradients = false;               // whether calls may be of gradients, too
  std::string family = "auto";          // auto | serial | fused: how GPUs run the layer; equal bits

  friend bool operator==(const MoeSpec&, const MoeSpec&) = default;
};

struct MoeGradArgs;

/// What calls of one layer share. On GPUs it has the memory of tokens, pool and sums: of the symmetric heap
/// (R + 1) max_tokens H elements, of the device room for all copies that can come, R max_tokens k rows of H + I
/// elements, 16 (k + 2) bytes for each of R max_tokens tokens, and with more than one rank max_tokens H of fp32; with
/// gradients (R + 2) max_tokens H, and rows of 2 H + 9 I. Counts stay on the device: a call waits for nothing on the
/// host, and may be captured. Calls of a context are in one order on all ranks, on one stream.
class MoeContext {
 public:
  /// Collective, a heap allocation (SymmetricHeap: the ranks of other teams make it too; the heap does not grow for
  /// it), outside captures. Throws on all ranks InvalidArgument (field, value got, value wanted; on GPUs H and I are
  /// multiples of 8 up to 2^20, R max_tokens k at most 2^30), PlanMismatch where ranks differ, OutOfMemory, `capture`.
  /// Unsupported: GPUs that are not of Hopper, more than 8 ranks or ranks that loads and stores do not reach.
  static MoeContext open(Channel& channel, const MoeSpec& spec);
  MoeContext(MoeContext&&) noexcept;
  MoeContext& operator=(MoeContext&&) noexcept;
  /// Gives the memory back: the ranks do so in the same order, behind the last call and replay, when graphs that hold
  /// calls are gone, and before the runtime is closed.
  ~MoeContext();

  const MoeSpec& spec() const;
  /// Bytes of the symmetric heap and of memory of this rank's device alone; 0 on CPU ranks.
  size_t heap_bytes() const;
  size_t device_bytes() const;
  /// Returns what the last call did, which is waited for, outside captures. Throws InvalidArgument on GPUs, with token,
  /// choice and value, where idx named an expert that does not exist, which that call took for -1.
  MoeReport report();

 private:
  friend void run(MoeContext& context, const MoeArgs& args, const MoeCounts& counts);
  friend void run(MoeContext& context, const MoeGradArgs& args);
  struct State;
  explicit MoeContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Runs the layer in stream order. Collective. On CPU ranks it is run(channel, args). On GPUs: bf16 or fp16, H and I
/// multiples of 8, gated by silu, no biases; MoeSpec::family says how, auto what was faster where it was measured.
/// Rounded where run(channel, args) rounds, but that the weight of a copy multiplies what is gated before the gate
/// does. On GPUs a rank that throws InvalidArgument or Unsupported has queued nothing, and its peers wait for it up to
/// the deadline; and that ranks give the same capacity_factor is not checked.
void run(MoeContext& context, const MoeArgs& args, const MoeCounts& counts = {});

/// The gradients of that forward, of which nothing was kept: experts compute their hidden layer again. Shapes of the
/// letters of MoeArgs. What is undefined is not computed, but for dx.
struct MoeGradArgs {
  MoeArgs layer{};        // as it was called; out is not looked at
  TensorView dy{};        // (T, H) dtype of x: the gradient of out
  TensorView dx{};        // (T, H) dtype of x | fp32
  TensorView dweights{};  // (T, k) fp32; zeros where a choice made no copy; or undefined
  TensorView dw1{};       // as w1, and so each below; or undefined
  TensorView dw2{};
  TensorView db1{};  // only where the layer has it
  TensorView db2{};
};

/// Computes gradients. Collective, as run(), and refused as it is; ranks may differ in which of them they want. Sums
/// are taken as there, those of weights over the rows of an expert in fp32 in the order of its pool, rounded once:
/// equal inputs on as many ranks give equal bits.
void run(Channel& channel, const MoeGradArgs& args);

/// Computes gradients in stream order, in a context that was opened for them. Collective, with what run(context,
/// MoeArgs) says of ranks, GPUs and refusals; rounded where run(channel, MoeGradArgs) rounds. Sums of weights over the
/// rows of an expert are made in the order of its pool: equal inputs on as many ranks give equal bits.
void run(MoeContext& context, const MoeGradArgs& args);

/// The choice of experts before the layer, local and on the host.
struct MoeRouterArgs {
  TensorView x{};                 // (T, H) fp32 | bf16 | fp16, contiguous
  TensorView w_gate{};            // (E, H) dtype of x, contiguous
  TensorView bias{};              // (E) fp32; or undefined; added to scores for the choice, not for the weights
  TensorView idx{};               // (T, k) i32, contiguous: chosen experts by descending key, -1 where none is left
  TensorView weights{};           // (T, k) fp32, contiguous
  std::string score = "softmax";  // softmax | sigmoid, of x w_gate^T in fp32
  bool renormalize = false;       // divide weights by their sum over the chosen experts
  int num_groups = 1;             // experts in groups of E / num_groups
  int kept_groups = 1;            // choose among the groups with the largest sums of their two best keys
  double route_scale = 1;         // factor of all weights
};

/// Chooses experts; equal keys go to the lower id, and an expert whose logit or key is not finite is never chosen.
/// Returns the number of tokens with a logit that is not a number. Throws InvalidArgument.
int64_t choose_experts(const MoeRouterArgs& args);

#pragma GCC visibility pop

}  // namespace overlace::ops
