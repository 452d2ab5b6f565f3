// The timeline of two calls of gemm_rs, one after the other and overlapped, as a file for a trace viewer.
// usage: 05_timeline [timeline.pftrace]; then open it in ui.perfetto.dev, or `overlace trace info timeline.pftrace`.
#include <cstdio>
#include <filesystem>
#include <vector>

#include "overlace/error.h"
#include "overlace/ops/gemm_rs.h"
#include "overlace/runtime.h"
#include "overlace/timeline.h"

constexpr int64_t kM = 512, kN = 128, kK = 256;

int main(int argc, char** argv) try {
  const std::string path = argc > 1 ? argv[1] : "timeline.pftrace";
  const auto bootstrap = overlace::environment_bootstrap();
  overlace::RuntimeOptions options = overlace::RuntimeOptions::from_environment();
  options.backend = overlace::Backend::cpu;
  options.link = overlace::LinkOptions::parse("100MB/s,20us");
  overlace::Runtime runtime = overlace::Runtime::open(*bootstrap, options);
  overlace::Team& team = runtime.world();
  overlace::Channel& channel = team.channel(overlace::StreamRef::cpu());

  std::vector<float> a(kM * kK, 1.0f), weight(kN * kK, 0.5f), out(kM / team.size() * kN);
  overlace::ops::GemmRsArgs args;
  args.a = overlace::TensorView::contiguous(a.data(), overlace::DType::fp32, {kM, kK});
  args.b = overlace::TensorView::contiguous(weight.data(), overlace::DType::fp32, {kN, kK}).transposed();
  args.out = overlace::TensorView::contiguous(out.data(), overlace::DType::fp32, {kM / team.size(), kN});
  const overlace::spec::OpSpec op = op_spec(channel, args);
  const auto serial = overlace::spec::make_schedule(op, "serial");
  const auto overlapped = overlace::spec::make_schedule(op, "hetero_fused_1d", 2);
  run(channel, args, serial);  // the first call of a schedule allocates; it is not what we want to see
  run(channel, args, overlapped);

  if (team.rank() == 0) std::filesystem::remove(path);
  overlace::Timeline timeline(channel);
  timeline.label("serial");
  run(channel, args, serial);
  timeline.label("overlapped");
  run(channel, args, overlapped);
  timeline.write(path);

  bool is_right = true;
  for (const float x : out) is_right = is_right && x == 0.5f * kK * static_cast<float>(team.size());
  if (team.rank() == 0) {
    is_right = is_right && std::filesystem::file_size(path) > 0;
    std::printf("wrote %s\n", path.c_str());
  }
  runtime.close();
  return is_right ? 0 : 1;
} catch (const overlace::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return overlace::exit_code(error.code());
}
