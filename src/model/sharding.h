// How a layer is split over ranks, and its sites over tokens.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "src/model/stack.h"
#include "src/model/weights.h"

namespace overlace::model {

/// One rank's part of every layer.
struct Shard {
  int rank = 0, ranks = 1;
  int64_t first_row = 0, rows = 0;          // of the tokens: my hidden states
  int64_t first_head = 0, heads = 0;        // query heads
  int64_t first_kv_head = 0, kv_heads = 0;  // replicated where there are more ranks than KV heads
  int64_t first_intermediate = 0, intermediate = 0;
  int64_t first_expert = 0, experts = 0;  // whole ones; a rank may have none
  int64_t qkv_columns(const ModelConfig& c) const { return (heads + 2 * kv_heads) * c.head_dim; }
  int64_t up_columns(const ModelConfig& c) const { return (c.gated() ? 2 : 1) * intermediate; }
};

/// invalid_argument with both numbers where the problem does not fit the model or the ranks.
base::Result<Shard> make_shard(const ModelConfig& config, const Problem& problem, int rank, int ranks);

/// What `given` is at the site, for `tokens` of the problem: the same family and degree. invalid_argument where `given`
/// is not what these make.
base::Result<spec::Schedule> schedule_for_tokens(const std::string& site, spec::OpSpec op, const spec::Schedule& given,
                                                 int64_t tokens, const Problem& problem);

/// The part of a weight that the shard holds. Biases of o and down are added once, after the sum: whole on all ranks.
WeightBox shard_box(const ModelConfig& config, const Shard& shard, Weight weight);

}  // namespace overlace::model
