// Ranks as threads, each with a stream of the CUDA runtime that is played and all-reduces through a real worker.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "src/runtime/async_collective/cuda/staged.h"
#include "tests/ranks/nccl/rank.h"

namespace overlace::test::nccl {

struct Devices {
  int64_t timeout_ms = 20000;
  bool leaves_errors = false;  // ranks end with tickets that failed
};

inline bool ends(cudaStream_t stream) {
  return holds_within(kSoonNs, [stream] { return cudaStreamQuery(stream) == cudaSuccess; });
}

/// Behind them no stream, event or memory may be left.
inline void run_on_devices(int n, const Devices& devices,
                           const std::function<void(AsyncCollective&, cudaStream_t)>& body) {
  run_bootstraps(n, Mode::threads, [&](Bootstrap& bootstrap) {
    RankOptions ranks;
    ranks.heap_bytes = size_t{2} << 20;
    ranks.timeout_ms = devices.timeout_ms;
    HostCollectiveOptions options;
    options.device = 0;
    options.slot_bytes = 8192;
    options.slots = 3;
    options.runtime = runtime_options(Mode::threads, ranks);
    options.meet_timeout_ms = 60000;
    const auto outer = runtime::make_staged(runtime::open_host_transport(bootstrap, options), options);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    body(*outer, stream);
    EXPECT_TRUE(ends(stream));
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
  EXPECT_EQ(cuda::alive(), 0) << "streams, events and memory of CUDA";
}

}  // namespace overlace::test::nccl
