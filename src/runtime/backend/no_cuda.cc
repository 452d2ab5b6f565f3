// What stands in for backend cuda_peer in a build without CUDA.
#ifndef OVERLACE_HAS_CUDA
#include "src/runtime/backend.h"

namespace overlace::runtime {
namespace {

constexpr const char* kWhy = "backend cuda_peer: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found)";

}  // namespace

base::Result<std::unique_ptr<BackendState>> open_cuda_peer(const OpenContext&) {
  return base::Status(Errc::not_supported, kWhy);
}

int cuda_device_count(std::string* why) {
  if (why != nullptr) *why = kWhy;
  return 0;
}

CudaDevice cuda_device(int) { return {}; }

}  // namespace overlace::runtime
#endif
