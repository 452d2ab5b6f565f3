#include "src/train/co2/cuda/pass_pieces.cuh"
#include "tests/gpu/support/co2_pass_styles.h"

namespace overlace::test {
namespace {

template <train::PassStyle kStyle>
base::Status queue(const train::CudaArrays& arrays, float groups, const train::CudaRun& run, void* cuda_stream) {
  train::pass_pieces<float, float, train::PassMode::fused, kStyle>
      <<<static_cast<unsigned>(run.count), train::kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(arrays, groups,
                                                                                                         run.first);
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? base::Status::success() : base::error(Errc::cuda, "pass: {}", cudaGetErrorString(code));
}

constexpr PassStyleRow kStyles[] = {
    {"streaming", &queue<train::PassStyle::streaming>},
    {"product", &queue<train::PassStyle::product>},
    {"streaming product", &queue<train::PassStyle::streaming_product>},
};

}  // namespace

std::span<const PassStyleRow> pass_styles() { return kStyles; }

}  // namespace overlace::test
