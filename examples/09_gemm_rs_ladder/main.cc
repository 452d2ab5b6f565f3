// GEMM and ReduceScatter from one after the other to one kernel: each step changes one thing. All steps give the same
// sums.
//
// On CPU ranks behind a slow link, as here, the times show the idea; what each step gained on 4x H200 is in
// examples/README.md.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/common.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/runtime.h"
#include "overlace/schedule.h"

constexpr int64_t kM = 512, kN = 256, kK = 128;  // rows of all ranks; columns; depth of one rank
constexpr int kRepeats = 5;

struct Step {
  const char* family;
  int degree;
  const char* idea;
};
constexpr Step kSteps[] = {
    {"library", 1, "the GEMM, then a collective: either computes or communicates"},
    {"serial", 1, "the same by copies into the owners' memory and one sum there"},
    {"uniform_fused_1d", 2, "in two steps: chunks of the first travel while the second is computed"},
    {"hetero_fused_1d", 2, "what others own comes first, my own rows need no transfer and come last"},
    {"hetero_unfused_1d", 1, "a GEMM per owner: the first transfer starts after one of them, not after a step of all"},
    {"tma_slot", 8, "one kernel: a tile leaves when it is computed, own tiles wait for their parts inside"},
};

// Small integers that differ by rank and place: sums are exact in fp32, in any order.
float a_value(int rank, int64_t row, int64_t k) { return static_cast<float>((row * 7 + k * 3 + rank) % 9 - 4); }
float w_value(int rank, int64_t n, int64_t k) { return static_cast<float>((n * 5 + k + 2 * rank) % 7 - 3); }

int main() try {
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  options.link = overlace::LinkOptions::parse("100MB/s,20us");  // so that there is communication to hide
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());
  const int rank = team.rank();

  const int64_t rows = kM / team.size(), first = rows * rank;
  std::vector<float> a(kM * kK), weight(kN * kK), out(rows * kN), want(rows * kN);
  for (int64_t i = 0; i < kM; ++i)
    for (int64_t k = 0; k < kK; ++k) a[i * kK + k] = a_value(rank, i, k);
  for (int64_t n = 0; n < kN; ++n)
    for (int64_t k = 0; k < kK; ++k) weight[n * kK + k] = w_value(rank, n, k);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t n = 0; n < kN; ++n)
      for (int r = 0; r < team.size(); ++r)
        for (int64_t k = 0; k < kK; ++k) want[i * kN + n] += a_value(r, first + i, k) * w_value(r, n, k);

  using overlace::TensorView;
  overlace::ops::GemmRsArgs args;
  args.a = TensorView::contiguous(a.data(), overlace::DType::fp32, {kM, kK});
  args.b = TensorView::contiguous(weight.data(), overlace::DType::fp32, {kN, kK}).transposed();
  args.out = TensorView::contiguous(out.data(), overlace::DType::fp32, {rows, kN});

  bool is_right = true;
  for (const Step& step : kSteps) {
    const auto schedule = overlace::spec::make_schedule(op_spec(channel, args), step.family, step.degree);
    double best_ms = 0;
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {  // the first one prepares
      std::fill(out.begin(), out.end(), -1.0F);
      team.barrier();
      const auto begin = std::chrono::steady_clock::now();
      run(channel, args, schedule);
      const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
      if (repeat == 1 || (repeat > 1 && taken.count() < best_ms)) best_ms = taken.count();
      is_right = is_right && out == want;
    }
    if (rank == 0) std::printf("%-18s %6.2f ms  %s\n", step.family, best_ms, step.idea);
  }
  runtime.close();
  std::printf("rank %d: %s\n", rank, is_right ? "all steps give the exact sums" : "wrong");
  return is_right ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
