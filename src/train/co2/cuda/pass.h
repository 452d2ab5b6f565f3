// The pass and the numbers of a boundary on a GPU; twins of pass.h and control.h, queued on a stream. The host decides
// nothing: verdict, gap and bounds stay in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/train/co2/buckets.h"
#include "src/train/co2/pass.h"

namespace overlace::train {

/// Elements that one block takes; its sums are added in order, so that groups get the same bits.
inline constexpr int64_t kCudaPiece = 8192;

struct CudaPiece {
  int32_t tensor = 0;
  int64_t begin = 0, count = 0;  // in the tensor
};

/// Pieces [first, first + count) of tensors of one dtype.
struct CudaRun {
  DType dtype = DType::fp32;
  int64_t first = 0, count = 0;
};

/// The pieces of all parameters: those of a bucket are neighbours, in it those of a dtype, and of these those of a
/// tensor.
struct CudaPieces {
  std::vector<CudaPiece> pieces;
  std::vector<CudaRun> of_tensor;               // by tensor
  std::vector<std::vector<CudaRun>> of_bucket;  // by bucket, a run for each dtype
};
CudaPieces cuda_pieces(std::span<const PassTensor> tensors, std::span<const BucketRange> buckets,
                       int64_t of_piece = kCudaPiece);

/// All pointers are to device memory, whole arrays of all parameters.
struct CudaArrays {
  ControlPod* control = nullptr;
  const PassTensor* tensors = nullptr;
  TensorPod* bounds = nullptr;  // by tensor, as are the next two
  SumsPod* sums = nullptr;
  const CudaRun* of_tensor = nullptr;
  int64_t num_tensors = 0;
  const CudaPiece* pieces = nullptr;
  SumsPod* parts = nullptr;                  // by piece, scratch
  HeaderPod *own = nullptr, *sum = nullptr;  // as sent; reduced in place
  PassMemory memory;
};

/// On the current device, all kernels of the calls below: one that its first launch loads may wait for what other
/// streams wait for, and for what NCCL has under way.
base::Status load_kernels();

// All of them: Errc::cuda where a launch fails.

/// run_pass over one run, but for `sums`: those are added up by queue_sums.
base::Status queue_pass(const CudaArrays& arrays, PassMode mode, float groups, const CudaRun& run, void* cuda_stream);
/// Sums of tensors [first, first + count) from what passes of this mode left.
base::Status queue_sums(const CudaArrays& arrays, PassMode mode, int64_t first, int64_t count, void* cuda_stream);
/// begin_boundary with the header where it was reduced; without where nothing comes in.
base::Status queue_begin(const CudaArrays& arrays, const KnobsPod& knobs, bool has_incoming, void* cuda_stream);
/// end_boundary.
base::Status queue_end(const CudaArrays& arrays, const KnobsPod& knobs, void* cuda_stream);
/// header_of, as own header and as what is reduced. `base` has round, steps and configuration; `anchor_hash`: of device
/// memory, null where not compared.
base::Status queue_header(const CudaArrays& arrays, const HeaderPod& base, const uint64_t* anchor_hash,
                          void* cuda_stream);
base::Status queue_facts(const CudaArrays& arrays, FactsPod* facts, void* cuda_stream);
/// a = x.
base::Status queue_to_anchor(const CudaArrays& arrays, const CudaRun& run, void* cuda_stream);
/// x = a, nothing kept, where the round that came in had bad values.
base::Status queue_restore(const CudaArrays& arrays, const CudaRun& run, void* cuda_stream);
/// *hash += a hash of `count` words of `unit` bytes (2, 4) as numbers `first`, `first` + 1, ...
base::Status queue_hash(const void* data, int unit, int64_t count, int64_t first, uint64_t* hash, void* cuda_stream);

}  // namespace overlace::train
