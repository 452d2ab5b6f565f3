#include "src/model/layer_stream.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/model/sharding.h"
#include "src/model/shipped.h"

namespace overlace::model {
namespace {

Problem streamed_problem(int64_t layers, int64_t tokens, int64_t length, int64_t micro_batch) {
  Problem problem;
  problem.layers = layers;
  problem.tokens = tokens;
  problem.sequence_length = length;
  problem.micro_batch = micro_batch;
  problem.seed = 3;
  return problem;
}

TEST(MicroBatches, GiveEachRowToOneRankOnce) {
  for (const auto& [tokens, length, micro_batch] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {24, 4, 0}, {24, 4, 8}, {28, 4, 8}, {28, 4, 4}, {5, 1, 2}, {7, 1, 1}, {12, 12, 12}}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::vector<int> seen(static_cast<size_t>(tokens));
      for (int rank = 0; rank < ranks; ++rank) {
        int64_t at = 0, all = 0;
        for (const MicroBatch& batch : micro_batches(streamed_problem(1, tokens, length, micro_batch), rank, ranks)) {
          EXPECT_EQ(batch.at, at);
          for (int64_t row = 0; row < batch.rows; ++row) {
            const int64_t token = batch.first_row + row;
            ++seen[static_cast<size_t>(token)];
            EXPECT_TRUE(token >= all && token < all + batch.tokens) << "a row of another micro-batch";
          }
          EXPECT_TRUE(micro_batch == 0 || batch.tokens <= micro_batch);
          EXPECT_EQ(batch.tokens % length, 0);
          at += batch.rows;
          all += batch.tokens;
        }
        EXPECT_EQ(all, tokens);
      }
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), tokens);
    }
  }
}

TEST(Placement, IsTheMostThatFits) {
  ModelConfig config = load_config("tiny").value();
  config.layers = 7;
  for (const int64_t layers : {1, 2, 3, 7}) {
    Problem problem = streamed_problem(layers, 32, 8, 16);
    const Shard shard = make_shard(config, problem, 0, 2).value();
    const int64_t layer = LayerLayout(config, shard, problem.dtype).bytes();
    const int64_t least = std::min<int64_t>(layers, 2) * layer;
    const int64_t beside = activation_bytes(config, problem, shard);
    for (int64_t bytes = beside - 1; bytes <= beside + 9 * layer; bytes += layer / 2 + 1) {
      problem.device_bytes = bytes;
      const auto placed = place_layers(config, problem, shard);
      const bool rests = bytes < beside + least;
      const int64_t activations = activation_bytes(config, problem, shard, rests);
      const int64_t fitting = bytes < activations ? -1 : (bytes - activations) / layer;
      if (fitting < std::min<int64_t>(layers, 2)) {
        ASSERT_FALSE(placed.ok());
        EXPECT_EQ(placed.status().code(), Errc::out_of_memory);
        const int64_t wanted = activations + least;
        EXPECT_NE(placed.status().message().find(base::format("wanted {} or more", wanted)), std::string::npos);
        continue;
      }
      ASSERT_TRUE(placed.ok()) << placed.status().message();
      EXPECT_EQ(placed->activation_bytes, activations);
      EXPECT_EQ(placed->resting_bytes, rests ? 2 * shard.rows * config.hidden * 4 : 0);
      const int64_t kept = layers - placed->streamed();
      EXPECT_EQ(kept, fitting >= layers ? layers : fitting - 2) << bytes;
      // Evenly: between two that stay there is never more than one more layer than between two others.
      std::vector<int64_t> gaps;
      int64_t gap = -1;
      for (int64_t i = 0; i < 2 * layers; ++i) {
        if (!placed->is_resident[static_cast<size_t>(i % layers)]) {
          ++gap;
          continue;
        }
        if (i > 0) gaps.push_back(gap);
        gap = 0;
      }
      if (gaps.size() < 2) continue;
      EXPECT_LE(*std::max_element(gaps.begin() + 1, gaps.end()) - *std::min_element(gaps.begin() + 1, gaps.end()), 1);
    }
  }
}

TEST(Placement, KeepsStreamsOnTheDeviceUnlessTheyMustLeave) {
  ModelConfig config = load_config("tiny").value();
  config.layers = 4;
  for (const int64_t micro_batch : {0, 64, 32, 8, 24}) {
    Problem problem = streamed_problem(4, 64, 8, micro_batch);
    const Shard shard = make_shard(config, problem, 0, 2).value();
    const int64_t layer = LayerLayout(config, shard, problem.dtype).bytes();
    const int64_t beside = activation_bytes(config, problem, shard) + 2 * layer;
    const int64_t in_slots = activation_bytes(config, problem, shard, true) + 2 * layer;
    const bool is_one = micro_batch == 0 || micro_batch == 64;
    problem.device_bytes = beside;
    EXPECT_EQ(place_layers(config, problem, shard)->resting_bytes, 0) << micro_batch;
    problem.device_bytes = beside - 1;
    const auto placed = place_layers(config, problem, shard);
    ASSERT_EQ(placed.ok(), !is_one) << micro_batch;
    if (is_one) {
      EXPECT_EQ(placed.status().message().find("rest in host memory"), std::string::npos);
      continue;
    }
    // Three streams of all rows become two slots and what one micro-batch lacks.
    const int64_t first = micro_batches(problem, 0, 2).front().rows;
    EXPECT_EQ(beside - in_slots, 3 * (32 - first) * config.hidden * 4);
    EXPECT_EQ(placed->resting_bytes, 2 * 32 * config.hidden * 4);
    problem.device_bytes = in_slots - 1;
    const base::Status refused = place_layers(config, problem, shard).status();
    EXPECT_EQ(refused.code(), Errc::out_of_memory);
    EXPECT_NE(refused.message().find(base::format("wanted {} or more: rank 0 has {} bytes of activations beside those "
                                                  "that rest in host memory and two slots for layers of {}",
                                                  in_slots, in_slots - 2 * layer, layer)),
              std::string::npos)
        << refused.message();
  }
}

/// What leaves may be more than all layers are.
TEST(Placement, StreamsMayRestWhereAllLayersFit) {
  const ModelConfig config = load_config("tiny").value();
  Problem problem = streamed_problem(1, 1 << 16, 8, 8);
  const Shard shard = make_shard(config, problem, 0, 1).value();
  problem.device_bytes = activation_bytes(config, problem, shard) - 1;
  const Placement placed = place_layers(config, problem, shard).value();
  EXPECT_EQ(placed.streamed(), 0);
  EXPECT_EQ(placed.resting_bytes, int64_t{2} * (1 << 16) * config.hidden * 4);
}

TEST(LayerLayout, HasEachWeightOnce) {
  for (const char* name : {"tiny", "Llama-3.1-8B", "Qwen3-32B", "GPT-3-175B"}) {
    const ModelConfig config = load_config(name).value();
    const Problem problem = streamed_problem(1, 16, 16, 0);
    for (const int ranks : {1, 2}) {
      const Shard shard = make_shard(config, problem, ranks - 1, ranks).value();
      const LayerLayout layout(config, shard, DType::bf16);
      int64_t end = 0;
      for (const LayerLayout::Part& part : layout.parts()) {
        EXPECT_GE(part.offset, end) << "parts overlap";
        EXPECT_LT(part.offset - end, 256);
        end = part.offset + part.box.rows * part.box.cols * 2;
      }
      EXPECT_TRUE(layout.bytes() >= end && layout.bytes() < end + 256);
      const LayerWeights weights = layout.at(reinterpret_cast<void*>(4096));
      EXPECT_EQ(weights.qkv.dim(0), shard.qkv_columns(config));
      EXPECT_EQ(weights.up.dim(0), shard.up_columns(config));
      EXPECT_EQ(weights.down.dim(1), shard.intermediate);
      EXPECT_EQ(weights.q_norm.defined(), config.qk_norm);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(weights.o.data) % 256, 0u);
    }
  }
}

}  // namespace
}  // namespace overlace::model
