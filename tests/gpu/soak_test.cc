// Many calls of every schedule on GPUs that start each call at random times: every call must give the bits of the
// first, eager and replayed. OVERLACE_TEST_CALLS (default 300) says how many of each.
#include <cstdlib>
#include <string>

#include "overlace/ops/ag_gemm.h"
#include "overlace/ops/gemm_ar.h"
#include "overlace/ops/gemm_rs.h"
#include "src/base/format.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/gpu/support/operands.h"
#include "tests/unit/ops/shapes.h"

namespace overlace::test {
namespace {

constexpr int64_t kMostRows = 1000, kN = 512, kK = 768;  // shards of other than whole tiles
constexpr uint64_t kMostDelayNs = 40'000, kLongDelayNs = 2'000'000;
constexpr int kLongEvery = 512;

int calls() {
  const char* text = std::getenv("OVERLACE_TEST_CALLS");
  const int count = text == nullptr ? 300 : std::atoi(text);
  EXPECT_GT(count, 0) << "OVERLACE_TEST_CALLS is \"" << (text == nullptr ? "" : text) << "\", wanted a count >= 1";
  return count;
}

struct Soaked {
  std::string op, family;
  int degree = 1;
  int64_t most_rows = kMostRows;
};

class SoakTest : public testing::TestWithParam<Soaked> {};

/// One rank's operands, its call, and the comparison behind it.
class Site {
 public:
  Site(GpuRank& rank, const Soaked& how) : rank_(rank), how_(how), op_(problem_of(how, rank.size)) {
    const bool is_gather = how.op == "ag_gemm";
    const int64_t rows = is_gather ? own_rows() : op_.m;
    out_count_ = (how.op == "gemm_rs" ? own_rows() : op_.m) * kN;
    a_ = filled(rows * kK, 1);
    b_ = filled(kN * kK, 2);
    out_ = rank.device_array<__nv_bfloat16>(static_cast<size_t>(out_count_));
    first_ = rank.device_array<__nv_bfloat16>(static_cast<size_t>(out_count_));
    wrong_ = rank.device_array<uint64_t>(1);
    a_view_ = TensorView::contiguous(a_, DType::bf16, {rows, kK});
    b_view_ = TensorView::contiguous(b_, DType::bf16, {kN, kK}).transposed();
    out_view_ = TensorView::contiguous(out_, DType::bf16, {out_count_ / kN, kN});
    schedule_ = spec::make_schedule(op_, how.family, how.degree);
  }

  void run() {
    if (how_.op == "ag_gemm") {
      ops::run(rank_.channel, gather_args(), schedule_);
    } else if (how_.op == "gemm_rs") {
      ops::run(rank_.channel, scatter_args(), schedule_);
    } else {
      ops::run(rank_.channel, reduce_args(), schedule_);
    }
  }
  void keep_first() { EXPECT_CUDA(cudaMemcpyAsync(first_, out_, bytes(), cudaMemcpyDeviceToDevice, rank_.stream)); }
  void compare() {
    EXPECT_CUDA(launch_count_differences(rank_.stream, reinterpret_cast<const uint16_t*>(out_),
                                         reinterpret_cast<const uint16_t*>(first_), out_count_, wrong_));
    EXPECT_CUDA(cudaMemsetAsync(out_, 0xff, bytes(), rank_.stream));
  }
  /// Ranks draw apart by up to kMostDelayNs a call, and now and then by much more than a call takes.
  void delay(int call) {
    const uint64_t drawn = mixed(static_cast<uint64_t>(call) * 64 + static_cast<uint64_t>(rank_.rank) + 7);
    const uint64_t ns = drawn % kLongEvery == 0 ? kLongDelayNs : drawn / kLongEvery % kMostDelayNs;
    EXPECT_CUDA(launch_delay(rank_.stream, ns));
  }
  uint64_t wrong() { return rank_.read(wrong_); }

 private:
  int64_t own_rows() const {
    const std::vector<int64_t> off = spec::row_offsets(op_);
    return off[static_cast<size_t>(rank_.rank) + 1] - off[static_cast<size_t>(rank_.rank)];
  }
  /// A problem of as many rows as the family takes.
  static spec::OpSpec problem_of(const Soaked& how, int ranks) {
    spec::OpSpec wanted;
    wanted.op = how.op;
    wanted.m = how.most_rows;
    wanted.n = kN;
    wanted.k = kK;
    wanted.ranks = ranks;
    return shape_for(wanted, how.family, how.degree).value();
  }
  ops::AgGemmArgs gather_args() const { return {.a_shard = a_view_, .b = b_view_, .c = out_view_}; }
  ops::GemmRsArgs scatter_args() const { return {.a = a_view_, .b = b_view_, .out = out_view_}; }
  ops::GemmArArgs reduce_args() const { return {.a = a_view_, .b = b_view_, .out = out_view_}; }
  size_t bytes() const { return static_cast<size_t>(out_count_) * 2; }
  __nv_bfloat16* filled(int64_t count, uint64_t tensor) {
    auto* data = rank_.device_array<__nv_bfloat16>(static_cast<size_t>(count));
    EXPECT_CUDA(launch_values(rank_.stream, data, count, tensor * 64 + static_cast<uint64_t>(rank_.rank)));
    return data;
  }

  GpuRank& rank_;
  Soaked how_;
  spec::OpSpec op_;
  __nv_bfloat16 *a_ = nullptr, *b_ = nullptr, *out_ = nullptr, *first_ = nullptr;
  uint64_t* wrong_ = nullptr;
  int64_t out_count_ = 0;
  TensorView a_view_, b_view_, out_view_;
  spec::Schedule schedule_;
};

GpuOptions options() {
  GpuOptions o;
  o.heap_bytes = size_t{256} << 20;
  o.net_engine = "auto";
  return o;
}
int team_size() { return gpu_count() >= 4 ? 4 : 2; }  // on one GPU two ranks share it
#define NEED_WHAT_THE_SCHEDULE_NEEDS()                                       \
  OVERLACE_NEED_GPUS(1);                                                     \
  if (GetParam().family.starts_with("library") && gpu_count() < team_size()) \
  GTEST_SKIP() << "ranks that share a GPU have no engine for collectives"

TEST_P(SoakTest, EagerCallsGiveTheSameBits) {
  NEED_WHAT_THE_SCHEDULE_NEEDS();
  run_gpu_threads(
      team_size(),
      [](GpuRank& rank) {
        Site site(rank, GetParam());
        site.run();
        site.keep_first();
        // What loads kernels waits for those of a rank that shares the GPU.
        site.delay(0);
        site.compare();
        rank.wait();
        rank.team.barrier();
        for (int call = 0; call < calls(); ++call) {
          site.delay(call);
          site.run();
          site.compare();
        }
        EXPECT_EQ(site.wrong(), 0u) << "elements of rank " << rank.rank << " in " << calls() << " calls";
      },
      options());
}

/// Ends a capture that a refusal broke off.
void drop_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}

TEST_P(SoakTest, ReplaysGiveTheSameBits) {
  NEED_WHAT_THE_SCHEDULE_NEEDS();
  run_gpu_threads(
      team_size(),
      [](GpuRank& rank) {
        Site site(rank, GetParam());
        site.run();
        site.keep_first();
        rank.wait();
        rank.team.barrier();  // a graph that is made waits for the kernels of a rank that shares the GPU
        EXPECT_CUDA(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
        try {
          site.run();
        } catch (const Error& error) {  // some schedules need stream waits, and say so
          drop_capture(rank.stream);
          EXPECT_TRUE(error.code() == Errc::not_supported || error.code() == Errc::capture) << error.what();
          EXPECT_NE(std::string(error.what()).find("captur"), std::string::npos) << error.what();
          return;
        }
        site.compare();
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        EXPECT_CUDA(cudaStreamEndCapture(rank.stream, &graph));
        EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
        EXPECT_CUDA(cudaGraphUpload(replay, rank.stream));
        rank.wait();
        rank.team.barrier();
        for (int call = 0; call < calls(); ++call) {
          site.delay(call);
          EXPECT_CUDA(cudaGraphLaunch(replay, rank.stream));
        }
        EXPECT_EQ(site.wrong(), 0u) << "elements of rank " << rank.rank << " in " << calls() << " replays";
        EXPECT_CUDA(cudaGraphExecDestroy(replay));
        EXPECT_CUDA(cudaGraphDestroy(graph));
      },
      options());
}

std::vector<Soaked> all_schedules() {
  std::vector<Soaked> list;
  for (const char* op : {"ag_gemm", "gemm_rs", "gemm_ar"}) {
    for (const std::string& family : families_with_a_result(op)) {
      list.push_back({op, family, 1});
      if (family != "library" && family != "serial") list.push_back({op, family, 2});
      if (family == "one_shot")
        for (const int64_t rows : {3, 60, 100}) list.push_back({op, family, 1, rows});  // its other tiles
    }
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(Schedules, SoakTest, testing::ValuesIn(all_schedules()), [](const auto& case_) {
  return case_.param.op + "_" + case_.param.family + "_q" + std::to_string(case_.param.degree) +
         (case_.param.most_rows == kMostRows ? "" : "_M" + std::to_string(case_.param.most_rows));
});

}  // namespace
}  // namespace overlace::test
