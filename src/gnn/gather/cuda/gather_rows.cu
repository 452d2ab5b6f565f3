#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "src/base/ceil_div_pod.h"
#include "src/device/mem/gather_rows.cuh"
#include "src/gnn/gather/device_gather.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/preload.h"

namespace overlace::gnn {
namespace {

using runtime::cuda_peer::cuda_status;
using runtime::cuda_peer::RegisteredKernel;

constexpr int kThreads = 256, kWarps = kThreads / 32, kCtasOfSm = 4;
/// Units of a thread that are under way at a time: of 16 bytes 64 KiB on an SM, several times what its share of the
/// memory's bandwidth takes. Eight of them do not fit the registers of four blocks.
template <class Unit>
constexpr int kFlight = sizeof(Unit) == 16 ? 4 : 8;
constexpr int64_t kWarpBytes = 8192;  // of rows that a warp takes at a time
constexpr int64_t kLineBytes = 128;   // largest read over a link
/// A GPU finds pages of the host's memory again that lie in so many bytes; beyond that each row of a larger table waits
/// for a translation: 400 million rows of 128 B a second from 256 MiB, 92 from 1 GiB, 59 from 2 GiB, in any pages of
/// the host (one H200; docs/lab/pinned-rows.md).
constexpr int64_t kWindowBytes = int64_t{256} << 20;
/// Rows above this take longer to come than their translation, and fewer ids than this are too few to order.
constexpr int64_t kMostOrderedBytes = 2048, kLeastOrdered = 4096;
constexpr int64_t kIdsOfCta = 1024;    // in order: the more, the more closely blocks go beside each other
constexpr int kLeastOrderedCtas = 16;  // as many fill the link

struct GatherPod {
  device::RowSources sources;
  device::RowUnits shape;
  const void* ids;
  int64_t num_ids;
  int64_t chunks;  // of `rows` ids each; a warp takes one at a time. In order: of `ordered` ids, and a block
  int32_t rows;
  int32_t ordered;       // ids that a block puts in order; 0: as they come
  int32_t bucket_shift;  // row numbers that differ below it are of one bucket
  void* out;
  const uint64_t* first_bad;
};

template <class Id, class Unit>
__global__ void __launch_bounds__(kThreads, kCtasOfSm) gather_rows(const __grid_constant__ GatherPod p) {
  if (p.first_bad != nullptr && *p.first_bad != kNoBadId) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const device::RowLane place = device::row_lane(p.shape);
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  int64_t chunk = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const auto id_of = [&](int64_t of_chunk) {
    const int64_t i = of_chunk * p.rows + lane;
    return lane < p.rows && i < p.num_ids ? int64_t{static_cast<const Id*>(p.ids)[i]} : int64_t{-1};
  };
  int64_t id = id_of(chunk);
  for (; chunk < p.chunks; chunk += warps) {
    const uint64_t from = device::row_address(p.sources, id);
    id = id_of(chunk + warps);  // under way beside the rows
    const int64_t first = chunk * p.rows;
    const auto rows = static_cast<int>(min(int64_t{p.rows}, p.num_ids - first));
    Unit* const to = static_cast<Unit*>(p.out) + first * p.shape.units;
    device::copy_rows_of_warp<kFlight<Unit>>(from, rows, p.shape, place, device::InARow{}, to);
  }
}

constexpr int kBuckets = 1024, kMostOrdered = 8192;

/// Sorts the ids [begin, begin + count) by bucket, of rows that lie beside each other: `order` becomes their places.
/// Those of a bucket come in any order. Called by whole blocks.
template <class Id>
__device__ void order_by_bucket(const GatherPod& p, int64_t begin, int count, uint32_t* end_of, uint16_t* order) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto bucket = [&](int i) {
    const auto id = static_cast<uint64_t>(static_cast<const Id*>(p.ids)[begin + i]) >> p.bucket_shift;
    return id < kBuckets ? static_cast<int>(id) : kBuckets - 1;  // ids out of range too
  };
  for (int i = thread; i < kBuckets; i += kThreads) end_of[i] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) atomicAdd(&end_of[bucket(i)], 1u);
  __syncthreads();
  if (thread < 32) {  // counts become the places at which buckets begin
    constexpr int kOfLane = kBuckets / 32;
    uint32_t sum = 0;
    for (int i = 0; i < kOfLane; ++i) sum += end_of[thread * kOfLane + i];
    uint32_t before = sum;
    for (unsigned step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, before, step);
      if (thread >= static_cast<int>(step)) before += other;
    }
    before -= sum;
    for (int i = 0; i < kOfLane; ++i) {
      const uint32_t of_bucket = end_of[thread * kOfLane + i];
      end_of[thread * kOfLane + i] = before;
      before += of_bucket;
    }
  }
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) order[atomicAdd(&end_of[bucket(i)], 1u)] = static_cast<uint16_t>(i);
  __syncthreads();
}

/// The same rows, but blocks take theirs in the order in which they lie in the tables: all blocks go through the tables
/// side by side, so that what they read at a time lies together (kWindowBytes).
template <class Id, class Unit>
__global__ void __launch_bounds__(kThreads, 2) gather_rows_in_order(const __grid_constant__ GatherPod p) {
  if (p.first_bad != nullptr && *p.first_bad != kNoBadId) return;
  __shared__ uint32_t end_of[kBuckets];
  __shared__ uint16_t order[kMostOrdered];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const device::RowLane lane_of = device::row_lane(p.shape);
  for (int64_t block = blockIdx.x; block < p.chunks; block += gridDim.x) {
    const int64_t begin = block * p.ordered;
    const auto count = static_cast<int>(min(int64_t{p.ordered}, p.num_ids - begin));
    order_by_bucket<Id>(p, begin, count, end_of, order);
    Unit* const to = static_cast<Unit*>(p.out) + begin * p.shape.units;
    for (int first = static_cast<int>(threadIdx.x) / 32 * p.rows; first < count; first += kWarps * p.rows) {
      const int rows = min(p.rows, count - first);
      const int place = order[first + min(lane, rows - 1)];
      const int64_t id = lane < rows ? int64_t{static_cast<const Id*>(p.ids)[begin + place]} : int64_t{-1};
      device::copy_rows_of_warp<kFlight<Unit>>(device::row_address(p.sources, id), rows, p.shape, lane_of,
                                               device::EachToItsPlace{place}, to);
    }
    __syncthreads();  // the order was read
  }
}

template <class Id>
__global__ void __launch_bounds__(kThreads)
    check_ids(const Id* ids, int64_t num_ids, int64_t num_rows, uint64_t* first_bad) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_ids; i += step) {
    if (ids[i] >= 0 && ids[i] < num_rows) continue;
    atomicMin(reinterpret_cast<unsigned long long*>(first_bad), static_cast<unsigned long long>(i));
    return;  // what this thread sees later lies behind
  }
}

using Kernel = void (*)(GatherPod);
constexpr int kUnits = 5;

template <class Id>
constexpr Kernel kKernels[] = {&gather_rows<Id, uint8_t>, &gather_rows<Id, uint16_t>, &gather_rows<Id, uint32_t>,
                               &gather_rows<Id, uint2>, &gather_rows<Id, uint4>};  // by log2 of the unit's bytes
template <class Id>
constexpr Kernel kKernelsInOrder[] = {&gather_rows_in_order<Id, uint8_t>, &gather_rows_in_order<Id, uint16_t>,
                                      &gather_rows_in_order<Id, uint32_t>, &gather_rows_in_order<Id, uint2>,
                                      &gather_rows_in_order<Id, uint4>};

struct RegisteredKernels {
  RegisteredKernels() {
    for (const Kernel* kernels :
         {kKernels<int32_t>, kKernels<int64_t>, kKernelsInOrder<int32_t>, kKernelsInOrder<int64_t>})
      for (int log2 = 0; log2 < kUnits; ++log2) RegisteredKernel(reinterpret_cast<const void*>(kernels[log2]));
    RegisteredKernel(reinterpret_cast<const void*>(&check_ids<int32_t>));
    RegisteredKernel(reinterpret_cast<const void*>(&check_ids<int64_t>));
  }
} const kLoad;

/// Lets the current device read what the process has allocated on `peer`.
base::Status enable_peer(const std::string& what, int device, int peer) {
  int can = 0;
  OVERLACE_TRY(cuda_status(cudaDeviceCanAccessPeer(&can, device, peer), "cudaDeviceCanAccessPeer"));
  if (can == 0)
    return base::error(Errc::not_supported, "{} lies on device {}, which device {} cannot read", what, peer, device);
  // Other streams of this thread may be captured meanwhile, which this must not end.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  if (code != cudaErrorPeerAccessAlreadyEnabled) return cuda_status(code, "cudaDeviceEnablePeerAccess");
  (void)cudaGetLastError();
  return {};
}

struct Place {
  void* address;  // as the device knows it
  bool is_far;    // read over a link
  bool is_of_host;
};

/// Where the device finds `bytes` bytes, which must all lie in memory of one kind.
base::Result<Place> place_of(const std::string& what, const void* address, int64_t bytes, int device) {
  cudaPointerAttributes first{}, last{};
  const void* const end = static_cast<const char*>(address) + bytes - 1;
  OVERLACE_TRY(cuda_status(cudaPointerGetAttributes(&first, address), "cudaPointerGetAttributes"));
  OVERLACE_TRY(cuda_status(cudaPointerGetAttributes(&last, end), "cudaPointerGetAttributes"));
  if (first.type == cudaMemoryTypeUnregistered || last.type != first.type || last.device != first.device)
    return base::invalid_argument(
        "{}: its {} bytes lie in memory that no GPU reads, wanted memory of a GPU or pinned"
        " memory of the host",
        what, bytes);
  const bool is_of_peer = first.type == cudaMemoryTypeDevice && first.device != device;
  if (is_of_peer) OVERLACE_TRY(enable_peer(what, device, first.device));
  // NOTE: devicePointer of a peer's memory was asked for before the device could read it, and is null then.
  const bool is_of_host = first.type == cudaMemoryTypeHost;
  return Place{is_of_host ? first.devicePointer : const_cast<void*>(address), is_of_peer || is_of_host, is_of_host};
}

/// Largest power of two up to 16 that divides all of these, as its logarithm.
int log2_of_unit(uint64_t all_bits) { return std::min(4, __builtin_ctzll(all_bits | 16)); }

/// What decides how rows are read.
struct Tables {
  uint64_t all_bits = 0;  // of addresses and row_bytes
  bool is_far = false;
  int64_t rows = 0, host_bytes = 0;
};

base::Result<Tables> fill_sources(const DeviceGather& g, GatherPod* pod) {
  Tables tables{.all_bits = static_cast<uint64_t>(g.row_bytes)};
  pod->sources.row_bytes = g.row_bytes;
  for (size_t i = 0; i < g.sources.size(); ++i) {
    const DeviceRows& source = g.sources[i];
    if (source.num_rows == 0) continue;
    const auto place = place_of(base::format("sources[{}]", i), source.data, source.num_rows * g.row_bytes, g.device);
    if (!place.ok()) return place.status();
    tables.rows += source.num_rows;
    const int at = pod->sources.count++;
    pod->sources.data[at] = reinterpret_cast<uint64_t>(place->address);
    pod->sources.end[at] = tables.rows;
    tables.all_bits |= pod->sources.data[at];
    tables.is_far |= place->is_far;
    tables.host_bytes += place->is_of_host ? source.num_rows * g.row_bytes : 0;
  }
  return tables;
}

/// Whether rows are read in the order in which they lie, and then how.
bool put_in_order(const DeviceGather& g, const Tables& tables, int* ctas, GatherPod* pod) {
  if (tables.host_bytes <= kWindowBytes || g.row_bytes > kMostOrderedBytes || g.num_ids < kLeastOrdered) return false;
  *ctas = std::clamp(static_cast<int>(g.num_ids / kIdsOfCta), std::min(*ctas, kLeastOrderedCtas), *ctas);
  pod->ordered = static_cast<int32_t>(std::min<int64_t>(base::ceil_div(g.num_ids, int64_t{*ctas}), kMostOrdered));
  pod->chunks = base::ceil_div(g.num_ids, int64_t{pod->ordered});
  while ((tables.rows - 1) >> pod->bucket_shift >= kBuckets) ++pod->bucket_shift;
  return true;
}

/// Lines of far rows are read whole, each by neighbouring lanes, also where rows do not begin with a line.
device::RowUnits units_of(int64_t row_bytes, int64_t unit, bool is_far, uint64_t all_bits) {
  const auto units = static_cast<int32_t>(row_bytes / unit);
  if (!is_far || row_bytes < kLineBytes || all_bits % kLineBytes == 0) return {units, units, 0};
  const auto line = static_cast<int32_t>(kLineBytes / unit);
  return {units, base::round_up(units + line - 1, line), line - 1};
}

base::Status launch_check(const DeviceGather& g, const GatherPod& pod, int ctas, cudaStream_t stream) {
  const int64_t num_rows = pod.sources.count == 0 ? 0 : pod.sources.end[pod.sources.count - 1];
  const auto grid = static_cast<unsigned>(std::min<int64_t>(ctas, base::ceil_div(g.num_ids, kThreads)));
  if (g.id_bytes == 4) {
    check_ids<<<grid, kThreads, 0, stream>>>(static_cast<const int32_t*>(pod.ids), g.num_ids, num_rows, g.first_bad);
  } else {
    check_ids<<<grid, kThreads, 0, stream>>>(static_cast<const int64_t*>(pod.ids), g.num_ids, num_rows, g.first_bad);
  }
  return cuda_status(cudaGetLastError(), "check_ids");
}

}  // namespace

base::Status load_gather_kernels() {
  const auto load = [](const void* kernel) {
    cudaFuncAttributes attributes{};
    return cuda_status(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  };
  for (const Kernel* kernels : {kKernels<int64_t>, kKernelsInOrder<int64_t>})
    for (int log2 = 0; log2 < kUnits; ++log2) OVERLACE_TRY(load(reinterpret_cast<const void*>(kernels[log2])));
  return {};
}

base::Status launch_gather_rows(const DeviceGather& g, void* cuda_stream) {
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  int sms = 0;
  OVERLACE_TRY(
      cuda_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, g.device), "cudaDeviceGetAttribute"));
  const runtime::cuda_peer::DeviceGuard guard(g.device);
  GatherPod pod{};
  const auto tables = fill_sources(g, &pod);
  if (!tables.ok()) return tables.status();
  const auto ids = place_of("ids", g.ids, g.num_ids * g.id_bytes, g.device);
  if (!ids.ok()) return ids.status();
  const auto out = place_of("out", g.out, g.num_ids * g.row_bytes, g.device);
  if (!out.ok()) return out.status();
  if (g.first_bad != nullptr) OVERLACE_TRY(place_of("first_bad", g.first_bad, sizeof(uint64_t), g.device).status());
  const int log2 = log2_of_unit(tables->all_bits | reinterpret_cast<uint64_t>(out->address));
  pod.shape = units_of(g.row_bytes, int64_t{1} << log2, tables->is_far, tables->all_bits);
  pod.ids = ids->address;
  pod.num_ids = g.num_ids;
  pod.out = out->address;
  pod.first_bad = g.first_bad;
  const int ctas = g.ctas > 0 ? std::min(g.ctas, sms * kCtasOfSm) : sms * kCtasOfSm;
  if (g.first_bad != nullptr) OVERLACE_TRY(launch_check(g, pod, ctas, stream));
  const int64_t most_rows = std::clamp<int64_t>(kWarpBytes / g.row_bytes, 1, 32);
  int ordered_ctas = std::min(ctas, sms);
  if (put_in_order(g, *tables, &ordered_ctas, &pod)) {
    pod.rows = static_cast<int32_t>(most_rows);
    const Kernel kernel = g.id_bytes == 4 ? kKernelsInOrder<int32_t>[log2] : kKernelsInOrder<int64_t>[log2];
    kernel<<<static_cast<unsigned>(std::min<int64_t>(ordered_ctas, pod.chunks)), kThreads, 0, stream>>>(pod);
    return cuda_status(cudaGetLastError(), "gather_rows_in_order");
  }
  // Few ids are spread over all warps.
  pod.rows = static_cast<int32_t>(std::clamp<int64_t>(g.num_ids / (int64_t{ctas} * kWarps), 1, most_rows));
  pod.chunks = base::ceil_div(g.num_ids, pod.rows);
  const Kernel kernel = g.id_bytes == 4 ? kKernels<int32_t>[log2] : kKernels<int64_t>[log2];
  const auto grid = static_cast<unsigned>(std::min<int64_t>(ctas, base::ceil_div(pod.chunks, kWarps)));
  kernel<<<grid, kThreads, 0, stream>>>(pod);
  return cuda_status(cudaGetLastError(), "gather_rows");
}

}  // namespace overlace::gnn
