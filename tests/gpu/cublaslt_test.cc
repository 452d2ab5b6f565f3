// Library products of operands that lie anywhere, and what opening leaves behind.
#include "src/exec/cuda/cublaslt.h"

#include <cstdint>
#include <vector>

#include "src/base/half.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

constexpr int64_t kM = 96, kN = 64, kK = 128;

float small(int64_t i, int64_t factor) { return static_cast<float>(i * factor % 9) - 4; }

/// bf16 on the device, `offset` elements behind an address of 256 bytes.
struct Operand {
  Operand(int64_t count, int64_t offset, int64_t factor) : host(static_cast<size_t>(count + offset)) {
    for (int64_t i = 0; i < count; ++i) host[static_cast<size_t>(i + offset)] = base::float_to_bf16(small(i, factor));
    EXPECT_CUDA(cudaMalloc(&memory, host.size() * 2));
    EXPECT_CUDA(cudaMemcpy(memory, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
    data = static_cast<uint16_t*>(memory) + offset;
  }
  ~Operand() { EXPECT_CUDA(cudaFree(memory)); }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  std::vector<uint16_t> host;
  void* memory = nullptr;
  uint16_t* data = nullptr;
};

/// Plans are made for aligned operands first, so that one that is taken for others too would show.
TEST(GpuCublasLt, OperandsMayLieAtAnyElement) {
  OVERLACE_NEED_GPUS(1);
  auto opened = exec::CublasLt::open(0);
  opened.status().or_throw();
  exec::LtGemm gemm;
  gemm.m = kM, gemm.n = kN, gemm.k = kK, gemm.lda = kK, gemm.ldb = kK, gemm.ldc = kN;
  for (const int64_t offset : {0, 8, 4, 2, 1}) {
    for (int which = 0; which < 3; ++which) {
      Operand a(kM * kK, which == 0 ? offset : 0, 7), b(kN * kK, which == 1 ? offset : 0, 5);
      Operand c(kM * kN, which == 2 ? offset : 0, 1);
      const base::Status status = (*opened)->run(gemm, {.a = a.data, .b = b.data, .c = c.data}, 0, nullptr);
      if (!status.ok()) {  // said before anything ran, with the alignments
        EXPECT_EQ(status.code(), Errc::not_supported) << status.message();
        EXPECT_NE(status.message().find("at multiples of"), std::string::npos) << status.message();
        EXPECT_LT(offset, 8) << "16 bytes are enough: " << status.message();
        continue;
      }
      EXPECT_CUDA(cudaDeviceSynchronize());
      std::vector<uint16_t> got(static_cast<size_t>(kM * kN));
      EXPECT_CUDA(cudaMemcpy(got.data(), c.data, got.size() * 2, cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < kM * kN; ++i) {
        float sum = 0;
        for (int64_t k = 0; k < kK; ++k) sum += small(i / kN * kK + k, 7) * small(i % kN * kK + k, 5);
        ASSERT_EQ(got[static_cast<size_t>(i)], base::float_to_bf16(sum)) << "offset " << offset << ", element " << i;
      }
    }
  }
}

TEST(GpuCublasLt, OpenLeavesTheCurrentDevice) {
  OVERLACE_NEED_GPUS(2);
  EXPECT_CUDA(cudaSetDevice(0));
  const auto opened = exec::CublasLt::open(1);
  opened.status().or_throw();
  int device = -1;
  EXPECT_CUDA(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
}

}  // namespace
}  // namespace overlace::test
