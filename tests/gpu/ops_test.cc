// The dense operators on real GPUs: every family against exact sums, repeated, captured, ragged. Ranks are threads of
// this process, one GPU each; with one GPU they share it (virtual ranks).
#include <gtest/gtest.h>

#include <chrono>

#include "overlace/ops/common.h"
#include "src/exec/run.h"
#include "src/ops/fused/choose.h"
#include "src/ops/reduce/bodies.h"
#include "src/spec/fused_pod.h"
#include "tests/gpu/support/ops_site.h"

namespace overlace {
namespace {

class GpuOps : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (runtime::cuda_device_count(&why) == 0) GTEST_SKIP() << why;
  }

  /// Every family and degree of the problem, three calls each, then quiescence.
  void run_all(const Problem& problem, const std::vector<int>& degrees) {
    for (int n : kTeamSizes) {
      if (!problem.row_offsets.empty() && static_cast<int>(problem.row_offsets.size()) != n + 1) continue;
      const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        Site site(problem, channel);
        for (const std::string& family : spec::families(problem.op)) {
          if (family == "compute" || family == "comm" || family == "limit") continue;
          for (int degree : degrees) {
            const spec::Schedule schedule = spec::make_schedule(site.op(), family, degree);
            if (!ops::supports(channel, site.op(), schedule).ok()) continue;  // a fused kernel: FusedKernels* wants it
            const std::string where = base::format("{} {} q {} on {} ranks", problem.op, family, degree, n);
            for (int call = 0; call < 3; ++call) {
              site.out().poison();
              site.run(schedule);
              runtime.synchronize();
              require(site.mismatch(), where);
              // What waits for a GPU must not meet the next call of a rank that shares it.
              if (n > device_count()) runtime.world().barrier();
            }
            runtime.world().barrier();
            runtime.check_quiescent();
            runtime.world().barrier();  // nobody signals again before all have looked
          }
        }
      });
      EXPECT_EQ(failure, "");
    }
  }
};

TEST_F(GpuOps, AgGemmBf16) { run_all({.op = "ag_gemm", .m = 512, .n = 256, .k = 320}, {1, 2, 4}); }
TEST_F(GpuOps, AgGemmBf16BiasKn) {
  run_all({.op = "ag_gemm", .m = 256, .n = 192, .k = 128, .layout = spec::BLayout::kn, .bias = true}, {1, 3});
}
TEST_F(GpuOps, AgGemmFp16Ragged) {
  run_all({.op = "ag_gemm", .m = 301, .n = 64, .k = 128, .dtype = DType::fp16}, {1, 2});
}
TEST_F(GpuOps, AgGemmFp32) { run_all({.op = "ag_gemm", .m = 128, .n = 64, .k = 96, .dtype = DType::fp32}, {1, 2}); }
TEST_F(GpuOps, AgGemmEmptyShards) {
  run_all({.op = "ag_gemm", .m = 100, .n = 64, .k = 64, .row_offsets = {0, 0, 100}}, {1, 2});
  run_all({.op = "ag_gemm", .m = 100, .n = 64, .k = 64, .row_offsets = {0, 60, 60, 60, 100}}, {2});
}
TEST_F(GpuOps, AgGemmFewRows) {
  run_all({.op = "ag_gemm", .m = 1, .n = 64, .k = 64}, {1, 2});
  run_all({.op = "ag_gemm", .m = 0, .n = 64, .k = 64}, {1});
}
TEST_F(GpuOps, AgGemmSwiglu) {
  run_all({.op = "ag_gemm", .m = 301, .n = 272, .k = 320, .bias = true, .swiglu = true}, {1, 3});
  run_all({.op = "ag_gemm", .m = 128, .n = 64, .k = 96, .dtype = DType::fp32, .swiglu = true}, {2});
  run_all(
      {.op = "ag_gemm", .m = 100, .n = 6, .k = 64, .dtype = DType::fp16, .row_offsets = {0, 0, 100}, .swiglu = true},
      {2});
}
TEST_F(GpuOps, GemmRsBf16) { run_all({.op = "gemm_rs", .m = 512, .n = 256, .k = 320}, {1, 2, 4}); }
TEST_F(GpuOps, GemmRsFp16BiasKnRagged) {
  run_all(
      {.op = "gemm_rs", .m = 203, .n = 192, .k = 64, .dtype = DType::fp16, .layout = spec::BLayout::kn, .bias = true},
      {1, 3});
}
TEST_F(GpuOps, GemmRsFp32) { run_all({.op = "gemm_rs", .m = 128, .n = 64, .k = 96, .dtype = DType::fp32}, {1, 2}); }
TEST_F(GpuOps, GemmRsEmptyShards) {
  run_all({.op = "gemm_rs", .m = 100, .n = 64, .k = 64, .row_offsets = {0, 100, 100}}, {1, 2});
  run_all({.op = "gemm_rs", .m = 1, .n = 64, .k = 64}, {1});
}
TEST_F(GpuOps, GemmArBf16) { run_all({.op = "gemm_ar", .m = 512, .n = 256, .k = 320}, {1, 2, 4}); }
TEST_F(GpuOps, GemmArFewRows) {
  run_all({.op = "gemm_ar", .m = 5, .n = 64, .k = 64}, {1, 4});
  run_all({.op = "gemm_ar", .m = 0, .n = 64, .k = 64}, {2});
}
TEST_F(GpuOps, GemmArBiasRagged) { run_all({.op = "gemm_ar", .m = 203, .n = 64, .k = 64, .bias = true}, {1, 2}); }

/// The schedules whose calls can be captured: all but those of the library's collectives are ours.
TEST_F(GpuOps, CapturedCallsReplayWithTheSameBits) {
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    const std::vector<std::string> known = spec::families(op);
    for (const char* family : {"serial", "hetero_fused_1d", "uniform_fused_1d", "grouped_fused_1d",
                               "grouped_unfused_1d", "k_slab", "tma_slot", "tracked"}) {
      if (std::find(known.begin(), known.end(), family) == known.end()) continue;
      const std::string failure = on_ranks(team_sizes().back(), [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        const bool has_tiles = std::string_view(family) == "tma_slot" || std::string_view(family) == "tracked";
        const int64_t m = has_tiles ? 2048 : 512;  // two bands of gemm_ar, two chunks
        Site site({.op = op, .m = m, .n = 256, .k = 320}, channel);
        const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2);
        site.run(schedule);
        settle(runtime);
        site.out().download();
        const std::vector<unsigned char> eager = site.out().bytes();
        cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        site.run(schedule);
        site.run(schedule);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cuda_ok(cudaStreamEndCapture(stream, &graph));
        cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
        runtime.world().barrier();  // it allocates, which waits for the kernels of a rank that shares the GPU
        for (int replay = 0; replay < 50; ++replay) {
          if (replay % 10 == 0) cuda_ok(cudaMemsetAsync(site.out().device().data, 0xff, eager.size(), stream));
          cuda_ok(cudaGraphLaunch(exec, stream));
        }
        settle(runtime);
        site.out().download();
        if (site.out().bytes() != eager)
          throw std::runtime_error(base::format("{} {}: a replay gave other bits", op, family));
        site.run(schedule);  // eager after replays
        settle(runtime);
        site.out().download();
        if (site.out().bytes() != eager)
          throw std::runtime_error(base::format("{} {}: eager after replay gave other bits", op, family));
        runtime.world().barrier();
        runtime.check_quiescent();
        (void)cudaGraphExecDestroy(exec);
        (void)cudaGraphDestroy(graph);
      });
      EXPECT_EQ(failure, "");
    }
  }
}

/// Degrees from one piece to as many as there can be; shards of other than whole tiles, one of them empty; calls that
/// are queued behind each other without a look; on all SMs and on a part of them.
using FusedCase = std::pair<Problem, const char*>;
std::vector<FusedCase> fused_cases(int ranks) {
  const std::vector<int64_t> uneven =
      ranks == 2 ? std::vector<int64_t>{0, 0, 600} : std::vector<int64_t>{0, 300, 300, 412, 600};
  return {{{.op = "ag_gemm", .m = 1024, .n = 264, .k = 520}, "k_slab"},
          {{.op = "ag_gemm", .m = 600, .n = 392, .k = 264, .row_offsets = uneven}, "k_slab"},
          {{.op = "ag_gemm", .m = 600, .n = 400, .k = 264, .row_offsets = uneven, .swiglu = true}, "k_slab"},
          {{.op = "gemm_rs", .m = 1024, .n = 264, .k = 72, .bias = true}, "tma_slot"},
          {{.op = "gemm_rs", .m = 600, .n = 392, .k = 136, .row_offsets = uneven}, "tma_slot"},
          {{.op = "gemm_ar", .m = 5003, .n = 776, .k = 72, .bias = true}, "tma_slot"},
          {{.op = "gemm_ar", .m = 1, .n = 392, .k = 136}, "tma_slot"}};
}

/// One call alone, then many behind each other.
void call_often(Runtime& runtime, cudaStream_t stream, Site& site, const spec::Schedule& schedule,
                const std::string& where) {
  site.out().poison();
  site.run(schedule);
  settle(runtime);
  require(site.mismatch(), where);
  const std::vector<unsigned char> bits = site.out().bytes();
  for (int call = 0; call < 20; ++call) {
    if (call % 4 == 0) cuda_ok(cudaMemsetAsync(site.out().device().data, 0xff, bits.size(), stream));
    site.run(schedule);
  }
  settle(runtime);
  site.out().download();
  if (site.out().bytes() != bits) throw std::runtime_error(where + ": other bits in a later call");
  runtime.world().barrier();
  runtime.check_quiescent();
  runtime.world().barrier();
}

TEST_F(GpuOps, FusedKernelsGiveTheExactResultAndTheSameBitsInCallsBehindEachOther) {
  for (int n : team_sizes()) {
    if (n == 1) continue;
    const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
      Channel& whole = runtime.world().channel(StreamRef::cuda(stream));
      Channel& part = runtime.world().channel(StreamRef::cuda(stream), {.sm_budget = 24});
      for (const auto& [problem, family] : fused_cases(n)) {
        for (Channel* channel : {&whole, &part}) {
          Site site(problem, *channel);
          for (const int degree : {1, 3, 8, 64}) {
            const spec::Schedule schedule = spec::make_schedule(site.op(), family, degree);
            require(ops::supports(*channel, site.op(), schedule).reason, family);
            call_often(runtime, stream, site, schedule, base::format("{} q {} on {} ranks", family, degree, n));
          }
        }
      }
    });
    EXPECT_EQ(failure, "");
  }
}

/// Where choose_instance takes it: 12 clusters of its tiles, the last of each row clipped, are one wave of 24 SMs.
struct InstanceCase {
  ops::fused::InstanceSpec instance;
  Problem problem;
  const char* family;
  spec::Params options;
};
std::vector<InstanceCase> instance_cases() {
  std::vector<InstanceCase> out;
  const auto add = [&](const char* op, const char* family, const ops::fused::InstanceSpec& one, spec::Params options) {
    const ops::fused::ConfigSpec& s = one.spec;
    const auto layout = s.b_major == ops::fused::BMajor::k ? spec::BLayout::nk : spec::BLayout::kn;
    Problem p = {.op = op, .m = 1024, .n = 3 * s.tile_n - 8, .k = 136, .dtype = s.dtype, .layout = layout};
    out.push_back({one, p, family, options});
    p.bias = true;
    out.push_back({one, p, family, options});
    if (p.op != "ag_gemm") return;
    p.n -= 8;
    p.swiglu = true;
    out.push_back({one, p, family, options});
    p.bias = false;
    out.push_back({one, p, family, options});
  };
  for (const auto& one : ops::fused::specs_of(ops::fused::Kernel::gather))
    if (one.spec.split_k == 1) add("ag_gemm", "k_slab", one, {});
  for (const auto& one : ops::fused::specs_of(ops::fused::Kernel::scatter))
    if (ops::fused::find_scatter(one.spec.dtype, one.spec.b_major, kSlotTileRows, one.spec.tile_n) == &one)
      for (const char* op : {"gemm_rs", "gemm_ar"}) add(op, "tma_slot", one, {{"align_n", int64_t{one.spec.tile_n}}});
  return out;
}

TEST_F(GpuOps, EveryFusedInstanceGivesTheExactResultWithAndWithoutABiasAndSwiglu) {
  constexpr int kSms = 24, kDegree = 3;
  for (int n : team_sizes()) {
    if (n == 1) continue;
    const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
      Channel& channel = runtime.world().channel(StreamRef::cuda(stream), {.sm_budget = kSms});
      for (const InstanceCase& one : instance_cases()) {
        Site site(one.problem, channel);
        const spec::Schedule schedule = spec::make_schedule(site.op(), one.family, kDegree, one.options);
        const auto taken = ops::fused::choose_instance(schedule, kSms);
        require(taken.ok() ? "" : taken.status().message(), one.family);
        if ((*taken)->name != one.instance.name) throw std::runtime_error("taken: " + std::string((*taken)->name));
        call_often(runtime, stream, site, schedule,
                   base::format("{} of {}{}{} on {} ranks", one.instance.name, one.family,
                                one.problem.bias ? " with a bias" : "", one.problem.swiglu ? " swiglu" : "", n));
      }
    });
    EXPECT_EQ(failure, "");
  }
}

/// Ranks come late to the first calls of new shapes, while others wait on their GPUs: what a first call loads and
/// allocates must not be held up by kernels that wait.
TEST_F(GpuOps, FirstCallsOfNewShapesWhileOthersWait) {
  constexpr int kShapes = 12, kLateMs = 15;
  const int n = team_sizes().back();
  const std::string failure = on_ranks(n, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    std::vector<std::unique_ptr<Site>> sites;
    for (int i = 0; i < kShapes; ++i) {
      const bool is_gather = i % 2 == 0;
      sites.push_back(std::make_unique<Site>(
          Problem{.op = is_gather ? "ag_gemm" : "gemm_rs", .m = 64 + 32 * i, .n = 64 + 24 * i, .k = 64 + 40 * i},
          channel));
    }
    for (int i = 0; i < kShapes; ++i) {
      Site& site = *sites[static_cast<size_t>(i)];
      if (channel.team().rank() == i % n) std::this_thread::sleep_for(std::chrono::milliseconds(kLateMs));
      const char* family = i % 4 < 2 ? "hetero_unfused_1d" : "hetero_fused_1d";
      site.run(spec::make_schedule(site.op(), family, 2));
    }
    settle(runtime);
    for (int i = 0; i < kShapes; ++i) require(sites[static_cast<size_t>(i)]->mismatch(), base::format("shape {}", i));
  });
  EXPECT_EQ(failure, "");
}

/// What no kernel is compiled for is refused on all ranks before anything moves, and says so.
TEST_F(GpuOps, FusedKernelsThatAreMissingAreRefused) {
  const std::string failure = on_ranks(2, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    const auto refused = [&](const Problem& problem, const char* family, const char* want,
                             Errc code = Errc::not_supported, const spec::Params& options = {}) {
      Site site(problem, channel);
      const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2, options);
      try {
        site.run(schedule);
        throw std::runtime_error(std::string(want) + ": was not refused");
      } catch (const Error& e) {
        const std::string what = e.what();
        if (e.code() != code || what.find(want) == std::string::npos)
          throw std::runtime_error(base::format("wanted {}, got {}", want, what));
      }
      const bool is_known = ops::supports(channel, site.op(), schedule).ok();
      if (is_known != (code != Errc::not_supported))
        throw std::runtime_error(std::string(want) + ": supports() differs");
    };
    refused({.op = "ag_gemm", .m = 64, .n = 64, .k = 64, .dtype = DType::fp32}, "k_slab", "no kernel for fp32 -> fp32");
    refused({.op = "ag_gemm", .m = 64, .n = 65, .k = 64}, "k_slab", "N 65, K 64");
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 60}, "tma_slot", "N 64, K 60; wanted: multiples of 8");
    refused({.op = "ag_gemm", .m = 64, .n = 64, .k = 64}, "k_slab", "multiples of 64", Errc::not_supported,
            {{"align_k", int64_t{8}}});
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 64, .dtype = DType::fp32, .layout = spec::BLayout::kn}, "tma_slot",
            "no kernel for fp32 -> fp32, b kn");
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 64}, "tma_slot", "tiles 64x128", Errc::not_supported,
            {{"align", int64_t{64}}});
    refused({.op = "gemm_rs", .m = 64, .n = 64, .k = 64}, "tma_slot", "has no signal credit, which its kernel uses",
            Errc::bad_schedule, {{"credits", false}});
    Site site({.op = "gemm_rs", .m = 64, .n = 64, .k = 64}, channel);
    Matrix a(64, 72, DType::bf16), b(64, 64, DType::bf16);
    TensorView odd = a.device();
    odd.data = static_cast<char*>(odd.data) + 2;
    odd.sizes[1] = 64;
    try {
      ops::run(channel, ops::GemmRsArgs{.a = odd, .b = b.device().transposed(), .out = site.out().device()},
               spec::make_schedule(site.op(), "tma_slot", 2));
      throw std::runtime_error("an odd address was not refused");
    } catch (const Error& e) {
      const char* want = "no kernel for a at an address 2 past a multiple of 16, rows 72 elements apart; wanted: a";
      if (e.code() != Errc::not_supported) throw;
      require(std::string(e.what()).find(want) == std::string::npos ? e.what() : "", "odd address");
    }
    site.run(spec::make_schedule(site.op(), "tma_slot", 2));
    settle(runtime);
    require(site.mismatch(), "after refusals");
  });
  EXPECT_EQ(failure, "");
}

/// No kernel adds a bias of the factors' type to a wider result. One rank's is wrong in the first call of a schedule,
/// all ranks' in a later one; nobody has queued anything then, so that the next call is exact.
TEST_F(GpuOps, ABiasOfAnotherTypeThanTheResultIsRefusedOnAllRanks) {
  const std::string failure = on_ranks(2, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    int refused = 0;
    for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
      Site site({.op = op, .m = 256, .n = 64, .k = 72, .dtype = DType::fp16, .bias = true, .out_dtype = DType::fp32},
                channel);
      for (const std::string& family : spec::families(op)) {
        if (family == "compute" || family == "comm" || family == "limit") continue;
        const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2);
        if (!ops::supports(channel, site.op(), schedule).ok()) continue;
        for (const bool is_known : {false, true}) {
          const std::string where = base::format("{} {}, call {}", op, family, is_known ? 2 : 1);
          const bool is_wrong = is_known || channel.team().rank() == 1;
          std::string said;
          try {
            site.run(schedule, is_wrong ? DType::fp16 : DType::fp32);
          } catch (const Error& e) {
            said = e.what();
            if (e.code() != Errc::not_supported) throw;
          }
          if (said.find("bias is fp16, wanted fp32") == std::string::npos)
            throw std::runtime_error(where + ": wanted a refusal, got '" + said + "'");
          ++refused;
          site.out().poison();
          site.run(schedule);
          settle(runtime);
          require(site.mismatch(), where);
        }
      }
      runtime.world().barrier();
      runtime.check_quiescent();
      runtime.world().barrier();
    }
    if (refused < 12) throw std::runtime_error(base::format("{} refusals, wanted two of two families each", refused));
  });
  EXPECT_EQ(failure, "");
}

/// What a call has queued when it fails may satisfy waits of later calls, so there are none: its rank ends the team.
TEST_F(GpuOps, AFailureBehindTheFirstPieceOfWorkEndsTheTeam) {
  std::string said[2];
  const std::string failure = on_ranks(2, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    const int rank = channel.team().rank();
    Site site({.op = "gemm_rs", .m = 256, .n = 64, .k = 72}, channel);
    const spec::Schedule schedule = spec::make_schedule(site.op(), "serial", 1);
    bool is_spoilt = false;
    const exec::Bodies bodies = {.by_kind = {{spec::Kind::reduce, [&](const exec::BodyContext& context) {
                                                return is_spoilt ? base::invalid_argument("spoilt")
                                                                 : ops::reduce_on_gpu(context);
                                              }}}};
    const exec::Bindings bindings = {{"A", site.a()}, {"B", site.b()}, {"Y", site.out().device()}};
    const auto run = [&] { return exec::run(channel, schedule, "spoilt", bindings, bodies); };
    base::Status status = run();
    settle(runtime);
    require(status.ok() ? site.mismatch() : status.message(), "the first call");
    runtime.world().barrier();
    is_spoilt = rank == 0;
    status = run();  // on rank 0 its partial sums are on their way
    try {
      while (rank == 1 && status.ok()) {  // its part of the call may need nothing of the other rank's
        runtime.synchronize();
        status = run();
      }
      said[rank] = status.message();
    } catch (const Error& e) {
      said[rank] = e.what();
    }
  });
  EXPECT_EQ(said[0], "spoilt");
  EXPECT_NE(said[1].find("spoilt"), std::string::npos) << said[1];
  EXPECT_NE(failure.find("spoilt"), std::string::npos) << failure;  // of whoever uses the runtime again
}

/// The heap holds few of these schedules at once: memory and signal words of those given up are used again.
TEST_F(GpuOps, SchedulesThatTakeTurnsOnASmallHeapStayExact) {
  const std::string failure = on_ranks(
      team_sizes().back(),
      [&](Runtime& runtime, cudaStream_t stream) {
        Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
        for (int turn = 0; turn < 3; ++turn) {
          for (int64_t m : {256, 384, 512}) {
            for (const char* op : {"ag_gemm", "gemm_rs"}) {
              Site site({.op = op, .m = m, .n = 256, .k = 320}, channel);
              for (const char* family : {"serial", "hetero_unfused_1d", "uniform_fused_1d"}) {
                const spec::Schedule schedule = spec::make_schedule(site.op(), family, 2);
                for (int call = 0; call < 3; ++call) {
                  site.out().poison();
                  site.run(schedule);
                  settle(runtime);
                  require(site.mismatch(), base::format("{} {} m {} turn {}", op, family, m, turn));
                }
              }
            }
          }
        }
      },
      size_t{6} << 20);
  EXPECT_EQ(failure, "");
}

TEST_F(GpuOps, FirstCallInCaptureIsRefused) {
  const std::string failure = on_ranks(1, [&](Runtime& runtime, cudaStream_t stream) {
    Channel& channel = runtime.world().channel(StreamRef::cuda(stream));
    Site site({.op = "ag_gemm", .m = 64, .n = 64, .k = 64}, channel);
    site.run(spec::make_schedule(site.op(), "library", 1));
    settle(runtime);
    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    Errc code = Errc::ok;
    try {
      site.run(spec::make_schedule(site.op(), "serial", 1));
    } catch (const Error& e) {
      code = e.code();
    }
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (code != Errc::capture) throw std::runtime_error("wanted capture, got " + std::string(errc_name(code)));
  });
  EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace overlace
