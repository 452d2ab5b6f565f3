// AllGather and GEMM with a schedule that the planner chose: c = all ranks' rows of a, times this rank's weight.
#include <cstdio>
#include <vector>

#include "overlace/context.h"
#include "overlace/error.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/runtime.h"

constexpr int64_t kM = 512, kN = 96, kK = 256;  // rows of all ranks; columns and depth of one

// Small integers that differ by rank and place: sums are exact in fp32, in any order.
float a_value(int64_t row, int64_t k) { return static_cast<float>((row * 7 + k * 3) % 9 - 4); }
float w_value(int rank, int64_t n, int64_t k) { return static_cast<float>((n * 5 + k + rank) % 7 - 3); }

int main() try {
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  options.link = overlace::LinkOptions::parse("100MB/s,20us");  // so that there is communication to hide
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());

  const int64_t rows = kM / team.size(), first = rows * team.rank();
  std::vector<float> a(rows * kK), weight(kN * kK), c(kM * kN);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < kK; ++k) a[i * kK + k] = a_value(first + i, k);
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t k = 0; k < kK; ++k) weight[n * kK + k] = w_value(team.rank(), n, k);

  using overlace::TensorView;
  overlace::ops::AgGemmArgs args;
  args.a_shard = TensorView::contiguous(a.data(), overlace::DType::fp32, {rows, kK});
  args.b = TensorView::contiguous(weight.data(), overlace::DType::fp32, {kN, kK}).transposed();
  args.c = TensorView::contiguous(c.data(), overlace::DType::fp32, {kM, kN});

  // CPU ranks have no machine file: what is known of them is said. On GPUs the options stay empty.
  const overlace::Context context = overlace::Context::open(runtime, {.machine = "100MB/s,5GFLOP/s"});
  const auto plan = context.plan(op_spec(channel, args));
  run(channel, args, plan->schedule);

  int64_t wrong = 0;
  for (int64_t i = 0; i < kM; ++i)
    for (int64_t n = 0; n < kN; ++n) {
      float want = 0;
      for (int64_t k = 0; k < kK; ++k) want += a_value(i, k) * w_value(team.rank(), n, k);
      wrong += c[i * kN + n] != want ? 1 : 0;
    }
  if (team.rank() == 0) std::printf("%s: %s\n", plan->schedule.family.c_str(), plan->reason.c_str());
  std::printf("rank %d: %lld of %lld elements are wrong\n", team.rank(), static_cast<long long>(wrong),
              static_cast<long long>(kM * kN));
  runtime.close();
  return wrong == 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
