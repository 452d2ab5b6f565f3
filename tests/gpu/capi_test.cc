// The C API on GPUs: device memory and streams as plain pointers, ranks as threads.
#include "overlace/capi.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr int64_t kM = 512, kN = 128, kK = 256;
constexpr int kRanks = 2;

#define EXPECT_OVL(call) EXPECT_EQ(OVL_OK, (call)) << #call << ": " << ovl_error_text()

// Small integers: exact in fp32, and in what tensor cores make of it.
float a_value(int rank, int64_t i, int64_t k) { return static_cast<float>((i * 3 + k + 2 * rank) % 5 - 2); }
float w_value(int rank, int64_t n, int64_t k) { return static_cast<float>((n + k * 2 + rank) % 3 - 1); }

/// Device memory with the values of `value(row, column)`.
class Matrix {
 public:
  template <class Value>
  Matrix(int64_t rows, int64_t columns, Value value) : host_(static_cast<size_t>(rows * columns)) {
    for (int64_t i = 0; i < rows * columns; ++i) host_[static_cast<size_t>(i)] = value(i / columns, i % columns);
    EXPECT_CUDA(cudaMalloc(&data_, bytes()));
    EXPECT_CUDA(cudaMemcpy(data_, host_.data(), bytes(), cudaMemcpyHostToDevice));
    EXPECT_OVL(ovl_matrix(data_, OVL_FP32, rows, columns, &view));
  }
  ~Matrix() { cudaFree(data_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  const std::vector<float>& fetch() {
    EXPECT_CUDA(cudaMemcpy(host_.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return host_;
  }
  ovl_tensor view{};

 private:
  size_t bytes() const { return host_.size() * sizeof(float); }
  std::vector<float> host_;
  void* data_ = nullptr;
};

void check_gemm_rs(ovl_channel* channel, int rank, const std::vector<cudaStream_t>& streams) {
  const int64_t rows = kM / kRanks;
  Matrix a(kM, kK, [&](int64_t i, int64_t k) { return a_value(rank, i, k); });
  Matrix weight(kN, kK, [&](int64_t n, int64_t k) { return w_value(rank, n, k); });
  Matrix out(rows, kN, [](int64_t, int64_t) { return -1.0f; });
  ovl_arg args[] = {ovl_tensor_arg("a", a.view), ovl_tensor_arg("b", weight.view), ovl_tensor_arg("out", out.view)};
  EXPECT_OVL(ovl_transpose(&args[1].tensor));
  ovl_op op{};
  op.struct_size = sizeof op;
  op.name = "gemm_rs";
  op.m = kM, op.n = kN, op.k = kK, op.ranks = kRanks, op.dtype = op.out_dtype = OVL_FP32;
  ovl_schedule* schedule = nullptr;
  EXPECT_OVL(ovl_schedule_make(&op, "hetero_unfused_1d", 1, &schedule));
  for (const cudaStream_t stream : streams) {
    EXPECT_OVL(ovl_channel_use(channel, stream));
    EXPECT_OVL(ovl_call(channel, "gemm_rs", args, 3, schedule));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    const std::vector<float>& got = out.fetch();
    for (int64_t i = 0; i < rows; i += 17) {
      for (int64_t n = 0; n < kN; ++n) {
        float want = 0;
        for (int r = 0; r < kRanks; ++r)
          for (int64_t k = 0; k < kK; ++k) want += a_value(r, rank * rows + i, k) * w_value(r, n, k);
        ASSERT_EQ(got[static_cast<size_t>(i * kN + n)], want) << "rank " << rank << ", " << i << ", " << n;
      }
    }
  }
  EXPECT_OVL(ovl_schedule_free(schedule));
}

void run_rank(ovl_world* world, int rank) {
  ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
  ovl_options options{};
  options.struct_size = sizeof options;
  options.backend = OVL_BACKEND_CUDA_PEER, options.has_device = 1, options.device = rank;
  options.heap_bytes = 64 << 20, options.timeout_ms = 20000, options.net_engine = "none";
  ovl_runtime* runtime = nullptr;
  ovl_team* team = nullptr;
  ovl_channel* channel = nullptr;
  std::vector<cudaStream_t> streams(2);
  for (cudaStream_t& stream : streams) ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(ovl_runtime_open_thread(world, rank, &options, &runtime), OVL_OK) << ovl_error_text();
  EXPECT_OVL(ovl_runtime_world(runtime, &team));
  EXPECT_OVL(ovl_channel_open(team, streams[0], 0, &channel));
  ovl_info info{};
  info.struct_size = sizeof info;
  EXPECT_OVL(ovl_runtime_info(runtime, &info));
  EXPECT_EQ(info.backend, OVL_BACKEND_CUDA_PEER);
  EXPECT_EQ(info.device, rank);
  check_gemm_rs(channel, rank, streams);
  uint32_t id = 0;
  EXPECT_EQ(ovl_signal_ids(channel, 1, "x", &id), OVL_NOT_SUPPORTED);
  EXPECT_STREQ(ovl_error_text(),
               "ovl_signal_ids: the backend is cuda_peer, wanted cpu: signals of GPUs belong to kernels and streams");
  EXPECT_EQ(ovl_all_reduce(channel, &id, &id, 1, OVL_I32), OVL_NOT_SUPPORTED);
  EXPECT_OVL(ovl_team_barrier(team));
  EXPECT_OVL(ovl_runtime_close(runtime));
  for (const cudaStream_t stream : streams) EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(GpuCApi, OperatorsOnStreamsOfTwoRanks) {
  OVERLACE_NEED_GPUS(2);
  ovl_world* world = nullptr;
  EXPECT_OVL(ovl_world_create(kRanks, &world));
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back(run_rank, world, r);
  for (std::thread& thread : threads) thread.join();
  EXPECT_OVL(ovl_world_free(world));
}

}  // namespace
}  // namespace overlace::test
