// A kernel of your own: each rank sends a row to the next one through an inbox of two buffers, ten times, without the
// host between. Ranks may share a GPU. Where there is no GPU the program ends with status 77.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "overlace/device/inbox.cuh"
#include "overlace/error.h"
#include "overlace/runtime.h"

namespace {

using overlace::Errc;

constexpr int kCount = 1 << 16, kRounds = 10;

/// One block. y <- x of the rank before this one.
__global__ void pass_on(const __grid_constant__ overlace::ChannelPod channel,
                        const __grid_constant__ overlace::InboxPod inbox, const float* x, float* y) {
  using namespace overlace::device;
  const int rank = channel.team.rank, size = channel.team.size;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  __shared__ Errc code;
  if (threadIdx.x == 0) code = inbox_wait_credit(channel, inbox, next);  // the buffer there is free again
  __syncthreads();
  if (code != Errc::ok) return;  // the team is aborted: the host says why
  inbox_put(channel, inbox, next, 0, x, kCount * sizeof(float));
  __syncthreads();
  if (threadIdx.x == 0) {
    inbox_sent(channel, inbox, next);
    code = inbox_wait_data(channel, inbox, previous);
  }
  __syncthreads();
  if (code != Errc::ok) return;
  const auto* mine = static_cast<const float*>(peer_ptr(channel.team, rank, inbox_offset(inbox)));
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += static_cast<int>(blockDim.x)) y[i] = mine[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    inbox_release(channel, inbox, previous);
    inbox_advance(inbox);
  }
}

void check(cudaError_t error) {
  if (error != cudaSuccess) overlace::throw_error(Errc::cuda, cudaGetErrorString(error));
}

}  // namespace

int main() try {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    std::puts("no GPU");
    return 77;
  }
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cuda_peer;
  options.device = bootstrap->rank() % num_gpus;
  check(cudaSetDevice(options.device));
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  overlace::Channel& channel = team.channel(overlace::StreamRef::cuda(stream));
  const overlace::Inbox inbox = channel.inbox(kCount * sizeof(float), 2, "pass_on");

  float *x = nullptr, *y = nullptr;
  check(cudaMalloc(&x, kCount * sizeof(float)));
  check(cudaMalloc(&y, kCount * sizeof(float)));
  std::vector<float> host(kCount);
  for (int i = 0; i < kCount; ++i) host[i] = static_cast<float>(team.rank() * kCount + i);
  check(cudaMemcpy(x, host.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  for (int round = 0; round < kRounds; ++round) {  // what came in goes on: after ten rounds the row of rank - 10
    pass_on<<<1, 256, 0, stream>>>(channel.pod(), inbox.pod(), x, y);
    check(cudaGetLastError());
    std::swap(x, y);
  }
  check(cudaStreamSynchronize(stream));
  runtime.check();  // a wait that failed
  check(cudaMemcpy(host.data(), x, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  const int from = ((team.rank() - kRounds) % team.size() + team.size()) % team.size();
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += host[i] != static_cast<float>(from * kCount + i) ? 1 : 0;
  std::printf("rank %d: %d of %d values are wrong\n", team.rank(), wrong, kCount);
  team.barrier();  // all have released what was sent
  runtime.close();
  return wrong == 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
