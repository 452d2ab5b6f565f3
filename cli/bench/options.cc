// Options of `overlace bench`.
#include "cli/options.h"

#include <CLI/CLI.hpp>

#include "cli/bench/bench.h"

namespace overlace::cli {

Command add_bench(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("bench", "Measure workloads beside their competitors");
  add_python_options(parser, "bench");
  return {parser, [parser] { return bench(python_words(*parser)); }};
}

}  // namespace overlace::cli
