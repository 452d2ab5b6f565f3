// Decoder layers that stream through slots of a GPU's memory: the bits of resident ones, from pinned memory and from
// files, on one rank and on two.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "src/exec/run.h"
#include "src/model/activation_stream.h"
#include "src/model/layer_stream.h"
#include "src/model/sharding.h"
#include "src/model/stack.h"
#include "src/spec/operators.h"
#include "tests/gpu/support/gpu_ranks.h"
#include "tests/unit/model/scratch_dir.h"
#include "tests/unit/model/seeded_checkpoint.h"

namespace overlace::test {
namespace {

constexpr int64_t kLayers = 5, kLength = 32, kTokens = 7 * kLength;

model::ModelConfig offloaded_config() {
  return model::parse_config(R"({"model_type": "qwen2", "hidden_size": 512, "intermediate_size": 1536,
                                 "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
                                 "head_dim": 64})",
                             "test")
      .value();
}

model::Problem offloaded_problem(int64_t micro_batch = 0) {
  model::Problem problem;
  problem.layers = kLayers;
  problem.tokens = kTokens;
  problem.sequence_length = kLength;
  problem.dtype = DType::bf16;
  problem.seed = 21;
  problem.micro_batch = micro_batch;
  return problem;
}

model::SiteSchedules of_family(const std::vector<model::Site>& sites, const char* family) {
  model::SiteSchedules out;
  for (const model::Site& site : sites) {
    out.emplace(site.name, spec::make_schedule(site.op, family));
    EXPECT_TRUE(out.at(site.name).deterministic) << family;
  }
  return out;
}

GpuOptions offload_options() {
  GpuOptions options = default_options();
  options.net_engine = "none";
  return options;
}

/// One rank's stack and its rows.
class Layers {
 public:
  Layers(GpuRank& gpu, const model::ModelConfig& config, const model::Problem& problem) : gpu_(gpu) {
    auto stack = model::Stack::create(config, problem, gpu.channel);
    EXPECT_TRUE(stack.ok()) << stack.status().message();
    stack_ = std::move(*stack);
    for (const model::MicroBatch& batch : model::micro_batches(problem, gpu.rank, gpu.size)) {
      std::vector<float> rows(static_cast<size_t>(batch.rows * config.hidden));
      model::seeded_input(4, batch.first_row, batch.rows, config.hidden, rows.data());
      input_.insert(input_.end(), rows.begin(), rows.end());
    }
    gpu_.team.barrier();  // allocating may wait for the whole device, as freeing does: peers that share it must be done
  }
  ~Layers() {
    try {
      gpu_.team.barrier();
    } catch (const Error& error) {  // a peer's failure, which the test reports
      ADD_FAILURE() << error.what();
    }
  }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;

  model::Stack& stack() { return *stack_; }
  std::vector<float> forward(const model::SiteSchedules& schedules) {
    std::vector<float> out(input_.size());
    const base::Status status = stack_->forward(input_.data(), schedules, out.data());
    EXPECT_TRUE(status.ok()) << status.message();
    gpu_.team.barrier();
    return out;
  }
  /// Without a pause between passes.
  void passes(const model::SiteSchedules& schedules, int count) {
    const base::Status status = stack_->run_layers(schedules, count);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(stack_->synchronize().ok());
    gpu_.team.barrier();
  }

 private:
  GpuRank& gpu_;
  std::unique_ptr<model::Stack> stack_;
  std::vector<float> input_;
};

class GpuOffload : public testing::Test {
 protected:
  void SetUp() override {
    OVERLACE_NEED_GPUS(1);
    dir_.write("model.safetensors", model::seeded_checkpoint(config_, offloaded_problem()));
  }
  /// With room for so many layers beside the slots; `source`: seed, host or disk. `rests`: residual streams, too.
  model::Problem limited(model::Problem problem, const GpuRank& gpu, int resident, const std::string& source,
                         bool rests = false) const {
    const model::Shard shard = model::make_shard(config_, problem, 0, gpu.size).value();
    const int64_t layer = model::LayerLayout(config_, shard, problem.dtype).bytes();
    problem.device_bytes = model::activation_bytes(config_, problem, shard, rests) + (2 + resident) * layer;
    problem.from_disk = source == "disk";
    if (source != "seed") problem.checkpoint = dir_.path();
    return problem;
  }

  const model::ModelConfig config_ = offloaded_config();
  const model::ScratchDir dir_;
};

/// On so many ranks, each with a GPU of its own. NOTE: as threads on one GPU two ranks stand still at the first layer
/// that streams: most likely a copy that waits for one rank's computation holds the queue of the copy engine that the
/// other's layer comes through.
class GpuOffloadOn : public GpuOffload, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    OVERLACE_NEED_GPUS(GetParam());
    GpuOffload::SetUp();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuOffloadOn, testing::Values(1, 2),
                         [](const auto& test) { return base::format("on{}", test.param); });

TEST_P(GpuOffloadOn, HasTheBitsOfResidentLayers) {
  const int ranks = GetParam();
  for (const int64_t micro_batch : {int64_t{0}, 3 * kLength}) {  // three of seven sequences: the last has one
    run_gpu_threads(
        ranks,
        [&](GpuRank& gpu) {
          const model::Problem problem = offloaded_problem(micro_batch);
          const std::vector<model::Site> sites = model::sites(config_, problem, ranks).value();
          for (const char* family : {"serial", "hetero_fused_1d"}) {
            const model::SiteSchedules schedules = of_family(sites, family);
            std::vector<float> want;
            {
              Layers resident(gpu, config_, problem);
              want = resident.forward(schedules);
              EXPECT_EQ(resident.forward(schedules), want);
              EXPECT_EQ(resident.stack().weight_stats().streamed_layers, 0);
            }
            for (const std::string source : {"seed", "host", "disk"}) {
              for (const int kept : {0, 2}) {
                Layers streamed(gpu, config_, limited(problem, gpu, kept, source));
                const std::string where = std::string(family) + ", " + source;
                EXPECT_EQ(streamed.stack().weight_stats().streamed_layers, kLayers - kept);
                EXPECT_EQ(streamed.forward(schedules), want) << where;
                streamed.passes(schedules, 10);
                EXPECT_EQ(streamed.forward(schedules), want) << where << ", behind other passes";
                for (const model::Site& site : sites) {
                  EXPECT_TRUE(streamed.stack().run_site(site.name, schedules.at(site.name), 2).ok());
                  EXPECT_TRUE(streamed.stack().synchronize().ok());
                  gpu.team.barrier();
                }
                EXPECT_EQ(streamed.forward(schedules), want) << where << ", behind sites";
              }
            }
          }
        },
        offload_options());
  }
}

// Two of three micro-batches are on the device at a time, and the last one is smaller.
TEST_P(GpuOffloadOn, HasTheBitsOfActivationsThatStay) {
  const int ranks = GetParam();
  run_gpu_threads(
      ranks,
      [&](GpuRank& gpu) {
        const model::Problem problem = offloaded_problem(3 * kLength);
        const std::vector<model::Site> sites = model::sites(config_, problem, ranks).value();
        for (const char* family : {"serial", "hetero_fused_1d"}) {
          const model::SiteSchedules schedules = of_family(sites, family);
          const std::vector<float> want = Layers(gpu, config_, problem).forward(schedules);
          for (const std::string source : {"seed", "host", "disk"}) {
            Layers moved(gpu, config_, limited(problem, gpu, 0, source, true));
            const std::string where = std::string(family) + ", " + source;
            EXPECT_EQ(moved.stack().weight_stats().streamed_layers, kLayers);
            EXPECT_EQ(moved.stack().activation_stats().resting_bytes, 2 * kTokens / ranks * config_.hidden * 2);
            EXPECT_EQ(moved.forward(schedules), want) << where;
            moved.passes(schedules, 10);
            EXPECT_EQ(moved.forward(schedules), want) << where << ", behind other passes";
            EXPECT_EQ(moved.forward(schedules), want) << where << ", once more";
            const double bytes = 12.0 * kLayers * kTokens / ranks * static_cast<double>(config_.hidden) * 2 * 2;
            EXPECT_GT(moved.stack().activation_stats().transfer_s, bytes / 500e9) << where << ": faster than any link";
          }
        }
      },
      offload_options());
}

/// Holds a stream back until it is let go, at most so long.
class Hold {
 public:
  Hold(cudaStream_t stream, std::chrono::milliseconds most) : until_(std::chrono::steady_clock::now() + most) {
    EXPECT_CUDA(cudaLaunchHostFunc(
        stream,
        [](void* hold) {
          const auto* self = static_cast<const Hold*>(hold);
          while (!self->is_over_ && std::chrono::steady_clock::now() < self->until_)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        },
        this));
  }
  void let_go() { is_over_ = true; }

 private:
  const std::chrono::steady_clock::time_point until_;
  std::atomic<bool> is_over_ = false;
};

// Were a copy not behind the computation that used its slot, it would come while that is still held back.
TEST_F(GpuOffload, BringsALayerBehindTheUseOfItsSlot) {
  run_gpu_threads(
      1,
      [&](GpuRank& gpu) {
        for (const std::string source : {"host", "disk"}) {
          const model::Problem problem = limited(offloaded_problem(), gpu, 0, source);
          const model::Shard shard = model::make_shard(config_, problem, 0, 1).value();
          const model::LayerLayout layout(config_, shard, problem.dtype);
          const model::Placement placement = model::place_layers(config_, problem, shard).value();
          const auto bytes = static_cast<size_t>(layout.bytes());
          model::Weights weights = model::Weights::open(config_, problem).value();
          std::vector<std::vector<std::byte>> want(kLayers, std::vector<std::byte>(bytes));
          for (int64_t layer = 0; layer < kLayers; ++layer)
            EXPECT_TRUE(layout.read(weights, layer, want[static_cast<size_t>(layer)].data()).ok());
          constexpr int kUses = 3 * kLayers;
          std::byte* const seen = gpu.device_array<std::byte>(kUses * bytes);
          const auto device = model::make_cuda_device(gpu.channel).value();
          const auto stream = model::LayerStream::open(config_, problem, layout, placement, *device).value();
          const auto use = [&](int64_t first, int64_t count) {
            for (int64_t i = first; i < first + count; ++i) {
              const auto got = stream->acquire(i % kLayers);
              ASSERT_TRUE(got.ok()) << got.status().message();
              std::byte* const to = seen + static_cast<size_t>(i) * bytes;  // the block begins with norm1
              EXPECT_CUDA(cudaMemcpyAsync(to, got->norm1.data, bytes, cudaMemcpyDeviceToDevice, gpu.stream));
              ASSERT_TRUE(stream->release(i % kLayers).ok());
            }
          };
          use(0, kLayers);  // what is loaded at its first use may not wait for what is held back
          gpu.wait();
          // From files the host can be two layers ahead only: it must wait until time is over.
          Hold hold(gpu.stream, std::chrono::milliseconds(source == "disk" ? 300 : 10000));
          use(kLayers, kUses - kLayers);
          if (source == "host") {
            EXPECT_EQ(cudaStreamQuery(gpu.stream), cudaErrorNotReady) << "nothing was held back";
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for copies that do not wait
          hold.let_go();
          gpu.wait();
          std::vector<std::byte> got(bytes);
          for (int64_t i = 0; i < kUses; ++i) {
            gpu.fetch(got.data(), seen + static_cast<size_t>(i) * bytes, bytes);
            for (const model::LayerLayout::Part& part : layout.parts()) {
              const auto size = static_cast<size_t>(part.box.rows * part.box.cols) * dtype_bytes(problem.dtype);
              const std::byte* const of = want[static_cast<size_t>(i % kLayers)].data() + part.offset;
              EXPECT_EQ(std::memcmp(got.data() + part.offset, of, size), 0) << source << ", use " << i;
            }
          }
        }
      },
      offload_options());
}

// Were a copy not behind the computation in its slot, what rests would be what came in.
TEST_F(GpuOffload, TakesActivationsAwayBehindTheUseOfTheirSlot) {
  run_gpu_threads(
      1,
      [&](GpuRank& gpu) {
        constexpr int64_t kUsed = 3, kRows = 64, kWidth = 1024, kPasses = 2;
        constexpr size_t kBytes = kRows * kWidth * sizeof(float);
        std::vector<model::MicroBatch> batches;
        for (int64_t b = 0; b < kUsed; ++b) batches.push_back({kRows, b * kRows, kRows, b * kRows});
        const auto device = model::make_cuda_device(gpu.channel).value();
        auto* const slots = gpu.device_array<float>(2 * kRows * kWidth);
        auto* const seen = gpu.device_array<std::byte>(kPasses * 2 * kUsed * kBytes);
        const auto stream = model::ActivationStream::open(
                                *device, batches, 2, TensorView::contiguous(slots, DType::fp32, {2 * kRows, kWidth}))
                                .value();
        const std::vector<float> input(kUsed * kRows * kWidth, 3.0f);
        EXPECT_CUDA(cudaMemsetAsync(seen, 0, kBytes, gpu.stream));  // what is loaded at its first use may not wait
        gpu.wait();
        ASSERT_TRUE(stream->set_input(input.data()).ok());
        Hold hold(gpu.stream, std::chrono::milliseconds(10000));
        for (int64_t use = 0; use < kPasses * 2 * kUsed; ++use) {
          const auto slot = stream->acquire(use / kUsed % 2, static_cast<size_t>(use % kUsed));
          ASSERT_TRUE(slot.ok()) << slot.status().message();
          EXPECT_CUDA(cudaMemcpyAsync(seen + static_cast<size_t>(use) * kBytes, slot->data, kBytes,
                                      cudaMemcpyDeviceToDevice, gpu.stream));
          EXPECT_CUDA(cudaMemsetAsync(slot->data, static_cast<int>(use + 1), kBytes, gpu.stream));
          ASSERT_TRUE(stream->release().ok());
        }
        EXPECT_EQ(cudaStreamQuery(gpu.stream), cudaErrorNotReady) << "nothing was held back";
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // time for copies that do not wait
        hold.let_go();
        std::vector<float> output(input.size());
        ASSERT_TRUE(stream->get_output(output.data()).ok());
        gpu.wait();
        const auto value_of = [](int64_t use) {
          float value = 0;
          std::memset(&value, static_cast<int>(use + 1), sizeof value);
          return value;
        };
        std::vector<float> got(kRows * kWidth);
        for (int64_t use = 0; use < kPasses * 2 * kUsed; ++use) {
          gpu.fetch(got.data(), seen + static_cast<size_t>(use) * kBytes, kBytes);
          const float want = use / kUsed % 2 == 0 ? 3.0f : value_of(use - kUsed);
          EXPECT_EQ(std::count(got.begin(), got.end(), want), std::ssize(got)) << "use " << use;
        }
        for (int64_t b = 0; b < kUsed; ++b) {
          const auto first = output.begin() + b * kRows * kWidth;
          EXPECT_EQ(std::count(first, first + kRows * kWidth, value_of((kPasses * 2 - 1) * kUsed + b)), kRows * kWidth);
        }
      },
      offload_options());
}

TEST_F(GpuOffload, CountsWhatIsBroughtAndWaitedFor) {
  run_gpu_threads(
      1,
      [&](GpuRank& gpu) {
        const model::Problem problem = offloaded_problem();
        const model::SiteSchedules schedules = of_family(model::sites(config_, problem, 1).value(), "serial");
        for (const std::string source : {"seed", "disk"}) {
          Layers streamed(gpu, config_, limited(problem, gpu, 0, source));
          streamed.passes(schedules, 1);
          const model::WeightStats before = streamed.stack().weight_stats();
          streamed.passes(schedules, 20);
          const model::WeightStats after = streamed.stack().weight_stats();
          EXPECT_EQ(after.passes - before.passes, 20);
          const double bytes = static_cast<double>(20 * kLayers * after.layer_bytes);
          const double seconds = after.transfer_s - before.transfer_s;
          EXPECT_GT(seconds, bytes / 500e9) << source << ": faster than any link";
          EXPECT_GE(after.waited_s, before.waited_s) << source;
          EXPECT_EQ(after.disk_s > before.disk_s, source == "disk");
        }
      },
      offload_options());
}

TEST_F(GpuOffload, IsOnTheTimeline) {
  run_gpu_threads(
      1,
      [&](GpuRank& gpu) {
        const model::Problem problem = offloaded_problem();
        const model::SiteSchedules schedules = of_family(model::sites(config_, problem, 1).value(), "serial");
        Layers streamed(gpu, config_, limited(problem, gpu, 0, "seed"));
        streamed.passes(schedules, 1);
        EXPECT_TRUE(streamed.stack().take_transfers().value().empty()) << "the first call begins";
        base::Trace unused;
        exec::set_trace(gpu.channel, &unused);
        streamed.passes(schedules, 1);
        const base::Trace trace = exec::collect_trace(gpu.channel).value();
        exec::set_trace(gpu.channel, nullptr);
        const std::vector<base::Span> transfers = streamed.stack().take_transfers().value();
        // Those of the pass but its first two, which may have come before; and maybe the first two of the next one.
        ASSERT_GE(std::ssize(transfers), kLayers - 2);
        ASSERT_LE(std::ssize(transfers), kLayers + 2);
        for (size_t i = 0; i < transfers.size(); ++i) {
          const base::Span& span = transfers[i];
          EXPECT_EQ(span.lane, "io 0");
          EXPECT_EQ(span.name.rfind("weights of layers.", 0), 0u) << span.name;
          EXPECT_GT(span.bytes, 6'000'000);
          EXPECT_LT(span.begin_ns, span.end_ns);
          EXPECT_LE(i == 0 ? span.begin_ns : transfers[i - 1].end_ns, span.begin_ns + 1000);
        }
        const auto waits = std::count_if(trace.spans.begin(), trace.spans.end(),
                                         [](const base::Span& s) { return s.name == "wait for weights"; });
        EXPECT_EQ(waits, kLayers);
      },
      offload_options());
}

TEST_F(GpuOffload, GivesTheErrorOfAFileThatChanges) {
  run_gpu_threads(
      1,
      [&](GpuRank& gpu) {
        const model::Problem problem = offloaded_problem();
        const model::SiteSchedules schedules = of_family(model::sites(config_, problem, 1).value(), "serial");
        Layers streamed(gpu, config_, limited(problem, gpu, 0, "disk"));
        streamed.passes(schedules, 1);
        std::ofstream(dir_ / "model.safetensors", std::ios::app | std::ios::binary) << "x";
        const base::Status status = streamed.stack().run_layers(schedules, 2);
        EXPECT_EQ(status.code(), Errc::corrupt) << status.message();
        EXPECT_NE(status.message().find("model.safetensors was written while it streamed"), std::string::npos)
            << status.message();
        EXPECT_TRUE(streamed.stack().synchronize().ok());
      },
      offload_options());
}

}  // namespace
}  // namespace overlace::test
