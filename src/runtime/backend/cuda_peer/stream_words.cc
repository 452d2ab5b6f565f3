#include "src/runtime/backend/cuda_peer/stream_words.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "overlace/handle_pod.h"
#include "src/runtime/backend/cuda_peer/check.h"
#include "src/runtime/backend/cuda_peer/local_memory.h"

namespace overlace::runtime::cuda_peer {

base::Result<std::shared_ptr<StreamWordPool>> StreamWordPool::open() {
  std::shared_ptr<StreamWordPool> out(new StreamWordPool);
  OVERLACE_TRY(cuda_status(cudaMalloc(reinterpret_cast<void**>(&out->memory_), size_t{kCells} * kCounterPitch),
                           "cudaMalloc (stream words)"));
  return out;
}

StreamWordPool::~StreamWordPool() { (void)cudaFree(memory_); }

base::Result<StreamWords> StreamWords::take(std::shared_ptr<StreamWordPool> pool, uint32_t count, const char* what) {
  StreamWords out;
  {
    const std::lock_guard lock(pool->mutex_);
    const auto begin = pool->taken_.begin(), end = pool->taken_.end();
    const auto at = std::search_n(begin, end, static_cast<int>(count), false);
    if (at == end && count > 0)
      return base::error(Errc::out_of_memory,
                         "{}: {} words that streams wait for, wanted side by side; a rank has {}, {} of them taken",
                         what, count, StreamWordPool::kCells, std::count(begin, end, true));
    std::fill_n(at, count, true);
    out.first_ = static_cast<uint32_t>(at - begin);
  }
  out.count_ = count;
  out.pool_ = std::move(pool);
  const std::vector<char> zeros(size_t{count} * kCounterPitch);
  OVERLACE_TRY(upload(out.data(), zeros.data(), zeros.size()));
  return out;
}

StreamWords::~StreamWords() {
  if (count_ == 0) return;
  const std::lock_guard lock(pool_->mutex_);
  std::fill_n(pool_->taken_.begin() + first_, count_, false);
}

char* StreamWords::data() const { return count_ == 0 ? nullptr : pool_->memory_ + size_t{first_} * kCounterPitch; }

}  // namespace overlace::runtime::cuda_peer
