// Causal attention of the CPU device.
#pragma once

#include "src/base/status.h"
#include "src/model/device.h"

namespace overlace::model::cpu {

/// Two passes per block of queries (scores, then softmax times V), both by exec's GEMM in fp32.
base::Status attention(const AttentionArgs& args);

}  // namespace overlace::model::cpu
