// The mixture-of-experts layer on GPUs: against a dense oracle in fp64 and the layer on CPU ranks, repeated, captured,
// with bad choices. With one GPU ranks share it (virtual ranks).
#include "overlace/ops/moe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/gpu/support/values.h"
#include "tests/ranks/support/moe_layer.h"

namespace overlace::test {
namespace {

std::vector<int64_t> on_the_last(int64_t experts, int ranks) {
  std::vector<int64_t> out(static_cast<size_t>(ranks) + 1);
  out.back() = experts;
  return out;
}

const std::vector<MoeCase> kCases = {
    {.experts = 1, .top_k = 1, .dtype = DType::bf16, .out_dtype = DType::bf16},
    {.experts = 8, .top_k = 6, .dtype = DType::bf16, .out_dtype = DType::fp32},
    {.experts = 33, .top_k = 8, .hidden = 8, .inter = 8, .dtype = DType::bf16, .out_dtype = DType::bf16},
    {.experts = 8, .top_k = 2, .hidden = 136, .inter = 72, .dtype = DType::bf16, .out_dtype = DType::bf16},
    {.experts = 7, .top_k = 10, .dtype = DType::bf16, .capacity_factor = 1.0, .begin = on_the_last},
    {.experts = 6, .top_k = 3, .hidden = 264, .inter = 328, .dtype = DType::fp16, .out_dtype = DType::fp16},
    {.experts = 5, .top_k = 32, .dtype = DType::fp16, .out_dtype = DType::fp32, .capacity_factor = 0.5},
    {.experts = 4, .top_k = 2, .dtype = DType::bf16, .out_dtype = DType::bf16, .most_tokens = 0},
    {.experts = 3,
     .top_k = 2,
     .hidden = 64,
     .inter = 64,
     .dtype = DType::bf16,
     .out_dtype = DType::bf16,
     .most_tokens = 150},
};

TensorView on_gpu(GpuRank& gpu, const TensorView& host) {
  const size_t bytes = static_cast<size_t>(host.numel()) * dtype_bytes(host.dtype);
  char* out = gpu.device_array<char>(bytes + 16);
  if (bytes > 0) gpu.store(out, host.data, bytes);
  TensorView view = host;
  view.data = out;
  return view;
}

ops::MoeArgs on_gpu(GpuRank& gpu, const ops::MoeArgs& host) {
  ops::MoeArgs out = host;
  for (TensorView* t : {&out.x, &out.idx, &out.weights, &out.w1, &out.w2, &out.out}) *t = on_gpu(gpu, *t);
  return out;
}

/// With more room than there are tokens.
ops::MoeSpec spec_of(const MoeCase& c, int ranks) { return moe_spec(c, ranks, 3); }

void fetch_out(GpuRank& gpu, const TensorView& out, MoeLayer& layer) {
  gpu.wait();
  if (!layer.out().empty()) gpu.fetch(layer.out().data(), out.data, layer.out().size());
}

struct OnGpus {
  int ranks;
  const char* family;
};
class GpuMoeTest : public testing::TestWithParam<OnGpus> {
 protected:
  template <class Body>
  void run_ranks(Body body) {
    run_gpu_threads(GetParam().ranks, body);
  }
  static ops::MoeContext open(GpuRank& gpu, const MoeCase& c) {
    ops::MoeSpec spec = spec_of(c, gpu.size);
    spec.family = GetParam().family;
    return ops::MoeContext::open(gpu.channel, spec);
  }
};

TEST_P(GpuMoeTest, GivesWhatADenseLayerGives) {
  OVERLACE_NEED_GPUS(1);
  run_ranks([](GpuRank& gpu) {
    for (size_t i = 0; i < kCases.size(); ++i) {
      MoeLayer layer(kCases[i], gpu.size, gpu.rank, i + 1);
      ops::MoeContext context = open(gpu, kCases[i]);
      const ops::MoeArgs args = on_gpu(gpu, layer.args());
      std::vector<char> first;
      for (int repetition = 0; repetition < 3; ++repetition) {
        std::fill(layer.out().begin(), layer.out().end(), '\x7f');
        if (!layer.out().empty()) gpu.store(args.out.data, layer.out().data(), layer.out().size());
        ops::run(context, args);
        fetch_out(gpu, args.out, layer);
        ASSERT_EQ(layer.mismatch(), "") << "case " << i << ", repetition " << repetition;
        if (repetition == 0) first = layer.out();
        ASSERT_EQ(layer.out(), first) << "case " << i << ", repetition " << repetition;
      }
      const ops::MoeReport report = context.report();
      EXPECT_EQ(report.dropped, layer.dropped()) << "case " << i;
      ASSERT_EQ(report.load.size(), static_cast<size_t>(layer.local())) << "case " << i;
      gpu.team.barrier();
    }
  });
}

/// Other tokens, of another number, in the same context; and those before once more.
TEST_P(GpuMoeTest, TakesOtherTokensInTheSameContext) {
  OVERLACE_NEED_GPUS(1);
  run_ranks([](GpuRank& gpu) {
    MoeCase large = kCases[8], small = large;
    small.most_tokens = 11;
    ops::MoeContext context = open(gpu, large);
    for (const auto& [c, seed] : {std::pair{large, 1}, {small, 2}, {large, 3}, {small, 4}, {large, 1}}) {
      MoeLayer layer(c, gpu.size, gpu.rank, static_cast<uint64_t>(seed));
      const ops::MoeArgs args = on_gpu(gpu, layer.args());
      ops::run(context, args);
      fetch_out(gpu, args.out, layer);
      ASSERT_EQ(layer.mismatch(), "") << "seed " << seed;
    }
    gpu.team.barrier();
  });
}

TEST_P(GpuMoeTest, IsReplayed) {
  OVERLACE_NEED_GPUS(1);
  run_ranks([](GpuRank& gpu) {
    const MoeCase& c = kCases[3];
    MoeLayer layer(c, gpu.size, gpu.rank, 5);
    ops::MoeContext context = open(gpu, c);
    const ops::MoeArgs args = on_gpu(gpu, layer.args());
    check_replays(
        gpu, [&] { ops::run(context, args); },
        [&] { EXPECT_CUDA(cudaMemsetAsync(args.out.data, 0xff, layer.out().size(), gpu.stream)); },
        [&] {
          fetch_out(gpu, args.out, layer);
          EXPECT_EQ(layer.mismatch(), "");
        });
    gpu.team.barrier();
  });
}

TEST_P(GpuMoeTest, TellsOfAnExpertThatDoesNotExistAndGoesOn) {
  OVERLACE_NEED_GPUS(1);
  run_ranks([](GpuRank& gpu) {
    const MoeCase& c = kCases[3];
    MoeLayer layer(c, gpu.size, gpu.rank, 6);
    ops::MoeContext context = open(gpu, c);
    ops::MoeArgs args = on_gpu(gpu, layer.args());
    const int32_t bad = 8;
    const TensorView good = args.idx;
    args.idx = on_gpu(gpu, layer.args().idx);
    ASSERT_GT(layer.tokens(), 1);
    gpu.store(static_cast<int32_t*>(args.idx.data) + 3, &bad, sizeof bad);
    ops::run(context, args);
    try {
      (void)context.report();
      ADD_FAILURE() << "wanted a refusal";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()), base::format("moe: idx[1, 1] is 8, wanted -1 to 7; rank {}", gpu.rank));
    }
    args.idx = good;
    ops::run(context, args);
    fetch_out(gpu, args.out, layer);
    EXPECT_EQ(layer.mismatch(), "");
    EXPECT_EQ(context.report().dropped, 0);
    gpu.team.barrier();
  });
}

TEST_P(GpuMoeTest, KeepsWhatIsNotANumberToItsToken) {
  OVERLACE_NEED_GPUS(1);
  run_ranks([](GpuRank& gpu) {
    const MoeCase& c = kCases[3];
    MoeLayer clean(c, gpu.size, gpu.rank, 7), dirty(c, gpu.size, gpu.rank, 7);
    const int64_t last = dirty.tokens() - 1;
    ASSERT_GT(last, 0);
    for (int64_t h = 0; h < c.hidden; ++h) base::store_element(dirty.x().data(), c.dtype, last * c.hidden + h, NAN);
    ops::MoeContext context = open(gpu, c);
    for (MoeLayer* layer : {&clean, &dirty}) {
      const ops::MoeArgs args = on_gpu(gpu, layer->args());
      ops::run(context, args);
      fetch_out(gpu, args.out, *layer);
    }
    const size_t before = static_cast<size_t>(last * c.hidden) * dtype_bytes(c.dtype);
    EXPECT_EQ(std::memcmp(clean.out().data(), dirty.out().data(), before), 0);
    gpu.team.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuMoeTest,
                         testing::Values(OnGpus{1, "serial"}, OnGpus{2, "serial"}, OnGpus{4, "serial"},
                                         OnGpus{1, "fused"}, OnGpus{2, "fused"}, OnGpus{4, "fused"}),
                         [](const auto& test) { return base::format("on{}_{}", test.param.ranks, test.param.family); });

/// Operands on this rank's GPU, of sizes for which an oracle would take too long.
struct LargeLayer {
  LargeLayer(GpuRank& gpu, const ops::MoeSpec& of, int64_t tokens, uint64_t seed) : spec(of) {
    const int64_t experts = spec.num_experts * (gpu.rank + 1) / gpu.size - spec.num_experts * gpu.rank / gpu.size;
    const auto normal = [&](DType dtype, std::initializer_list<int64_t> shape, double scale) {
      TensorView host = TensorView::contiguous(nullptr, dtype, shape);
      std::vector<uint16_t> values(static_cast<size_t>(host.numel()));
      std::mt19937 draw(static_cast<unsigned>(++seed * 31 + static_cast<uint64_t>(gpu.rank)));
      std::vector<uint16_t> drawn(size_t{1} << 16);  // a part repeats: it is drawn faster
      for (uint16_t& one : drawn)
        one = base::float_to_bf16(static_cast<float>(std::normal_distribution<double>(0, scale)(draw)));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = drawn[(i * 2654435761U + i / 65536 * 40503U) % drawn.size()];
      host.data = values.data();
      return on_gpu(gpu, host);
    };
    x = normal(DType::bf16, {tokens, spec.hidden}, 1);
    w1 = normal(DType::bf16, {experts, 2 * spec.inter, spec.hidden}, 1 / std::sqrt(static_cast<double>(spec.hidden)));
    w2 = normal(DType::bf16, {experts, spec.hidden, spec.inter}, 1 / std::sqrt(static_cast<double>(spec.inter)));
    std::mt19937 draw(static_cast<unsigned>(seed));
    std::vector<int32_t> chosen;
    std::vector<float> factors;
    std::vector<int32_t> all(static_cast<size_t>(spec.num_experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t token = 0; token < tokens; ++token) {
      for (int j = 0; j < spec.top_k; ++j) {
        std::swap(all[static_cast<size_t>(j)],
                  all[static_cast<size_t>(j) + draw() % (all.size() - static_cast<size_t>(j))]);
        chosen.push_back(all[static_cast<size_t>(j)]);
        factors.push_back(static_cast<float>(draw() % 100 + 1) / 400);
      }
    }
    idx = on_gpu(gpu, TensorView::contiguous(chosen.data(), DType::i32, {tokens, spec.top_k}));
    weights = on_gpu(gpu, TensorView::contiguous(factors.data(), DType::fp32, {tokens, spec.top_k}));
    bytes = static_cast<size_t>(tokens * spec.hidden) * 2;
    std::vector<char> empty(bytes, '\x7f');
    out = on_gpu(gpu, TensorView::contiguous(empty.data(), DType::bf16, {tokens, spec.hidden}));
  }
  ops::MoeArgs args() const {
    return {.x = x, .idx = idx, .weights = weights, .w1 = w1, .w2 = w2, .out = out, .num_experts = spec.num_experts};
  }
  std::vector<char> result(GpuRank& gpu) const {
    gpu.wait();
    std::vector<char> host(bytes);
    gpu.fetch(host.data(), out.data, bytes);
    return host;
  }
  TensorView x, idx, weights, w1, w2, out;
  ops::MoeSpec spec;
  size_t bytes = 0;
};

/// Many tiles of rows an expert, in several waves; the number of tokens differs by rank.
TEST(GpuMoe, AllFamiliesGiveTheSameBits) {
  OVERLACE_NEED_GPUS(1);
  for (const int ranks : {1, 2, 3}) {
    run_gpu_threads(ranks, [](GpuRank& gpu) {
      const ops::MoeSpec specs[] = {
          {.max_tokens = 3000, .hidden = 1024, .inter = 384, .num_experts = 37, .top_k = 6},
          {.max_tokens = 1500, .hidden = 520, .inter = 1352, .num_experts = 4, .top_k = 2},
          {.max_tokens = 4000, .hidden = 256, .inter = 128, .num_experts = 256, .top_k = 8},
      };
      uint64_t seed = 11;
      for (ops::MoeSpec spec : specs) {
        const LargeLayer layer(gpu, spec, spec.max_tokens - 17 * gpu.rank, seed += 10);
        std::vector<char> first;
        for (const char* family : {"serial", "fused"}) {
          spec.family = family;
          ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec);
          for (int repetition = 0; repetition < 3; ++repetition) {
            EXPECT_CUDA(cudaMemsetAsync(layer.out.data, 0xff, layer.bytes, gpu.stream));
            ops::run(context, layer.args());
            const std::vector<char> got = layer.result(gpu);
            if (first.empty()) first = got;
            ASSERT_EQ(std::memcmp(got.data(), first.data(), first.size()), 0) << family << ", " << repetition;
          }
          (void)context.report();
          gpu.team.barrier();
        }
      }
    });
  }
}

/// A rank with many tokens takes another family than one with few.
TEST(GpuMoe, RanksMayTakeDifferentFamilies) {
  OVERLACE_NEED_GPUS(1);
  for (const int64_t few : {0, 16}) {
    run_gpu_threads(2,
                    [=](GpuRank& gpu) {
                      ops::MoeSpec spec{
                          .max_tokens = 6200, .hidden = 2048, .inter = 1024, .num_experts = 8, .top_k = 4};
                      const LargeLayer layer(gpu, spec, gpu.rank == 0 ? spec.max_tokens : few, 5);
                      std::vector<char> first;
                      for (const char* family : {"serial", "auto"}) {
                        spec.family = family;
                        ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec);
                        EXPECT_CUDA(cudaMemsetAsync(layer.out.data, 0xff, layer.bytes, gpu.stream));
                        ops::run(context, layer.args());
                        const std::vector<char> got = layer.result(gpu);
                        if (first.empty()) first = got;
                        ASSERT_EQ(got, first) << family;
                        (void)context.report();
                        gpu.team.barrier();
                      }
                    },
                    {.heap_bytes = size_t{256} << 20});
  }
}

/// A measurement, which asserts nothing about time: us a call in a row of calls, median of bursts.
TEST(GpuMoe, DISABLED_Takes) {
  OVERLACE_NEED_GPUS(1);
  struct Shape {
    const char* name;
    int64_t tokens, hidden, inter, experts;
    int top_k;
  };
  // What one rank of two has of the layer: half of the experts, and half of the choices of twice as many tokens.
  constexpr Shape kShapes[] = {{"Qwen3-30B", 16384, 2048, 768, 64, 4},  {"Qwen3-30B", 2048, 2048, 768, 64, 4},
                               {"Qwen3-30B", 256, 2048, 768, 64, 4},    {"Mixtral", 16384, 4096, 14336, 4, 1},
                               {"Mixtral", 2048, 4096, 14336, 4, 1},    {"FlashMoE", 16384, 2048, 2048, 16, 1},
                               {"Qwen2-MoE", 16384, 2048, 1408, 30, 2}, {"gpt-oss", 8192, 2880, 2880, 64, 2}};
  run_gpu_threads(
      1,
      [&](GpuRank& gpu) {
        for (const Shape& s : kShapes) {
          ops::MoeSpec spec{
              .max_tokens = s.tokens, .hidden = s.hidden, .inter = s.inter, .num_experts = s.experts, .top_k = s.top_k};
          const LargeLayer layer(gpu, spec, s.tokens, 3);
          std::vector<char> first;
          std::map<std::string, std::vector<float>> times;
          std::map<std::string, ops::MoeContext> contexts;
          for (const char* family : {"serial", "fused"}) {
            spec.family = family;
            contexts.emplace(family, ops::MoeContext::open(gpu.channel, spec));
            ops::run(contexts.at(family), layer.args());
            const std::vector<char> got = layer.result(gpu);
            if (first.empty()) first = got;
            ASSERT_EQ(std::memcmp(got.data(), first.data(), first.size()), 0) << s.name << ", " << family;
          }
          constexpr int kBursts = 9, kCalls = 20;
          cudaEvent_t begin = nullptr, end = nullptr;
          EXPECT_CUDA(cudaEventCreate(&begin));
          EXPECT_CUDA(cudaEventCreate(&end));
          for (int burst = 0; burst < kBursts; ++burst) {
            for (auto& [family, context] : contexts) {
              EXPECT_CUDA(cudaEventRecord(begin, gpu.stream));
              for (int call = 0; call < kCalls; ++call) ops::run(context, layer.args());
              EXPECT_CUDA(cudaEventRecord(end, gpu.stream));
              gpu.wait();
              float ms = 0;
              EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
              times[family].push_back(ms * 1000 / kCalls);
            }
          }
          for (auto& [family, us] : times) {
            std::nth_element(us.begin(), us.begin() + kBursts / 2, us.end());
            std::printf("%s, %lld tokens, top %d of %lld: %s %.1f us\n", s.name, static_cast<long long>(s.tokens),
                        s.top_k, static_cast<long long>(s.experts), family.c_str(),
                        static_cast<double>(us[kBursts / 2]));
          }
          EXPECT_CUDA(cudaEventDestroy(begin));
          EXPECT_CUDA(cudaEventDestroy(end));
        }
      },
      {.heap_bytes = size_t{2} << 30});
}

TEST(GpuMoe, RefusesWhatItCannotDo) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    const MoeCase& c = kCases[3];
    const auto said = [&](const ops::MoeSpec& spec) -> std::string {
      try {
        ops::MoeContext::open(gpu.channel, spec);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    ops::MoeSpec spec = spec_of(c, gpu.size);
    spec.hidden = 12;
    EXPECT_NE(said(spec).find("hidden is 12, wanted a multiple of 8"), std::string::npos) << said(spec);
    spec = spec_of(c, gpu.size);
    spec.dtype = DType::fp32;
    EXPECT_NE(said(spec).find("dtype is fp32, wanted bf16 or fp16 on GPUs"), std::string::npos) << said(spec);
    MoeLayer layer(c, gpu.size, gpu.rank, 8);
    ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec_of(c, gpu.size));
    ops::MoeArgs args = on_gpu(gpu, layer.args());
    const auto told = [&](const ops::MoeArgs& bad) -> std::string {
      try {
        ops::run(context, bad);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    const auto after = [&](const std::function<void(ops::MoeArgs&)>& change) {
      ops::MoeArgs bad = args;
      change(bad);
      return told(bad);
    };
    EXPECT_EQ(after([](ops::MoeArgs& bad) { bad.activation = "relu"; }),
              base::format("moe: gated relu experts on GPUs, wanted experts gated by silu; rank {}", gpu.rank));
    for (const double factor : {-1.0, static_cast<double>(NAN), std::numeric_limits<double>::infinity()})
      EXPECT_EQ(after([&](ops::MoeArgs& bad) { bad.capacity_factor = factor; }),
                base::format("moe: capacity_factor is {}, wanted 0 (dropless) or more; rank {}", factor, gpu.rank));
    EXPECT_EQ(after([](ops::MoeArgs& bad) { bad.w1.strides[0] = 0; }).find("moe: w1 "), 0u);
    EXPECT_EQ(after([](ops::MoeArgs& bad) { bad.w2.strides[0] = bad.w2.dim(2); }).find("moe: w2 "), 0u);
    EXPECT_EQ(after([](ops::MoeArgs& bad) { bad.x.data = static_cast<char*>(bad.x.data) + 2; }).find("moe: x "), 0u);
    EXPECT_EQ(after([](ops::MoeArgs& bad) { bad.x.strides[0] += 4; }).find("moe: x "), 0u);
    ops::run(context, args);
    fetch_out(gpu, args.out, layer);
    EXPECT_EQ(layer.mismatch(), "");
    gpu.team.barrier();
  });
}

/// The first call, when a peer's part of the heap holds what was there before.
TEST(GpuMoe, ARankThatDoesNotComeIsNamedAndNothingIsReadOutOfRange) {
  OVERLACE_NEED_GPUS(1);
  for (const char* family : {"serial", "fused"})
    run_gpu_threads(2,
                    [=](GpuRank& gpu) {
                      const MoeCase& c = kCases[3];
                      const SymBuffer before = gpu.runtime.heap().alloc(size_t{32} << 20);
                      EXPECT_CUDA(cudaMemset(gpu.team.peer_ptr(before, gpu.rank), 0x7f, before.bytes));
                      gpu.runtime.heap().free(before);
                      MoeLayer layer(c, gpu.size, gpu.rank, 9);
                      ops::MoeSpec spec = spec_of(c, gpu.size);
                      spec.family = family;
                      ops::MoeContext context = ops::MoeContext::open(gpu.channel, spec);
                      const ops::MoeArgs args = on_gpu(gpu, layer.args());
                      std::string said;
                      try {
                        if (gpu.rank == 0) ops::run(context, args);
                        gpu.wait();
                        for (int look = 0; look < 100; ++look) {
                          std::this_thread::sleep_for(std::chrono::milliseconds(100));
                          gpu.runtime.check();
                        }
                      } catch (const Error& error) {
                        said = error.what();
                      }
                      EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
                      EXPECT_EQ(cudaStreamSynchronize(gpu.stream), cudaSuccess);
                    },
                    {.timeout_ms = 1500, .checks_end = false});
}

}  // namespace
}  // namespace overlace::test
