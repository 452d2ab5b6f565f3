// Striped matrices on GPUs, ranks as threads that may share one: sums and rows of all ranks, replayed graphs, refusals.
// Products that nobody changed are in tests/python/torch_gpu/test_striped_gpu.py.
#include "overlace/ops/striped.h"

#include <string>
#include <vector>

#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

using ops::StripedMatrix;
using ops::StripedSpec;

constexpr int64_t kRows = 256, kCols = 2048;  // a block of fp32 is a page of 2 MiB

float element(int rank, int call, int64_t row, int64_t col) {
  return static_cast<float>((rank * 7 + call * 3 + row * 5 + col * 11 + row * col % 13) % 9 - 4);
}

/// Stores this rank's whole matrix, part by part, in stream order.
void store_all(GpuRank& gpu, const StripedMatrix& matrix, int call) {
  const StripedRange& range = matrix.range(matrix.turn());
  auto* const host = gpu.pinned_array<float>(range.bytes() / sizeof(float));
  const int64_t rows = matrix.spec().blocks * kRows;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < kCols; ++col) host[row * kCols + col] = element(gpu.rank, call, row, col);
  size_t at = 0;
  for (const StripePiece& part : range.parts()) {
    EXPECT_CUDA(cudaMemcpyAsync(part.data, reinterpret_cast<const char*>(host) + at, part.bytes, cudaMemcpyHostToDevice,
                                gpu.stream));
    at += part.bytes;
  }
}

std::vector<float> result_of(GpuRank& gpu, const TensorView& t) {
  std::vector<float> host(static_cast<size_t>(t.numel()));
  gpu.fetch(host.data(), t.data, host.size() * sizeof(float));
  return host;
}

void check_sum(GpuRank& gpu, const TensorView& t, int call, const std::vector<int64_t>& rows) {
  const std::vector<float> got = result_of(gpu, t);
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t col = 0; col < kCols; ++col) {
      float want = 0;
      for (int source = 0; source < gpu.size; ++source) want += element(source, call, rows[i], col);
      ASSERT_EQ(got[i * kCols + static_cast<size_t>(col)], want) << "call " << call << " row " << rows[i] << " " << col;
    }
}

void check_rows(GpuRank& gpu, const TensorView& t, int call, const std::vector<int64_t>& rows) {
  const std::vector<float> got = result_of(gpu, t);
  for (int source = 0; source < gpu.size; ++source)
    for (size_t i = 0; i < rows.size(); ++i)
      for (int64_t col = 0; col < kCols; ++col)
        ASSERT_EQ(got[(static_cast<size_t>(source) * rows.size() + i) * kCols + static_cast<size_t>(col)],
                  element(source, call, rows[i], col))
            << "call " << call << " of rank " << source << " row " << rows[i] << " column " << col;
}

/// Calls of both kinds, then a graph with both, replayed with data that change.
void exchange(GpuRank& gpu, const StripedSpec& spec, int replays) {
  StripedMatrix matrix = StripedMatrix::open(gpu.channel, spec, "c");
  const std::vector<int>& owners = matrix.spec().owners;
  std::vector<int64_t> rows;
  for (size_t b = 0; b < owners.size(); ++b)
    for (int64_t i = 0; i < kRows && owners[b] == gpu.rank; ++i) rows.push_back(static_cast<int64_t>(b) * kRows + i);
  const auto owned = static_cast<int64_t>(rows.size());
  ASSERT_EQ(matrix.owned_rows(), owned);
  const auto make = [&](int64_t height) {
    return TensorView::contiguous(gpu.device_array<float>(static_cast<size_t>(height * kCols + 1)), DType::fp32,
                                  {height, kCols});
  };
  const TensorView sum = make(owned), all = make(owned * gpu.size);
  int call = 0;
  for (; call < 6; ++call) {
    ASSERT_EQ(matrix.turn(), call % 2);
    store_all(gpu, matrix, call);
    if (call % 3 == 2) {
      matrix.all_to_all(all);
      check_rows(gpu, all, call, rows);
    } else {
      matrix.reduce_scatter(sum);
      check_sum(gpu, sum, call, rows);
    }
  }
  gpu.wait();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t program = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
  matrix.reduce_scatter(sum);
  matrix.all_to_all(all);
  EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&program, graph, 0));
  const int turn = matrix.turn();
  for (; call < 6 + replays; ++call) {
    store_all(gpu, matrix, call);
    EXPECT_CUDA(cudaGraphLaunch(program, gpu.stream));
    check_sum(gpu, sum, call, rows);
    check_rows(gpu, all, call, rows);
  }
  store_all(gpu, matrix, call);  // eager calls behind replays keep to the same matrix
  matrix.reduce_scatter(sum);
  check_sum(gpu, sum, call, rows);
  EXPECT_EQ(matrix.turn(), turn);
  gpu.wait();
  EXPECT_CUDA(cudaGraphExecDestroy(program));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  matrix.close();
}

TEST(GpuStripedTest, SumsAndRowsOfAllRanks) {
  OVERLACE_NEED_GPUS(1);
  for (const int n : {1, 2, 4})
    run_gpu_threads(n, [](GpuRank& gpu) { exchange(gpu, {.rows = kRows, .cols = kCols, .dtype = DType::fp32}, 3); });
}

TEST(GpuStripedTest, OwnersAreFree) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    exchange(gpu, {.rows = kRows, .cols = kCols, .dtype = DType::fp32, .owners = {0, 1, 0, 1}}, 2);
    exchange(gpu, {.rows = kRows, .cols = kCols, .dtype = DType::fp32, .owners = {1, 1}}, 2);
  });
}

TEST(GpuStripedTest, BadCallsAreRefusedBeforeAnythingIsQueued) {
  OVERLACE_NEED_GPUS(1);
  run_gpu_threads(2, [](GpuRank& gpu) {
    const auto refused = [](const auto& call) {
      try {
        call();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("nothing was thrown");
    };
    const StripedSpec good{.rows = kRows, .cols = kCols, .dtype = DType::fp32};
    std::string what = refused([&] { (void)StripedMatrix::open(gpu.channel, {.rows = 1000, .cols = 8192}, "c"); });
    EXPECT_NE(what.find("131072 for 8192 columns, 262144000 bytes for 16384000"), std::string::npos) << what;
    EXPECT_CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    what = refused([&] { (void)StripedMatrix::open(gpu.channel, good, "c"); });
    EXPECT_NE(what.find("is being captured"), std::string::npos) << what;
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(gpu.stream, &graph));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    StripedMatrix matrix = StripedMatrix::open(gpu.channel, good, "c");
    std::vector<float> host(kRows * kCols);
    what = refused([&] { matrix.reduce_scatter(TensorView::contiguous(host.data(), DType::fp32, {kRows, kCols})); });
    EXPECT_NE(what.find("is in host memory, wanted GPU"), std::string::npos) << what;
    what = refused([&] {
      matrix.reduce_scatter(TensorView::contiguous(matrix.range(1).data(), DType::fp32, {kRows, kCols}));
    });
    EXPECT_NE(what.find("in the striped memory at 0x"), std::string::npos) << what;
    EXPECT_EQ(matrix.turn(), 0);
  });
}

}  // namespace
}  // namespace overlace::test
