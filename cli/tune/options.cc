// Options of `overlace tune`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/tune/tune.h"

namespace overlace::cli {

Command add_tune(CLI::App& app) {
  const auto words = std::make_shared<TuneWords>();
  CLI::App* tune = app.add_subcommand("tune", "Measure the best schedules of a model or of shapes, for `auto` to take");
  tune->add_option("--config", words->config, "Shipped model or config.json, whose sites are measured");
  tune->add_option("--tokens", words->tokens, "Tokens of the whole team, with --config: 64,1024,4096");
  tune->add_option("--shape", words->shapes, "OP:MxNxK, M of the whole team, N and K of one rank; may be repeated")
      ->take_all();
  tune->add_option("-n,--ranks", words->ranks, "Ranks (default: the GPUs, else 2 CPU ranks)");
  tune->add_option("--backend", words->backend, "auto, cpu or cuda_peer")->capture_default_str();
  tune->add_option("--machine", words->machine, "A shipped machine or FILE.json (default: as `auto` finds it)");
  tune->add_option("--dtype", words->dtype, "fp32, bf16 or fp16 (default: fp32, on GPUs bf16)");
  tune->add_option("--cache", words->cache, "File that keeps the winners (default: OVERLACE_PLAN_CACHE)");
  tune->add_option("--seconds", words->seconds, "Begin no problem after so long; another call goes on from there");
  tune->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
  tune->add_flag("--quiet", words->quiet, "No progress bar");
  tune->get_option("--ranks")->check(number_error<int64_t>);
  return {tune, [words] { return cli::tune(*words); }};
}

}  // namespace overlace::cli
