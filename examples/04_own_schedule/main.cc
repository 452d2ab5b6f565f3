// A schedule written by hand (schedule.json): send the own rows, multiply them, wait for the peer's rows, multiply
// those.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/ag_gemm.h"
#include "overlace/runtime.h"

constexpr int64_t kM = 64, kN = 24, kK = 32;

float a_value(int64_t row, int64_t k) { return static_cast<float>((row * 5 + k * 3) % 9 - 4); }
float w_value(int rank, int64_t n, int64_t k) { return static_cast<float>((n * 2 + k * 3 + rank) % 7 - 3); }

int main() try {
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());

  std::ifstream file(EXAMPLE_FOLDER "/schedule.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto schedule = overlace::spec::Schedule::from_json(text);  // a mistake is refused with its place
  if (team.rank() == 0) std::printf("%s\n", schedule.to_string().c_str());

  const int64_t rows = kM / 2, first = rows * team.rank();
  std::vector<float> a(rows * kK), weight(kN * kK), c(kM * kN);
  for (int64_t i = 0; i < rows * kK; ++i) a[i] = a_value(first + i / kK, i % kK);
  for (int64_t i = 0; i < kN * kK; ++i) weight[i] = w_value(team.rank(), i / kK, i % kK);
  overlace::ops::AgGemmArgs args;
  args.a_shard = overlace::TensorView::contiguous(a.data(), overlace::DType::fp32, {rows, kK});
  args.b = overlace::TensorView::contiguous(weight.data(), overlace::DType::fp32, {kN, kK}).transposed();
  args.c = overlace::TensorView::contiguous(c.data(), overlace::DType::fp32, {kM, kN});

  // A schedule is for one problem; what does not fit is told before anything moves.
  if (const auto support = overlace::ops::supports(channel, op_spec(channel, args), schedule); !support.ok()) {
    std::fprintf(stderr, "%s\n", support.reason.c_str());
    return 1;
  }
  int64_t wrong = 0;
  for (int call = 0; call < 5; ++call) {  // the inbox X has two copies, which take turns
    for (float& x : c) x = -1;
    run(channel, args, schedule);
    for (int64_t i = 0; i < kM; ++i)
      for (int64_t n = 0; n < kN; ++n) {
        float want = 0;
        for (int64_t k = 0; k < kK; ++k) want += a_value(i, k) * w_value(team.rank(), n, k);
        wrong += c[i * kN + n] != want ? 1 : 0;
      }
  }
  std::printf("rank %d: %lld elements are wrong\n", team.rank(), static_cast<long long>(wrong));
  runtime.close();
  return wrong == 0 ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
