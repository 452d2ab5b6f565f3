// Layers that stream into a device, against a lane whose two queues run as far apart as events allow; and lanes that
// forget one event, each of which is noticed.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>

#include "src/model/device.h"
#include "src/model/layer_stream.h"
#include "src/model/sharding.h"
#include "tests/unit/model/scratch_dir.h"
#include "tests/unit/model/seeded_checkpoint.h"

namespace overlace::model {
namespace {

using Queue = CopyLane::Queue;

/// Which of the queues runs whenever it can; the other one waits until it must.
enum class Eager { copies, computation };
/// What a lane forgets.
enum class Forgets { nothing, copied_record, used_record, copies_wait, computation_wait, host_wait };

/// What both queues hold. It outlives the lane.
class Queues {
 public:
  Queues(Eager eager, Forgets forgets) : eager_(eager), forgets_(forgets) {}

  void queue(Queue queue, std::function<void()> run) { push(queue, {std::move(run), -1, 0, -1}); }
  void record(Queue queue, int event) {
    if (forgets_ == (queue == Queue::copies ? Forgets::copied_record : Forgets::used_record)) return;
    const std::lock_guard lock(mutex_);
    ++recorded_[event];
    push(queue, {{}, -1, 0, event});
  }
  void wait(Queue queue, int event) {
    if (forgets_ == (queue == Queue::copies ? Forgets::copies_wait : Forgets::computation_wait)) return;
    const std::lock_guard lock(mutex_);
    push(queue, {{}, event, recorded_[event], -1});
  }
  void synchronize(int event) {
    if (forgets_ == Forgets::host_wait) return;
    const std::lock_guard lock(mutex_);
    while (passed_[event] < recorded_[event]) ASSERT_TRUE(step()) << "event " << event << " never comes";
  }
  /// Runs all there is.
  void drain() {
    const std::lock_guard lock(mutex_);
    while (step()) continue;
    EXPECT_TRUE(works_[0].empty() && works_[1].empty()) << "something waits for what never comes";
  }

 private:
  struct Work {
    std::function<void()> run;
    int waits_for = -1;
    int64_t count = 0;  // of that event
    int records = -1;
  };
  std::deque<Work>& of(Queue queue) { return works_[queue == Queue::copies ? 0 : 1]; }
  void push(Queue queue, Work work) {
    const std::lock_guard lock(mutex_);
    of(queue).push_back(std::move(work));
    while (run_first(eager())) continue;
  }
  Queue eager() const { return eager_ == Eager::copies ? Queue::copies : Queue::computation; }
  bool step() { return run_first(eager()) || run_first(eager_ == Eager::copies ? Queue::computation : Queue::copies); }
  bool run_first(Queue queue) {
    if (of(queue).empty()) return false;
    Work& work = of(queue).front();
    if (work.waits_for >= 0 && passed_[work.waits_for] < work.count) return false;
    if (work.run) work.run();
    if (work.records >= 0) ++passed_[work.records];
    of(queue).pop_front();
    return true;
  }

  const Eager eager_;
  const Forgets forgets_;
  std::recursive_mutex mutex_;
  std::array<std::deque<Work>, 2> works_;
  std::map<int, int64_t> recorded_, passed_;
};

/// The time of a copy: less than what the host takes to queue it.
constexpr double kCopied_s = 1e-9;

class PlayedLane final : public CopyLane {
 public:
  PlayedLane(Queues& queues, std::chrono::milliseconds slow) : queues_(queues), slow_(slow) {}
  base::Status enter() override {
    EXPECT_EQ(entered_, std::thread::id()) << "twice";
    entered_ = std::this_thread::get_id();
    std::this_thread::sleep_for(slow_);
    return {};
  }
  base::Status copy(const void* host, void* device, int64_t bytes, base::Span span) override {
    EXPECT_EQ(span.bytes, bytes);
    EXPECT_EQ(entered_, std::this_thread::get_id());
    queues_.queue(Queue::copies, [=, this, span = std::move(span)] {
      std::memcpy(device, host, static_cast<size_t>(bytes));
      const std::lock_guard lock(mutex_);
      times_.copied_s += kCopied_s;
      spans_.push_back(span);
    });
    return {};
  }
  base::Status record(Queue queue, int event) override { return queues_.record(queue, event), base::Status(); }
  base::Status wait(Queue queue, int event) override { return queues_.wait(queue, event), base::Status(); }
  base::Status begin_wait() override {
    const std::lock_guard lock(mutex_);
    return times_.waited_s += 1, base::Status();
  }
  base::Status synchronize(int event) override { return queues_.synchronize(event), base::Status(); }
  Times times() override {
    const std::lock_guard lock(mutex_);
    return times_;
  }
  base::Result<std::vector<base::Span>> take_spans() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(spans_, {});
  }

 private:
  Queues& queues_;
  const std::chrono::milliseconds slow_;
  std::thread::id entered_;
  std::mutex mutex_;
  Times times_;
  std::vector<base::Span> spans_;
};

/// A CPU with such a lane.
class PlayedDevice final : public Device {
 public:
  explicit PlayedDevice(Queues& queues) : queues_(queues) {}
  base::Result<void*> alloc(int64_t bytes, std::string_view what) override {
    device_bytes += bytes;
    return cpu_->alloc(bytes, what);
  }
  void free(void* block) override { cpu_->free(block); }
  base::Result<void*> alloc_host(int64_t bytes, std::string_view what) override {
    host_bytes += bytes;
    if (host_bytes > most_host_bytes)
      return base::error(Errc::out_of_memory, "{}: {} bytes were asked and not available", what, bytes);
    return cpu_->alloc_host(bytes, what);
  }
  void free_host(void* block) override { cpu_->free_host(block); }
  base::Result<std::unique_ptr<CopyLane>> make_copy_lane(int) override {
    return std::unique_ptr<CopyLane>(std::make_unique<PlayedLane>(queues_, slow));
  }
  base::Status upload(const void* host, void* device, int64_t n) override { return cpu_->upload(host, device, n); }
  base::Status download(const void* device, void* host, int64_t n) override { return cpu_->download(device, host, n); }
  base::Status copy(const void* from, void* to, int64_t n) override { return cpu_->copy(from, to, n); }
  base::Status synchronize() override { return {}; }
  base::Status fill(const SeededMatrix& matrix, const TensorView& out) override { return cpu_->fill(matrix, out); }
  base::Status add_norm(const AddNormArgs& args) override { return cpu_->add_norm(args); }
  base::Status rope(const RopeArgs& args) override { return cpu_->rope(args); }
  base::Status attention(const AttentionArgs& args) override { return cpu_->attention(args); }
  std::string attention_by() const override { return cpu_->attention_by(); }
  base::Status activation(const ActivationArgs& args) override { return cpu_->activation(args); }

  int64_t device_bytes = 0, host_bytes = 0, most_host_bytes = std::numeric_limits<int64_t>::max();
  std::chrono::milliseconds slow{};  // until a copy can be queued

 private:
  Queues& queues_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
};

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
