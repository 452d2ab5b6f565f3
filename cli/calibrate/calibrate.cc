#include "cli/calibrate/calibrate.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <iterator>

#include "cli/calibrate/file.h"
#include "cli/calibrate/host_link.h"
#include "cli/calibrate/points.h"
#include "cli/calibrate/rig.h"
#include "cli/doctor/machine.h"
#include "cli/host_rates.h"
#include "cli/problem.h"
#include "cli/progress.h"
#include "cli/run/outputs.h"
#include "cli/thread_ranks.h"
#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/format.h"
#include "src/context/machine.h"
#include "src/exec/gemm.h"
#include "src/runtime/backend.h"
#include "src/spec/fusable.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;

constexpr int kMostRanks = 16, kMostSamples = 40, kLeastSamples = 4;
constexpr double kMostMinutes = 60, kCpuMinutes = 1, kGpuMinutes = 3;
// GPUs: so long that power and clocks are those of work that lasts.
constexpr double kCpuBurstUs = 2000, kGpuBurstUs = 25000;
constexpr int kMostIterations = 10000;
constexpr double kGpuResidual = 0.05, kCpuResidual = 0.2;
// Shares of the time.
constexpr double kBasicShare = 0.5, kContentionShare = 0.1, kDutyShare = 0.08, kOperatorShare = 0.3;
constexpr double kProductShare = 0.1;  // GPUs: of the basic ones
constexpr double kDiskSeconds = 0.5;   // of each point
constexpr int64_t kHostLinkBytes[] = {int64_t{64} << 10, int64_t{1} << 20, int64_t{16} << 20, int64_t{256} << 20};

struct Work {
  PointOptions points;
  RuntimeOptions runtime;
  spec::Machine other;  // for what is not measured
  double seconds = 60;
};

/// Collective: every point in turn, two bursts each, until the time is over or enough is known.
Status sample(Rig& rig, std::vector<Point>* points, double seconds) {
  if (points->empty()) return {};
  std::vector<tuning::Competitor> list;
  for (const Point& p : *points)
    list.push_back({name_of(p.probe), [&rig, &p](int iterations) {
                      return is_push(p.probe) ? rig.push(p.probe, p.ctas, static_cast<int64_t>(p.bytes), iterations)
                                              : rig.run(p.schedule, iterations);
                    }});
  tuning::MeasureOptions options;
  options.repetitions = 2;
  options.burst_us = rig.is_gpu() ? kGpuBurstUs : kCpuBurstUs;
  options.max_iterations = kMostIterations;
  const double begin = base::steady_s();
  for (int taken = 0; taken < kMostSamples; taken += options.repetitions, ++options.seed) {
    const auto past = rig.max_over_ranks({base::steady_s() - begin});
    if (!past.ok()) return past.status();
    if (taken >= kLeastSamples && past->front() > seconds) break;
    const auto timings = tuning::measure(list, rig, options);
    if (!timings.ok()) return timings.status();
    for (size_t i = 0; i < points->size(); ++i) {
      const std::vector<double>& more = (*timings)[i].samples_us;
      std::vector<double>& samples = (*points)[i].samples_us;
      samples.insert(samples.end(), more.begin(), more.end());
    }
  }
  return {};
}

Status sample_host(Rig& rig, std::vector<Point>* points) {
  constexpr int kSamples = 11;
  for (Point& p : *points) {
    for (int i = 0; i < kSamples; ++i) {
      const auto us = rig.queue_us(p.schedule);
      if (!us.ok()) return us.status();
      p.samples_us.push_back(*us);
    }
  }
  return {};
}

Status sample_duty(Rig& rig, std::vector<Point>* points, double seconds) {
  constexpr int kWindows = 3;
  for (Point& p : *points) {
    for (int i = 0; i < kWindows; ++i) {
      const auto found = rig.duty(p.schedule, p.share, seconds / kWindows / static_cast<double>(points->size()));
      if (!found.ok()) return found.status();
      p.samples_us.push_back(found->us);
      p.sm_mhz = found->sm_mhz;
      p.watts = found->watts;
    }
  }
  return {};
}

Result<Point> sample_skew(Rig& rig) {
  constexpr int kSamples = 21;
  Point out;
  out.probe = Probe::skew;
  for (int i = 0; i < kSamples; ++i) {
    const auto us = rig.skew_us();
    if (!us.ok()) return us.status();
    out.samples_us.push_back(std::max(*us, 1e-3));
  }
  return out;
}

std::vector<Point> take(std::vector<Point>* from, Probe probe) {
  std::vector<Point> out;
  for (Point& p : *from)
    if (p.probe == probe) out.push_back(std::move(p));
  std::erase_if(*from, [&](const Point& p) { return p.probe == probe; });
  return out;
}

/// One group of all: taken in turn over the whole time, as a core that is busy elsewhere now may be free later. Their
/// memory is small on CPU ranks.
void join(std::vector<std::vector<Point>>* groups) {
  for (size_t i = 1; i < groups->size(); ++i)
    std::move((*groups)[i].begin(), (*groups)[i].end(), std::back_inserter(groups->front()));
  groups->resize(std::min<size_t>(groups->size(), 1));
}

struct Taken {
  std::vector<Point> points;
  std::vector<std::string> links;  // as links_of() wants them
};

/// One rank; all have the same points afterwards.
Status measure_rank(Bootstrap& bootstrap, const Work& work, Taken* out) {
  RuntimeOptions runtime = work.runtime;
  if (work.points.is_gpu) runtime.device = bootstrap.rank();
  std::vector<std::vector<Point>> operators;  // schedules outlive the rig
  std::vector<Point> basic, products, host, beside, duty;
  Rig rig(bootstrap, runtime, argument_bytes(work.points.is_gpu));
  PointOptions options = work.points;
  options.has_collectives = rig.team().net() != nullptr;
  Progress progress(stderr, bootstrap.rank() == 0 && shows_progress(STDERR_FILENO, false), 1);
  progress.begin("timing GEMMs and copies", kBasicShare);
  basic = basic_points(options);
  // GPUs: GEMMs in turn with GEMMs only, as they draw more power than all else, which makes them slower.
  if (options.is_gpu) products = take(&basic, Probe::gemm);
  const double product_share = options.is_gpu ? kProductShare : 0;
  OVERLACE_TRY(sample(rig, &basic, (kBasicShare - product_share) * work.seconds));
  OVERLACE_TRY(sample(rig, &products, product_share * work.seconds));
  std::vector<Point> all = basic;
  all.insert(all.end(), products.begin(), products.end());
  host = host_points(options);
  OVERLACE_TRY(sample_host(rig, &host));
  progress.begin("timing them beside each other", kContentionShare);
  beside = contention_points(options, all);
  OVERLACE_TRY(sample(rig, &beside, kContentionShare * work.seconds));
  auto skew = sample_skew(rig);
  if (!skew.ok()) return skew.status();
  progress.begin("timing GEMMs and breaks", kDutyShare);
  duty = duty_points(options);
  OVERLACE_TRY(sample_duty(rig, &duty, kDutyShare * work.seconds));
  auto links = rig.link_texts();
  if (!links.ok()) return links.status();
  progress.begin("timing operators", kOperatorShare);
  operators = operator_points(options, work.other);
  if (!options.is_gpu) join(&operators);
  for (std::vector<Point>& group : operators)
    OVERLACE_TRY(sample(rig, &group, kOperatorShare * work.seconds / static_cast<double>(operators.size())));
  rig.close();
  if (bootstrap.rank() != 0) return {};
  out->links = std::move(*links);
  for (std::vector<Point>* more : {&host, &beside, &duty})
    std::move(more->begin(), more->end(), std::back_inserter(all));
  if (options.ranks > 1) all.push_back(std::move(*skew));
  for (std::vector<Point>& group : operators) std::move(group.begin(), group.end(), std::back_inserter(all));
  out->points = std::move(all);
  return {};
}

DType dtype_of(const std::string& name, bool is_gpu) {
  if (name.empty()) return is_gpu ? DType::bf16 : DType::fp32;
  for (const DType t : {DType::fp32, DType::bf16, DType::fp16})
    if (name == dtype_name(t)) return t;
  throw_error(Errc::invalid_argument, "--dtype is " + name + ", wanted fp32, bf16 or fp16");
}

std::string today(const char* pattern) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, pattern, &utc)};
}

/// What stands in the file besides numbers, and what is taken over where nothing is measured.
spec::Machine described(const CalibrateWords& words, const PointOptions& options) {
  spec::Machine out = spec::find_machine(options.is_gpu ? "h200x4" : "cpu2");
  out.ranks = options.ranks;
  out.small_m_machine.clear();
  out.date = today("%Y-%m-%d");
  out.git.clear();
  if (!options.is_gpu) {
    const CpuFacts facts = cpu_facts();
    out.device = base::format("{}, {} cores, {}", facts.model, facts.usable(), dtype_name(options.dtype));
    out.topology = base::format("fullmesh({})", options.ranks);
    out.sms = 1;
    out.gemm.tiles = {{16, 64, {}, {}}};  // one tile after the other; the width fits what providers block by
  } else {
    const std::vector<GpuFacts> gpus = gpu_facts();
    out.device = base::format("{}, {}", gpus.empty() ? "GPU" : gpus.front().name, dtype_name(options.dtype));
    out.topology = base::format("nvswitch({})", options.ranks);
    describe_gpu(runtime::cuda_device(0), &out).or_throw();
    out.driver = driver_version();
    out.nccl.clear();
    for (const LibraryFacts& library : library_facts())
      if (library.name.find("nccl") != std::string::npos) out.nccl = library.version;
  }
  out.name = words.name;
  return out;
}

Work work_of(const CalibrateWords& words) {
  Work out;
  std::string why;
  const int gpus = runtime::cuda_device_count(&why);
  if (words.backend != "auto" && words.backend != "cpu" && words.backend != "cuda_peer")
    throw_error(Errc::invalid_argument, "--backend is " + words.backend + ", wanted auto, cpu or cuda_peer");
  if (words.backend == "cuda_peer" && gpus == 0) throw_error(Errc::not_supported, "--backend cuda_peer: " + why);
  out.points.is_gpu = words.backend != "cpu" && gpus > 0;
  const int64_t ranks = words.ranks != 0 ? words.ranks : out.points.is_gpu ? gpus : 2;
  const int most = out.points.is_gpu ? gpus : kMostRanks;
  if (ranks < 2 || ranks > most)
    throw_error(Errc::invalid_argument, base::format("--ranks is {}, wanted 2 to {}", ranks, most));
  const double minutes = words.minutes.value_or(out.points.is_gpu ? kGpuMinutes : kCpuMinutes);
  if (!(minutes > 0 && minutes <= kMostMinutes))
    throw_error(Errc::invalid_argument,
                base::format("--minutes is {}, wanted more than 0 and at most {}", minutes, kMostMinutes));
  if (!(words.max_residual >= 0))
    throw_error(Errc::invalid_argument, base::format("--max-residual is {}, wanted at least 0", words.max_residual));
  out.points.ranks = static_cast<int>(ranks);
  out.points.dtype = dtype_of(words.dtype, out.points.is_gpu);
  out.seconds = 60 * minutes;
  out.runtime = RuntimeOptions::from_environment();
  out.runtime.backend = out.points.is_gpu ? Backend::cuda_peer : Backend::cpu;
  if (out.runtime.link.enabled || out.runtime.adversary.enabled)
    throw_error(Errc::invalid_argument,
                "OVERLACE_LINK or OVERLACE_ADVERSARY is set, wanted neither: an emulated machine is not measured");
  out.other = described(words, out.points);
  out.points.sms = out.other.sms;
  out.points.has_tma = spec::has_fused_kernels(out.other);
  out.runtime.heap_bytes = 3 * argument_bytes(out.points.is_gpu) + symmetric_bytes(out.points, out.other);
  return out;
}

/// Where the file goes, which can be written there. A shipped machine is replaced on purpose only.
std::string path_of(const CalibrateWords& words, bool is_gpu) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (words.name.empty() || !std::all_of(words.name.begin(), words.name.end(), is_plain))
    throw_error(Errc::invalid_argument, base::format("--name is \"{}\", wanted letters, digits, _ and -", words.name));
  const std::vector<std::string> shipped = spec::shipped_machines();
  if (words.out.empty() && std::find(shipped.begin(), shipped.end(), words.name) != shipped.end())
    throw_error(
        Errc::invalid_argument,
        base::format("--name is {}, that of a shipped machine; wanted another name, or --out as well", words.name));
  std::string path = words.out.empty() ? words.name + ".json" : words.out;
  if (const std::string folder = context::machines_folder(); is_gpu && words.out.empty() && !folder.empty()) {
    std::error_code error;  // check_writable says what is wrong
    std::filesystem::create_directories(folder, error);
    path = folder + "/" + path;
  }
  if (!path.ends_with(".json")) throw_error(Errc::invalid_argument, "--out is " + path + ", wanted a name in .json");
  check_writable("--out", path).or_throw();
  return path;
}

/// Figures of the disk under --disk; without that option none.
spec::Machine::Storage measured_disk(const CalibrateWords& words) {
  if (words.disk.empty()) return {};
  io::MeasureOptions options;
  options.file_bytes = parse_size("--disk-size", words.disk_size);
  options.seconds = kDiskSeconds;
  Progress progress(stderr, shows_progress(STDERR_FILENO, false), 1);
  progress.begin("timing the disk", 1);
  options.progress = [&](std::string_view, double share) { progress.update(share); };
  return storage_of(io::measure_storage(words.disk, options).value());
}

std::string table(const std::vector<Residual>& residuals) {
  std::string out = base::format("{:<18}{:>8}{:>10}{:>10}{:>18}{:>15}{:>10}\n", "probe", "points", "held out",
                                 "fit p50", "held out p50", "held out max", "spread");
  for (const Residual& one : residuals) {
    const auto percent = [](bool is_there, double share) {
      return is_there ? base::format("{:.1f} %", 100 * share) : "-";
    };
    out += base::format("{:<18}{:>8}{:>10}{:>10}{:>18}{:>15}{:>10}\n", one.probe, one.points, one.held_out,
                        percent(one.points > 0, one.fit_p50), percent(one.held_out > 0, one.held_out_p50),
                        percent(one.held_out > 0, one.held_out_max), percent(one.spread > 0, one.spread));
  }
  return out;
}

}  // namespace

int calibrate(const CalibrateWords& words) {
  const Work work = work_of(words);
  const std::string path = path_of(words, work.points.is_gpu);
  const spec::Machine::Storage storage = measured_disk(words);
  Circumstances around;
  around.when = today("%Y-%m-%dT%H:%M:%SZ");
  around.load_before = load_average();
  around.dtype = dtype_name(work.points.dtype);
  around.gemm = work.points.is_gpu ? "cuBLASLt" : exec::cpu_gemm_provider();
  const double begin = base::steady_s();
  Taken taken;
  run_thread_ranks(work.points.ranks, [&](Bootstrap& b) { return measure_rank(b, work, &taken); }).or_throw();
  const std::vector<Point>& points = taken.points;
  around.seconds = base::steady_s() - begin;
  around.load_after = load_average();
  around.core_mhz = core_mhz();
  Fit fit = fit_points(points, work.other).value();
  if (work.points.is_gpu) around.links = links_of(taken.links);
  if (const std::string topology = topology_of(around.links); !topology.empty()) fit.machine.topology = topology;
  print(table(fit.residuals)).or_throw();
  const double most = words.max_residual > 0 ? words.max_residual / 100
                      : work.points.is_gpu   ? kGpuResidual
                                             : kCpuResidual;
  check_residuals(fit.residuals, most).or_throw();
  fit.machine.storage = storage;
  if (work.points.is_gpu)
    fit.machine.host.to_device_us = time_host_link(gnn::open_gpu(0).value(), kHostLinkBytes).value();
  const std::string text = machine_text(fit, points, around);
  (void)spec::machine_from_json(text, path);  // what is written can be read
  base::write_file(path, text).or_throw();
  print(base::format("{}: {} points in {:.0f} s\n", path, points.size(), around.seconds)).or_throw();
  return 0;
}

}  // namespace overlace::cli
