#include "cli/sim/offload.h"

#include <vector>

#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "cli/trace/trace.h"
#include "src/base/ceil_div_pod.h"
#include "src/base/format.h"
#include "src/model/layer_stream.h"
#include "src/model/sharding.h"
#include "src/study/workload/offload.h"

namespace overlace::cli {
namespace {

using base::Json;

double real(int64_t value) { return static_cast<double>(value); }

/// Layers as the run places them; those from the disk evenly among those that stream.
std::vector<study::Resting> places_of(const PlannedOffload& planned) {
  const auto shard = model::make_shard(planned.config, planned.problem, 0, planned.ranks).value();
  const auto placement = model::place_layers(planned.config, planned.problem, shard).value();
  std::vector<study::Resting> out;
  int64_t streamed = 0;
  for (const bool is_resident : placement.is_resident) {
    if (is_resident) {
      out.push_back(study::Resting::device);
      continue;
    }
    const int64_t disk = planned.plan.disk;
    const bool is_disk = streamed++ * disk % placement.streamed() < disk;
    out.push_back(is_disk ? study::Resting::disk : study::Resting::host);
  }
  return out;
}

study::OffloadRun run_of(const PlannedOffload& planned, const OffloadGraphWords& words) {
  const model::OffloadPlan& plan = planned.plan;
  study::OffloadRun run;
  run.layers = places_of(planned);
  run.compute_us = 1e6 * plan.compute_s / real(planned.problem.layers);
  run.flops = model::layer_flops(planned.config, planned.problem, planned.ranks, planned.problem.tokens);
  run.host_us = 1e6 * real(plan.layer_bytes) / planned.rates.host_bytes_per_s;
  run.disk_us = 1e6 * real(plan.layer_bytes) * planned.ranks / planned.rates.disk_bytes_per_s;
  run.layer_bytes = plan.layer_bytes;
  run.streams_bytes = plan.resting_bytes / 2;  // the other half is the input, which takes their place in layer 0
  run.streams_us = 1e6 * real(run.streams_bytes) / planned.rates.host_bytes_per_s;
  run.micro_batches = static_cast<int>(base::ceil_div(planned.problem.tokens, plan.micro_batch));
  run.slots = run.disk_slots = words.slots;
  run.passes = words.passes;
  return run;
}

Json row_json(const char* way, const study::OffloadTime& time) {
  Json one = Json::object();
  one.set("transfers", way).set("pass_us", time.pass_us).set("bound_us", time.bound_us());
  one.set("compute_us", time.compute_us).set("host_us", time.host_us).set("disk_us", time.disk_us);
  one.set("exposed_us", time.exposed_us()).set("contention_us", time.lost_us).set("binds", time.binds());
  return one;
}

}  // namespace

int sim_graph_offload(const OffloadGraphWords& words) {
  if (!words.trace.empty()) check_timeline_name(words.trace).or_throw();
  const spec::Machine machine = spec::find_machine(words.machine);
  const PlannedOffload planned = planned_offload(words);
  const study::OffloadRun whole = run_of(planned, words);
  std::string text = offload_text(planned) + "\n";
  text += base::format("{:<11} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8}  {}\n", "transfers", "pass ms",
                       "bound ms", "compute ms", "host ms", "disk ms", "exposed ms", "gain", "binds");
  Json list = Json::array();
  double whole_us = 0;
  for (const char* way : {"whole", "overlapped", "free"}) {
    study::OffloadRun run = whole;
    run.is_ahead = way != std::string("whole");
    if (way == std::string("free")) run.host_us = run.disk_us = run.streams_us = 0;
    const bool is_drawn = way == std::string("overlapped") && !words.trace.empty();
    base::Trace trace;
    const study::OffloadTime time = study::offload_passes(run, machine.contention, is_drawn ? &trace : nullptr).value();
    if (is_drawn) write_timeline(trace, words.trace).or_throw();
    if (whole_us == 0) whole_us = time.pass_us;
    text += base::format("{:<11} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>7.2f}x  {}\n", way,
                         time.pass_us * 1e-3, time.bound_us() * 1e-3, time.compute_us * 1e-3, time.host_us * 1e-3,
                         time.disk_us * 1e-3, time.exposed_us() * 1e-3, whole_us / time.pass_us, time.binds());
    list.push_back(row_json(way, time));
  }
  text += machine_line(machine) + "\n";
  write_result(with_schema("sim_graph_offload", std::move(list)), text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
