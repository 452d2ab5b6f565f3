// bench_gemm_core: the plain GEMM beside cuBLASLt on one GPU, bf16, normal data.
//   bench_gemm_core [--smoke] [--filter TEXT] [--only TEXT] [--out FILE] [--repetitions N] [--burst-ms X] [--screen-ms
//   X]
// Each row: every instance is verified against fp64, then screened with short bursts; the best ones and cuBLASLt's best
// algorithm are timed in interleaved bursts. --smoke: few shapes, all instances, short bursts. --verify-only: the same
// shapes, nothing timed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "bench/common/arguments.h"
#include "bench/common/protocol.h"
#include "bench/common/record.h"
#include "bench/gemm_core/problem.h"
#include "src/base/statistics.h"

namespace overlace::bench {
namespace {

using base::Json;
using gemm_core::Instance;

struct Options {
  bool smoke = false, verify_only = false;
  std::string filter, only;
  int repetitions = 7, algorithms = 8;
  double burst_ms = 25, screen_ms = 3;
  RunFacts run;
};

Options parse(int argc, char** argv) {
  Options o;
  Arguments arguments(&o.run);
  arguments.add("--smoke", &o.smoke);
  arguments.add("--verify-only", &o.verify_only);
  arguments.add("--filter", &o.filter);
  arguments.add("--only", &o.only);
  arguments.add("--repetitions", &o.repetitions, 1);
  arguments.add("--algorithms", &o.algorithms, 1);
  arguments.add("--burst-ms", &o.burst_ms, 0.1);
  arguments.add("--screen-ms", &o.screen_ms, 0.1);
  arguments.parse(argc, argv);
  if (o.verify_only) o.smoke = true;
  if (!o.smoke) return o;
  o.repetitions = 3;
  o.burst_ms = 4;
  o.screen_ms = 0.5;
  return o;
}

/// The canonical GEMMs, each once; small and ragged ones with --smoke.
std::vector<Shape> shapes(const Options& o) {
  std::vector<Shape> all;
  if (o.smoke) {
    all = {{"qkv", 1024, 2560, 8192}, {"ragged", 1000, 2568, 1032}, {"o_proj", 4096, 8192, 2048}, {"tiny", 8, 8, 8}};
  } else {
    const struct {
      const char* name;
      int64_t n, k;
    } layers[] = {{"qkv", 2560, 8192},
                  {"gate_up", 14336, 8192},
                  {"gpt3", 12288, 12288},
                  {"o_proj", 8192, 2048},
                  {"down", 8192, 7168}};
    for (const auto& layer : layers) {
      for (int64_t m = 1024; m <= 16384; m *= 2) all.push_back({layer.name, m, layer.n, layer.k});
    }
    const Shape others[] = {{"square_ag", 4096, 1024, 4096},  {"square_ag", 8192, 2048, 8192},
                            {"up", 8192, 7168, 8192},         {"square_ag", 16384, 4096, 16384},
                            {"square_rs", 4096, 4096, 1024},  {"square_rs", 4096, 4096, 2048},
                            {"square_rs", 16384, 16384, 4096}};
    all.insert(all.end(), std::begin(others), std::end(others));
  }
  std::erase_if(all, [&](const Shape& s) {
    return base::format("{} {}x{}x{}", s.name, s.m, s.n, s.k).find(o.filter) == std::string::npos;
  });
  return all;
}

class Row {
 public:
  Row(const Options& o, Gpu& gpu, Problem problem) : options_(o), gpu_(gpu), problem_(std::move(problem)) {}

  base::Status run() {
    auto error = gpu_.alloc(256);
    if (!error.ok()) return error.status();
    error_ = static_cast<uint32_t*>(*error);
    OVERLACE_TRY(gpu_.memset(error_, 0, 256));
    auto library = library_competitors(problem_, options_.algorithms, gpu_);
    if (!library.ok()) return library.status();
    library_ = std::move(*library);
    for (Competitor& c : library_.competitors) OVERLACE_TRY(verify(&c));
    if (!options_.verify_only) OVERLACE_TRY(screen(&library_.competitors));
    for (const Instance& i : plain_instances()) {
      const bool fits = i.spec.dtype == problem_.dtype() &&
                        (i.spec.b_major == gemm_core::BMajor::n) == problem_.b_is_kn() &&
                        std::strstr(i.name, options_.only.c_str()) != nullptr;
      if (fits) OVERLACE_TRY(add(i, {}));
    }
    if (options_.verify_only) return {};
    OVERLACE_TRY(screen(&core_));
    OVERLACE_TRY(refine());
    return time_finalists();
  }

  bool all_right() const {
    return std::all_of(core_.begin(), core_.end(), [](const Competitor& c) { return c.failure.empty(); });
  }
  void print() const;
  /// One per competitor, timed ones with all bursts, the others with the time of their screening.
  std::vector<Json> records(const RecordHead& head) const;

 private:
  base::Status add(const Instance& instance, const CoreSettings& settings) {
    auto made = core_competitor(problem_, instance, settings, error_, gpu_);
    if (!made.ok()) return made.status();
    core_.push_back(std::move(*made));
    return verify(&core_.back());
  }

  /// Poisons the output of set 0, computes it, compares. Sticky errors of the device end the run.
  base::Status verify(Competitor* c) {
    const TensorView out = problem_.output(0);
    OVERLACE_TRY(gpu_.memset(out.data, 0xff, static_cast<size_t>(out.numel()) * 2));
    if (const base::Status s = c->enqueue(0); !s.ok()) {
      c->failure = s.message();
      return {};
    }
    if (const base::Status s = gpu_.synchronize(); !s.ok()) {
      return base::error(s.code(), "{}, {} {}x{}x{}: {}", c->name, problem_.shape().name, problem_.shape().m,
                         problem_.shape().n, problem_.shape().k, s.message());
    }
    const auto stuck = take_error(error_);
    if (!stuck.ok()) return stuck.status();
    auto check = problem_.check(1024, gpu_.stream().cuda_stream);
    if (!check.ok()) return check.status();
    c->max_error = check->max_error;
    // Rounding of the result alone gives 2^-9 (bf16) of its largest element, about 4 times the rms.
    const double limit = problem_.dtype() == DType::bf16 ? 0.02 : 0.003;
    if (*stuck != 0) {
      c->failure = "a wait of its pipeline did not end";
    } else if (!check->finite || check->max_error > limit) {
      c->failure = base::format("wrong: error {:.3g} of rms, finite {}", check->max_error, check->finite);
    }
    if (!c->failure.empty()) std::printf("  %s: %s\n", c->name.c_str(), c->failure.c_str());
    return {};
  }

  base::Result<double> burst(const Competitor& c, int calls) {
    OVERLACE_TRY(c.enqueue(next_set()));
    OVERLACE_TRY(gpu_.record_begin());
    for (int i = 0; i < calls; ++i) OVERLACE_TRY(c.enqueue(next_set()));
    OVERLACE_TRY(gpu_.record_end());
    const auto us = gpu_.elapsed_us();
    if (!us.ok()) return us.status();
    return *us / calls;
  }
  int next_set() { return turn_ = (turn_ + 1) % problem_.sets(); }
  static int calls_for(double ms, double us, int least) {
    return std::max(least, static_cast<int>(std::ceil(ms * 1e3 / us)));
  }

  /// Median of three short bursts each, interleaved; those that have a time already are left out.
  base::Status screen(std::vector<Competitor>* list) {
    std::vector<std::pair<Competitor*, std::vector<double>>> todo;
    for (Competitor& c : *list) {
      if (c.failure.empty() && c.screen_us == 0) todo.push_back({&c, {}});
    }
    for (int round = 0; round < 4; ++round) {
      for (auto& [c, us] : todo) {
        const auto one = burst(*c, us.empty() ? 1 : calls_for(options_.screen_ms, us.back(), 1));
        if (!one.ok()) return one.status();
        us.push_back(*one);
      }
    }
    for (auto& [c, us] : todo) {
      us.erase(us.begin());
      c->screen_us = base::median(us);
    }
    return {};
  }

  /// Fastest first; those that failed last.
  static std::vector<Competitor*> ranked(std::vector<Competitor>* list) {
    std::vector<Competitor*> out;
    for (Competitor& c : *list) {
      if (c.failure.empty()) out.push_back(&c);
    }
    std::sort(out.begin(), out.end(), [](auto* x, auto* y) { return x->screen_us < y->screen_us; });
    return out;
  }

  /// Other orders of tiles for the best three instances.
  base::Status refine() {
    std::vector<std::string> best;
    for (Competitor* c : ranked(&core_)) {
      if (best.size() < 3) best.push_back(c->name.substr(0, c->name.find(' ')));
    }
    for (const std::string& name : best) {
      for (const TileSweep sweep : {TileSweep::along_n, TileSweep::along_m}) {
        for (const int swizzle : {2, 4, 8, 16}) {
          if (sweep == TileSweep::along_n && swizzle == 8) continue;  // screened already
          OVERLACE_TRY(add(*find_plain(name), {sweep, swizzle, true}));
        }
      }
    }
    return screen(&core_);
  }

  base::Status time_finalists() {
    std::vector<Competitor*> of_core = ranked(&core_);
    const auto of_library = ranked(&library_.competitors);
    if (of_core.empty() || of_library.empty()) return {};
    const std::string best = of_core[0]->name;
    const size_t space = best.find(' ');
    const CoreSettings late{best[space + 1] == 'n' ? TileSweep::along_n : TileSweep::along_m,
                            std::atoi(best.c_str() + space + 2), false};
    std::vector<std::string> names;
    for (size_t i = 0; i < of_core.size() && i < 3; ++i) names.push_back(of_core[i]->name);
    names.push_back("bf16_k_128x256_c21_s4 n8");
    OVERLACE_TRY(add(*find_plain(best.substr(0, space)), late));
    names.push_back(core_.back().name);
    finalists_ = {of_library[0]};
    for (Competitor& c : core_) {
      if (c.failure.empty() && std::find(names.begin(), names.end(), c.name) != names.end()) finalists_.push_back(&c);
    }
    for (int round = 0; round < options_.repetitions; ++round) {
      for (Competitor* c : finalists_) {
        const auto us = burst(*c, calls_for(options_.burst_ms, of_library[0]->screen_us, 2));
        if (!us.ok()) return us.status();
        c->burst_us.push_back(*us);
      }
    }
    return {};
  }

  const Options& options_;
  Gpu& gpu_;
  Problem problem_;
  uint32_t* error_ = nullptr;
  LibraryGemm library_;
  std::vector<Competitor> core_;
  std::vector<Competitor*> finalists_;
  int turn_ = 0;
};

void Row::print() const {
  const Shape& s = problem_.shape();
  if (finalists_.empty()) return;
  const double library_us = base::median(finalists_[0]->burst_us), flop = 2.0 * static_cast<double>(s.m * s.n * s.k);
  std::printf("%-9s %5ld %5ld %5ld  %-30s %8.1f us %6.1f TF/s\n", s.name.c_str(), s.m, s.n, s.k,
              finalists_[0]->name.c_str(), library_us, flop / library_us * 1e-6);
  std::vector<Competitor*> sorted(finalists_.begin() + 1, finalists_.end());
  std::sort(sorted.begin(), sorted.end(),
            [](auto* x, auto* y) { return base::median(x->burst_us) < base::median(y->burst_us); });
  for (const Competitor* c : sorted) {
    const double us = base::median(c->burst_us);
    std::printf("%29s%-30s %8.1f us %6.1f TF/s  x%.3f of cublas\n", "", c->name.c_str(), us, flop / us * 1e-6,
                library_us / us);
  }
  std::fflush(stdout);
}

std::vector<Json> Row::records(const RecordHead& head) const {
  const Shape& s = problem_.shape();
  const ClockSample clocks = gpu_.clocks();
  std::vector<Json> list;
  for (const auto* group : {&library_.competitors, &core_}) {
    for (const Competitor& c : *group) {
      Json shape = Json::object(), method = Json::object(), verify = Json::object(), flags = Json::array();
      shape.set("name", s.name).set("m", s.m).set("n", s.n).set("k", s.k).set("b", problem_.b_is_kn() ? "kn" : "nk");
      method.set("repetitions", options_.repetitions).set("burst_ms", options_.burst_ms).set("sets", problem_.sets());
      verify.set("oracle", "fp64, 1024 sampled elements").set("ok", c.failure.empty()).set("max_error", c.max_error);
      Json record = new_record(head, "gemm_core", std::move(shape), c.name);
      record.set("dtype", dtype_name(problem_.dtype())).set("team", 1).set("launch", "stream");
      record.set("data", "normal(0,1), weights / sqrt(K), seed 1").set("method", method).set("verify", verify);
      record.set("status", c.failure.empty() ? "ok" : "wrong").set("reason", c.failure);
      record.set("flops", 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k));
      if (c.screen_us > 0) record.set("screen_us", c.screen_us);
      if (!c.burst_us.empty()) {
        record.set("time_us", time_json(c.burst_us)).set("clocks", clocks_json({clocks}));
        if (!clocks.ok) flags.push_back("unattested");
      }
      list.push_back(record.set("flags", flags));
    }
  }
  return list;
}

/// Whether every instance was right.
bool run_rows(const Options& o) {
  const std::unique_ptr<Gpu> gpu = Gpu::open(0).value();
  const DeviceInfo info = gpu->describe();
  std::printf("%s, %d SMs, driver %s\n", info.name.c_str(), info.sms, info.driver.c_str());
  const RecordHead head{o.run, machine_json(*gpu, 1)};
  struct Kind {
    DType dtype;
    bool b_is_kn;
  };
  std::vector<Kind> kinds = {{DType::bf16, false}};
  if (o.smoke) kinds.insert(kinds.end(), {{DType::fp16, false}, {DType::bf16, true}});
  bool all_right = true;
  for (const Shape& shape : shapes(o)) {
    for (const Kind& kind : kinds) {
      Row row(o, *gpu, Problem::create(shape, kind.dtype, kind.b_is_kn, *gpu, 1).value());
      row.run().or_throw();
      row.print();
      append_records(o.run, row.records(head)).or_throw();
      all_right = all_right && row.all_right();
      gpu->release_all();
    }
  }
  return all_right;
}

int run_main(int argc, char** argv) { return run_rows(parse(argc, argv)) ? 0 : 1; }

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  return overlace::bench::run_program("bench_gemm_core", argc, argv, overlace::bench::run_main);
}
