// bench_dense: the operators with all their schedules side by side in one run, on GPUs or CPU ranks.
// `overlace bench` starts it; by hand, one process per rank:
//   overlace run -n 4 -- bench_dense --set canonical --out records.jsonl
// --competitors takes auto, families, families with degree and options (grouped_unfused_1d:4:ce_queues=3), and
// `candidates` for all that the planner considers at a shape. Schedules
// that do not all fit in --heap-gib (12; CPU ranks 1) make room for each other, which must not be timed: fewer then.
// `NAME@2` is NAME once more (A against A). `wrong` is `library` with one element changed: it must be refused.
// --launch graph captures each call and replays it, on GPUs; --launch chain captures many calls at once, one behind the
// other on other operands. Method: docs/reference/benchmarks.md.
#include <cstdio>

#include "bench/common/arguments.h"
#include "bench/common/record.h"
#include "bench/common/team_crew.h"
#include "bench/dense/operators.h"
#include "overlace/bootstrap.h"
#include "overlace/net_engine.h"
#include "overlace/runtime.h"
#include "src/base/statistics.h"
#include "src/runtime/backend.h"
#include "src/spec/names.h"

namespace overlace::bench {
namespace {

struct Options {
  Selection cases{"bench/dense/cases.json", "", "", {}};
  std::string backend = "auto", link, data = "normal", launch = "stream";
  std::vector<std::string> competitors = {"compute", "comm", "library", "serial", "limit", "auto"};
  ProtocolOptions protocol;
  int heap_gib = 0;
  RunFacts run;
};

Options parse(int argc, char** argv) {
  Options o;
  Arguments arguments(&o.run);
  arguments.add("--cases", &o.cases.path);
  arguments.add("--set", &o.cases.set);
  arguments.add("--filter", &o.cases.filter);
  arguments.add("--ops", &o.cases.ops);
  arguments.add("--backend", &o.backend);
  arguments.add("--link", &o.link);
  arguments.add("--data", &o.data);
  arguments.add("--launch", &o.launch);
  arguments.add("--competitors", &o.competitors);
  arguments.add("--repetitions", &o.protocol.repetitions, 1);
  arguments.add("--burst-ms", &o.protocol.burst_ms, 0.0);
  arguments.add("--warm-s", &o.protocol.warm_s, 0.0);
  arguments.add("--settle-s", &o.protocol.settle_s, 0.0);
  arguments.add("--seed", &o.protocol.seed);
  arguments.add("--verify-only", &o.protocol.verify_only);
  arguments.add("--heap-gib", &o.heap_gib, 1);
  arguments.parse(argc, argv);
  if (o.backend != "auto" && o.backend != "cpu" && o.backend != "cuda_peer")
    throw_error(Errc::invalid_argument, "--backend is " + o.backend + ", wanted auto, cpu or cuda_peer");
  if (o.data != "normal" && o.data != "ramp")
    throw_error(Errc::invalid_argument, "--data is " + o.data + ", wanted normal or ramp");
  if (o.launch != "stream" && o.launch != "graph" && o.launch != "chain")
    throw_error(Errc::invalid_argument, "--launch is " + o.launch + ", wanted stream, graph or chain");
  return o;
}

class Bench {
 public:
  Bench(const Options& options, Runtime& runtime, Device& device)
      : options_(options),
        runtime_(runtime),
        device_(device),
        channel_(runtime.world().channel(device.stream())),
        crew_(runtime.world(), device),
        head_{options.run, machine_json(device, runtime.world().size())} {
    if (device.is_gpu())
      head_.machine.set("nccl", runtime.world().net() != nullptr ? runtime.world().net()->version() : "none");
    if (has_link()) head_.machine.set("link", runtime.options().link.to_string());
  }

  int run_one(const Case& c) {
    device_.release_all();
    Workload workload = Workload::create(c, channel_, device_, data()).value();
    if (!options_.protocol.verify_only) refuse_low_entropy(workload);
    Device* const graphs = options_.launch == "stream" ? nullptr : &device_;
    Operators subject(c, workload, channel_, crew_, graphs, options_.launch == "chain", options_.competitors);
    subject.open_context(runtime_).or_throw();
    std::vector<Entrant> entrants = subject.entrants();
    const Outcome outcome = run_case(&entrants, subject, crew_, options_.protocol).value();
    report(c, workload, subject, entrants, outcome);
    return outcome.wrong;
  }

 private:
  bool is_root() { return runtime_.world().rank() == 0; }
  bool has_link() const { return runtime_.options().link.enabled; }
  Normal data() const { return {options_.protocol.seed, 0, 1, 0, 0, options_.data == "ramp"}; }

  void refuse_low_entropy(Workload& workload) {
    const base::Result<std::string> why = workload.refusal();
    if (!why.ok()) why.status().or_throw();
    if (crew_.max_over_ranks(why->empty() ? 0 : 1).value() > 0)
      throw_error(Errc::invalid_argument,
                  "--data: refused for timing: " + (why->empty() ? "that of another rank" : *why));
  }

  void report(const Case& c, const Workload& workload, const Operators& subject, std::vector<Entrant>& entrants,
              const Outcome& outcome) {
    std::vector<base::Json> records;
    for (size_t i = 0; i < entrants.size(); ++i) {
      Entrant& x = entrants[i];
      x.same_bits = subject.same_bits(i);
      const std::vector<base::Json> clocks = crew_.gather(clocks_json(x.clocks)).value();
      if (is_root()) records.push_back(record(c, workload, subject.schedule(i), x, outcome, clocks));
    }
    if (!is_root()) return;
    append_records(options_.run, records).or_throw();
    std::printf("%s %s  M %ld  N %ld  K %ld  %s  %d ranks\n", c.op.c_str(), c.name.c_str(), static_cast<long>(c.m),
                static_cast<long>(c.n), static_cast<long>(c.k), dtype_name(c.dtype), runtime_.world().size());
    for (const Entrant& x : entrants) {
      if (x.is_timed())
        std::printf("  %-26s %9.1f us  host %6.1f us  err %.2e%s  %s\n", x.name.c_str(), base::median(x.samples_us),
                    base::median(x.host_us), x.before.rms_error, x.same_bits ? " =bits" : "", x.reason.c_str());
      else
        std::printf("  %-26s %s %s\n", x.name.c_str(), x.status == "ok" ? "verified" : x.status.c_str(),
                    x.reason.c_str());
    }
    std::fflush(stdout);
  }

  base::Json record(const Case& c, const Workload& workload, const spec::Schedule& schedule, const Entrant& x,
                    const Outcome& outcome, const std::vector<base::Json>& clocks) {
    base::Json shape = base::Json::object(), method = base::Json::object(), flags = base::Json::array();
    shape.set("name", c.name).set("m", c.m).set("n", c.n).set("k", c.k);
    if (c.activation != spec::Activation::none) shape.set("activation", spec::name_of(c.activation));
    method.set("repetitions", options_.protocol.repetitions).set("lead_in", 0.2);
    method.set("bytes_rotated", workload.bytes_rotated()).set("n", x.calls);
    base::Json row = new_record(head_, c.op, std::move(shape), x.name);
    row.set("dtype", dtype_name(c.dtype)).set("team", runtime_.world().size()).set("launch", options_.launch);
    row.set("data", base::format("{}, weights / sqrt(K), seed {}",
                                 options_.data == "normal" ? "normal(0,1)" : options_.data, options_.protocol.seed));
    row.set("method", method).set("schedule", schedule.family).set("reason", x.reason).set("status", x.status);
    for (const auto& [member, param] : {std::pair{"degree", "q"}, {"tile_n", "tile_n"}})
      if (const auto found = schedule.params.find(param); found != schedule.params.end())
        row.set(member, std::get<int64_t>(found->second));
    if (x.has_output && x.before.sampled > 0) {
      base::Json verify = base::Json::object();
      verify.set("oracle", base::format("fp64, {} sampled elements and every element against the first competitor",
                                        x.before.sampled));
      verify.set("ok", x.status == "ok").set("rms_error", x.before.rms_error).set("max_error", x.before.max_error);
      verify.set("rms_error_after", x.after.rms_error).set("same_bits_as_library", x.same_bits);
      row.set("verify", verify);
    }
    row.set("flops", workload.flops());
    row.set("bytes", workload.bytes_sent());
    if (runtime_.is_emulated()) flags.push_back("emulated");
    if (x.is_timed()) {
      const double host_us = base::median(x.host_us);
      row.set("time_us", time_json(x.samples_us)).set("host_us", host_us);
      if (device_.is_gpu()) row.set("clocks", base::Json::array(base::Json::Array(clocks.begin(), clocks.end())));
      bool attested = true;
      for (const ClockSample& one : x.clocks) attested = attested && one.ok;
      if (!attested) flags.push_back("unattested");
      if (outcome.unsettled) flags.push_back("unsettled");
      // Calls on CPU ranks return when they are done: their time is the host's.
      if (device_.is_gpu() && host_us > 0.9 * base::median(x.samples_us)) flags.push_back("host_bound");
    }
    return row.set("flags", flags);
  }

  const Options& options_;
  Runtime& runtime_;
  Device& device_;
  Channel& channel_;
  TeamCrew crew_;
  RecordHead head_;
};

int run_main(int argc, char** argv) {
  Options options = parse(argc, argv);
  std::string why;
  const bool on_gpus = options.backend == "cuda_peer" ||
                       (options.backend == "auto" && options.link.empty() && runtime::cuda_device_count(&why) > 0);
  if (options.cases.set.empty()) options.cases.set = on_gpus ? "smoke" : "cpu";
  if (!on_gpus && options.protocol.least_calls > 3) options.protocol.least_calls = 3;
  const std::vector<Case> cases = load_cases(options.cases).value();
  if (cases.empty()) throw_error(Errc::invalid_argument, "--filter " + options.cases.filter + " leaves no case");
  const std::unique_ptr<Bootstrap> bootstrap = environment_bootstrap();
  RuntimeOptions runtime_options = RuntimeOptions::from_environment();
  runtime_options.backend = on_gpus ? Backend::cuda_peer : Backend::cpu;
  runtime_options.heap_bytes = size_t(options.heap_gib > 0 ? options.heap_gib : on_gpus ? 12 : 1) << 30;
  if (!options.link.empty()) runtime_options.link = LinkOptions::parse(options.link);
  Runtime runtime = Runtime::open(*bootstrap, runtime_options);
  const std::unique_ptr<Device> device = open_device(runtime.device()).value();
  int wrong = 0;
  {
    Bench bench(options, runtime, *device);
    for (const Case& c : cases) wrong += bench.run_one(c);
  }
  runtime.synchronize();
  runtime.close();
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  return overlace::bench::run_program("bench_dense", argc, argv, overlace::bench::run_main);
}
