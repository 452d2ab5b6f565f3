// What a call of a striped matrix does on its backend, declared without CUDA.
#pragma once

#include <vector>

#include "overlace/channel.h"
#include "overlace/tensor.h"
#include "src/base/status.h"

namespace overlace::ops::striped {

/// All ranks of the channel, in stream order: release of what was stored, acquire of what others have.
base::Status meet(Channel& channel);
/// to = sum of the sources in their order, rounded once.
base::Status add(Channel& channel, const std::vector<TensorView>& sources, const TensorView& to);
/// Rows without gaps in themselves; pitches are free.
base::Status copy(Channel& channel, const TensorView& from, const TensorView& to);

/// The same on GPUs; builds without CUDA have none.
base::Status meet_on_gpu(Channel& channel);
base::Status add_on_gpu(Channel& channel, const std::vector<TensorView>& sources, const TensorView& to);
base::Status copy_on_gpu(Channel& channel, const TensorView& from, const TensorView& to);

}  // namespace overlace::ops::striped
