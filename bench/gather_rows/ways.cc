#include "bench/gather_rows/ways.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "bench/gather_rows/kernels.h"
#include "src/gnn/gather/gather_rows.h"
#include "src/runtime/backend/cuda_peer/check.h"

namespace overlace::bench {
namespace {

using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::DeviceGuard;

constexpr int kSets = 4;     // of ids
constexpr int kOutputs = 2;  // and of staging memory

class CudaTables final : public Tables {
 public:
  CudaTables(RowsOn where, int64_t bytes, int64_t out_bytes, Gpu& gpu)
      : where_(where),
        bytes_(bytes),
        out_bytes_(out_bytes),
        stream_(static_cast<cudaStream_t>(gpu.stream().cuda_stream)) {}
  ~CudaTables() override {
    (void)cudaDeviceSynchronize();
    (void)(where_ == RowsOn::pinned ? cudaFreeHost(table_) : cudaFree(table_));
    for (int i = 0; i < kOutputs; ++i) {
      (void)cudaFree(out_[i]);
      (void)cudaFreeHost(staging_[i]);
      if (copied_[i] != nullptr) (void)cudaEventDestroy(copied_[i]);
    }
    for (int64_t* ids : ids_) (void)cudaFree(ids);
    (void)cudaFree(wrong_);
  }

  base::Status init() {
    OVERLACE_TRY(cuda_status(cudaMalloc(reinterpret_cast<void**>(&wrong_), sizeof *wrong_), "cudaMalloc"));
    for (int i = 0; i < kOutputs; ++i) {
      OVERLACE_TRY(cuda_status(cudaMalloc(&out_[i], static_cast<size_t>(out_bytes_)), "cudaMalloc of an output"));
      if (where_ != RowsOn::pinned) continue;
      OVERLACE_TRY(cuda_status(cudaHostAlloc(&staging_[i], static_cast<size_t>(out_bytes_), 0), "cudaHostAlloc"));
      OVERLACE_TRY(cuda_status(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming), "cudaEventCreate"));
    }
    if (where_ == RowsOn::pinned) {
      OVERLACE_TRY(cuda_status(cudaHostAlloc(&table_, static_cast<size_t>(bytes_), 0), "cudaHostAlloc of the table"));
    } else {
      const DeviceGuard guard(where_ == RowsOn::peer ? 1 : 0);
      OVERLACE_TRY(cuda_status(cudaMalloc(&table_, static_cast<size_t>(bytes_)), "cudaMalloc of the table"));
    }
    if (where_ == RowsOn::peer) {  // else the plain copy goes through the host
      const cudaError_t code = cudaDeviceEnablePeerAccess(1, 0);
      if (code != cudaErrorPeerAccessAlreadyEnabled) OVERLACE_TRY(cuda_status(code, "cudaDeviceEnablePeerAccess"));
      (void)cudaGetLastError();
    }
    // By pieces through an output, whatever memory the table lies in.
    for (int64_t at = 0; at < bytes_; at += out_bytes_) {
      const int64_t piece = std::min(out_bytes_, bytes_ - at);
      launch_fill_words(static_cast<uint32_t*>(out_[0]), at / 4, piece / 4, stream_);
      OVERLACE_TRY(cuda_status(cudaGetLastError(), "fill_words"));
      OVERLACE_TRY(cuda_status(cudaMemcpyAsync(static_cast<char*>(table_) + at, out_[0], static_cast<size_t>(piece),
                                               cudaMemcpyDefault, stream_),
                               "cudaMemcpyAsync"));
    }
    return cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  base::Result<int64_t> draw(int64_t row_bytes) override {
    row_bytes_ = row_bytes;
    count_ = out_bytes_ / row_bytes;
    moved_bytes_ = count_ * row_bytes;
    for (int i = 0; i < kSets; ++i) {
      (void)cudaFree(ids_[i]);
      ids_[i] = nullptr;
      const size_t bytes = static_cast<size_t>(count_) * sizeof(int64_t);
      OVERLACE_TRY(cuda_status(cudaMalloc(reinterpret_cast<void**>(&ids_[i]), bytes), "cudaMalloc of ids"));
      launch_draw_ids(ids_[i], count_, static_cast<uint64_t>(bytes_ / row_bytes), static_cast<uint64_t>(i) + 1,
                      stream_);
      OVERLACE_TRY(cuda_status(cudaGetLastError(), "draw_ids"));
      host_ids_[i].resize(static_cast<size_t>(where_ == RowsOn::pinned ? count_ : 0));
      if (host_ids_[i].empty()) continue;
      OVERLACE_TRY(cuda_status(cudaMemcpyAsync(host_ids_[i].data(), ids_[i], bytes, cudaMemcpyDefault, stream_),
                               "cudaMemcpyAsync"));
    }
    OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
    return moved_bytes_;
  }

  base::Status enqueue(Way way, int turn) override {
    const int set = turn % kSets, output = turn % kOutputs;
    if (way == Way::plain)
      return cuda_status(cudaMemcpyAsync(out_[output], static_cast<char*>(table_) + first_byte(set),
                                         static_cast<size_t>(moved_bytes_), cudaMemcpyDefault, stream_),
                         "cudaMemcpyAsync");
    if (way == Way::cpu) return gather_by_cpu(set, output);
    const gnn::DeviceRows rows{table_, bytes_ / row_bytes_};
    gnn::DeviceGather g;
    g.sources = {&rows, 1};
    g.row_bytes = row_bytes_;
    g.ids = ids_[set];
    g.num_ids = count_;
    g.out = out_[output];
    g.ctas = way == Way::few_ctas ? kFewCtas : 0;
    return gnn::queue_gather_rows(g, stream_);
  }

  base::Result<uint64_t> wrong_words(Way way) override {
    uint64_t all = 0;
    for (int turn = 0; turn < kSets; ++turn) {
      uint32_t* const out = static_cast<uint32_t*>(out_[turn % kOutputs]);
      OVERLACE_TRY(
          cuda_status(cudaMemsetAsync(out, 0xff, static_cast<size_t>(moved_bytes_), stream_), "cudaMemsetAsync"));
      OVERLACE_TRY(cuda_status(cudaMemsetAsync(wrong_, 0, sizeof *wrong_, stream_), "cudaMemsetAsync"));
      OVERLACE_TRY(enqueue(way, turn));
      launch_count_wrong(out, moved_bytes_ / 4, way == Way::plain ? nullptr : ids_[turn], row_bytes_ / 4,
                         first_byte(turn) / 4, wrong_, stream_);
      OVERLACE_TRY(cuda_status(cudaGetLastError(), "count_wrong"));
      unsigned long long wrong = 0;
      OVERLACE_TRY(cuda_status(cudaMemcpyAsync(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost, stream_),
                               "cudaMemcpyAsync"));
      OVERLACE_TRY(cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
      all += wrong;
    }
    return all;
  }

 private:
  /// Where the plain copy of a turn begins: turns read different parts of the table.
  int64_t first_byte(int set) const { return (bytes_ - out_bytes_) / kSets / kLine * kLine * set; }

  base::Status gather_by_cpu(int set, int output) {
    OVERLACE_TRY(cuda_status(cudaEventSynchronize(copied_[output]), "cudaEventSynchronize"));
    const gnn::RowTable rows{static_cast<const std::byte*>(table_), bytes_ / row_bytes_, row_bytes_};
    auto* const to = static_cast<std::byte*>(staging_[output]);
    OVERLACE_TRY(
        gnn::gather_rows(rows, std::span(std::as_const(host_ids_[set])), 0, {to, static_cast<size_t>(moved_bytes_)}));
    OVERLACE_TRY(cuda_status(
        cudaMemcpyAsync(out_[output], to, static_cast<size_t>(moved_bytes_), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync"));
    return cuda_status(cudaEventRecord(copied_[output], stream_), "cudaEventRecord");
  }

  static constexpr int64_t kLine = 4096;
  RowsOn where_;
  int64_t bytes_, out_bytes_, row_bytes_ = 0, count_ = 0, moved_bytes_ = 0;
  cudaStream_t stream_;
  void* table_ = nullptr;
  std::array<void*, kOutputs> out_{}, staging_{};
  std::array<cudaEvent_t, kOutputs> copied_{};
  std::array<int64_t*, kSets> ids_{};
  std::array<std::vector<int64_t>, kSets> host_ids_{};
  unsigned long long* wrong_ = nullptr;
};

}  // namespace

base::Result<std::unique_ptr<Tables>> Tables::create(RowsOn where, int64_t bytes, int64_t out_bytes, Gpu& gpu) {
  auto tables = std::make_unique<CudaTables>(where, bytes, out_bytes, gpu);
  OVERLACE_TRY(tables->init());
  return std::unique_ptr<Tables>(std::move(tables));
}

int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace overlace::bench
