// Options of `overlace plan`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/plan/plan.h"
#include "src/spec/operators.h"

namespace overlace::cli {

namespace {

/// `explain` is `plan` with the reasons spelled out.
Command add_planner(CLI::App& app, const char* name, const char* what, bool explain) {
  const auto words = std::make_shared<PlanWords>();
  words->explain = explain;
  CLI::App* plan = app.add_subcommand(name, what);
  plan->add_option("op", words->op, spec::operator_names())->capture_default_str();
  plan->add_option("--m", words->m, "Rows of the whole team");
  plan->add_option("--n", words->n, "Columns, of one rank in ag_gemm");
  plan->add_option("--k", words->k, "Depth, of one rank in gemm_rs and gemm_ar");
  plan->add_option("--dtype", words->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
  plan->add_option("--activation", words->activation, "Of ag_gemm: none, or swiglu, which makes N / 2 columns")
      ->capture_default_str();
  plan->add_option("-n,--ranks", words->ranks, "Ranks (default: the machine's)");
  plan->add_option("--machine", words->machine, "A shipped machine or FILE.json")->capture_default_str();
  plan->add_option("--tier", words->tier, "rule, recurrence, simulation or probe")->capture_default_str();
  plan->add_flag("--paper-rule", words->paper_rule, "FiCCO's choice beside ours");
  plan->add_option("--check", words->check, "Check the schedule in FILE.json and plan nothing");
  plan->add_option("--json", words->json, "The same as data; - is stdout");
  for (const char* option : {"--m", "--n", "--k", "--ranks"}) plan->get_option(option)->check(number_error<int64_t>);
  return {plan, [words] { return cli::plan(*words); }};
}

}  // namespace

Command add_plan(CLI::App& app) {
  return add_planner(app, "plan", "Which schedule an operator should take on a machine", false);
}

Command add_explain(CLI::App& app) {
  return add_planner(app, "explain", "The same, with losses, a timeline, and what would make another one win", true);
}

}  // namespace overlace::cli
