#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "src/base/ceil_div_pod.h"
#include "src/ops/embedding_a2a/launch.h"
#include "src/ops/embedding_a2a/pool.cuh"
#include "src/runtime/backend/cuda_peer/host_block.h"
#include "src/runtime/backend/cuda_peer/preload.h"

namespace overlace::ops {
namespace {

namespace node = runtime::cuda_peer;

constexpr int64_t kMostBlocks = 4096;  // a few waves: bags differ in length

class DeviceReport final : public PoolReport {
 public:
  DeviceReport(void* given_words, node::Pinned<PoolRecord> given_record)
      : words(static_cast<PoolWords*>(given_words)), record(std::move(given_record)) {}
  std::optional<spec::BadBag> take() override {
    std::atomic_ref<uint32_t> is_full(record[0].is_full);
    if (is_full.load(std::memory_order_acquire) == 0) return {};
    const spec::BadBag bad = record[0].bad;
    is_full.store(0, std::memory_order_release);
    return bad;
  }
  PoolWords* const words;
  const node::Pinned<PoolRecord> record;
};

bool is_aligned(const void* data, int64_t elements, size_t bytes, size_t unit) {
  return (reinterpret_cast<uintptr_t>(data) + static_cast<size_t>(elements) * bytes) % unit == 0;
}

template <class T>
PoolColumns columns_of(const PoolLaunch& a, const PoolParams<T>& p, size_t f) {
  constexpr int64_t kWide = 16 / static_cast<int64_t>(sizeof(T));
  const PoolFeature& given = a.features[f];
  PoolColumns out{.slice = given.slice,
                  .rows = given.rows,
                  .padding = given.padding,
                  .first_bag = static_cast<int64_t>(f) * a.batch + a.first_sample,
                  .width = static_cast<int32_t>(given.width),
                  .column = static_cast<int32_t>(given.column),
                  .lanes = 1};
  const size_t stored = dtype_bytes(a.dst.dtype);
  out.loads_wide = given.width % kWide == 0 && is_aligned(p.weights, given.slice, sizeof(T), 16);
  out.stores_wide =
      is_aligned(p.out, given.column, stored, 16) && (p.rows == 1 || static_cast<size_t>(p.pitch) * stored % 16 == 0);
  const int64_t wanted = base::ceil_div(given.width, out.loads_wide ? kWide : int64_t{1});
  while (out.lanes < 32 && out.lanes < wanted) out.lanes *= 2;
  return out;
}

template <class T, bool kMax>
cudaError_t launch_typed(const PoolLaunch& a) {
  auto* stream = static_cast<cudaStream_t>(a.cuda_stream);
  PoolParams<T> p{};
  p.weights = static_cast<const T*>(a.weights.data);
  p.factors = a.factors.defined() ? static_cast<const T*>(a.factors.data) : nullptr;
  p.indices = {a.indices.data, a.indices.dtype == DType::i64};
  p.offsets = {a.offsets.data, a.offsets.dtype == DType::i64};
  p.num_bags = static_cast<int64_t>(a.features.size()) * a.batch;
  p.num_entries = a.indices.dim(0);
  p.batch = a.batch;
  p.out = a.dst.data;
  p.rows = a.dst.dim(0);
  p.pitch = a.dst.stride(0);
  p.bounds = a.bounds;
  p.is_mean = a.mode == PoolMode::mean;
  p.is_widened = a.dst.dtype != a.weights.dtype;
  if (a.bounds == PoolBounds::error && a.report != nullptr) {
    auto& report = static_cast<DeviceReport&>(*a.report);
    p.words = report.words;
    p.record = report.record.get();
  }
  int64_t columns = 0;
  for (const PoolFeature& f : a.features) columns += f.width;
  if (const int64_t rest = a.dst.dim(1) - columns; rest > 0) {
    const size_t stored = dtype_bytes(a.dst.dtype);
    const cudaError_t e = cudaMemset2DAsync(static_cast<char*>(p.out) + static_cast<size_t>(columns) * stored,
                                            static_cast<size_t>(p.pitch) * stored, 0,
                                            static_cast<size_t>(rest) * stored, static_cast<size_t>(p.rows), stream);
    if (e != cudaSuccess) return e;
  }
  for (size_t first = 0; first < a.features.size(); first += kPoolFeatures) {
    const size_t count = std::min(a.features.size() - first, size_t{kPoolFeatures});
    int groups = kPoolThreads;
    for (size_t f = 0; f < count; ++f) {
      p.features[f] = columns_of(a, p, first + f);
      groups = std::min(groups, kPoolThreads / p.features[f].lanes);
    }
    p.first_local = static_cast<int64_t>(first);
    p.first_feature = a.first_feature + p.first_local;
    const int64_t most = std::max<int64_t>(kMostBlocks / static_cast<int64_t>(count), 1);
    const dim3 grid(static_cast<unsigned>(std::min(base::ceil_div(p.rows, int64_t{groups}), most)),
                    static_cast<unsigned>(count));
    pool_rows<T, kMax><<<grid, kPoolThreads, 0, stream>>>(p);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_mode(const PoolLaunch& a) {
  return a.mode == PoolMode::max ? launch_typed<T, true>(a) : launch_typed<T, false>(a);
}

template <class T>
struct Loaded {
  const node::RegisteredKernel sums{reinterpret_cast<const void*>(&pool_rows<T, false>)};
  const node::RegisteredKernel max{reinterpret_cast<const void*>(&pool_rows<T, true>)};
};
const Loaded<double> kFp64;
const Loaded<float> kFp32;
const Loaded<__half> kFp16;
const Loaded<__nv_bfloat16> kBf16;

}  // namespace

size_t pool_words_bytes() { return sizeof(PoolWords); }

base::Result<std::unique_ptr<PoolReport>> PoolReport::make(int device, void* words) {
  const node::DeviceGuard guard(device);
  base::Result<node::Pinned<PoolRecord>> record = node::allocate_pinned<PoolRecord>(1);
  if (!record.ok()) return record.status();
  return std::unique_ptr<PoolReport>(std::make_unique<DeviceReport>(words, std::move(record).value()));
}

base::Status launch_pool(const PoolLaunch& a) {
  if (a.dst.numel() == 0) return {};
  cudaError_t e = cudaSuccess;
  switch (a.weights.dtype) {
    case DType::fp64:
      e = launch_mode<double>(a);
      break;
    case DType::fp32:
      e = launch_mode<float>(a);
      break;
    case DType::fp16:
      e = launch_mode<__half>(a);
      break;
    case DType::bf16:
      e = launch_mode<__nv_bfloat16>(a);
      break;
    default:
      return base::error(Errc::not_supported, "pool: no kernel for {}, wanted fp64, fp32, fp16 or bf16",
                         dtype_name(a.weights.dtype));
  }
  return node::cuda_status(e, "pool_rows");
}

}  // namespace overlace::ops
