// Options of `overlace calibrate`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/calibrate/calibrate.h"

namespace overlace::cli {

Command add_calibrate(CLI::App& app) {
  const auto words = std::make_shared<CalibrateWords>();
  CLI::App* calibrate = app.add_subcommand("calibrate", "Measure this machine and write its machine file");
  calibrate->add_option("-n,--ranks", words->ranks, "Ranks (default: the GPUs, else 2 CPU ranks)");
  calibrate->add_option("--name", words->name, "Name of the machine")->capture_default_str();
  calibrate->add_option("--out", words->out, "FILE.json (default: NAME.json)");
  calibrate->add_option("--backend", words->backend, "auto, cpu or cuda_peer")->capture_default_str();
  calibrate->add_option("--dtype", words->dtype, "Type of GEMMs: fp32, bf16 or fp16 (default: fp32, on GPUs bf16)");
  calibrate->add_option("--minutes", words->minutes, "Time to take at most, about (default: 1, on GPUs 3)");
  calibrate->add_option("--disk", words->disk, "Measure the disk under this directory, too");
  calibrate->add_option("--disk-size", words->disk_size, "Size of the file that is written and read there")
      ->capture_default_str();
  calibrate->add_option("--max-residual", words->max_residual,
                        "Refuse fits whose median is further off, in % (default: 20, on GPUs 5)");
  calibrate->get_option("--ranks")->check(number_error<int64_t>);
  return {calibrate, [words] { return cli::calibrate(*words); }};
}

}  // namespace overlace::cli
