#include "src/runtime/backend/cuda_peer/preload.h"

#include <mutex>
#include <vector>

#include "src/runtime/backend/cuda_peer/check.h"
#include "src/spec/fusable.h"

namespace overlace::runtime::cuda_peer {
namespace {

struct Registered {
  const void* kernel;
  CodeFor code;
};
struct Registry {
  std::mutex mutex;
  std::vector<Registered> kernels;
};
// Never destroyed: units register from their own static initialisers, in any order.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

void register_kernel(const void* kernel, CodeFor code) {
  std::lock_guard lock(registry().mutex);
  registry().kernels.push_back({kernel, code});
}

base::Status load_registered_kernels(int compute_capability) {
  const bool is_hopper = compute_capability == spec::kFusedCapability;
  std::lock_guard lock(registry().mutex);
  for (const auto& [kernel, code] : registry().kernels) {
    if (code == CodeFor::hopper && !is_hopper) continue;
    cudaFuncAttributes attributes{};
    OVERLACE_TRY(cuda_status(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"));
  }
  return {};
}

}  // namespace overlace::runtime::cuda_peer
