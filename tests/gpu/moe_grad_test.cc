// Gradients of the mixture-of-experts layer on GPUs: against an oracle in fp64, repeated, captured, between forwards.
// With one GPU ranks share it (virtual ranks).
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "overlace/ops/moe.h"
#include "tests/gpu/support/values.h"
#include "tests/ranks/support/moe_grads.h"
#include "tests/ranks/support/moe_layer.h"

namespace overlace::test {
namespace {

using namespace moe_grads;

const std::vector<Case> kCases = {
    {.experts = 1, .top_k = 1, .hidden = 16, .inter = 24, .dtype = DType::bf16, .dx_dtype = DType::bf16},
    {.experts = 8, .top_k = 6, .hidden = 24, .inter = 16, .dtype = DType::bf16, .dx_dtype = DType::fp32},
    {.experts = 33, .top_k = 8, .hidden = 8, .inter = 8, .dtype = DType::bf16, .dx_dtype = DType::bf16},
    {.experts = 7,
     .top_k = 10,
     .hidden = 136,
     .inter = 72,
     .dtype = DType::bf16,
     .dx_dtype = DType::bf16,
     .capacity_factor = 0.5,
     .is_on_the_last = true},
    {.experts = 5, .top_k = 3, .hidden = 72, .inter = 136, .dtype = DType::fp16, .dx_dtype = DType::fp16},
    {.experts = 4,
     .top_k = 2,
     .hidden = 8,
     .inter = 8,
     .dtype = DType::fp16,
     .dx_dtype = DType::fp32,
     .has_tokens = false},
    {.experts = 3, .top_k = 2, .hidden = 264, .inter = 72, .dtype = DType::bf16, .dx_dtype = DType::bf16, .times = 40},
};

ops::MoeSpec spec_of(const Layer& layer, bool gradients = true) {
  const Case& c = layer.c;
  int64_t most = 1;
  for (const Tokens& tokens : layer.ranks) most = std::max(most, tokens.count);
  return {.max_tokens = most + 3,
          .hidden = c.hidden,
          .inter = c.inter,
          .num_experts = c.experts,
          .top_k = static_cast<int>(c.top_k),
          .dtype = c.dtype,
          .expert_begin = layer.begin,
          .gradients = gradients};
}

size_t bytes_of(const TensorView& t) { return static_cast<size_t>(t.numel()) * dtype_bytes(t.dtype); }

/// A call whose operands are on the GPU.
class GpuCall {
 public:
  /// Sums of tensor cores are not those of IEEE, and exp is that of the special function units.
  GpuCall(GpuRank& gpu, const Layer& layer) : gpu_(gpu), host_(layer, gpu.rank), args(host_.args) {
    host_.fp32_digits = 17;
    for (TensorView* t : {&args.layer.x, &args.layer.idx, &args.layer.weights, &args.layer.w1, &args.layer.w2, &args.dy,
                          &args.dx, &args.dweights, &args.dw1, &args.dw2})
      place(*t);
  }
  void spoil() {
    for (const TensorView* t : {&args.dx, &args.dweights, &args.dw1, &args.dw2}) {
      if (!t->defined()) continue;
      EXPECT_CUDA(cudaMemsetAsync(t->data, 0xff, bytes_of(*t), gpu_.stream));
    }
  }
  /// What was computed, in the host's buffers.
  const std::vector<std::vector<char>>& fetch() {
    gpu_.wait();
    const std::pair<const TensorView*, const TensorView*> all[] = {{&args.dx, &host_.args.dx},
                                                                   {&args.dweights, &host_.args.dweights},
                                                                   {&args.dw1, &host_.args.dw1},
                                                                   {&args.dw2, &host_.args.dw2}};
    for (const auto& [from, to] : all)
      if (from->defined() && bytes_of(*from) > 0) gpu_.fetch(static_cast<char*>(to->data), from->data, bytes_of(*from));
    return host_.outputs();
  }
  std::string mismatch(const Grads& want, const Grads& baseline) { return host_.mismatch(want, baseline); }

 private:
  void place(TensorView& t) {
    const void* const from = t.data;
    char* const to = gpu_.device_array<char>(bytes_of(t) + 16);
    if (bytes_of(t) > 0) gpu_.store(to, static_cast<const char*>(from), bytes_of(t));
    t.data = to;
  }

  GpuRank& gpu_;
  Call host_;

 public:
  ops::MoeGradArgs args;
};

class GpuMoeGradTest : public testing::TestWithParam<int> {};

TEST_P(GpuMoeGradTest, GivesTheGradientsOfADenseLayer) {
  OVERLACE_NEED_GPUS(1);
  std::vector<Layer> layers;
  for (const Case& c : kCases) layers.emplace_back(c, GetParam());
  std::vector<Grads> want, baseline;
  for (const Layer& layer : layers) {
    want.push_back(Oracle<double>(layer).grads());
    baseline.push_back(Oracle<float>(layer).grads());
  }
  run_gpu_threads(GetParam(), [&](GpuRank& gpu) {
    for (size_t i = 0; i < layers.size(); ++i) {
      ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(layers[i]));
      GpuCall call(gpu, layers[i]);
      std::vector<std::vector<char>> first;
      for (int repetition = 0; repetition < 3; ++repetition) {
        call.spoil();
        ops::run(context, call.args);
        const std::vector<std::vector<char>>& got = call.fetch();
        ASSERT_EQ(call.mismatch(want[i], baseline[i]), "") << "case " << i << ", repetition " << repetition;
        if (repetition == 0) first = got;
        ASSERT_EQ(got, first) << "case " << i << ", repetition " << repetition;
      }
      gpu.team.barrier();
    }
  });
}

/// A forward between gradients, and gradients of which not all are wanted.
TEST_P(GpuMoeGradTest, ComputesWhatIsWantedBetweenForwards) {
  OVERLACE_NEED_GPUS(1);
  const Layer layer(kCases[6], GetParam());
  run_gpu_threads(GetParam(), [&](GpuRank& gpu) {
    ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(layer));
    GpuCall all(gpu, layer), some(gpu, layer);
    ops::run(context, all.args);
    const std::vector<std::vector<char>> want = all.fetch();
    ops::MoeArgs forward = all.args.layer;
    forward.out = some.args.dx;
    ops::run(context, forward);
    some.spoil();
    if (gpu.rank % 2 == 0)
      some.args.dweights = some.args.dw1 = {};
    else
      some.args.dw2 = {};
    ops::run(context, some.args);
    const std::vector<std::vector<char>>& got = some.fetch();
    for (size_t i = 0; i < want.size(); ++i) {
      const bool is_wanted = gpu.rank % 2 == 0 ? i != 1 && i != 2 : i != 3;
      EXPECT_TRUE(!is_wanted || got[i] == want[i]) << "output " << i;
    }
    gpu.team.barrier();
  });
}

TEST_P(GpuMoeGradTest, IsReplayed) {
  OVERLACE_NEED_GPUS(1);
  const Layer layer(kCases[4], GetParam());
  run_gpu_threads(GetParam(), [&](GpuRank& gpu) {
    ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(layer));
    GpuCall call(gpu, layer);
    ops::run(context, call.args);
    const std::vector<std::vector<char>> want = call.fetch();
    check_replays(
        gpu, [&] { ops::run(context, call.args); }, [&] { call.spoil(); }, [&] { EXPECT_EQ(call.fetch(), want); });
    gpu.team.barrier();
  });
}

/// What is not a number reaches the gradients of its token and of its experts, and no other token.
TEST_P(GpuMoeGradTest, KeepsWhatIsNotANumberToItsToken) {
  OVERLACE_NEED_GPUS(1);
  const Layer layer(kCases[1], GetParam());
  run_gpu_threads(GetParam(), [&](GpuRank& gpu) {
    ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(layer));
    GpuCall clean(gpu, layer), dirty(gpu, layer);
    const int64_t last = layer.ranks[at(gpu.rank)].count - 1, hidden = layer.c.hidden;
    if (last >= 0) {
      const std::vector<char> bad(at(hidden) * 2, '\xff');
      gpu.store(static_cast<char*>(dirty.args.layer.x.data) + last * hidden * 2, bad.data(), bad.size());
    }
    ops::run(context, dirty.args);
    const std::vector<std::vector<char>> got = dirty.fetch();
    ops::run(context, clean.args);
    const std::vector<std::vector<char>> want = clean.fetch();
    const auto before = at(std::max<int64_t>(last, 0) * hidden) * dtype_bytes(layer.c.dx_dtype);
    EXPECT_EQ(std::memcmp(got[0].data(), want[0].data(), before), 0);
    const Grads exact = Oracle<double>(layer).grads(), baseline = Oracle<float>(layer).grads();
    EXPECT_EQ(clean.mismatch(exact, baseline), "");
    gpu.team.barrier();
  });
}

/// A call of many tokens leaves NaN everywhere in the pool: between the ends of the experts of the next call, which has
/// few and other tokens, and the multiples of 128 behind them, too.
TEST_P(GpuMoeGradTest, DoesNotSeeWhatCallsBeforeHaveLeft) {
  OVERLACE_NEED_GPUS(1);
  Case few = kCases[6];
  few.times = 1;
  const Layer large(kCases[6], GetParam()), small(few, GetParam());
  const Grads want = Oracle<double>(small).grads(), baseline = Oracle<float>(small).grads();
  run_gpu_threads(GetParam(), [&](GpuRank& gpu) {
    ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(large));
    GpuCall bad(gpu, large), call(gpu, small);
    for (const TensorView* t : {&bad.args.layer.x, &bad.args.dy}) {
      const std::vector<char> bytes(bytes_of(*t), '\xff');
      if (!bytes.empty()) gpu.store(t->data, bytes.data(), bytes.size());
    }
    for (const bool has_forward : {false, true}) {
      ops::run(context, bad.args);
      if (has_forward) {
        ops::MoeArgs forward = bad.args.layer;
        forward.out = bad.args.dx;
        ops::run(context, forward);
      }
      call.spoil();
      ops::run(context, call.args);
      call.fetch();
      EXPECT_EQ(call.mismatch(want, baseline), "") << (has_forward ? "behind a forward" : "");
    }
    gpu.team.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuMoeGradTest, testing::Values(1, 2, 4),
                         [](const auto& test) { return base::format("on{}", test.param); });

TEST(GpuMoeGrad, RefusesWhatItCannotDo) {
  OVERLACE_NEED_GPUS(1);
  const Layer layer(kCases[4], 2);
  run_gpu_threads(2, [&](GpuRank& gpu) {
    const auto said = [&](ops::MoeContext& context, const ops::MoeGradArgs& args) -> std::string {
      try {
        ops::run(context, args);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    ops::MoeContext forward = ops::MoeContext::open(gpu.channel, spec_of(layer, /*gradients=*/false));
    ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(layer));
    GpuCall call(gpu, layer);
    EXPECT_EQ(said(forward, call.args),
              base::format("moe_grad: the context was opened without gradients, wanted with; rank {}", gpu.rank));
    ops::MoeGradArgs bad = call.args;
    bad.dy.dtype = DType::fp32;
    EXPECT_EQ(said(context, bad),
              base::format("moe_grad: dy must have the dtype of x (fp16), got fp32; rank {}", gpu.rank));
    bad = call.args;
    bad.layer.activation = "relu";
    EXPECT_EQ(said(context, bad),
              base::format("moe_grad: gated relu experts on GPUs, wanted experts gated by silu; rank {}", gpu.rank));
    bad = call.args;
    bad.dy.data = static_cast<char*>(bad.dy.data) + 2;
    if (gpu.rank == 0) {  // who has tokens
      EXPECT_EQ(said(context, bad).find("moe_grad: dy "), 0u);
    }
    gpu.team.barrier();
    ops::run(context, call.args);
    call.fetch();
    gpu.team.barrier();
  });
}

}  // namespace
}  // namespace overlace::test
