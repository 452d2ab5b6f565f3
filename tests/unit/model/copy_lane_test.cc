// Layers that stream into a device, against a lane whose two queues run as far apart as events allow; and lanes that
// forget one event, each of which is noticed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "src/model/layer_stream.h"
#include "src/model/sharding.h"
#include "tests/unit/model/played_lane.h"
#include "tests/unit/model/scratch_dir.h"
#include "tests/unit/model/seeded_checkpoint.h"

namespace overlace::model {
namespace {

using Queue = CopyLane::Queue;

constexpr int64_t kLayers = 5;

ModelConfig small_config() {
  return parse_config(R"({"model_type": "qwen2", "hidden_size": 40, "intermediate_size": 28, "num_hidden_layers": 5,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6})",
                      "test")
      .value();
}

class PlayedStream {
 public:
  explicit PlayedStream(const ScratchDir& dir) : config_(small_config()) {
    problem_.layers = kLayers;
    problem_.tokens = problem_.sequence_length = 8;
    problem_.dtype = DType::bf16;
    problem_.seed = 9;
    dir.write("model.safetensors", seeded_checkpoint(config_, problem_));
    directory_ = dir.path();
  }

  /// How often a layer's bytes were wrong in `passes` over all layers, of which `resident` do not stream. Each is
  /// looked at by `looks` calls of the queue of computation.
  int wrong(Eager eager, Forgets forgets, const std::string& source, int resident, int passes, int looks) {
    Problem problem = problem_;
    problem.from_disk = source == "disk";
    if (source != "seed") problem.checkpoint = directory_;
    const Shard shard = make_shard(config_, problem, 1, 2).value();
    const LayerLayout layout(config_, shard, problem.dtype);
    problem.device_bytes = activation_bytes(config_, problem, shard) + (2 + resident) * layout.bytes();
    const Placement placement = place_layers(config_, problem, shard).value();
    EXPECT_EQ(placement.streamed(), kLayers - resident);
    Weights weights = Weights::open(config_, problem).value();
    std::vector<std::vector<std::byte>> want(kLayers, std::vector<std::byte>(static_cast<size_t>(layout.bytes())));
    for (int64_t layer = 0; layer < kLayers; ++layer)
      EXPECT_TRUE(layout.read(weights, layer, want[static_cast<size_t>(layer)].data()).ok());
    Queues queues(eager, forgets);
    PlayedDevice device(queues);
    auto stream = LayerStream::open(config_, problem, layout, placement, device);
    EXPECT_TRUE(stream.ok()) << stream.status().message();
    const int64_t slot = base::round_up(layout.bytes(), int64_t{4096});
    EXPECT_EQ(device.device_bytes, 2 * slot);
    EXPECT_EQ(device.host_bytes, (problem.from_disk ? 2 : placement.streamed()) * layout.bytes());
    int wrong = 0;
    for (int pass = 0; pass < passes; ++pass) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        if (placement.is_resident[static_cast<size_t>(layer)]) continue;
        const auto got = (*stream)->acquire(layer);
        EXPECT_TRUE(got.ok()) << got.status().message();
        const auto* block = static_cast<const std::byte*>(got->norm1.data);
        for (int look = 0; look < looks; ++look)
          queues.queue(Queue::computation, [&wrong, &layout, block, of = want[static_cast<size_t>(layer)].data()] {
            for (const LayerLayout::Part& part : layout.parts()) {
              const auto bytes = static_cast<size_t>(part.box.rows * part.box.cols * 2);
              wrong += std::memcmp(block + part.offset, of + part.offset, bytes) != 0 ? 1 : 0;
            }
          });
        EXPECT_TRUE((*stream)->release(layer).ok());
      }
    }
    queues.drain();
    check_statistics(**stream, passes * placement.streamed(), problem.from_disk);
    return wrong;
  }

 private:
  static void check_statistics(LayerStream& stream, int64_t used, bool from_disk) {
    WeightStats stats;
    stream.add_to(&stats);
    EXPECT_EQ(stats.waited_s, static_cast<double>(used));
    const auto spans = stream.take_transfers().value();
    EXPECT_GE(std::ssize(spans), used);
    EXPECT_LE(std::ssize(spans), used + 2);
    const double copied_s = static_cast<double>(std::ssize(spans)) * kCopied_s;
    if (from_disk) {
      EXPECT_GT(stats.disk_s, 0);
      EXPECT_GE(stats.transfer_s, std::max(stats.disk_s, copied_s));
    } else {
      EXPECT_NEAR(stats.transfer_s, copied_s, 1e-3 * copied_s) << "of copies alone: the host may have waited to queue";
    }
    EXPECT_EQ(spans.front().name.rfind("weights of layers.", 0), 0u) << spans.front().name;
    EXPECT_EQ(spans.front().lane, "io 0");
  }

  ModelConfig config_;
  Problem problem_;
  std::string directory_;
};

TEST(CopyLanes, BringEveryByteHoweverLateOrEarlyCopiesAre) {
  const ScratchDir dir;
  PlayedStream played(dir);
  for (const Eager eager : {Eager::copies, Eager::computation})
    for (const std::string source : {"seed", "host", "disk"})
      for (const int resident : {0, 1, 2})
        EXPECT_EQ(played.wrong(eager, Forgets::nothing, source, resident, 3, 2), 0)
            << source << (eager == Eager::copies ? ", early copies, " : ", late copies, ") << resident;
}

TEST(CopyLanes, ThatForgetAnEventAreNoticed) {
  const ScratchDir dir;
  PlayedStream played(dir);
  const auto wrong = [&](Eager eager, Forgets forgets, const char* source) {
    return played.wrong(eager, forgets, source, 0, 2, 1);
  };
  EXPECT_GT(wrong(Eager::computation, Forgets::computation_wait, "seed"), 0);
  EXPECT_GT(wrong(Eager::computation, Forgets::copied_record, "seed"), 0);
  EXPECT_GT(wrong(Eager::copies, Forgets::copies_wait, "seed"), 0);
  EXPECT_GT(wrong(Eager::copies, Forgets::used_record, "seed"), 0);
#if !defined(__SANITIZE_THREAD__)  // it is a data race between the lane's thread and its copies
  EXPECT_GT(wrong(Eager::computation, Forgets::host_wait, "disk"), 0);
#endif
}

TEST(CopyLanes, SayWhatTheHostHasTooLittleMemoryFor) {
  const ModelConfig config = small_config();
  Problem problem;
  problem.layers = 4;
  problem.tokens = problem.sequence_length = 8;
  const LayerLayout layout(config, make_shard(config, problem, 0, 1).value(), problem.dtype);
  Placement placement;
  placement.is_resident = {false, false, true, false};
  Queues queues(Eager::copies, Forgets::nothing);
  PlayedDevice device(queues);
  device.most_host_bytes = layout.bytes();
  const auto stream = LayerStream::open(config, problem, layout, placement, device);
  EXPECT_EQ(stream.status().code(), Errc::out_of_memory);
  EXPECT_EQ(stream.status().message(),
            base::format("layer 2 of 3 that stream from {} bytes of host memory: {} bytes were asked and not available",
                         3 * layout.bytes(), layout.bytes()));
}

TEST(CopyLanes, EndAWaitThatIsTooLong) {
  const ModelConfig config = small_config();
  Problem problem;
  problem.layers = 2;
  problem.tokens = problem.sequence_length = 8;
  const LayerLayout layout(config, make_shard(config, problem, 0, 1).value(), problem.dtype);
  Placement placement;
  placement.is_resident = {false, false};
  Queues queues(Eager::copies, Forgets::nothing);
  PlayedDevice device(queues);
  device.slow = std::chrono::milliseconds(300);
  const auto stream = LayerStream::open(config, problem, layout, placement, device, 20).value();
  const base::Status status = stream->acquire(0).status();
  EXPECT_EQ(status.code(), Errc::timeout);
  EXPECT_NE(status.message().find("layers.0 did not come within 20 ms"), std::string::npos) << status.message();
}

TEST(CopyLanes, OutOfTurnIsDesync) {
  const ModelConfig config = small_config();
  Problem problem;
  problem.layers = 4;
  problem.tokens = problem.sequence_length = 8;
  const Shard shard = make_shard(config, problem, 0, 1).value();
  const LayerLayout layout(config, shard, problem.dtype);
  Placement placement;
  placement.is_resident = {false, true, false, false};
  Queues queues(Eager::copies, Forgets::nothing);
  PlayedDevice device(queues);
  auto stream = LayerStream::open(config, problem, layout, placement, device).value();
  EXPECT_EQ(stream->release(0).code(), Errc::desync) << "nothing is in use";
  EXPECT_EQ(stream->acquire(1).status().code(), Errc::desync) << "it is resident";
  EXPECT_EQ(stream->acquire(2).status().code(), Errc::desync);
  EXPECT_TRUE(stream->acquire(0).ok());
  EXPECT_TRUE(stream->acquire(2).ok());
  EXPECT_EQ(stream->release(2).code(), Errc::desync);
  EXPECT_TRUE(stream->release(0).ok());
  EXPECT_TRUE(stream->release(2).ok());
  EXPECT_TRUE(stream->acquire(3).ok());
  queues.drain();
}

}  // namespace
}  // namespace overlace::model
