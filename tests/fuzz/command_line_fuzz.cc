// The command line of `overlace`, one argument per line. cli/main.cc as it is, with subcommands that only look at what
// they were given: CLI11 throws what it likes, and none of it may leave main.
// Sources: cli/
#include "cli/bench/bench.h"
#include "cli/calibrate/calibrate.h"
#include "cli/doctor/doctor.h"
#include "cli/plan/plan.h"
#include "cli/run/outputs.h"
#include "cli/run/run.h"
#include "cli/sim/check.h"
#include "cli/sim/gnn.h"
#include "cli/sim/graph.h"
#include "cli/sim/losses.h"
#include "cli/sim/offload.h"
#include "cli/sim/sim.h"
#include "cli/sim/sweep.h"
#include "cli/sim/t3.h"
#include "cli/trace/trace.h"
#include "cli/tune/tune.h"
#include "tests/fuzz/fuzz.h"

int overlace_main(int argc, char** argv);

namespace overlace::cli {

int run(const RunOptions& options) {
  FUZZ_REQUIRE(!options.schedule.empty() || options.program.empty());
  return 0;
}
// NOTE: it must not return, or `--json FILE` would be written.
base::Json doctor(const DoctorOptions&) { throw Unsupported(Errc::not_supported, "not in this program"); }
std::string doctor_text(const base::Json&) { return ""; }
int trace_info(const std::string&, const std::string&) { return 0; }
base::Status trace_convert(const std::string&, const std::string&) { return {}; }
int bench(const std::vector<std::string>&) { return 0; }  // it would become another program
int plan(const PlanWords&) { return 0; }
int calibrate(const CalibrateWords&) { return 0; }
int tune(const TuneWords&) { return 0; }
int sim_run(const SimWords&) { return 0; }
int sim_compare(const SimWords&) { return 0; }
int sim_t3(const T3Words&) { return 0; }
int sim_validate(const ValidateWords&) { return 0; }
int sim_graph_dlrm(const DlrmWords&) { return 0; }
int sim_graph_transformer(const TransformerWords&) { return 0; }
int sim_graph_moe(const MoeWords&) { return 0; }
int sim_graph_co2(const Co2Words&) { return 0; }
int sim_graph_gnn(const GnnGraphWords&) { return 0; }
int sim_graph_offload(const OffloadGraphWords&) { return 0; }
int sim_sweep(const SweepWords&) { return 0; }
int sim_characterise(const LossWords&) { return 0; }
int sim_check(const CheckWords&) { return 0; }
int trace_diff(const DiffWords&) { return 0; }
base::Status print(std::string_view) { return {}; }
base::Status check_writable(const char*, const std::string&) { return {}; }
base::Json with_schema(std::string_view, base::Json data) { return data; }
base::Status write_result(const base::Json&, std::string_view, const std::string&) { return {}; }

}  // namespace overlace::cli

namespace overlace::fuzz {

void run(std::string_view input) {
  if (input.find('\0') != std::string_view::npos) return;
  std::vector<std::string> words = split(input, '\n');
  words.insert(words.begin(), "overlace");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int status = overlace_main(static_cast<int>(words.size()), pointers.data());
  FUZZ_REQUIRE(status >= 0 && status != 70);
}

}  // namespace overlace::fuzz
