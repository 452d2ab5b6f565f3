#include "src/exec/cuda/inputs.h"

#include <algorithm>
#include <random>
#include <vector>

#include "src/base/half.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"

namespace overlace::exec {
namespace {

/// `bytes` of device memory become normal(0, 1) values of a floating dtype, a block of some MiB repeated. Synchronous.
base::Status fill_normal(void* device, size_t bytes, DType dtype) {
  const size_t element = dtype_bytes(dtype), block = std::min(bytes, size_t{4} << 20) / element * element;
  std::vector<unsigned char> host(block);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (size_t i = 0; i < block / element; ++i) {
    base::store_element(host.data(), dtype, static_cast<int64_t>(i), normal(random));
  }
  for (size_t at = 0; at < bytes; at += block) {
    OVERLACE_TRY(runtime::cuda_peer::upload(static_cast<char*>(device) + at, host.data(), std::min(block, bytes - at)));
  }
  return {};
}

}  // namespace

base::Status fill_inputs(const Program& program) {
  const std::vector<spec::Buffer>& buffers = program.schedule.buffers;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const auto in = [&](const std::vector<spec::Region>& regions) {
      return std::any_of(regions.begin(), regions.end(),
                         [&](const spec::Region& r) { return r.buffer == buffers[b].name; });
    };
    bool is_read = false, is_written = false;
    for (const spec::Task& task : program.schedule.tasks) {
      is_read = is_read || in(task.reads);
      is_written = is_written || in(task.writes);
    }
    if (buffers[b].space != spec::Space::local || !is_read || is_written) continue;
    size_t bytes = dtype_bytes(buffers[b].dtype);
    for (int64_t extent : program.expansion.buffer_shapes[b]) bytes *= static_cast<size_t>(extent);
    OVERLACE_TRY(fill_normal(static_cast<char*>(program.workspace) + program.local[b], bytes, buffers[b].dtype));
  }
  return {};
}

}  // namespace overlace::exec
