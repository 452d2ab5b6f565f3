#include "bench/runtime/harness.cuh"

#include <algorithm>

#include "overlace/error.h"

namespace overlace::bench {

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  throw_error(Errc::cuda, base::format("{}: {}", call, cudaGetErrorString(code)));
}

void Meeting::meet() {
  const uint32_t now = phase_.load();
  if (arrived_.fetch_add(1) + 1 == n_) {
    arrived_.store(0);
    phase_.store(now + 1);
    return;
  }
  while (phase_.load() == now)
    if (is_failed_) throw_error(Errc::aborted, "another rank of the bench failed");
}

cudaStream_t BenchRank::make_stream(int device) {
  cudaStream_t made = nullptr;
  BENCH_CUDA(cudaSetDevice(device));
  BENCH_CUDA(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
  return made;
}

BenchRank::BenchRank(Runtime& opened, Shared& common, const Options& chosen)
    : runtime(opened),
      team(opened.world()),
      shared(common),
      options(chosen),
      rank(team.rank()),
      size(team.size()),
      stream(make_stream(opened.device())),
      copies(make_stream(opened.device())),
      channel(team.channel(StreamRef::cuda(stream))) {
  BENCH_CUDA(load_runtime_kernels());
  BENCH_CUDA(cudaEventCreate(&begin_));
  BENCH_CUDA(cudaEventCreate(&end_));
  inbox = runtime.heap().alloc(kBuffer, kMiB, "bench inbox");
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&source), kBuffer));
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&plain), kBuffer + kWords));
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&wrong), 64));
  BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&code), 64));
  BENCH_CUDA(cudaMemset(code, 0, 64));
  BENCH_CUDA(cudaMemset(plain, 0, kBuffer + kWords));
  launch_values(stream, source, kBuffer / 4, static_cast<uint32_t>(rank));
  shared.plain.base[rank] = plain;
  int devices = 0;
  BENCH_CUDA(cudaGetDeviceCount(&devices));
  for (int peer = 0; peer < devices; ++peer) {
    int can = 0;
    if (peer == runtime.device() || cudaDeviceCanAccessPeer(&can, runtime.device(), peer) != cudaSuccess || can == 0)
      continue;
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
    if (enabled != cudaErrorPeerAccessAlreadyEnabled) BENCH_CUDA(enabled);
    (void)cudaGetLastError();
  }
  BENCH_CUDA(cudaStreamSynchronize(stream));
  shared.meeting.meet();
}

BenchRank::~BenchRank() {
  for (void* memory :
       {static_cast<void*>(source), static_cast<void*>(plain), static_cast<void*>(wrong), static_cast<void*>(code)})
    (void)cudaFree(memory);
  (void)cudaEventDestroy(begin_);
  (void)cudaEventDestroy(end_);
  (void)cudaStreamDestroy(stream);
  (void)cudaStreamDestroy(copies);
}

double BenchRank::sample(const Work& work) {
  shared.meeting.meet();
  BENCH_CUDA(cudaEventRecord(begin_, stream));
  work();
  BENCH_CUDA(cudaEventRecord(end_, stream));
  BENCH_CUDA(cudaStreamSynchronize(stream));
  float ms = 0;
  BENCH_CUDA(cudaEventElapsedTime(&ms, begin_, end_));
  shared.elapsed[static_cast<size_t>(rank)] = ms * 1e3;
  shared.meeting.meet();
  const double worst = *std::max_element(shared.elapsed.begin(), shared.elapsed.end());
  shared.meeting.meet();
  return worst;
}

void BenchRank::measure(Row row, double per, const Work& ours, const Work& probe) {
  constexpr int kWarm = 10;
  if (options.verify_only) return keep(std::move(row));
  for (int i = -kWarm; i < options.repetitions; ++i) {
    const double a = sample(ours), b = probe ? sample(probe) : 0;
    if (i < 0) continue;
    row.ours_us.push_back(a / per);
    if (probe) row.plain_us.push_back(b / per);
  }
  runtime.check();
  keep(std::move(row));
}

bool BenchRank::verify(Row& row, const Work& run, const Work& look) {
  BENCH_CUDA(cudaMemsetAsync(wrong, 0, sizeof *wrong, stream));
  BENCH_CUDA(cudaStreamSynchronize(stream));
  shared.meeting.meet();
  run();
  BENCH_CUDA(cudaStreamSynchronize(stream));
  shared.meeting.meet();  // all that is coming has arrived
  look();
  uint64_t count = 0;
  BENCH_CUDA(cudaMemcpyAsync(&count, wrong, sizeof count, cudaMemcpyDeviceToHost, stream));
  BENCH_CUDA(cudaStreamSynchronize(stream));
  runtime.check();
  shared.wrong[static_cast<size_t>(rank)] = count;
  shared.meeting.meet();
  for (uint64_t one : shared.wrong) row.wrong += one;
  shared.meeting.meet();
  row.is_verified = row.wrong == 0;
  if (!row.is_verified) keep(row);
  return row.is_verified;
}

void BenchRank::keep(Row row) {
  if (rank == 0) shared.rows.push_back(std::move(row));
}

}  // namespace overlace::bench
