// The fused pass of CO2 and the numbers of a boundary on a GPU against those on the CPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/base/half.h"
#include "src/train/co2/control.h"
#include "src/train/co2/cuda/pass.h"
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

struct Case {
  PassMode mode;
  DType dtype, wire;
  bool is_applied;
};

/// A residual only where the wire rounds; nothing is kept, which the kernels do not know.
PassMemory memory_of(float* anchor, float* momentum, void* wire, DType dtype, float* residual) {
  return {.anchor = anchor,
          .momentum = momentum,
          .wire = wire,
          .wire_dtype = dtype,
          .residual = dtype == DType::fp32 ? nullptr : residual};
}

void expect_same_as_cpu(const Case& c) {
  const std::vector<int64_t> counts = {1, 7, 512, 0, 16387, 40004};  // places that are no multiples of four among them
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  std::mt19937 engine(11);
  std::vector<char> x = draw(total, c.dtype, engine), w = draw(total, c.wire, engine);
  std::vector<float> a = draw_floats(total, engine), m = draw_floats(total, engine), r = draw_floats(total, engine);
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
                  .is_applied = c.is_applied ? 1 : 0};
  const OnDevice<char> gx(x), gw(w);
  const OnDevice<float> ga(a), gm(m), gr(r);
  const OnDevice<TensorPod> gbounds(bounds);
  const OnDevice<SumsPod> gsums(sums);
  const OnDevice<ControlPod> gcontrol({control});
  const auto tensors_at = [&](char* base) {
    std::vector<PassTensor> tensors;
    int64_t begin = 0;
    for (const int64_t count : counts) {
      tensors.push_back({.x = base + begin * static_cast<int64_t>(dtype_bytes(c.dtype)),
                         .dtype = c.dtype,
                         .begin = begin,
                         .count = count});
      begin += count;
    }
    return tensors;
  };
  const std::vector<PassTensor> on_host = tensors_at(x.data());
  const std::vector<CudaPiece> pieces = cuda_pieces(on_host);
  const OnDevice<PassTensor> gtensors(tensors_at(gx.get()));
  const OnDevice<CudaPiece> gpieces(pieces);
  const OnDevice<SumsPod> gparts(std::vector<SumsPod>(pieces.size()));
  const CudaPass pass{.mode = c.mode,
                      .groups = 3,
                      .dtype = c.dtype,
                      .control = gcontrol.get(),
                      .tensors = gtensors.get(),
                      .bounds = gbounds.get(),
                      .sums = gsums.get(),
                      .num_tensors = static_cast<int64_t>(counts.size()),
                      .pieces = gpieces.get(),
                      .parts = gparts.get(),
                      .num_pieces = static_cast<int64_t>(pieces.size()),
                      .memory = memory_of(ga.get(), gm.get(), gw.get(), c.wire, gr.get())};
  const base::Status status = queue_pass(pass, nullptr);
  ASSERT_TRUE(status.ok()) << status.message();
  check(cudaDeviceSynchronize());
  Threads threads(1);
  run_pass(threads, c.mode, control.pass, 3, on_host, bounds, memory_of(a.data(), m.data(), w.data(), c.wire, r.data()),
           sums);
  EXPECT_EQ(gx.read(), x);
  EXPECT_EQ(gw.read(), w);
  EXPECT_EQ(ga.read(), a);
  EXPECT_EQ(gm.read(), m);
  EXPECT_EQ(gr.read(), r);
  const std::vector<SumsPod> got = gsums.read();
  for (size_t t = 0; t < counts.size(); ++t) {
    const auto near = [&](double is, double wanted) {
      EXPECT_EQ(std::isfinite(is), std::isfinite(wanted)) << t;
      if (std::isfinite(wanted)) {
        EXPECT_NEAR(is, wanted, 1e-12 * (1 + wanted)) << t;
      }
    };
    near(got[t].m2, sums[t].m2);
    near(got[t].w2, sums[t].w2);
    near(got[t].v2, sums[t].v2);
    EXPECT_EQ(got[t].bad, sums[t].bad);
    EXPECT_EQ(got[t].clipped, sums[t].clipped);
  }
}

TEST(Co2PassGpu, IsThePassOfTheCpu) {
  OVERLACE_NEED_GPUS(1);
  for (const PassMode mode : {PassMode::fused, PassMode::delta, PassMode::apply})
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
      for (const DType wire : {DType::fp32, DType::bf16})
        for (const bool is_applied : {true, false}) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " over " + dtype_name(wire) + ", mode " +
                       std::to_string(static_cast<int>(mode)) + (is_applied ? "" : ", dropped"));
          expect_same_as_cpu({mode, dtype, wire, is_applied});
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
  for (const int bad : {0, 3}) {
    sum.bad = bad;
    const OnDevice<ControlPod> gcontrol({control});
    const OnDevice<TensorPod> gtensors(tensors);
    const OnDevice<SumsPod> gsums(sums);
    const OnDevice<HeaderPod> gsum({sum}), gown({own});
    ASSERT_TRUE(
        queue_begin(gcontrol.get(), gtensors.get(), gsums.get(), 2, gsum.get(), gown.get(), knobs, nullptr).ok());
    ASSERT_TRUE(queue_end(gcontrol.get(), knobs, nullptr).ok());
    begin_boundary(control, tensors, sums, &sum, own, knobs);
    end_boundary(control, knobs);
    const ControlPod got = gcontrol.read()[0];
    EXPECT_EQ(got.verdict, control.verdict);
    EXPECT_EQ(got.bad_in_row, control.bad_in_row);
    EXPECT_EQ(got.alpha_moved, control.alpha_moved);
    EXPECT_EQ(got.pass.is_applied, control.pass.is_applied);
    EXPECT_NEAR(got.lambda, control.lambda, 1e-12);
    EXPECT_NEAR(got.farthest, control.farthest, 1e-12);
    for (size_t t = 0; t < 2; ++t) EXPECT_NEAR(gtensors.read()[t].bound, tensors[t].bound, 1e-6f * tensors[t].bound);
  }
}

}  // namespace
}  // namespace overlace::train
