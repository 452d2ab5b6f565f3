// The fused pass of CO2 and the numbers of a boundary on a GPU against those on the CPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "src/train/co2/control.h"
#include "src/train/co2/cuda/pass.h"
#include "tests/gpu/support/co2_pass_in_bulk.h"
#include "tests/gpu/support/gpu_ranks.h"

namespace overlace::train {
namespace {

void check(cudaError_t code) { ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code); }

/// A copy on the device of an array of the host.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
    check(cudaMalloc(&data_, std::max<size_t>(1, count_ * sizeof(T))));
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { (void)cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    check(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t count_;
  void* data_ = nullptr;
};

/// Values of floating dtype as bytes.
std::vector<char> draw(int64_t count, DType dtype, std::mt19937& engine) {
  std::normal_distribution<double> normal;
  std::vector<char> values(static_cast<size_t>(count) * dtype_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) base::store_element(values.data(), dtype, i, normal(engine));
  return values;
}
std::vector<float> draw_floats(int64_t count, std::mt19937& engine) {
  const std::vector<char> bytes = draw(count, DType::fp32, engine);
  std::vector<float> values(static_cast<size_t>(count));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void expect_near(const std::vector<SumsPod>& got, const std::vector<SumsPod>& wanted) {
  for (size_t t = 0; t < wanted.size(); ++t) {
    for (double SumsPod::*sum : {&SumsPod::m2, &SumsPod::w2, &SumsPod::v2}) {
      EXPECT_EQ(std::isfinite(got[t].*sum), std::isfinite(wanted[t].*sum)) << t;
      if (std::isfinite(wanted[t].*sum)) {
        EXPECT_NEAR(got[t].*sum, wanted[t].*sum, 1e-12 * (1 + wanted[t].*sum)) << t;
      }
    }
    EXPECT_EQ(got[t].bad, wanted[t].bad);
    EXPECT_EQ(got[t].clipped, wanted[t].clipped);
  }
}

std::vector<PassTensor> tensors_at(char* base, DType dtype, const std::vector<int64_t>& counts) {
  std::vector<PassTensor> tensors;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    tensors.push_back(
        {.x = base + begin * static_cast<int64_t>(dtype_bytes(dtype)), .dtype = dtype, .begin = begin, .count = count});
    begin += count;
  }
  return tensors;
}

struct Case {
  PassMode mode;
  DType dtype, wire;
  bool is_applied, has_momentum, has_kept;
};

void expect_same_as_cpu(const Case& c) {
  const std::vector<int64_t> counts = {1, 7, 512, 0, 16387, 40004};  // places that are no multiples of four among them
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::mt19937 engine(11);
  std::vector<char> x = draw(total, c.dtype, engine), w = draw(total, c.wire, engine);
  std::vector<float> a = draw_floats(total, engine), m = draw_floats(total, engine), k = draw_floats(total, engine);
  std::vector<float> r = draw_floats(total, engine);
  base::store_element(x.data(), c.dtype, 9, std::numeric_limits<double>::infinity());
  std::vector<TensorPod> bounds(counts.size());
  for (size_t t = 0; t < bounds.size(); ++t)
    bounds[t].bound = t % 2 == 0 ? 0.5f : std::numeric_limits<float>::infinity();
  std::vector<SumsPod> sums(counts.size(), {.m2 = 1, .w2 = 2, .v2 = 3, .bad = 4, .clipped = 5});
  ControlPod control;
  control.pass = {.pull = 0.5f,
                  .inv_lambda = 0.75f,
                  .beta = 0.8f,
                  .step_m = 0.9f,
                  .step_d = 0.1f,
                  .keep = 0.7f,
                  .mix = 0.3f,
                  .is_applied = c.is_applied ? 1 : 0};
  const OnDevice<char> gx(x), gw(w);
  const OnDevice<float> ga(a), gm(m), gk(k), gr(r);
  const OnDevice<TensorPod> gbounds(bounds);
  const OnDevice<SumsPod> gsums(sums);
  const OnDevice<ControlPod> gcontrol({control});
  const auto memory_of = [&](float* anchor, float* momentum, float* kept, void* wire, float* residual) {
    return PassMemory{.anchor = anchor,
                      .momentum = c.has_momentum ? momentum : nullptr,
                      .kept = c.has_kept ? kept : nullptr,
                      .wire = wire,
                      .wire_dtype = c.wire,
                      .residual = c.wire == DType::fp32 ? nullptr : residual};
  };
  const std::vector<PassTensor> on_host = tensors_at(x.data(), c.dtype, counts);
  const BucketRange whole{.first = 0, .tensors = counts.size(), .begin = 0, .count = total};
  const CudaPieces plan = cuda_pieces(on_host, {&whole, 1});
  ASSERT_EQ(plan.of_bucket.at(0).size(), 1u);
  const OnDevice<PassTensor> gtensors(tensors_at(gx.get(), c.dtype, counts));
  const OnDevice<CudaPiece> gpieces(plan.pieces);
  const OnDevice<CudaRun> gruns(plan.of_tensor);
  const OnDevice<SumsPod> gparts(std::vector<SumsPod>(plan.pieces.size()));
  const CudaArrays arrays{.control = gcontrol.get(),
                          .tensors = gtensors.get(),
                          .bounds = gbounds.get(),
                          .sums = gsums.get(),
                          .of_tensor = gruns.get(),
                          .num_tensors = static_cast<int64_t>(counts.size()),
                          .pieces = gpieces.get(),
                          .parts = gparts.get(),
                          .memory = memory_of(ga.get(), gm.get(), gk.get(), gw.get(), gr.get())};
  base::Status status = queue_pass(arrays, c.mode, 3, plan.of_bucket[0][0], nullptr);
  if (status.ok()) status = queue_sums(arrays, c.mode, 0, arrays.num_tensors, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  check(cudaDeviceSynchronize());
  Threads threads(1);
  run_pass(threads, c.mode, control.pass, 3, on_host, bounds,
           memory_of(a.data(), m.data(), k.data(), w.data(), r.data()), sums);
  EXPECT_EQ(gx.read(), x);
  EXPECT_EQ(gw.read(), w);
  EXPECT_EQ(ga.read(), a);
  EXPECT_EQ(gm.read(), m);
  EXPECT_EQ(gk.read(), k);
  EXPECT_EQ(gr.read(), r);
  expect_near(gsums.read(), sums);
}

TEST(Co2PassGpu, IsThePassOfTheCpu) {
  OVERLACE_NEED_GPUS(1);
  for (const PassMode mode : {PassMode::fused, PassMode::delta, PassMode::apply})
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
      for (const DType wire : {DType::fp32, DType::bf16})
        for (const bool is_applied : {true, false})
          for (const int has : {0, 1, 2, 3}) {
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " over " + dtype_name(wire) + ", mode " +
                         std::to_string(static_cast<int>(mode)) + (is_applied ? "" : ", dropped") +
                         (has % 2 == 1 ? ", momentum" : "") + (has / 2 == 1 ? ", kept" : ""));
            expect_same_as_cpu({mode, dtype, wire, is_applied, has % 2 == 1, has / 2 == 1});
          }
}

TEST(Co2PassGpu, BeginsAndEndsABoundaryAsTheCpu) {
  OVERLACE_NEED_GPUS(1);
  std::vector<SumsPod> sums = {{.m2 = 4, .w2 = 1, .v2 = 9}, {.m2 = 5, .w2 = 2, .v2 = 16}};
  std::vector<TensorPod> tensors = {{.count = 9}, {.count = 4, .mean_rms = 1}};
  KnobsPod knobs;
  knobs.groups = 2;
  knobs.boundary = 4;
  knobs.beta = 0.5;
  knobs.kappa = 1;
  knobs.phi = 3;
  knobs.gap = 2;
  knobs.clip = 2;
  ControlPod control;
  control.alpha_moved = 1;
  control.farthest = 10;
  const HeaderPod own = header_of(sums, 3, 12, 0x1234567800000001ull, 0);
  HeaderPod sum = own;
  for (double HeaderPod::*word : {&HeaderPod::count, &HeaderPod::round, &HeaderPod::config_low, &HeaderPod::config_high,
                                  &HeaderPod::norm2, &HeaderPod::steps, &HeaderPod::version})
    sum.*word *= 2;
  for (const bool is_weighted : {false, true})
    for (const int bad : {0, 3}) {
      knobs.is_weighted = is_weighted ? 1 : 0;
      knobs.all_samples = 30;
      sum.bad = bad;
      const OnDevice<ControlPod> gcontrol({control});
      const OnDevice<TensorPod> gtensors(tensors);
      const OnDevice<SumsPod> gsums(sums);
      const OnDevice<HeaderPod> gheaders({own, sum});
      const OnDevice<FactsPod> gfacts(std::vector<FactsPod>(1));
      const CudaArrays arrays{.control = gcontrol.get(),
                              .bounds = gtensors.get(),
                              .sums = gsums.get(),
                              .num_tensors = 2,
                              .own = gheaders.get(),
                              .sum = gheaders.get() + 1,
                              .memory = {}};
      ASSERT_TRUE(queue_begin(arrays, knobs, true, nullptr).ok());
      ASSERT_TRUE(queue_end(arrays, knobs, nullptr).ok());
      ASSERT_TRUE(queue_facts(arrays, gfacts.get(), nullptr).ok());
      KnobsPod taken = knobs;
      begin_boundary(control, tensors, sums, take_header(taken, &sum), own, taken);
      end_boundary(control, taken);
      const ControlPod got = gcontrol.read()[0];
      EXPECT_EQ(got.verdict, control.verdict);
      EXPECT_EQ(got.bad_in_row, control.bad_in_row);
      EXPECT_EQ(got.alpha_moved, control.alpha_moved);
      EXPECT_EQ(got.pass.is_applied, control.pass.is_applied);
      EXPECT_EQ(got.pass.inv_lambda, control.pass.inv_lambda);
      EXPECT_NEAR(got.lambda, control.lambda, 1e-12);
      EXPECT_NEAR(got.farthest, control.farthest, 1e-12);
      for (size_t t = 0; t < 2; ++t) EXPECT_NEAR(gtensors.read()[t].bound, tensors[t].bound, 1e-6f * tensors[t].bound);
      const FactsPod facts = gfacts.read()[0];
      EXPECT_EQ(facts.control.verdict, control.verdict);
      EXPECT_EQ(facts.sum.bad, bad);
      EXPECT_EQ(facts.m2, 9);
      EXPECT_EQ(facts.v2, 25);
      HeaderPod base;
      base.round = 4;
      base.steps = 12;
      const OnDevice<uint64_t> ghash({0x0000000500000006ull});
      ASSERT_TRUE(queue_header(arrays, base, ghash.get(), nullptr).ok());
      for (const HeaderPod& header : gheaders.read()) {
        EXPECT_EQ(header.round, 4);
        EXPECT_EQ(header.norm2, 3);
        EXPECT_EQ(header.anchor_low, 6);
        EXPECT_EQ(header.anchor_high, 5);
      }
    }
}

/// Arrays of a pass on the device.
struct RateArrays {
  static constexpr int64_t kTensor = int64_t{8} << 20, kTensors = 32, kCount = kTensor * kTensors;
  float* arrays[4] = {};  // x, anchor, kept, wire
  std::vector<PassTensor> tensors;

  RateArrays() {
    for (float*& array : arrays) check(cudaMalloc(&array, kCount * sizeof(float)));
    for (int64_t t = 0; t < kTensors; ++t)
      tensors.push_back({.x = arrays[0] + t * kTensor, .begin = t * kTensor, .count = kTensor});
  }
  ~RateArrays() {
    for (float* const array : arrays) (void)cudaFree(array);
  }
  RateArrays(const RateArrays&) = delete;
  RateArrays& operator=(const RateArrays&) = delete;

  /// As after steps of training: increments that are neither zero nor tiny. Behind a pass they are zero, and a quotient
  /// of zero takes another way through the division.
  void fill() const {
    constexpr int kBytes[] = {0x3c, 0x3d, 0x3b, 0x3a};
    for (int i = 0; i < 4; ++i) check(cudaMemsetAsync(arrays[i], kBytes[i], kCount * sizeof(float), nullptr));
  }
};

/// A hash of all four arrays.
uint64_t hash_of(const RateArrays& of) {
  const OnDevice<uint64_t> hash({0});
  for (const float* const array : of.arrays)
    EXPECT_TRUE(queue_hash(array, 4, RateArrays::kCount, 0, hash.get(), nullptr).ok());
  check(cudaDeviceSynchronize());
  return hash.read()[0];
}

/// Milliseconds of the fastest of six.
float best_ms(const std::function<void()>& prepare, const std::function<void()>& body) {
  cudaEvent_t events[2];
  for (cudaEvent_t& event : events) check(cudaEventCreate(&event));
  float best = 1e9f;
  for (int i = 0; i < 6; ++i) {
    prepare();
    check(cudaEventRecord(events[0], nullptr));
    body();
    check(cudaEventRecord(events[1], nullptr));
    check(cudaEventSynchronize(events[1]));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events[0], events[1]));
    best = std::min(best, ms);
  }
  for (cudaEvent_t& event : events) check(cudaEventDestroy(event));
  return best;
}

/// Prints the rate of the pass over 32 bytes an element beside that of a copy: of the library's kernel and of one
/// that copies in bulk, in buckets of 32 MiB and in one launch, with pieces of several sizes. The bench has
/// the goal.
TEST(Co2PassGpu, Rate) {
  OVERLACE_NEED_GPUS(1);
  const RateArrays of;
  constexpr int64_t kCount = RateArrays::kCount;
  const std::function<void()> fill = [&] { of.fill(); };
  const float copy_ms = best_ms(fill, [&] {
    check(cudaMemcpyAsync(of.arrays[3], of.arrays[2], kCount * sizeof(float), cudaMemcpyDeviceToDevice, nullptr));
  });
  const double copy = 8e-6 * kCount / static_cast<double>(copy_ms);
  std::printf("copy %.0f GB/s\n", copy);
  const auto queue_own = [](const CudaArrays& arrays, float groups, const CudaRun& run, void* stream) {
    return queue_pass(arrays, PassMode::fused, groups, run, stream);
  };
  struct Way {
    const char* name;
    base::Status (*queue)(const CudaArrays& arrays, float groups, const CudaRun& run, void* stream);
  };
  const Way ways[] = {
      {"as it is", queue_own}, {"bulk", &test::queue_pass_in_bulk}, {"as it is, increments of zero", queue_own}};
  ControlPod control;
  control.pass.is_applied = 1;
  control.pass.keep = 0.8f;
  const OnDevice<ControlPod> gcontrol({control});
  const OnDevice<PassTensor> gtensors(of.tensors);
  const OnDevice<TensorPod> gbounds(
      std::vector<TensorPod>(of.tensors.size(), TensorPod{.bound = std::numeric_limits<float>::infinity()}));
  uint64_t wanted = 0;
  for (const int64_t of_launch : {int64_t{1}, RateArrays::kTensors})
    for (const int64_t of_piece : {kCudaPiece, 2 * kCudaPiece, 4 * kCudaPiece}) {
      std::vector<BucketRange> buckets;
      for (int64_t t = 0; t < RateArrays::kTensors; t += of_launch)
        buckets.push_back({static_cast<size_t>(t), static_cast<size_t>(of_launch), t * RateArrays::kTensor,
                           of_launch * RateArrays::kTensor});
      const CudaPieces plan = cuda_pieces(of.tensors, buckets, of_piece);
      const OnDevice<CudaPiece> gpieces(plan.pieces);
      const OnDevice<SumsPod> gparts(std::vector<SumsPod>(plan.pieces.size()));
      const CudaArrays arrays{.control = gcontrol.get(),
                              .tensors = gtensors.get(),
                              .bounds = gbounds.get(),
                              .pieces = gpieces.get(),
                              .parts = gparts.get(),
                              .memory = {.anchor = of.arrays[1], .kept = of.arrays[2], .wire = of.arrays[3]}};
      for (const Way& way : ways) {
        const bool is_of_zeros = &way == std::end(ways) - 1;
        const auto prepare = is_of_zeros ? std::function<void()>([] {}) : fill;
        const double ms = static_cast<double>(best_ms(prepare, [&] {
          for (const auto& runs : plan.of_bucket) ASSERT_TRUE(way.queue(arrays, 2, runs.at(0), nullptr).ok());
        }));
        const double pass = 32e-6 * kCount / ms;
        std::printf("pass %.0f GB/s (%.2f ms), ratio %.3f: %s, %lld launches, pieces of %lld\n", pass, ms, pass / copy,
                    way.name, static_cast<long long>(plan.of_bucket.size()), static_cast<long long>(of_piece));
        EXPECT_GT(pass / copy, 0.1);
        if (is_of_zeros) continue;
        const uint64_t hash = hash_of(of);
        if (wanted == 0) wanted = hash;
        EXPECT_EQ(hash, wanted) << way.name;
      }
    }
}

}  // namespace
}  // namespace overlace::train
