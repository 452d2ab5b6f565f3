// Options of `overlace doctor`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/doctor/doctor.h"
#include "cli/run/outputs.h"

namespace overlace::cli {

namespace {

struct DoctorWords {
  std::string json, python;
  bool no_link_test = false;
};

int run_doctor(const DoctorWords& words) {
  DoctorOptions options;
  options.link_test = !words.no_link_test;
  options.python = words.python;
  const base::Json report = doctor(options);
  write_result(report, doctor_text(report), words.json).or_throw();
  const base::Json* ok = report.find("ok");
  return ok != nullptr && ok->is_bool() && ok->as_bool() ? 0 : 1;
}

}  // namespace

Command add_doctor(CLI::App& app) {
  const auto words = std::make_shared<DoctorWords>();
  CLI::App* doctor = app.add_subcommand("doctor", "What this machine has and what overlace will use");
  doctor->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
  doctor->add_flag("--no-link-test", words->no_link_test, "Start no ranks");
  doctor->add_option("--python", words->python, "Interpreter to ask for its torch and for overlace's operators there")
      ->check([](const std::string& program) {
        return std::string(program.empty() ? "it is \"\", wanted an interpreter" : "");
      });
  return {doctor, [words] { return run_doctor(*words); }};
}

}  // namespace overlace::cli
