// Options of `overlace plan`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/plan/co2.h"
#include "cli/plan/offload.h"
#include "cli/plan/plan.h"
#include "src/spec/operators.h"

namespace overlace::cli {

void add_fields(CLI::App* parser, std::vector<std::string>* words) {
  parser->add_option("--field", *words, "A field of the operator, NAME=VALUE or NAME=@FILE; may be repeated")
      ->take_all();
}

namespace {

/// Returns the parser of `overlace plan co2`.
CLI::App* add_co2(CLI::App* plan, const std::shared_ptr<Co2PlanWords>& words) {
  CLI::App* co2 = plan->add_subcommand("co2", "How many inner steps a round of CO2 needs to hide its exchange");
  co2->add_option("--parameters", words->parameters, "Parameters of the model")->required();
  co2->add_option("--step-ms", words->step_ms, "Time of an inner step")->required();
  co2->add_option("--link", words->link, "Link between every two groups and shards: 1GB/s,50us");
  co2->add_option("--groups", words->groups, "Groups, with --link (default: 2)");
  co2->add_option("--network", words->network.network, "torus, rail, a blueprint such as ring(8, 25), or FILE.json");
  co2->add_option("--gpus", words->network.gpus, "GPUs of the network (default: 128, or what it has)");
  co2->add_option("--machine", words->machine, "Machine whose measured all-reduce counts: a shipped one or FILE.json");
  co2->add_option("--shards", words->shards, "Ranks of a group")->capture_default_str();
  co2->add_option("--wire-bytes", words->wire_bytes, "Bytes of a parameter on the network")->capture_default_str();
  co2->add_option("--tau", words->tau, "One more number of steps to look at");
  co2->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
  for (const char* option : {"--groups", "--gpus", "--shards", "--tau"})
    co2->get_option(option)->check(number_error<int64_t>);
  return co2;
}

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
  plan->add_option("--activation", words->activation,
                   "Activation of ag_gemm: none, or swiglu, which makes N / 2 columns")
      ->capture_default_str();
  plan->add_option("--exchange", words->exchange, "Exchange of gemm_a2a and a2a_gemm: rows or cols")
      ->capture_default_str();
  plan->add_option("--blocks", words->blocks, "Columns that travel with cols, in blocks: 4096,1024,1024");
  add_fields(plan, &words->fields);
  plan->add_option("-n,--ranks", words->ranks, "Ranks (default: the machine's)");
  plan->add_option("--machine", words->machine, kMachineWords);
  plan->add_option("--tier", words->tier, "rule, recurrence, simulation or probe")->capture_default_str();
  plan->add_flag("--paper-rule", words->paper_rule, "FiCCO's choice beside ours");
  plan->add_option("--check", words->check, "Check the schedule in FILE.json and plan nothing");
  plan->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
  for (const char* option : {"--m", "--n", "--k", "--ranks"}) plan->get_option(option)->check(number_error<int64_t>);
  if (explain) return {plan, [words] { return cli::plan(*words); }};
  const auto co2_words = std::make_shared<Co2PlanWords>();
  CLI::App* co2 = add_co2(plan, co2_words);
  return {plan, [words, co2, co2_words] { return co2->parsed() ? plan_co2(*co2_words) : cli::plan(*words); }};
}

/// `overlace plan offload`.
Command add_plan_offload(CLI::App& plan) {
  const auto words = std::make_shared<PlanOffloadWords>();
  CLI::App* offload = plan.add_subcommand("offload", "Where the layers of a model that does not fit should lie");
  add_offload_words(offload, words.get());
  return {offload, [words] { return plan_offload(*words); }};
}

}  // namespace

void add_offload_words(CLI::App* parser, PlanOffloadWords* words) {
  parser->add_option("--config", words->config, "Shipped model or config.json")->capture_default_str();
  parser->add_option("--device-memory", words->device_memory, "Memory of a rank for weights and activations: 16GiB");
  parser->add_option("--host-memory", words->host_memory, "Memory of the host for weights and activations of all ranks")
      ->capture_default_str();
  parser->add_option("--layers", words->layers, "Decoder layers (default: all)");
  parser->add_option("--tokens", words->tokens, "Tokens of the whole team (default: 16384)");
  parser->add_option("--sequence-length", words->sequence_length, "Tokens of a sequence (default: 4096)");
  parser->add_option("-n,--ranks", words->ranks, "Ranks of one host")->capture_default_str();
  parser->add_option("--dtype", words->dtype, "fp32, bf16 or fp16")->capture_default_str();
  parser->add_option("--machine", words->machine, "Machine whose rates of GEMMs, host link and disk count")
      ->capture_default_str();
  parser->add_option("--tflops", words->tflops, "Rate of a rank's GEMMs, instead of the machine's");
  parser->add_option("--host-gbps", words->host_gbps,
                     "Rate of copies from host memory to a rank (default: the machine's)");
  parser->add_option("--disk-gbps", words->disk_gbps, "Rate of reads from the host's disk (default: the machine's)");
  parser->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
  for (const char* option : {"--layers", "--tokens", "--sequence-length", "--ranks"})
    parser->get_option(option)->check(number_error<int64_t>);
}

Command add_plan(CLI::App& app) {
  const Command schedule = add_planner(app, "plan", "Which schedule an operator should take on a machine", false);
  const Command offload = add_plan_offload(*schedule.parser);
  return {schedule.parser, [schedule, offload] { return offload.parser->parsed() ? offload.run() : schedule.run(); }};
}

Command add_explain(CLI::App& app) {
  return add_planner(app, "explain",
                     "Explain that choice: losses, a timeline, and what would make another schedule win", true);
}

}  // namespace overlace::cli
