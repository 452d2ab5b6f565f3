// bench_dense: ag_gemm, gemm_rs, gemm_ar with all schedules side by side in one run. One process per GPU:
//   overlace run -n 4 -- bench_dense --set canonical --out records.jsonl
// --competitors takes auto, families, and families with degree and options: grouped_unfused_1d:4:ce_queues=3. Schedules
// that do not all fit in --heap-gib (12) make room for each other, which must not be timed: fewer competitors then.
// Method: docs/reference/benchmarks.md. Every competitor is verified before it is timed; a wrong one is not timed.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <random>

#include "bench/common/gpu.h"
#include "bench/common/record.h"
#include "bench/dense/workload.h"
#include "overlace/bootstrap.h"
#include "overlace/net_engine.h"
#include "overlace/plan.h"
#include "overlace/runtime.h"
#include "src/base/statistics.h"

namespace overlace::bench {
namespace {

struct Options {
  std::string cases = "bench/dense/cases.json", set = "smoke", filter, out, git = "unknown", command;
  std::vector<std::string> competitors = {"compute", "comm", "library", "serial", "limit", "auto"};
  int repetitions = 15;
  double burst_ms = 50, warm_s = 1.0;
  uint64_t seed = 1;
  size_t heap_bytes = size_t{12} << 30;
};

struct Competitor {
  std::string name;
  spec::Schedule schedule;
  bool has_output = true;
  std::string status = "ok", reason;
  Check before, after;
  bool same_bits = false;
  std::vector<double> samples_us;  // max over ranks
  std::vector<double> sm_mhz, watts;
  double host_us = 0;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(at); end != std::string::npos; end = text.find(at, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

/// "family", "family:q" or "family:q:option=number:...": a family, its degree, options of make_schedule.
spec::Schedule schedule_of(const spec::OpSpec& op, const std::string& name) {
  const std::vector<std::string> parts = split(name, ':');
  spec::Params options;
  for (size_t i = 2; i < parts.size(); ++i) {
    const std::vector<std::string> option = split(parts[i], '=');
    if (option.size() != 2) throw_error(Errc::invalid_argument, name + ": wanted option=number, got " + parts[i]);
    options[option[0]] = int64_t{std::stoll(option[1])};
  }
  return spec::make_schedule(op, parts[0], parts.size() > 1 ? std::stoi(parts[1]) : 1, options);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 0; i < argc; ++i) o.command += (i == 0 ? "" : " ") + std::string(i == 0 ? "bench_dense" : argv[i]);
  const std::map<std::string, std::string*> texts = {
      {"--cases", &o.cases}, {"--set", &o.set}, {"--filter", &o.filter}, {"--out", &o.out}, {"--git", &o.git}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (auto it = texts.find(key); it != texts.end())
      *it->second = value;
    else if (key == "--competitors")
      o.competitors = split(value, ',');
    else if (key == "--repetitions")
      o.repetitions = std::stoi(value);
    else if (key == "--burst-ms")
      o.burst_ms = std::stod(value);
    else if (key == "--warm-s")
      o.warm_s = std::stod(value);
    else if (key == "--seed")
      o.seed = std::stoull(value);
    else if (key == "--heap-gib")
      o.heap_bytes = std::stoull(value) << 30;
    else
      throw_error(Errc::invalid_argument, "bench_dense: unknown option " + key);
  }
  return o;
}

/// Everybody's value, worst first: one exchange.
double max_over_ranks(Team& team, double mine) {
  double worst = mine;
  for (const Bytes& bytes : team.exchange(std::as_bytes(std::span(&mine, 1)))) {
    double theirs = 0;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    worst = std::max(worst, theirs);
  }
  return worst;
}

double seconds_now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

class Bench {
 public:
  Bench(const Options& options, Runtime& runtime, Gpu& gpu)
      : options_(options), team_(runtime.world()), gpu_(gpu), channel_(team_.channel(gpu.stream())), run_(utc_now()) {}

  /// Number of wrong competitors.
  int run(const std::vector<Case>& cases) {
    int wrong = 0;
    for (const Case& c : cases) wrong += run_case(c);
    return wrong;
  }

 private:
  bool is_root() const { return team_.rank() == 0; }

  int run_case(const Case& c) {
    gpu_.release_all();
    Workload workload = Workload::create(c, channel_, gpu_, options_.seed).value();
    std::vector<Competitor> list = competitors(workload);
    if (is_root()) {
      std::printf("\n%s %s  M %ld  N %ld  K %ld  %s  %d ranks\n", c.op.c_str(), c.name.c_str(), c.m, c.n, c.k,
                  dtype_name(c.dtype), team_.size());
    }
    Check baseline;
    for (Competitor& x : list) verify(workload, x, &baseline);
    warm_up(workload, list);
    measure(workload, list);
    int wrong = 0;
    for (Competitor& x : list) {
      if (x.status == "ok" && x.has_output) check_again(workload, x, baseline);
      if (x.status == "wrong") ++wrong;
    }
    report(c, workload, list);
    return wrong;
  }

  std::vector<Competitor> competitors(const Workload& workload) {
    std::vector<Competitor> list;
    for (const std::string& name : options_.competitors) {
      Competitor x;
      x.name = name;
      x.has_output = name != "compute" && name != "comm" && name != "limit";
      try {
        if (name == "auto") {
          const plan::Choice choice =
              plan::choose(workload.op(), {.is_gpu = true, .link_bytes_per_s = 390e9, .flops_per_s = 650e12});
          x.schedule = choice.schedule;
          x.reason = choice.reason;
        } else {
          x.schedule = schedule_of(workload.op(), name);
        }
      } catch (const Error& e) {
        x.status = "unsupported";
        x.reason = e.what();
      }
      list.push_back(std::move(x));
    }
    return list;
  }

  void verify(Workload& workload, Competitor& x, Check* baseline) {
    if (x.status != "ok") return;
    if (!x.has_output) {
      note(x, workload.enqueue(x.schedule, 0));
      note(x, gpu_.synchronize());
      return;
    }
    base::Result<Check> check = workload.verify(x.schedule);
    if (!check.ok()) return note(x, check.status());
    x.before = *check;
    if (x.name == "library") {
      *baseline = *check;
      note(x, workload.keep_reference());
      judge(x, x.before, *baseline);
      return;
    }
    judge(x, x.before, *baseline);
    base::Result<Difference> difference = workload.difference();
    if (!difference.ok()) return note(x, difference.status());
    x.same_bits = difference->same_bits;
    const double bound = 16 * std::ldexp(1.0, -8) * difference->rms;  // four roundings of the largest values (4 rms)
    const double worst = max_over_ranks(team_, difference->max_abs / std::max(bound, 1e-30));
    if (worst > 1) {
      x.status = "wrong";
      x.reason = base::format("an element differs from library by {} times the bound", worst);
    }
  }

  void check_again(Workload& workload, Competitor& x, const Check& baseline) {
    base::Result<Check> check = workload.verify(x.schedule);
    if (!check.ok()) return note(x, check.status());
    x.after = *check;
    judge(x, x.after, baseline);
  }

  /// Error at most twice that of library (same dtype), plus one unit in the last place.
  void judge(Competitor& x, const Check& check, const Check& baseline) {
    const double ulp = std::ldexp(1.0, -8);
    const bool good = check.finite && check.rms_error <= 2 * baseline.rms_error + 1e-12 &&
                      check.max_error <= 2 * baseline.max_error + 4 * ulp &&
                      (x.name != "library" || check.rms_error < 0.01);
    if (max_over_ranks(team_, good ? 0 : 1) > 0) {
      x.status = "wrong";
      x.reason = base::format("rms error {}, library {}", check.rms_error, baseline.rms_error);
    }
  }

  void note(Competitor& x, const base::Status& status) {
    if (status.ok()) return;
    x.status = status.code() == Errc::not_supported ? "unsupported" : "failed";
    x.reason = status.message();
    if (x.status == "failed") status.or_throw();
  }

  void burst(Workload& workload, Competitor& x, int n, double* sample_us, double* host_us) {
    gpu_.synchronize().or_throw();
    team_.barrier();
    const int lead = std::max(1, n / 5);
    for (int i = 0; i < lead; ++i) workload.enqueue(x.schedule, i).or_throw();
    gpu_.record_begin().or_throw();
    const double start = seconds_now();
    for (int i = 0; i < n; ++i) workload.enqueue(x.schedule, lead + i).or_throw();
    *host_us = (seconds_now() - start) * 1e6 / n;
    gpu_.record_end().or_throw();
    *sample_us = max_over_ranks(team_, gpu_.elapsed_us().value() / n);
  }

  void warm_up(Workload& workload, std::vector<Competitor>& list) {
    const double end = seconds_now() + options_.warm_s;
    double time_left = 1;
    while (time_left > 0) {
      for (Competitor& x : list) {
        if (x.status != "ok") continue;
        double sample = 0, host = 0;
        burst(workload, x, 20, &sample, &host);
        iterations_[x.name] = static_cast<int>(std::clamp(options_.burst_ms * 1e3 / sample, 20.0, 2000.0));
      }
      time_left = max_over_ranks(team_, end - seconds_now());
    }
  }

  void measure(Workload& workload, std::vector<Competitor>& list) {
    std::mt19937_64 random(options_.seed);
    std::vector<size_t> order(list.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i : order) {
        Competitor& x = list[i];
        if (x.status != "ok") continue;
        double sample = 0;
        burst(workload, x, iterations_[x.name], &sample, &x.host_us);
        x.samples_us.push_back(sample);
        const ClockSample clocks = gpu_.clocks();
        attested_ = attested_ && clocks.ok;
        x.sm_mhz.push_back(clocks.sm_mhz);
        x.watts.push_back(clocks.watts);
      }
    }
  }

  static double median_of(const std::vector<Competitor>& list, std::string_view name) {
    for (const Competitor& x : list) {
      if (x.name == name && !x.samples_us.empty()) return base::median(x.samples_us);
    }
    return 0;
  }

  void report(const Case& c, const Workload& workload, const std::vector<Competitor>& list) {
    if (!is_root()) return;
    const double library = median_of(list, "library"), compute = median_of(list, "compute");
    double serial = median_of(list, "serial");
    serial = serial > 0 && library > 0 ? std::min(serial, library) : std::max(serial, library);
    double limit = median_of(list, "limit");
    if (limit > 0 && serial > 0) limit = std::min(limit, serial);
    const bool regime = limit > 0 && compute > 0 && limit < 0.98 * compute;
    if (regime) limit = compute;
    for (const Competitor& x : list) {
      if (x.status != "ok") {
        std::printf("  %-26s %s: %s\n", x.name.c_str(), x.status.c_str(), x.reason.c_str());
      } else {
        const double t = base::median(x.samples_us);
        std::printf("  %-26s %9.1f us  rho %5.3f  x library %5.3f  host %6.1f us  %4.0f MHz  err %.2e%s  %s\n",
                    x.name.c_str(), t, limit > 0 ? t / limit : 0, t > 0 ? library / t : 0, x.host_us,
                    base::median(x.sm_mhz), x.before.rms_error, x.same_bits ? " =bits" : "", x.reason.c_str());
      }
      write(c, workload, x, library, serial, limit, regime);
    }
    std::fflush(stdout);
  }

  void write(const Case& c, const Workload& workload, const Competitor& x, double library, double serial, double limit,
             bool regime) {
    if (options_.out.empty()) return;
    const GpuInfo gpu = gpu_.describe();
    base::Json machine = base::Json::object();
    machine.set("gpus", base::format("{} x {}", team_.size(), gpu.name))
        .set("driver", gpu.driver)
        .set("cuda", gpu.cuda);
    machine.set("l2_bytes", gpu.l2_bytes).set("power_limit_w", gpu.power_limit_w);
    machine.set("nccl", team_.net() != nullptr ? team_.net()->version() : "none");
    base::Json shape = base::Json::object();
    shape.set("name", c.name).set("m", c.m).set("n", c.n).set("k", c.k);
    base::Json method = base::Json::object();
    method.set("repetitions", options_.repetitions).set("lead_in", 0.2).set("bytes_rotated", workload.bytes_rotated());
    if (auto it = iterations_.find(x.name); it != iterations_.end()) method.set("n", it->second);
    base::Json row = base::Json::object();
    row.set("schema", "overlace.bench/1").set("run", run_).set("date", utc_now()).set("git", options_.git);
    row.set("command", options_.command).set("machine", machine).set("workload", c.op).set("case", shape);
    row.set("dtype", dtype_name(c.dtype)).set("team", team_.size()).set("launch", "stream");
    row.set("data", base::format("normal(0,1), weights / sqrt(K), seed {}", options_.seed)).set("method", method);
    row.set("competitor", x.name).set("schedule", x.schedule.family).set("reason", x.reason).set("status", x.status);
    if (!x.samples_us.empty()) {
      base::Json time = time_json(x.samples_us);
      const double median = base::median(x.samples_us);
      time.set("over_library", library > 0 ? median / library : 0);
      time.set("over_serial", serial > 0 ? median / serial : 0).set("over_limit", limit > 0 ? median / limit : 0);
      base::Json verify = base::Json::object();
      verify.set("oracle", "fp64, 2048 sampled elements and every element against library");
      verify.set("rms_error", x.before.rms_error)
          .set("max_error", x.before.max_error)
          .set("rms_error_after", x.after.rms_error);
      verify.set("same_bits_as_library", x.same_bits);
      base::Json clocks = base::Json::object();
      clocks.set("sm_mhz_median", base::median(x.sm_mhz)).set("watts_median", base::median(x.watts));
      row.set("time_us", time).set("host_us", x.host_us).set("clocks", clocks);
      if (x.has_output) row.set("verify", verify);
      row.set("flops", 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k));
    }
    base::Json flags = base::Json::array();
    if (!attested_) flags.push_back("unattested");
    if (regime) flags.push_back("regime");
    if (!x.samples_us.empty() && x.host_us > 0.9 * base::median(x.samples_us)) flags.push_back("host_bound");
    row.set("flags", flags);
    std::ofstream(options_.out, std::ios::app) << row.dump() << "\n";
  }

  const Options& options_;
  Team& team_;
  Gpu& gpu_;
  Channel& channel_;
  std::string run_;
  std::map<std::string, int> iterations_;
  bool attested_ = true;
};

int run_main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::unique_ptr<Bootstrap> bootstrap = environment_bootstrap();
  RuntimeOptions runtime_options = RuntimeOptions::from_environment();
  runtime_options.backend = Backend::cuda_peer;
  runtime_options.heap_bytes = options.heap_bytes;
  Runtime runtime = Runtime::open(*bootstrap, runtime_options);
  std::unique_ptr<Gpu> gpu = Gpu::open(runtime.device()).value();
  int wrong = 0;
  {
    Bench bench(options, runtime, *gpu);
    wrong = bench.run(load_cases(options.cases, options.set, options.filter).value());
  }
  runtime.synchronize();
  runtime.close();
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  try {
    return overlace::bench::run_main(argc, argv);
  } catch (const overlace::Error& e) {
    std::fprintf(stderr, "bench_dense: %s: %s\n", std::string(overlace::errc_name(e.code())).c_str(), e.what());
    return overlace::exit_code(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_dense: %s\n", e.what());
    return 70;
  }
}
