// Options of `overlace trace`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/sim/sim.h"
#include "cli/trace/trace.h"

namespace overlace::cli {

namespace {

struct TraceWords {
  std::string from, to, json;
  DiffWords diff;
};

int run_trace(const CLI::App& trace, const TraceWords& words) {
  if (trace.got_subcommand("diff")) return trace_diff(words.diff);
  if (trace.got_subcommand("convert")) {
    trace_convert(words.from, words.to).or_throw();
    return 0;
  }
  return trace_info(words.from, words.json);
}

}  // namespace

Command add_trace(CLI::App& app) {
  const auto words = std::make_shared<TraceWords>();
  CLI::App* trace = app.add_subcommand("trace", "Look at timelines");
  trace->require_subcommand(1);
  CLI::App* info = trace->add_subcommand("info", "Ranks, duration, what each lane did, and how long each task took");
  info->add_option("file", words->from, "Timeline")->required();
  info->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
  CLI::App* convert = trace->add_subcommand("convert", "Write a timeline in another format");
  convert->add_option("from", words->from, "Timeline")->required();
  convert
      ->add_option("to", words->to,
                   "Timeline to write; its ending chooses: .json, .pftrace, .perfetto-trace, .et (Chakra)")
      ->required();
  CLI::App* diff =
      trace->add_subcommand("diff", "Two timelines of the same work, task by task: measured and simulated");
  diff->add_option("first", words->diff.first, "Timeline")->required();
  diff->add_option("second", words->diff.second, "Timeline")->required();
  diff->add_option("--json", words->diff.json, "Write the result as JSON to this file; - is stdout");
  diff->add_option("--match", words->diff.match, "id, or kind: the n-th of its kind on its rank")
      ->capture_default_str();
  diff->add_option("--rank", words->diff.rank, "Compare this rank only (default: all)")->check(number_error<int64_t>);
  diff->add_option("--max-median", words->diff.max_median, "Exit code 1 where the median residual is above so many %");
  return {trace, [trace, words] { return run_trace(*trace, *words); }};
}

}  // namespace overlace::cli
