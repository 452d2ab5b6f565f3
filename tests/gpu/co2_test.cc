// CO2 on GPUs: sums of both transports in stream order, streams whose peers do not come, a run beside one on the host,
// an all-reduce that is held open beside a fused call.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "overlace/async_collective.h"
#include "src/base/half.h"
#include "src/runtime/clock.h"
#include "src/train/co2/replica.h"
#include "tests/gpu/support/exact.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::test {
namespace {

enum class Way { host, host_on_one_gpu, nccl };
const char* name_of(Way way) { return way == Way::host ? "host" : way == Way::nccl ? "nccl" : "host_on_one_gpu"; }

std::unique_ptr<AsyncCollective> open_way(Bootstrap& bootstrap, Way way, int device, int64_t timeout_ms = 20000) {
  if (way == Way::nccl) return open_nccl_collective(bootstrap, {.device = device, .timeout_ms = timeout_ms});
  HostCollectiveOptions options;
  options.runtime.backend = Backend::cpu;
  options.runtime.timeout_ms = timeout_ms;
  options.meet_timeout_ms = 60000;
  options.device = device;
  options.slot_bytes = size_t{1} << 20;
  return open_host_collective(bootstrap, options);
}

/// Memory that streams use: neither asked for nor freed while one of any rank may wait, which both would wait for.
class Room {
 public:
  explicit Room(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}
  ~Room() {
    for (void* const memory : device_) (void)cudaFree(memory);
    for (void* const memory : pinned_) (void)cudaFreeHost(memory);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  template <class T>
  T* on_device(size_t count) {
    device_.push_back(nullptr);
    EXPECT_CUDA(cudaMalloc(&device_.back(), std::max<size_t>(count * sizeof(T), 16)));
    return static_cast<T*>(device_.back());
  }
  template <class T>
  T* pinned(size_t count) {
    pinned_.push_back(nullptr);
    EXPECT_CUDA(cudaHostAlloc(&pinned_.back(), std::max<size_t>(count * sizeof(T), 16), cudaHostAllocDefault));
    return static_cast<T*>(pinned_.back());
  }
  /// Behind it the streams of both ranks are empty, and all memory of both is there.
  void meet(cudaStream_t stream) {
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    bootstrap_.barrier(60000);
  }

 private:
  Bootstrap& bootstrap_;
  std::vector<void*> device_, pinned_;
};

/// Two ranks as threads, each with its device current and a stream.
void run_way(Way way, const std::function<void(AsyncCollective&, cudaStream_t, Room&)>& body,
             int64_t timeout_ms = 20000) {
  const auto others = thread_bootstraps(2);  // a transport keeps the one that it is given
  run_gpu_bootstraps(2, [&](Bootstrap& bootstrap) {
    const int device = way == Way::host_on_one_gpu ? 0 : bootstrap.rank();
    EXPECT_CUDA(cudaSetDevice(device));
    cudaStream_t stream = nullptr;
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Room room(*others[static_cast<size_t>(bootstrap.rank())]);
    {
      const auto outer = open_way(bootstrap, way, device, timeout_ms);
      body(*outer, stream, room);
      room.meet(stream);
    }
    room.meet(stream);
    EXPECT_CUDA(cudaStreamDestroy(stream));
  });
}

float value_of(int rank, size_t bucket, size_t i) {
  return static_cast<float>((rank * 31 + static_cast<int>(bucket * 7 + i % 1000)) % 97 - 48);
}

class Co2Ways : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override { OVERLACE_NEED_GPUS(GetParam() == Way::host_on_one_gpu ? 1 : 2); }
};

TEST_P(Co2Ways, AStreamSeesSumsOfWhatWasQueuedBefore) {
  const std::vector<size_t> counts = {1, 0, 70001, (size_t{3} << 20) + 5, 4096};
  run_way(GetParam(), [&](AsyncCollective& outer, cudaStream_t stream, Room& room) {
    EXPECT_TRUE(outer.caps().stream_ordered);
    const StreamRef ref = StreamRef::cuda(stream);
    std::vector<float*> sent, got, buckets;
    for (size_t b = 0; b < counts.size(); ++b) {
      sent.push_back(room.pinned<float>(counts[b]));
      got.push_back(room.pinned<float>(counts[b]));
      for (size_t i = 0; i < counts[b]; ++i) sent[b][i] = value_of(outer.rank(), b, i);
      buckets.push_back(room.on_device<float>(counts[b]));
    }
    double* const header = room.on_device<double>(2);
    double* const numbers = room.pinned<double>(2);
    double* const summed = room.pinned<double>(2);
    numbers[0] = 1.0;
    numbers[1] = 0.5;
    room.meet(stream);
    outer.wait(outer.all_reduce({header, 0, DType::fp64, "the beginning"}, ref), 20000);
    std::vector<Ticket> tickets;
    for (size_t b = 0; b < counts.size(); ++b) {
      EXPECT_CUDA(cudaMemcpyAsync(buckets[b], sent[b], counts[b] * sizeof(float), cudaMemcpyHostToDevice, stream));
      tickets.push_back(outer.all_reduce({buckets[b], counts[b], DType::fp32, "a bucket"}, ref));
    }
    EXPECT_CUDA(cudaMemcpyAsync(header, numbers, 2 * sizeof(double), cudaMemcpyHostToDevice, stream));
    const Ticket last = outer.all_reduce({header, 2, DType::fp64, "a header"}, ref);
    outer.order_after(last, ref);
    EXPECT_CUDA(cudaMemcpyAsync(summed, header, 2 * sizeof(double), cudaMemcpyDeviceToHost, stream));
    for (size_t b = counts.size(); b-- > 0;) {  // not the order of the launches
      outer.order_after(tickets[b], ref);
      EXPECT_CUDA(cudaMemcpyAsync(got[b], buckets[b], counts[b] * sizeof(float), cudaMemcpyDeviceToHost, stream));
    }
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(summed[0], 2);
    EXPECT_EQ(summed[1], 1);
    for (size_t b = 0; b < counts.size(); ++b) {
      size_t wrong = 0;
      for (size_t i = 0; i < counts[b]; ++i) wrong += got[b][i] == value_of(0, b, i) + value_of(1, b, i) ? 0 : 1;
      EXPECT_EQ(wrong, 0u) << "bucket " << b;
    }
    outer.wait(last, 20000);
    EXPECT_EQ(outer.poll(last), TicketState::complete);
    const TicketTimes times = outer.times(tickets[2]);
    EXPECT_GT(times.complete_ns, times.launched_ns);
  });
}

TEST_P(Co2Ways, NoStreamWaitsForEver) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;
  const int64_t timeout_ms = GetParam() == Way::nccl ? 15000 : 3000;  // of opening NCCL, too
  run_way(
      GetParam(),
      [&](AsyncCollective& outer, cudaStream_t stream, Room& room) {
        const StreamRef ref = StreamRef::cuda(stream);
        float* const value = room.on_device<float>(1);
        room.meet(stream);
        outer.wait(outer.all_reduce({value, 1, DType::fp32, "the beginning"}, ref), 20000);
        std::unique_lock lock(mutex);
        if (outer.rank() == 1) {  // alive, but late
          EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(120), [&] { return is_over; }));
          return;
        }
        lock.unlock();
        const Ticket ticket = outer.all_reduce({value, 1, DType::fp32, "round 7, bucket 3"}, ref);
        outer.order_after(ticket, ref);
        const int64_t begin_ns = runtime::now_ns();
        EXPECT_CUDA(cudaStreamSynchronize(stream));
        EXPECT_LT(runtime::now_ns() - begin_ns, (timeout_ms + 30000) * 1'000'000);
        std::string text;
        try {
          outer.wait(ticket, 20000);
        } catch (const Error& error) {
          text = error.what();
        }
        EXPECT_NE(text.find("round 7, bucket 3"), std::string::npos) << text;
        EXPECT_EQ(outer.poll(ticket), TicketState::failed);
        lock.lock();
        is_over = true;
        changed.notify_all();
      },
      timeout_ms);
}

/// What inner steps made of the parameters: it does not depend on what was there.
std::vector<char> stepped(DType dtype, int64_t count, int rank, int step) {
  std::vector<char> values(static_cast<size_t>(count) * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i)
    base::store_element(values.data(), dtype, i, 1 + 0.01 * static_cast<double>((i * 7 + step * 13 + rank * 5) % 101));
  return values;
}

constexpr int kTau = 3, kSteps = 3 * 5 + 1;
constexpr int64_t kCounts[] = {40003, 513};
constexpr DType kDtypes[] = {DType::fp32, DType::bf16};

train::ReplicaOptions run_options(OuterRule rule, DType wire) {
  train::ReplicaOptions options;
  // Bounds and gaps come from sums, whose order differs: without them all bits are those of the host.
  options.co2 = {.rule = rule, .tau = kTau, .outer_momentum = 0.3, .clip = MomentumClip::none};
  options.co2.check_every = 2;
  options.wire_dtype = wire;
  options.bucket_bytes = 100000;
  options.timeout_ms = 20000;
  return options;
}

std::vector<float> train_here(AsyncCollective& outer, const train::ReplicaOptions& options,
                              const std::vector<void*>& memory,
                              const std::function<void(size_t tensor, int step)>& write,
                              const std::function<void()>& meet) {
  train::Replica replica(options,
                         {{.name = "a", .data = memory[0], .dtype = kDtypes[0], .count = kCounts[0]},
                          {.name = "b", .data = memory[1], .dtype = kDtypes[1], .count = kCounts[1]}},
                         outer);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t t = 0; t < 2; ++t) write(t, step);
    replica.on_inner_step(0.1);
    if (step == 7) replica.load(replica.save()).or_throw();
  }
  replica.flush();
  EXPECT_EQ(replica.stats().size(), static_cast<size_t>(replica.rounds_taken_in()));
  std::vector<float> anchor(static_cast<size_t>(replica.elements()));
  replica.copy_anchor(anchor);
  meet();
  return anchor;
}

TEST_P(Co2Ways, ARunHasTheBitsOfTheHost) {
  for (const OuterRule rule : {OuterRule::co2, OuterRule::streaming, OuterRule::diloco})
    for (const DType wire : {DType::fp32, DType::bf16}) {
      SCOPED_TRACE(std::string(kOuterRuleNames[static_cast<int>(rule)]) + " over " + dtype_name(wire));
      const train::ReplicaOptions options = run_options(rule, wire);
      std::vector<float> wanted;
      run_gpu_bootstraps(2, [&](Bootstrap& bootstrap) {
        HostCollectiveOptions host;
        host.runtime.backend = Backend::cpu;
        host.runtime.timeout_ms = 20000;
        const auto outer = open_host_collective(bootstrap, host);
        std::vector<std::vector<char>> memory;
        std::vector<void*> addresses;
        for (size_t t = 0; t < 2; ++t) memory.push_back(stepped(kDtypes[t], kCounts[t], 0, -1));
        for (std::vector<char>& one : memory) addresses.push_back(one.data());
        const auto write = [&](size_t t, int step) {
          const std::vector<char> from = stepped(kDtypes[t], kCounts[t], outer->rank(), step);
          std::memcpy(addresses[t], from.data(), from.size());
        };
        const std::vector<float> anchor = train_here(*outer, options, addresses, write, [] {});
        if (outer->rank() == 0) wanted = anchor;
      });
      run_way(GetParam(), [&](AsyncCollective& outer, cudaStream_t stream, Room& room) {
        train::ReplicaOptions here = options;
        here.stream = stream;
        EXPECT_CUDA(cudaGetDevice(&here.device));
        std::vector<void*> addresses;
        std::vector<char*> sources;  // by step, then tensor: copies of earlier steps may be under way
        for (int step = -1; step < kSteps; ++step)
          for (size_t t = 0; t < 2; ++t) {
            const std::vector<char> values = stepped(kDtypes[t], kCounts[t], step < 0 ? 0 : outer.rank(), step);
            sources.push_back(room.pinned<char>(values.size()));
            std::memcpy(sources.back(), values.data(), values.size());
          }
        const auto write = [&](size_t t, int step) {
          EXPECT_CUDA(cudaMemcpyAsync(addresses[t], sources[static_cast<size_t>(step + 1) * 2 + t],
                                      static_cast<size_t>(kCounts[t]) * dtype_bytes(kDtypes[t]), cudaMemcpyHostToDevice,
                                      stream));
        };
        for (size_t t = 0; t < 2; ++t) {
          addresses.push_back(room.on_device<float>(static_cast<size_t>(kCounts[t])));
          write(t, -1);
        }
        room.meet(stream);
        EXPECT_EQ(train_here(outer, here, addresses, write, [&] { room.meet(stream); }), wanted) << outer.rank();
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Transports, Co2Ways, testing::Values(Way::host, Way::host_on_one_gpu, Way::nccl),
                         [](const auto& one) { return std::string(name_of(one.param)); });

/// Rank 0 has come to the all-reduce, rank 1 has not: fused calls of both GPUs run meanwhile.
TEST(Co2Gpu, AnAllReduceHeldOpenDoesNotStopAFusedCall) {
  OVERLACE_NEED_GPUS(2);
  for (const Way way : {Way::nccl, Way::host}) {
    SCOPED_TRACE(name_of(way));
    auto others = thread_bootstraps(2);
    run_gpu_threads(
        2,
        [&](GpuRank& gpu) {
          EXPECT_CUDA(load_exact_kernels());
          cudaDeviceProp properties{};
          EXPECT_CUDA(cudaGetDeviceProperties(&properties, gpu.rank));
          const auto outer = open_way(*others[static_cast<size_t>(gpu.rank)], way, gpu.rank, 60000);
          cudaStream_t side = nullptr;
          EXPECT_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
          const int sms = way == Way::nccl ? properties.multiProcessorCount - 2 : 0;
          Channel& channel = gpu.team.channel(StreamRef::cuda(gpu.stream), {.sm_budget = sms});
          const ExactProblem problem{
              .op = "gemm_rs", .family = "tma_slot", .degree = 4, .m = 2048, .n = 8192, .k = 4096, .look_every = 41};
          ExactSite site(channel, problem);
          float* const data = gpu.device_array<float>(size_t{1} << 20);
          cudaEvent_t events[2];
          for (cudaEvent_t& event : events) EXPECT_CUDA(cudaEventCreate(&event));
          const auto calls_ms = [&] {
            constexpr int kCalls = 20;
            gpu.team.barrier();
            EXPECT_CUDA(cudaEventRecord(events[0], gpu.stream));
            for (int i = 0; i < kCalls; ++i) site.run();
            EXPECT_CUDA(cudaEventRecord(events[1], gpu.stream));
            EXPECT_CUDA(cudaEventSynchronize(events[1]));
            float ms = 0;
            EXPECT_CUDA(cudaEventElapsedTime(&ms, events[0], events[1]));
            return ms / kCalls;
          };
          const Bucket bucket{data, size_t{1} << 20, DType::fp32, "held open", nullptr};
          outer->wait(outer->all_reduce(bucket, StreamRef::cuda(side)), 60000);
          site.call();
          (void)calls_ms();
          const float alone_ms = calls_ms();
          Ticket ticket;
          if (gpu.rank == 0) ticket = outer->all_reduce(bucket, StreamRef::cuda(side));
          const float held_ms = calls_ms();
          site.call();
          EXPECT_EQ(site.wrong(), 0u);
          if (gpu.rank == 0) {
            EXPECT_EQ(outer->poll(ticket), TicketState::pending);
          }
          gpu.team.barrier();
          if (gpu.rank == 1) ticket = outer->all_reduce(bucket, StreamRef::cuda(side));
          outer->wait(ticket, 60000);
          if (gpu.rank == 0)
            std::printf("gemm_rs beside an all-reduce of %s that is held open: %.4f ms, alone %.4f, ratio %.3f\n",
                        name_of(way), static_cast<double>(held_ms), static_cast<double>(alone_ms),
                        static_cast<double>(held_ms / alone_ms));
          EXPECT_LT(held_ms, 1.2f * alone_ms);
          for (const cudaEvent_t event : events) EXPECT_CUDA(cudaEventDestroy(event));
          EXPECT_CUDA(cudaStreamDestroy(side));
        },
        default_options());
  }
}

}  // namespace
}  // namespace overlace::test
