/* A mixture-of-experts layer whose experts are spread over the ranks, for C and for languages that load shared objects.
 * The rules are those of overlace/capi.h; overlace/ops/moe.h explains the fields, and E, H, I, T, k and E_loc. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "overlace/capi.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* overlace::ops::MoeArgs. A tensor with ndim 0 is not given. */
typedef struct ovl_moe {
  size_t struct_size;
  ovl_tensor x;                /* (T, H) fp32, bf16 or fp16, as all weights are */
  ovl_tensor idx;              /* (T, k) i32: experts, or -1 */
  ovl_tensor weights;          /* (T, k) fp32 */
  ovl_tensor w1, w2;           /* (E_loc, I or, gated, 2 I, H), (E_loc, H, I) */
  ovl_tensor b1, b2;           /* (E_loc, I), (E_loc, H); or not given */
  ovl_tensor out;              /* (T, H) */
  int64_t num_experts;         /* E, of all ranks */
  const char* activation;      /* silu, gelu_tanh, gelu_erf or relu; null: silu */
  int32_t gated;               /* 0 or 1 */
  double capacity_factor;      /* 0: nothing is dropped */
  const int64_t* expert_begin; /* ranks + 1 entries; null: floor(r E / R) */
  int64_t max_tokens;          /* GPUs: the most tokens of a rank in any call, equal on all ranks; CPU ranks: 0 */
  const char* family;          /* GPUs: auto, serial or fused, as overlace::ops::MoeSpec has it; null: auto */
} ovl_moe;

/* overlace::ops::MoeGradArgs, besides the layer. */
typedef struct ovl_moe_grad {
  size_t struct_size;
  ovl_tensor dy, dx;             /* (T, H) */
  ovl_tensor dweights;           /* (T, k) fp32; or not given, and so all below */
  ovl_tensor dw1, dw2, db1, db2; /* as w1, w2, b1, b2 */
} ovl_moe_grad;

/* overlace::ops::MoeRouterArgs. All tensors are contiguous. */
typedef struct ovl_moe_router {
  size_t struct_size;
  ovl_tensor x, w_gate;            /* (T, H), (E, H) */
  ovl_tensor bias;                 /* (E) fp32; or not given */
  ovl_tensor idx;                  /* (T, k) i32, written */
  ovl_tensor weights;              /* (T, k) fp32, written */
  const char* score;               /* softmax or sigmoid; null: softmax */
  int32_t renormalize;             /* 0 or 1 */
  int32_t num_groups, kept_groups; /* 0 stands for 1 */
  double route_scale;              /* 0 stands for 1 */
} ovl_moe_router;

/* Runs the layer. Collective. `load` takes, for each expert of this rank, the copies that it computed, and `dropped`
 * the copies of this rank's tokens beyond the capacity; both may be null. On CPU ranks it is complete on return, and a
 * rank that cannot make the call gives all ranks the error. On GPUs it is queued, `load` and `dropped` are memory of
 * the device, and the first call of each size (H, I, E, k, dtype, expert_begin, max_tokens, family) makes an
 * overlace::ops::MoeContext that the channel keeps: outside captures, in the same order on all ranks. */
int ovl_moe_run(ovl_channel* channel, const ovl_moe* layer, int64_t* load, int64_t* dropped);
/* Computes the gradients of a layer that was run; layer->out is not looked at. Collective, as ovl_moe_run; on GPUs the
 * first call of each size makes a context of its own. */
int ovl_moe_run_grad(ovl_channel* channel, const ovl_moe* layer, const ovl_moe_grad* grad);
/* Chooses the experts of this rank's tokens, without any other rank. `nan_tokens` takes the number of tokens with a
 * logit that is not a number; it may be null. */
int ovl_moe_choose_experts(const ovl_moe_router* router, int64_t* nan_tokens);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
