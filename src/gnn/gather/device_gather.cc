#include "src/gnn/gather/device_gather.h"

#include <limits>

namespace overlace::gnn {
namespace {

constexpr int64_t kMostRowBytes = int64_t{1} << 30;  // places within a row are 32-bit numbers in the kernel
constexpr size_t kMostSources = 16;

base::Status check_sizes(const DeviceGather& g) {
  if (g.sources.empty() || g.sources.size() > kMostSources)
    return base::invalid_argument("{} sources, wanted 1 to {}", g.sources.size(), kMostSources);
  if (g.row_bytes < 1 || g.row_bytes > kMostRowBytes)
    return base::invalid_argument("row_bytes is {}, wanted 1 to {}", g.row_bytes, kMostRowBytes);
  if (g.id_bytes != 4 && g.id_bytes != 8)
    return base::invalid_argument("ids have {} bytes each, wanted 4 or 8", g.id_bytes);
  const int64_t most = std::numeric_limits<int64_t>::max() / g.row_bytes;
  if (g.num_ids < 0 || g.num_ids > most)
    return base::invalid_argument("{} ids for rows of {} bytes, wanted at least 0 within 64 bits", g.num_ids,
                                  g.row_bytes);
  if (g.ctas < 0) return base::invalid_argument("ctas is {}, wanted at least 0", g.ctas);
  int64_t rows = 0;
  for (size_t i = 0; i < g.sources.size(); ++i) {
    const DeviceRows& source = g.sources[i];
    if (source.num_rows < 0 || source.num_rows > most - rows)
      return base::invalid_argument("sources[{}] has {} rows of {} bytes, wanted at least 0 and all within 64 bits", i,
                                    source.num_rows, g.row_bytes);
    rows += source.num_rows;
  }
  return {};
}

base::Status check_addresses(const DeviceGather& g) {
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  if (g.num_ids > 0 && (g.ids == nullptr || g.out == nullptr))
    return base::invalid_argument("{} is null, wanted an address", g.ids == nullptr ? "ids" : "out");
  if (address(g.ids) % static_cast<uintptr_t>(g.id_bytes) != 0)
    return base::invalid_argument("ids lie at {:#x}, wanted a multiple of {}", address(g.ids), g.id_bytes);
  if (address(g.first_bad) % sizeof(uint64_t) != 0)
    return base::invalid_argument("first_bad lies at {:#x}, wanted a multiple of {}", address(g.first_bad),
                                  sizeof(uint64_t));
  const uintptr_t out_end = address(g.out) + static_cast<uintptr_t>(g.num_ids * g.row_bytes);
  for (size_t i = 0; i < g.sources.size(); ++i) {
    const DeviceRows& source = g.sources[i];
    if (source.num_rows == 0) continue;
    if (source.data == nullptr) return base::invalid_argument("sources[{}] is null, wanted an address", i);
    const uintptr_t begin = address(source.data);
    const uintptr_t end = begin + static_cast<uintptr_t>(source.num_rows * g.row_bytes);
    if (g.num_ids > 0 && address(g.out) < end && begin < out_end)
      return base::invalid_argument("out lies in sources[{}], wanted memory of its own", i);
  }
  return {};
}

}  // namespace

#ifndef OVERLACE_HAS_CUDA
base::Status launch_gather_rows(const DeviceGather&, void*) {
  return base::error(Errc::not_supported,
                     "gathering on a GPU: this build has no CUDA (OVERLACE_CUDA=OFF, or nvcc was not found)");
}
#endif

base::Status queue_gather_rows(const DeviceGather& g, void* cuda_stream) {
  OVERLACE_TRY(check_sizes(g));
  OVERLACE_TRY(check_addresses(g));
  return g.num_ids == 0 ? base::Status() : launch_gather_rows(g, cuda_stream);
}

}  // namespace overlace::gnn
