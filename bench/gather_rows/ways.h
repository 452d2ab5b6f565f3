// Tables, ids and outputs of the bench of gather_rows, and the ways that rows come to a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/common/gpu.h"
#include "src/gnn/gather/device_gather.h"

namespace overlace::bench {

enum class RowsOn { device, pinned, peer };
/// plain: as many bytes in one piece by cudaMemcpyAsync, which no gather can beat; few_ctas: the kernel by kFewCtas
/// blocks; cpu: threads gather into pinned memory, which is copied.
enum class Way { plain, overlace, few_ctas, cpu };
inline constexpr int kFewCtas = 16;

/// Random words in a table of rows of up to some KiB, on device 0, device 1 or in pinned memory.
class Tables {
 public:
  /// errc of CUDA where the memory is not there.
  static base::Result<std::unique_ptr<Tables>> create(RowsOn where, int64_t bytes, int64_t out_bytes, Gpu& gpu);
  virtual ~Tables() = default;
  /// Draws ids anew for rows of this size, a multiple of 4. Bytes of all of them: what a turn of any way moves.
  virtual base::Result<int64_t> draw(int64_t row_bytes) = 0;
  /// Queues on the GPU's stream. Turns take different ids and outputs.
  virtual base::Status enqueue(Way way, int turn) = 0;
  /// Runs a way on poisoned output. How many words of it are wrong.
  virtual base::Result<uint64_t> wrong_words(Way way) = 0;
};

int cuda_devices();

}  // namespace overlace::bench
