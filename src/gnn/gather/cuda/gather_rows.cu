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

struct GatherPod {
  device::RowSources sources;
  device::RowUnits shape;
  const void* ids;
  int64_t num_ids;
  int64_t chunks;  // of `rows` ids each; a warp takes one at a time
  int32_t rows;
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
    device::copy_rows_of_warp<kFlight<Unit>>(from, rows, p.shape, place, to);
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

template <class Id>
constexpr Kernel kKernels[] = {&gather_rows<Id, uint8_t>, &gather_rows<Id, uint16_t>, &gather_rows<Id, uint32_t>,
                               &gather_rows<Id, uint2>, &gather_rows<Id, uint4>};  // by log2 of the unit's bytes

struct RegisteredKernels {
  RegisteredKernels() {
    for (const Kernel kernel : kKernels<int32_t>) RegisteredKernel(reinterpret_cast<const void*>(kernel));
    for (const Kernel kernel : kKernels<int64_t>) RegisteredKernel(reinterpret_cast<const void*>(kernel));
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
  return Place{is_of_host ? first.devicePointer : const_cast<void*>(address), is_of_peer || is_of_host};
}

/// Largest power of two up to 16 that divides all of these, as its logarithm.
int log2_of_unit(uint64_t all_bits) { return std::min(4, __builtin_ctzll(all_bits | 16)); }

base::Status fill_sources(const DeviceGather& g, GatherPod* pod, uint64_t* all_bits, bool* is_far) {
  int64_t end = 0;
  pod->sources.row_bytes = g.row_bytes;
  for (size_t i = 0; i < g.sources.size(); ++i) {
    const DeviceRows& source = g.sources[i];
    if (source.num_rows == 0) continue;
    const auto place = place_of(base::format("sources[{}]", i), source.data, source.num_rows * g.row_bytes, g.device);
    if (!place.ok()) return place.status();
    end += source.num_rows;
    const int at = pod->sources.count++;
    pod->sources.data[at] = reinterpret_cast<uint64_t>(place->address);
    pod->sources.end[at] = end;
    *all_bits |= pod->sources.data[at];
    *is_far |= place->is_far;
  }
  return {};
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
  for (const Kernel kernel : kKernels<int64_t>) OVERLACE_TRY(load(reinterpret_cast<const void*>(kernel)));
  return {};
}

base::Status launch_gather_rows(const DeviceGather& g, void* cuda_stream) {
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  int sms = 0;
  OVERLACE_TRY(
      cuda_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, g.device), "cudaDeviceGetAttribute"));
  const runtime::cuda_peer::DeviceGuard guard(g.device);
  GatherPod pod{};
  auto all_bits = static_cast<uint64_t>(g.row_bytes);
  bool is_far = false;
  OVERLACE_TRY(fill_sources(g, &pod, &all_bits, &is_far));
  const auto ids = place_of("ids", g.ids, g.num_ids * g.id_bytes, g.device);
  if (!ids.ok()) return ids.status();
  const auto out = place_of("out", g.out, g.num_ids * g.row_bytes, g.device);
  if (!out.ok()) return out.status();
  if (g.first_bad != nullptr) OVERLACE_TRY(place_of("first_bad", g.first_bad, sizeof(uint64_t), g.device).status());
  const int log2 = log2_of_unit(all_bits | reinterpret_cast<uint64_t>(out->address));
  pod.shape = units_of(g.row_bytes, int64_t{1} << log2, is_far, all_bits);
  pod.ids = ids->address;
  pod.num_ids = g.num_ids;
  pod.out = out->address;
  pod.first_bad = g.first_bad;
  const int ctas = g.ctas > 0 ? std::min(g.ctas, sms * kCtasOfSm) : sms * kCtasOfSm;
  // Few ids are spread over all warps.
  const int64_t most_rows = std::clamp<int64_t>(kWarpBytes / g.row_bytes, 1, 32);
  pod.rows = static_cast<int32_t>(std::clamp<int64_t>(g.num_ids / (int64_t{ctas} * kWarps), 1, most_rows));
  pod.chunks = base::ceil_div(g.num_ids, pod.rows);
  if (g.first_bad != nullptr) OVERLACE_TRY(launch_check(g, pod, ctas, stream));
  const Kernel kernel = g.id_bytes == 4 ? kKernels<int32_t>[log2] : kKernels<int64_t>[log2];
  const auto grid = static_cast<unsigned>(std::min<int64_t>(ctas, base::ceil_div(pod.chunks, kWarps)));
  kernel<<<grid, kThreads, 0, stream>>>(pod);
  return cuda_status(cudaGetLastError(), "gather_rows");
}

}  // namespace overlace::gnn
