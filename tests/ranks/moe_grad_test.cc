// The gradients of the mixture-of-experts layer on CPU ranks: against an oracle in fp64, equal bits, bad input.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "overlace/error.h"
#include "overlace/ops/moe.h"
#include "overlace/team.h"
#include "src/base/format.h"
#include "tests/ranks/support/moe_grads.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using namespace moe_grads;

const std::vector<Case> kCases = {
    {.experts = 1, .top_k = 1},
    {.experts = 3, .top_k = 4, .activation = "gelu_tanh"},
    {.experts = 7, .top_k = 3, .activation = "gelu_erf", .capacity_factor = 0.5},
    {.experts = 5, .top_k = 3, .activation = "relu", .is_on_the_last = true},
    {.experts = 5, .top_k = 2, .is_gated = false, .has_b1 = true, .has_b2 = true, .is_on_the_last = true},
    {.experts = 4, .top_k = 2, .activation = "gelu_tanh", .is_gated = false, .has_b2 = true},
    {.experts = 4, .top_k = 3, .activation = "gelu_erf", .is_gated = false, .has_b1 = true, .capacity_factor = 1},
    {.experts = 6, .top_k = 4, .activation = "relu", .is_gated = false},
    {.experts = 8, .top_k = 4, .hidden = 24, .dtype = DType::bf16, .dx_dtype = DType::bf16},
    {.experts = 3, .top_k = 3, .dtype = DType::bf16, .activation = "relu", .capacity_factor = 0.5},
    {.experts = 6,
     .top_k = 2,
     .inter = 16,
     .dtype = DType::bf16,
     .dx_dtype = DType::bf16,
     .activation = "gelu_tanh",
     .is_gated = false,
     .has_b1 = true,
     .has_b2 = true},
    {.experts = 5,
     .top_k = 3,
     .dtype = DType::fp16,
     .dx_dtype = DType::fp16,
     .activation = "gelu_erf",
     .is_gated = false,
     .has_b1 = true,
     .has_b2 = true,
     .is_on_the_last = true},
    {.has_tokens = false},
};

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

template <class Where, class Args>
std::string refusal(Where& where, const Args& args) {
  try {
    ops::run(where, args);
  } catch (const Error& error) {
    return base::format("{}: {}", errc_name(error.code()), error.what());
  }
  return "";
}

/// The oracle against the loss: every number of a layer is moved a little.
TEST(MoeGradOracle, IsTheSlopeOfTheLoss) {
  for (const Case& c : kCases) {
    if (c.activation == "relu" || !c.has_tokens) continue;
    Layer layer(c, 3);
    const Grads grads = Oracle<double>(layer).grads();
    const auto check = [&](const char* name, Values& numbers, const Values& slopes) {
      ASSERT_EQ(numbers.size(), slopes.size());
      for (size_t i = 0; i < numbers.size(); i += 5) {
        const double was = numbers[i], step = 1e-5;
        numbers[i] = was + step;
        const double above = Oracle<double>(layer).loss();
        numbers[i] = was - step;
        const double below = Oracle<double>(layer).loss();
        numbers[i] = was;
        ASSERT_NEAR((above - below) / (2 * step), slopes[i], 1e-7) << name << " " << i;
      }
    };
    check("w1", layer.w1, grads.dw1), check("w2", layer.w2, grads.dw2);
    check("b1", layer.b1, grads.db1), check("b2", layer.b2, grads.db2);
    for (size_t r = 0; r < 3; ++r) {
      check("x", layer.ranks[r].x, grads.dx[r]);
      check("weights", layer.ranks[r].weights, grads.dweights[r]);
    }
  }
}

class MoeGradRanks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(MoeGradRanks, GivesTheGradientsOfADenseLayer) {
  const auto [ranks, mode] = GetParam();
  std::vector<Layer> layers;
  for (const Case& c : kCases) layers.emplace_back(c, ranks);
  std::vector<Grads> want, baseline;
  for (const Layer& layer : layers) {
    want.push_back(Oracle<double>(layer).grads());
    baseline.push_back(Oracle<float>(layer).grads());
  }
  run_ranks(ranks, mode, [&](Runtime& runtime) {
    for (size_t i = 0; i < layers.size(); ++i) {
      Call call(layers[i], runtime.world().rank());
      ops::run(channel_of(runtime), call.args);
      ASSERT_EQ(call.mismatch(want[i], baseline[i]), "") << "case " << i;
    }
  });
}

/// The bits of calls under the adversary and in processes are those of threads, and those of the call before.
TEST_P(MoeGradRanks, GivesEqualBits) {
  const auto [ranks, mode] = GetParam();
  std::vector<Layer> layers;
  for (const Case& c : kCases) layers.emplace_back(c, ranks);
  std::vector<std::vector<std::vector<std::vector<char>>>> bits(at(ranks));
  run_ranks(ranks, Mode::threads, [&](Runtime& runtime) {
    for (const Layer& layer : layers) {
      Call call(layer, runtime.world().rank());
      ops::run(channel_of(runtime), call.args);
      bits[at(runtime.world().rank())].push_back(call.outputs());
    }
  });
  run_ranks(ranks, mode, [&](Runtime& runtime) {
    for (int repetition = 0; repetition < 2; ++repetition)
      for (size_t i = 0; i < layers.size(); ++i) {
        Call call(layers[i], runtime.world().rank());
        ops::run(channel_of(runtime), call.args);
        ASSERT_EQ(call.outputs(), bits[at(runtime.world().rank())][i]) << "case " << i;
      }
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, MoeGradRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5), ::testing::ValuesIn(all_modes())),
                         mode_test_name);

TEST(MoeGrad, ComputesWhatARankWants) {
  const Layer layer({.is_gated = false, .has_b1 = true, .has_b2 = true}, 2);
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    Call all(layer, rank), some(layer, rank);
    ops::run(channel_of(runtime), all.args);
    if (rank == 0)
      some.args.dweights = some.args.dw1 = some.args.db2 = {};
    else
      some.args.dw2 = some.args.db1 = {};
    ops::run(channel_of(runtime), some.args);
    const std::vector<size_t> left_out = rank == 0 ? std::vector<size_t>{1, 2, 5} : std::vector<size_t>{3, 4};
    for (size_t i = 0; i < all.outputs().size(); ++i) {
      const bool is_wanted = std::find(left_out.begin(), left_out.end(), i) == left_out.end();
      const std::vector<char> unwritten(all.outputs()[i].size(), '\x7f');
      EXPECT_EQ(some.outputs()[i], is_wanted ? all.outputs()[i] : unwritten) << i << " of rank " << rank;
    }
  });
}

TEST(MoeGrad, RunsInAContextThatWasOpenedForGradients) {
  const Layer layer({}, 2);
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    const Case& c = layer.c;
    Channel& channel = channel_of(runtime);
    ops::MoeSpec spec{.max_tokens = 8,
                      .hidden = c.hidden,
                      .inter = c.inter,
                      .num_experts = c.experts,
                      .top_k = static_cast<int>(c.top_k),
                      .dtype = c.dtype,
                      .expert_begin = layer.begin,
                      .gradients = true};
    Call alone(layer, runtime.world().rank()), call(layer, runtime.world().rank());
    ops::run(channel, alone.args);
    ops::MoeContext context = ops::MoeContext::open(channel, spec);
    ops::run(context, call.args);
    EXPECT_EQ(call.outputs(), alone.outputs());
    spec.gradients = false;
    ops::MoeContext forward = ops::MoeContext::open(channel, spec);
    Call refused(layer, runtime.world().rank());
    const std::string said = refusal(forward, refused.args);
    EXPECT_NE(said.find("moe_grad: the context was opened without gradients, wanted with; rank "), std::string::npos)
        << said;
    EXPECT_TRUE(refused.is_untouched());
    spec.gradients = runtime.world().rank() == 0;  // ranks differ
    EXPECT_THROW(ops::MoeContext::open(channel, spec), PlanMismatch);
  });
}

TEST(MoeGrad, RefusesOnAllRanksBeforeAnythingMoves) {
  using Change = std::function<void(ops::MoeGradArgs&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](ops::MoeGradArgs& args) { static_cast<int32_t*>(args.layer.idx.data)[3] = 4; },
       "moe_grad: idx of token 1, choice 1 is 4, wanted -1 (none) or 0 to 3; rank 1"},
      {[](ops::MoeGradArgs& args) { args.dy = {}; }, "moe_grad: dy must have 2 dimensions, got 0 (); rank 1"},
      {[](ops::MoeGradArgs& args) { args.dy.dtype = DType::bf16; },
       "moe_grad: dy must have the dtype of x (fp32), got bf16; rank 1"},
      {[](ops::MoeGradArgs& args) { args.dx = {}; }, "moe_grad: dx must have 2 dimensions, got 0 (); rank 1"},
      {[](ops::MoeGradArgs& args) { args.dx = args.dy; },
       "moe_grad: dx (3, 8) must not share memory with dy (3, 8); rank 1"},
      {[](ops::MoeGradArgs& args) { args.dweights.sizes[1] = 1; },
       "moe_grad: dweights must be (3, 2) as idx is, got (3, 1); rank 1"},
      {[](ops::MoeGradArgs& args) { args.dweights.dtype = DType::bf16; },
       "moe_grad: dweights must be fp32, got bf16; rank 1"},
      {[](ops::MoeGradArgs& args) { args.dw1.sizes[0] = 2; },
       "moe_grad: dw1 must be (1, 12, 8), of the 1 experts of this rank, got (2, 12, 8); rank 1"},
      {[](ops::MoeGradArgs& args) { args.dw2.dtype = DType::fp16; },
       "moe_grad: dw2 must have the dtype of x (fp32), got fp16; rank 1"},
      {[](ops::MoeGradArgs& args) { args.dw2 = args.layer.w2; },
       "moe_grad: dw2 (1, 8, 6) must not share memory with w2 (1, 8, 6); rank 1"},
      {[](ops::MoeGradArgs& args) { args.db1 = args.dx; },
       "moe_grad: db1 is (3, 8), wanted none without its bias; rank 1"},
  };
  const Layer layer({}, 3);
  run_ranks(3, Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    const auto refused = [&](const std::string& want) {
      return rank == 1
                 ? "invalid_argument: " + want
                 : "invalid_argument: rank 1 refused the call, so that no rank of team \"world\" makes it: " + want;
    };
    Call good(layer, rank);
    ops::run(channel_of(runtime), good.args);
    for (const auto& [change, want] : cases) {
      Call bad(layer, rank), after(layer, rank);
      if (rank == 1) change(bad.args);
      EXPECT_EQ(refusal(channel_of(runtime), bad.args), refused(want));
      EXPECT_TRUE(bad.is_untouched()) << want;
      ops::run(channel_of(runtime), after.args);
      EXPECT_EQ(after.outputs(), good.outputs()) << "after a refused call";
    }
    Call differs(layer, rank);
    differs.args.layer.capacity_factor = rank == 2 ? 1 : 0;
    EXPECT_EQ(refusal(channel_of(runtime), differs.args),
              "plan_mismatch: the moe layer differs between ranks of team \"world\": rank 0 has gradient of H 8 I 6 E "
              "4 top 2 fp32 gated silu capacity 0 experts from 0 1 2 4, rank 2 has gradient of H 8 I 6 E 4 top 2 fp32 "
              "gated silu capacity 1 experts from 0 1 2 4");
    EXPECT_TRUE(differs.is_untouched());
  });
}

TEST(MoeGrad, NeedsAnEngineForMoreThanOneRank) {
  const Layer layer({}, 2);
  run_ranks(2, Mode::threads,
            [&](Runtime& runtime) {
              Call call(layer, runtime.world().rank());
              EXPECT_EQ(refusal(channel_of(runtime), call.args),
                        "not_supported: moe_grad: team \"world\" has no collectives engine; wanted: "
                        "RuntimeOptions::net_engine auto or mpi");
            },
            {.net_engine = "none"});
}

}  // namespace
}  // namespace overlace::test
