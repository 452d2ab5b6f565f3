// How good and how fast the simulator is; needs no GPU:
//   bench_sim [--machine NAME|FILE.json] [--records A.jsonl,B.jsonl] [--calls N] [--json FILE] [--speed] [--choices]
// --calls: simulated, 4; 0: the recurrence alone.
// With --records: predictions beside measurements, over shapes that a fit may see and shapes that are held out; with
// --choices also what the planner would have chosen among the measured schedules, and where that was not the best why.
#include <cstdio>

#include "bench/common/arguments.h"
#include "bench/sim/choices.h"
#include "bench/sim/network.h"
#include "bench/sim/records.h"
#include "bench/sim/speed.h"
#include "src/base/file.h"

namespace overlace::bench {
namespace {

base::Status run(int argc, char** argv) {
  RunFacts facts;
  std::string machine_name = "h200x4", json;
  std::vector<std::string> files;
  int calls = 4;
  bool wants_speed = false, wants_choices = false;
  Arguments arguments(&facts);
  arguments.add("--machine", &machine_name);
  arguments.add("--records", &files);
  arguments.add("--calls", &calls, 0);
  arguments.add("--json", &json);
  arguments.add("--speed", &wants_speed);
  arguments.add("--choices", &wants_choices);
  arguments.parse(argc, argv);
  if (files.empty() && !wants_speed)
    return base::invalid_argument("bench_sim: nothing to do, wanted --records or --speed");
  if (!files.empty()) {
    base::Result<std::vector<Measured>> list = read_records(files);
    if (!list.ok()) return list.status();
    const spec::Machine machine = spec::find_machine(machine_name);
    predict(*list, machine, calls);
    if (json != "-") std::fputs(report(*list).c_str(), stdout);
    if (json != "-" && wants_choices)
      std::fputs(("\n" + choices(*list, machine) + "\n" + misses(*list, machine)).c_str(), stdout);
    if (json == "-") std::fputs((as_json(*list).dump() + "\n").c_str(), stdout);
    if (json != "-" && !json.empty()) OVERLACE_TRY(base::write_file(json, as_json(*list).dump(1) + "\n"));
  }
  if (!wants_speed) return {};
  const base::Result<std::string> table = speed();
  if (!table.ok()) return table.status();
  std::fputs(table->c_str(), stdout);
  const base::Result<std::string> messages = network_speed();
  if (!messages.ok()) return messages.status();
  std::fputs(("\n" + *messages).c_str(), stdout);
  return {};
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  overlace::base::Status status;
  try {
    status = overlace::bench::run(argc, argv);
  } catch (...) {
    status = overlace::base::status_of_current_exception();
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_sim: error: %s\n", status.message().c_str());
  return overlace::exit_code(status.code());
}
