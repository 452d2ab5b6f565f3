// The mixture-of-experts layer on CPU ranks: against a dense oracle in fp64, equal bits, bad input.
#include "overlace/ops/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "overlace/error.h"
#include "overlace/team.h"
#include "src/base/format.h"
#include "src/base/half.h"
#include "tests/ranks/support/moe_layer.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

using Case = MoeCase;
using Layer = MoeLayer;

/// All on the last rank.
std::vector<int64_t> on_the_last(int64_t experts, int ranks) {
  std::vector<int64_t> out(static_cast<size_t>(ranks) + 1);
  out.back() = experts;
  return out;
}
/// All but one on the first rank, that one on the last.
std::vector<int64_t> most_on_the_first(int64_t experts, int ranks) {
  std::vector<int64_t> out(static_cast<size_t>(ranks) + 1, experts - 1);
  out.front() = 0, out.back() = experts;
  return out;
}

const std::vector<Case> kCases = {
    {.experts = 1, .top_k = 1},
    {.experts = 4, .top_k = 2, .activation = "relu", .is_gated = false, .has_bias = true, .is_exact = true},
    {.experts = 7, .top_k = 4, .activation = "relu", .is_exact = true, .begin = most_on_the_first},
    {.experts = 8, .top_k = 6, .dtype = DType::bf16, .out_dtype = DType::fp32, .activation = "relu", .is_exact = true},
    {.experts = 33, .top_k = 8, .hidden = 8, .inter = 8},
    {.experts = 2, .top_k = 1, .activation = "gelu_tanh", .is_gated = false, .has_bias = true, .begin = on_the_last},
    {.experts = 5, .top_k = 3, .activation = "gelu_erf", .capacity_factor = 0.5},
    {.experts = 8, .top_k = 2, .hidden = 40, .dtype = DType::bf16, .out_dtype = DType::bf16},
    {.experts = 7, .top_k = 10, .dtype = DType::bf16, .capacity_factor = 1.0, .begin = on_the_last},
    {.experts = 6,
     .top_k = 3,
     .dtype = DType::fp16,
     .out_dtype = DType::fp16,
     .activation = "gelu_erf",
     .is_gated = false,
     .has_bias = true},
    {.experts = 4, .top_k = 2, .most_tokens = 0},
};

Channel& channel_of(Runtime& runtime) { return runtime.world().channel(StreamRef::cpu()); }

/// What a call on this rank says; empty where it works.
std::string refusal(Channel& channel, const ops::MoeArgs& args) {
  try {
    ops::run(channel, args);
  } catch (const Error& error) {
    return base::format("{}: {}", errc_name(error.code()), error.what());
  }
  return "";
}

class MoeRanks : public ::testing::TestWithParam<std::tuple<int, Mode>> {};

TEST_P(MoeRanks, GivesWhatADenseLayerGives) {
  const auto [ranks, mode] = GetParam();
  run_ranks(ranks, mode, [](Runtime& runtime) {
    Channel& channel = channel_of(runtime);
    const int size = runtime.world().size(), rank = runtime.world().rank();
    for (size_t i = 0; i < kCases.size(); ++i) {
      Layer layer(kCases[i], size, rank, i + 1);
      const ops::MoeReport report = ops::run(channel, layer.args());
      ASSERT_EQ(layer.mismatch(), "") << "case " << i;
      EXPECT_EQ(report.dropped, layer.dropped()) << "case " << i;
      ASSERT_EQ(report.load.size(), static_cast<size_t>(layer.local())) << "case " << i;
    }
  });
}

/// The bits of calls under the adversary and in processes are those of threads, and those of the call before.
TEST_P(MoeRanks, GivesEqualBits) {
  const auto [ranks, mode] = GetParam();
  std::vector<std::vector<std::vector<char>>> bits(static_cast<size_t>(ranks));
  run_ranks(ranks, Mode::threads, [&](Runtime& runtime) {
    for (const Case& c : kCases) {
      Layer layer(c, runtime.world().size(), runtime.world().rank());
      ops::run(channel_of(runtime), layer.args());
      bits[static_cast<size_t>(runtime.world().rank())].push_back(layer.out());
    }
  });
  run_ranks(ranks, mode, [&](Runtime& runtime) {
    for (int repetition = 0; repetition < 2; ++repetition)
      for (size_t i = 0; i < kCases.size(); ++i) {
        Layer layer(kCases[i], runtime.world().size(), runtime.world().rank());
        ops::run(channel_of(runtime), layer.args());
        ASSERT_EQ(layer.out(), bits[static_cast<size_t>(runtime.world().rank())][i]) << "case " << i;
      }
  });
}

INSTANTIATE_TEST_SUITE_P(Teams, MoeRanks, ::testing::Combine(::testing::Range(1, 6), ::testing::ValuesIn(all_modes())),
                         mode_test_name);

/// Experts that give their weight: of sums in fp32 only those that meet 1 beside 2^24 lose it.
TEST(Moe, AddsInTheOrderOfChoicesAndOfRanks) {
  const float large = std::ldexp(1.0F, 24);
  for (const int ranks : {1, 3})
    run_ranks(ranks, Mode::threads, [&](Runtime& runtime) {
      const int rank = runtime.world().rank();
      const bool has_token = rank == ranks - 1;  // whose own part is the last
      std::vector<float> x = {1, 1}, weights = {1, large, -large, 1, large, -large}, ones = {1, 1, 1}, out = {7, 7};
      std::vector<int32_t> idx = {2, 1, 0, 0, 1, 2};
      const int64_t tokens = has_token ? 2 : 0, local = 3 / ranks;
      ops::run(channel_of(runtime), {.x = TensorView::contiguous(x.data(), DType::fp32, {tokens, 1}),
                                     .idx = TensorView::contiguous(idx.data(), DType::i32, {tokens, 3}),
                                     .weights = TensorView::contiguous(weights.data(), DType::fp32, {tokens, 3}),
                                     .w1 = TensorView::contiguous(ones.data(), DType::fp32, {local, 1, 1}),
                                     .w2 = TensorView::contiguous(ones.data(), DType::fp32, {local, 1, 1}),
                                     .out = TensorView::contiguous(out.data(), DType::fp32, {tokens, 1}),
                                     .num_experts = 3,
                                     .activation = "relu",
                                     .gated = false});
      const std::vector<float> want = ranks == 1 ? std::vector<float>{0, 0} : std::vector<float>{1, 0};
      EXPECT_EQ(out, has_token ? want : std::vector<float>({7, 7}));
    });
}

TEST(Moe, TakesWhatTheRouterChose) {
  for (const DType dtype : {DType::fp32, DType::bf16})
    run_ranks(3, Mode::threads, [&](Runtime& runtime) {
      Layer layer({.experts = 11, .top_k = 4, .dtype = dtype, .out_dtype = dtype}, 3, runtime.world().rank());
      layer.route();
      EXPECT_EQ(std::count(layer.idx().begin(), layer.idx().end(), -1), 0);
      const ops::MoeReport report = ops::run(channel_of(runtime), layer.args());
      EXPECT_EQ(layer.mismatch(), "");
      EXPECT_EQ(report.dropped, 0);
    });
}

TEST(Moe, KeepsWhatIsNotANumberToItsToken) {
  for (const DType dtype : {DType::fp32, DType::bf16})
    run_ranks(3, Mode::threads, [&](Runtime& runtime) {
      const Case c{.dtype = dtype, .out_dtype = dtype};
      Layer clean(c, 3, runtime.world().rank()), dirty(c, 3, runtime.world().rank());
      const int64_t last = dirty.tokens() - 1;
      for (int64_t h = 0; h < c.hidden && last > 0; ++h)
        base::store_element(dirty.x().data(), dtype, last * c.hidden + h, std::nan(""));
      ops::run(channel_of(runtime), clean.args());
      ops::run(channel_of(runtime), dirty.args());
      const size_t row = static_cast<size_t>(c.hidden) * dtype_bytes(dtype), before = row * static_cast<size_t>(last);
      ASSERT_GT(last, 0);
      EXPECT_EQ(std::memcmp(clean.out().data(), dirty.out().data(), before), 0);
      EXPECT_TRUE(std::isnan(base::load_element(dirty.out().data(), dtype, last * c.hidden)));
    });
}

TEST(Moe, RefusesOnAllRanksBeforeAnythingMoves) {
  using Change = std::function<void(Layer&, ops::MoeArgs&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](Layer& layer, ops::MoeArgs&) { layer.idx()[3] = 4; },
       "moe: idx of token 1, choice 1 is 4, wanted -1 (none) or 0 to 3; rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.num_experts = 0; }, "moe: num_experts is 0, wanted 1 to 8192; rank 1"},
      {[](Layer&, ops::MoeArgs& args) {
         args.expert_begin = {0, 4};
       },
       "moe: expert_begin has 2 entries up to 4, wanted 3 up to the 4 experts; rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.activation = "tanh"; },
       "moe: activation is \"tanh\", wanted silu, gelu_tanh, gelu_erf or relu; rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.gated = false; },
       "moe: w1 must be (2, 24, 16), of the 2 experts of this rank, got (2, 48, 16); rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.w2.sizes[2] = 0; },
       "moe: w2 must have columns (E_loc, H, I), got (2, 16, 0); rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.b2 = args.x; },
       "moe: b2 is (2, 16), wanted none with gated experts; rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.w2.dtype = DType::bf16; },
       "moe: w2 must have the dtype of x (fp32), got bf16; rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.idx.dtype = DType::i64; }, "moe: idx must be i32, got i64; rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.out = args.x; },
       "moe: out (2, 16) must not share memory with x (2, 16); rank 1"},
      {[](Layer&, ops::MoeArgs& args) { args.capacity_factor = std::nan(""); },
       "moe: capacity_factor is nan, wanted 0 (dropless) or more; rank 1"},
  };
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    for (const auto& [change, want] : cases) {
      Layer layer({}, 2, rank);
      ops::MoeArgs args = layer.args();
      if (rank == 1) change(layer, args);
      const std::string got = refusal(channel_of(runtime), args);
      EXPECT_EQ(got, rank == 1 ? "invalid_argument: " + want
                               : "invalid_argument: rank 1 refused the call, so that no rank of team \"world\" makes "
                                 "it: " +
                                     want);
      Layer good({}, 2, rank);
      ops::run(channel_of(runtime), good.args());
      EXPECT_EQ(good.mismatch(), "") << "after a refused call";
    }
    Layer layer({}, 2, rank);
    ops::MoeArgs args = layer.args();
    args.capacity_factor = rank;
    EXPECT_EQ(refusal(channel_of(runtime), args),
              "plan_mismatch: the moe layer differs between ranks of team \"world\": rank 0 has H 16 I 24 E 4 top 2 "
              "fp32 gated silu capacity 0 experts from 0 2 4, rank 1 has H 16 I 24 E 4 top 2 fp32 gated silu capacity "
              "1 experts from 0 2 4");
  });
}

TEST(MoeContexts, RunTheLayerOnCpuRanks) {
  for (const int ranks : {1, 3})
    run_ranks(ranks, Mode::threads, [](Runtime& runtime) {
      const int size = runtime.world().size(), rank = runtime.world().rank();
      for (size_t i = 0; i < kCases.size(); ++i) {
        Layer layer(kCases[i], size, rank, i + 1), other(kCases[i], size, rank, i + 1);
        ops::MoeContext context = ops::MoeContext::open(channel_of(runtime), moe_spec(kCases[i], size));
        EXPECT_EQ(context.heap_bytes() + context.device_bytes(), 0u);
        std::vector<int64_t> load(static_cast<size_t>(layer.local()), -1);
        int64_t dropped = -1;
        ops::run(context, layer.args(), {.load = load.data(), .dropped = &dropped});
        const ops::MoeReport report = ops::run(channel_of(runtime), other.args());
        EXPECT_EQ(layer.out(), other.out()) << "case " << i;
        EXPECT_EQ(load, report.load) << "case " << i;
        EXPECT_EQ(dropped, report.dropped) << "case " << i;
        EXPECT_EQ(context.report().load, report.load) << "case " << i;
        EXPECT_EQ(context.report().dropped, report.dropped) << "case " << i;
      }
    });
}

TEST(MoeContexts, RefuseOnAllRanksWhatTheyCannotHold) {
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    const auto opened = [&](const ops::MoeSpec& spec) -> std::string {
      try {
        (void)ops::MoeContext::open(channel_of(runtime), spec);
      } catch (const Error& error) {
        return base::format("{}: {}", errc_name(error.code()), error.what());
      }
      return "";
    };
    const std::vector<std::pair<std::function<void(ops::MoeSpec&)>, std::string>> cases = {
        {[](ops::MoeSpec& spec) { spec.max_tokens = 0; }, "moe_open: max_tokens is 0, wanted at least 1; rank 1"},
        {[](ops::MoeSpec& spec) { spec.hidden = -4; }, "moe_open: hidden is -4, wanted at least 1; rank 1"},
        {[](ops::MoeSpec& spec) { spec.inter = 0; }, "moe_open: inter is 0, wanted at least 1; rank 1"},
        {[](ops::MoeSpec& spec) { spec.top_k = 33; }, "moe_open: top_k is 33, wanted at most 32; rank 1"},
        {[](ops::MoeSpec& spec) { spec.num_experts = 0; }, "moe_open: num_experts is 0, wanted 1 to 8192; rank 1"},
        {[](ops::MoeSpec& spec) { spec.family = "library"; },
         "moe_open: family is library, wanted auto, serial or fused; rank 1"},
        {[](ops::MoeSpec& spec) {
           spec.expert_begin = {0, 4};
         },
         "moe_open: expert_begin has 2 entries up to 4, wanted 3 up to the 4 experts; rank 1"},
    };
    for (const auto& [change, want] : cases) {
      ops::MoeSpec spec = moe_spec({}, 2);
      if (rank == 1) change(spec);
      EXPECT_EQ(opened(spec), rank == 1 ? "invalid_argument: " + want
                                        : "invalid_argument: rank 1 refused the call, so that no rank of team "
                                          "\"world\" makes it: " +
                                              want);
    }
    ops::MoeSpec spec = moe_spec({}, 2);
    spec.max_tokens += rank;
    EXPECT_EQ(opened(spec).rfind("plan_mismatch: the context of a moe layer differs between ranks", 0), 0u)
        << opened(spec);
  });
}

TEST(MoeContexts, RefuseCallsOfAnotherSize) {
  run_ranks(2, Mode::threads, [&](Runtime& runtime) {
    const int rank = runtime.world().rank();
    ops::MoeContext context = ops::MoeContext::open(channel_of(runtime), moe_spec({.most_tokens = 7}, 2));
    using Change = std::function<void(ops::MoeArgs&)>;
    const std::vector<std::pair<Change, std::string>> cases = {
        {[](ops::MoeArgs& args) { args.x.sizes[0] = 8; },
         "moe: x has 8 rows, wanted at most the 7 tokens of the context; rank 1"},
        {[](ops::MoeArgs& args) { args.idx.sizes[1] = 1; },
         "moe: the number of columns of idx is 1, wanted 2, as the context was opened; rank 1"},
        {[](ops::MoeArgs& args) { args.num_experts = 5; },
         "moe: num_experts is 5, wanted 4, as the context was opened; rank 1"},
        {[](ops::MoeArgs& args) { args.x.dtype = DType::bf16; }, "moe: x must be fp32, got bf16; rank 1"},
    };
    for (const auto& [change, want] : cases) {
      Layer layer({.most_tokens = 7}, 2, rank);
      ops::MoeArgs args = layer.args();
      if (rank == 1) change(args);
      std::string got;
      try {
        ops::run(context, args);
      } catch (const Error& error) {
        got = base::format("{}: {}", errc_name(error.code()), error.what());
      }
      EXPECT_NE(got.find(want), std::string::npos) << got;
      Layer good({.most_tokens = 7}, 2, rank);
      ops::run(context, good.args());
      EXPECT_EQ(good.mismatch(), "") << "after a refused call";
    }
  });
}

TEST(Moe, NeedsAnEngineForMoreThanOneRank) {
  for (const int ranks : {1, 2})
    run_ranks(ranks, Mode::threads,
              [](Runtime& runtime) {
                const int size = runtime.world().size();
                Layer layer({}, size, runtime.world().rank());
                EXPECT_EQ(refusal(channel_of(runtime), layer.args()),
                          size == 1 ? ""
                                    : "not_supported: moe: team \"world\" has no collectives engine; wanted: "
                                      "RuntimeOptions::net_engine auto or mpi");
              },
              {.net_engine = "none"});
}

}  // namespace
}  // namespace overlace::test
