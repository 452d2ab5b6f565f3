// Options of `overlace run`.
#include "cli/run/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/options.h"
#include "cli/run/run.h"
#include "src/base/status.h"

namespace overlace::cli {

namespace {

CLI::App* add_run_options(CLI::App& app, RunOptions* o) {
  CLI::App* run = app.add_subcommand("run", "Run decoder layers over several ranks with their communication hidden");
  run->footer("`overlace run -n N -- PROGRAM ...` starts any program on N ranks instead.");
  run->add_option("-n,--ranks", o->ranks, "Ranks (default: the GPUs, else 2 CPU ranks)");
  run->add_option("--config", o->config,
                  "Shipped model or config.json (default: tiny, on GPUs Llama-3.1-8B, with --part moe tiny-moe)");
  run->add_option("--checkpoint", o->checkpoint,
                  "Directory with safetensors and config.json (default: seeded weights)");
  run->add_option("--layers", o->layers, "Decoder layers (default: all; 1 of a large shipped model)");
  run->add_option("--part", o->part, "What of a layer runs: all, or moe: router and experts alone")
      ->capture_default_str();
  run->add_option("--tokens", o->tokens, "Tokens of the whole team");
  run->add_option("--sequence-length", o->sequence_length, "Tokens of a sequence; attention stays within");
  run->add_option("--dtype", o->dtype, "fp32, bf16 or fp16 (default: fp32, on GPUs bf16)");
  run->add_option("--schedule", o->schedule, "auto, FAMILY, FAMILY:DEGREE, a list of SITE=FAMILY:DEGREE or FILE.json")
      ->capture_default_str();
  run->add_option("--backend", o->backend, "auto, cpu or cuda_peer")->capture_default_str();
  run->add_option("--seed", o->seed, "Seed of weights, input and order of measurements")->capture_default_str();
  run->add_option("--link", o->link, "Emulated link between CPU ranks, such as 2GB/s,20us, or none");
  run->add_option("--input", o->input, "Hidden states before the first layer: tokens x hidden, .npy");
  run->add_option("--output", o->output, "Hidden states after the last layer, .npy");
  run->add_option("--json", o->json, "Results as data; - is stdout");
  run->add_option("--trace", o->trace, "Timeline: .pftrace or .perfetto-trace (Perfetto), .json (Chrome)");
  run->add_option("--report", o->report, "Timeline and results as an HTML page");
  run->add_option("--repeat", o->repeat, "Repetitions of every measurement");
  run->add_option("--emulate-hosts", o->emulate_hosts,
                  "Ranks claim to be on so many hosts (CPU ranks: needs MPI; GPUs: NCCL)");
  run->add_option("--device-memory", o->device_memory,
                  "Memory of a rank for weights and activations; layers that do not fit stream (8GiB)");
  run->add_option("--weights", o->weights,
                  "Where layers stream from: host, or disk, which are the files of --checkpoint (default: host)");
  run->add_option("--micro-batch", o->micro_batch, "Tokens that walk through a layer together (default: all)");
  run->add_flag("--quiet", o->quiet, "Print errors only");
  run->add_flag("--threads", o->threads, "Ranks are threads of one process");
  run->add_option("--error-fd", o->error_fd)->group("");
  for (const char* option :
       {"--ranks", "--layers", "--tokens", "--sequence-length", "--repeat", "--emulate-hosts", "--micro-batch"})
    run->get_option(option)->check(number_error<int64_t>);
  run->get_option("--seed")->check(number_error<uint64_t>);
  return run;
}

}  // namespace

Command add_run(CLI::App& app, const std::optional<std::vector<std::string>>& program) {
  const auto options = std::make_shared<RunOptions>();
  options->program = program.value_or(std::vector<std::string>());
  return {add_run_options(app, options.get()), [options, is_named = program.has_value()] {
            if (is_named && options->program.empty())
              base::invalid_argument("-- is followed by nothing, wanted a program and its arguments").or_throw();
            return run(*options);
          }};
}

}  // namespace overlace::cli
