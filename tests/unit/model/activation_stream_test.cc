// Residual streams that rest in host memory, against a lane whose two queues run as far apart as events allow; and
// lanes that forget one event, each of which is noticed.
#include "src/model/activation_stream.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/model/played_lane.h"

namespace overlace::model {
namespace {

constexpr int64_t kWidth = 3;

struct Shape {
  int64_t tokens = 0, length = 0, micro_batch = 0, layers = 0;
  int rank = 0, ranks = 1;
};

/// What a layer makes of an element; another one wherever layer, micro-batch or order differ.
float after_layer(float x, int64_t layer, size_t batch) {
  return 0.75f * x + static_cast<float>(layer + 1) + static_cast<float>(batch) / 16;
}

class PlayedActivations {
 public:
  PlayedActivations(const Shape& shape, Device& device) : shape_(shape), device_(device) {
    Problem problem;
    problem.layers = shape.layers;
    problem.tokens = shape.tokens;
    problem.sequence_length = shape.length;
    problem.micro_batch = shape.micro_batch;
    batches_ = micro_batches(problem, shape.rank, shape.ranks);
    const int64_t rows = kSlots * batches_.front().rows;
    memory_.assign(static_cast<size_t>(rows * kWidth), -1.0f);
    const TensorView slots = TensorView::contiguous(memory_.data(), DType::fp32, {rows, kWidth});
    stream_ = ActivationStream::open(device, batches_, shape.layers, slots).value();
  }

  ActivationStream& stream() { return *stream_; }
  int64_t rows() const { return batches_.back().at + batches_.back().rows; }
  /// How many elements are wrong after so many passes on an input; `compute` queues what computes, or does it.
  int wrong(int seed, int passes, const std::function<void(std::function<void()>)>& compute) {
    std::vector<float> input(static_cast<size_t>(rows() * kWidth));
    for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>((i * 37 + static_cast<size_t>(seed)) % 101);
    EXPECT_TRUE(stream_->set_input(input.data()).ok());
    for (int pass = 0; pass < passes; ++pass) queue_pass(compute);
    std::vector<float> got(input.size(), -2.0f);
    EXPECT_TRUE(stream_->get_output(got.data()).ok());
    int count = 0;
    for (size_t b = 0; b < batches_.size(); ++b)
      for (int64_t i = batches_[b].at * kWidth; i < (batches_[b].at + batches_[b].rows) * kWidth; ++i) {
        float want = input[static_cast<size_t>(i)];
        for (int64_t layer = 0; layer < shape_.layers; ++layer) want = after_layer(want, layer, b);
        count += got[static_cast<size_t>(i)] == want ? 0 : 1;
      }
    return count;
  }

 private:
  void queue_pass(const std::function<void(std::function<void()>)>& compute) {
    for (int64_t layer = 0; layer < shape_.layers; ++layer)
      for (size_t b = 0; b < batches_.size(); ++b) {
        const auto slot = stream_->acquire(layer, b);
        ASSERT_TRUE(slot.ok()) << slot.status().message();
        EXPECT_EQ(slot->dim(0), batches_[b].rows);
        compute([layer, b, x = static_cast<float*>(slot->data), n = slot->numel()] {
          for (int64_t i = 0; i < n; ++i) x[i] = after_layer(x[i], layer, b);
        });
        ASSERT_TRUE(stream_->release().ok());
      }
  }

  Shape shape_;
  Device& device_;
  std::vector<MicroBatch> batches_;
  std::vector<float> memory_;
  std::unique_ptr<ActivationStream> stream_;
};

const Shape kShapes[] = {{8, 4, 4, 2},  {24, 4, 8, 1},       {24, 4, 8, 5},       {28, 4, 8, 4},
                         {20, 4, 4, 3}, {28, 4, 8, 3, 0, 3}, {28, 4, 8, 3, 2, 3}, {3, 1, 1, 2, 2, 3}};

int wrong_on(const Shape& shape, Eager eager, Forgets forgets, int passes = 2) {
  Queues queues(eager, forgets);
  PlayedDevice device(queues);
  device.is_entered = false;
  int wrong = 0;
  {
    PlayedActivations played(shape, device);
    const auto queued = [&](std::function<void()> work) {
      queues.queue(CopyLane::Queue::computation, std::move(work));
    };
    for (int seed = 1; seed < 4; ++seed) wrong += played.wrong(seed, passes, queued);
    EXPECT_EQ(device.host_bytes, 2 * played.rows() * kWidth * 4);
    EXPECT_EQ(device.host_bytes, played.stream().stats().resting_bytes);
    queues.drain();
  }
  return wrong;
}

TEST(ActivationStreams, HaveEveryBitHoweverLateOrEarlyCopiesAre) {
  for (const Shape& shape : kShapes)
    for (const Eager eager : {Eager::copies, Eager::computation})
      for (const int passes : {1, 3})
        EXPECT_EQ(wrong_on(shape, eager, Forgets::nothing, passes), 0)
            << shape.tokens << " by " << shape.micro_batch << ", " << shape.layers << " layers, rank " << shape.rank;
}

TEST(ActivationStreams, NoticeAForgottenEvent) {
  const Shape shape{24, 4, 8, 3};
  EXPECT_GT(wrong_on(shape, Eager::computation, Forgets::computation_wait), 0);
  EXPECT_GT(wrong_on(shape, Eager::computation, Forgets::copied_record), 0);
  EXPECT_GT(wrong_on(shape, Eager::copies, Forgets::copies_wait), 0);
  EXPECT_GT(wrong_on(shape, Eager::copies, Forgets::used_record), 0);
  EXPECT_GT(wrong_on(shape, Eager::computation, Forgets::host_wait), 0);
}

TEST(ActivationStreams, CopyAtOnceWhereMemoryIsTheHosts) {
  const auto device = make_cpu_device();
  for (const Shape& shape : kShapes) {
    PlayedActivations played(shape, *device);
    for (int seed = 1; seed < 3; ++seed)
      EXPECT_EQ(played.wrong(seed, 2, [](const std::function<void()>& work) { work(); }), 0) << shape.tokens;
    const ActivationStats stats = played.stream().stats();
    EXPECT_EQ(stats.transfer_s, stats.waited_s) << "nothing is beside it";
  }
}

/// Each use comes in and goes out once, and two more come in, which the next pass begins with.
TEST(ActivationStreams, ShowWhatMovesBothWays) {
  const Shape shape{28, 4, 8, 3};
  const auto device = make_cpu_device();
  PlayedActivations played(shape, *device);
  EXPECT_EQ(played.wrong(1, 1, [](const std::function<void()>& work) { work(); }), 0);
  const std::vector<base::Span> spans = played.stream().take_transfers().value();
  const auto are = [&](const std::string& way) {
    return std::count_if(spans.begin(), spans.end(),
                         [&](const base::Span& s) { return s.name.ends_with(" " + way) && s.lane == "io 1"; });
  };
  EXPECT_EQ(are("out"), 3 * 4);
  EXPECT_EQ(are("in"), 3 * 4 + 2);
  EXPECT_EQ(spans.front().name, "micro-batch 0 in");
  EXPECT_EQ(spans.front().bytes, 8 * kWidth * 4);
  EXPECT_TRUE(played.stream().take_transfers().value().empty());
}

TEST(ActivationStreams, OutOfTurnIsDesync) {
  const auto device = make_cpu_device();
  PlayedActivations played({12, 4, 4, 2}, *device);
  ActivationStream& stream = played.stream();
  const std::vector<float> input(static_cast<size_t>(played.rows() * kWidth));
  ASSERT_TRUE(stream.set_input(input.data()).ok());
  EXPECT_EQ(stream.release().code(), Errc::desync);
  EXPECT_EQ(stream.acquire(1, 0).status().message(),
            "micro-batch 0 was asked for in layer 1, wanted micro-batch 0 in layer 0");
  EXPECT_TRUE(stream.acquire(0, 0).ok());
  EXPECT_EQ(stream.acquire(0, 1).status().code(), Errc::desync) << "micro-batch 0 is in use";
  ASSERT_TRUE(stream.set_input(input.data()).ok()) << "the order begins again";
  EXPECT_TRUE(stream.acquire(0, 0).ok());
}

TEST(ActivationStreams, SayWhatTheHostHasTooLittleMemoryFor) {
  Queues queues(Eager::copies, Forgets::nothing);
  PlayedDevice device(queues);
  device.most_host_bytes = 100;
  std::vector<float> memory(24);
  const TensorView slots = TensorView::contiguous(memory.data(), DType::fp32, {8, 3});
  const auto stream = ActivationStream::open(device, {{4, 0, 4, 0}, {4, 4, 4, 4}, {4, 8, 4, 8}}, 2, slots);
  EXPECT_EQ(stream.status().code(), Errc::out_of_memory);
  EXPECT_EQ(stream.status().message(), "residual streams of micro-batches: 144 bytes were asked and not available");
}

}  // namespace
}  // namespace overlace::model
