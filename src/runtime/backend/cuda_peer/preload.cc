#include "src/runtime/backend/cuda_peer/preload.h"

#include <mutex>
#include <vector>

#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::runtime::cuda_peer {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<const void*> kernels;
};
// Never destroyed: units register from their own static initialisers, in any order.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

void register_kernel(const void* kernel) {
  std::lock_guard lock(registry().mutex);
  registry().kernels.push_back(kernel);
}

base::Status load_registered_kernels() {
  std::lock_guard lock(registry().mutex);
  for (const void* kernel : registry().kernels) {
    cudaFuncAttributes attributes{};
    OVERLACE_TRY(cuda_status(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"));
  }
  return {};
}

}  // namespace overlace::runtime::cuda_peer
