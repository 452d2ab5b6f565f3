// All-reduces of device memory: through the host, or by NCCL with a runtime of its own whose engine has few CTAs.
#include <exception>
#include <utility>

#include "src/base/status.h"
#include "src/runtime/async_collective/cuda/staged.h"
#include "src/runtime/backend.h"
#include "src/runtime/engine/nccl/collective.h"
#include "src/runtime/engine/nccl/engine.h"
#include "src/runtime/state.h"

namespace overlace {
namespace {

/// Closed with the other ranks, unless something has failed: then none waits.
struct OwnRuntime {
  explicit OwnRuntime(Runtime opened) : runtime(std::move(opened)) {}
  ~OwnRuntime() {
    try {
      runtime.close();
    } catch (const std::exception&) {  // what it waited for is lost, and nobody asks any more
    }
  }
  OwnRuntime(const OwnRuntime&) = delete;
  OwnRuntime& operator=(const OwnRuntime&) = delete;
  Runtime runtime;
};

constexpr size_t kHeapBytes = size_t{2} << 20;  // nothing of ours lies there

}  // namespace

DeviceTransports device_transports() { return {true, runtime::nccl::is_available()}; }

std::unique_ptr<AsyncCollective> runtime::stage_collective(std::unique_ptr<HostTransport> host,
                                                           const HostCollectiveOptions& options) {
  return make_staged(std::move(host), options);
}

std::unique_ptr<AsyncCollective> open_nccl_collective(Bootstrap& bootstrap, const NcclCollectiveOptions& options) {
  RuntimeOptions wanted = RuntimeOptions::from_environment();
  wanted.backend = Backend::cuda_peer;
  wanted.device = options.device;
  wanted.heap_bytes = wanted.max_heap_bytes = kHeapBytes;
  wanted.num_signal_ids = 512;
  wanted.timeout_ms = options.timeout_ms;
  wanted.net_engine = "nccl";
  wanted.net_max_ctas = options.max_ctas;
  const auto owner = std::make_shared<OwnRuntime>(Runtime::open(bootstrap, wanted));
  Runtime& opened = owner->runtime;
  Team& team = opened.world();
  RuntimeState& state = opened.state();
  return runtime::nccl::make_collective(
      {.net = team.net(),
       .rank = team.rank(),
       .size = team.size(),
       .device = opened.device(),
       .cause =
           [&state] {
             const runtime::AbortCause cause = state.backend->cause();
             return base::Status(cause.code, cause.message);
           },
       .abort = [&opened](Errc code, std::string_view why) { opened.abort(code, why); },
       .owner = owner});
}

}  // namespace overlace
