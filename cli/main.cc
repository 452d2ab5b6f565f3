// The command line: words become options; everything else lives beside this file.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "cli/bench/bench.h"
#include "cli/calibrate/calibrate.h"
#include "cli/doctor/doctor.h"
#include "cli/gnn/options.h"
#include "cli/plan/plan.h"
#include "cli/run/outputs.h"
#include "cli/run/run.h"
#include "cli/sim/check.h"
#include "cli/sim/graph.h"
#include "cli/sim/losses.h"
#include "cli/sim/sim.h"
#include "cli/sim/sweep.h"
#include "cli/sim/t3.h"
#include "cli/sim/validate.h"
#include "cli/trace/trace.h"
#include "cli/version.h"
#include "overlace/error.h"
#include "src/base/env.h"
#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/status.h"
#include "src/spec/operators.h"

namespace {

using overlace::Errc;
using overlace::cli::RunOptions;

int fail(Errc code, const std::string& message) {
  std::fprintf(stderr, "overlace: error: %s\n", message.c_str());
  return overlace::exit_code(code);
}

/// CLI11 takes what it can of a number that is too large; this does not.
template <class Number>
std::string number_error(const std::string& text) {
  Number value = 0;
  const auto [stop, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && stop == text.data() + text.size()) return {};
  return "it is " + text + ", wanted a whole number" + (std::is_signed_v<Number> ? "" : " that is not negative");
}

void add_run(CLI::App& app, RunOptions* o) {
  CLI::App* run = app.add_subcommand("run", "Run decoder layers over several ranks with their communication hidden");
  run->footer("`overlace run -n N -- PROGRAM ...` starts any program on N ranks instead.");
  run->add_option("-n,--ranks", o->ranks, "Ranks (default: the GPUs, else 2 CPU ranks)");
  run->add_option("--config", o->config, "Shipped model or config.json (default: tiny, on GPUs Llama-3.1-8B)");
  run->add_option("--checkpoint", o->checkpoint,
                  "Directory with safetensors and config.json (default: seeded weights)");
  run->add_option("--layers", o->layers, "Decoder layers (default: all; 1 of a large shipped model)");
  run->add_option("--tokens", o->tokens, "Tokens of the whole team");
  run->add_option("--sequence-length", o->sequence_length, "Tokens of a sequence; attention stays within");
  run->add_option("--dtype", o->dtype, "fp32, bf16 or fp16 (default: fp32, on GPUs bf16)");
  run->add_option("--schedule", o->schedule, "auto, FAMILY, FAMILY:DEGREE or FILE.json")->capture_default_str();
  run->add_option("--backend", o->backend, "auto, cpu or cuda_peer")->capture_default_str();
  run->add_option("--seed", o->seed, "Of weights, input and order of measurements")->capture_default_str();
  run->add_option("--link", o->link, "Emulated link between CPU ranks, such as 2GB/s,20us, or none");
  run->add_option("--input", o->input, "Hidden states before the first layer: tokens x hidden, .npy");
  run->add_option("--output", o->output, "Hidden states after the last layer, .npy");
  run->add_option("--json", o->json, "Results as data; - is stdout");
  run->add_option("--trace", o->trace, "Timeline: .pftrace or .perfetto-trace (Perfetto), .json (Chrome)");
  run->add_option("--report", o->report, "Timeline and results as an HTML page");
  run->add_option("--repeat", o->repeat, "Repetitions of every measurement");
  run->add_option("--emulate-hosts", o->emulate_hosts,
                  "Ranks claim to be on so many hosts (CPU ranks: needs MPI; GPUs: NCCL)");
  run->add_flag("--quiet", o->quiet, "Print errors only");
  run->add_flag("--threads", o->threads, "Ranks are threads of one process");
  run->add_option("--error-fd", o->error_fd)->group("");
  for (const char* option : {"--ranks", "--layers", "--tokens", "--sequence-length", "--repeat", "--emulate-hosts"})
    run->get_option(option)->check(number_error<int64_t>);
  run->get_option("--seed")->check(number_error<uint64_t>);
}

struct DoctorWords {
  std::string json;
  bool no_link_test = false;
};

void add_doctor(CLI::App& app, DoctorWords* words) {
  CLI::App* doctor = app.add_subcommand("doctor", "What this machine has and what overlace will use");
  doctor->add_option("--json", words->json, "The same as data; - is stdout");
  doctor->add_flag("--no-link-test", words->no_link_test, "Start no ranks");
}

struct TraceWords {
  std::string from, to;
  overlace::cli::DiffWords diff;
};

void add_trace(CLI::App& app, TraceWords* words) {
  CLI::App* trace = app.add_subcommand("trace", "Look at timelines");
  trace->require_subcommand(1);
  CLI::App* info = trace->add_subcommand("info", "Ranks, duration, and what each lane did");
  info->add_option("file", words->from, "Timeline")->required();
  CLI::App* convert = trace->add_subcommand("convert", "Write a timeline in another format");
  convert->add_option("from", words->from, "Timeline")->required();
  convert->add_option("to", words->to, "Its ending chooses: .json, .pftrace, .perfetto-trace, .et (Chakra)")
      ->required();
  CLI::App* diff =
      trace->add_subcommand("diff", "Two timelines of the same work, task by task: measured and simulated");
  diff->add_option("first", words->diff.first, "Timeline")->required();
  diff->add_option("second", words->diff.second, "Timeline")->required();
  diff->add_option("--json", words->diff.json, "The same as data; - is stdout");
  diff->add_option("--match", words->diff.match, "id, or kind: the n-th of its kind on its rank")
      ->capture_default_str();
  diff->add_option("--rank", words->diff.rank, "This one alone (default: all)")->check(number_error<int64_t>);
  diff->add_option("--max-median", words->diff.max_median, "Exit code 1 where the median residual is above so many %");
}

void add_sim(CLI::App& app, overlace::cli::SimWords* words) {
  CLI::App* sim = app.add_subcommand("sim", "How long schedules would take on a machine, simulated");
  sim->require_subcommand(1);
  CLI::App* run = sim->add_subcommand("run", "One schedule");
  CLI::App* compare = sim->add_subcommand("compare", "All schedule families of an operator, beside bounds");
  run->add_option("--schedule", words->schedule, "FILE.json in place of --family and the shape");
  run->add_option("--family", words->family, "Schedule family")->capture_default_str();
  run->add_option("--op", words->op, overlace::spec::operator_names())->capture_default_str();
  run->add_option("--degree", words->degree, "Chunks per shard")->capture_default_str();
  run->add_option("--seeds", words->seeds, "So many runs with noise: p50 and p95");
  run->add_option("--trace", words->trace,
                  "Timeline: .pftrace or .perfetto-trace (Perfetto), .json (Chrome), .et (Chakra, a file per rank)");
  run->add_flag("--parts", words->parts, "Parts of fused kernels in the timeline, which a device does not report");
  compare->add_option("op", words->op, overlace::spec::operator_names())->required();
  for (CLI::App* one : {run, compare}) {
    one->add_option("--m", words->m, "Rows of the whole team");
    one->add_option("--n", words->n, "Columns, of one rank in ag_gemm");
    one->add_option("--k", words->k, "Depth, of one rank in gemm_rs and gemm_ar");
    one->add_option("--dtype", words->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
    one->add_option("-n,--ranks", words->ranks, "Ranks (default: the machine's)");
    one->add_option("--machine", words->machine, "A shipped machine or FILE.json")->capture_default_str();
    one->add_option("--calls", words->calls, "Calls in a row; their later half is timed")->capture_default_str();
    one->add_option("--json", words->json, "The same as data; - is stdout");
    for (const char* option : {"--m", "--n", "--k", "--ranks", "--calls"})
      one->get_option(option)->check(number_error<int64_t>);
  }
}

struct SimModelWords {
  overlace::cli::T3Words t3;
  overlace::cli::ValidateWords validate;
  overlace::cli::SweepWords sweep;
  overlace::cli::LossWords losses;
  overlace::cli::CheckWords check;
  overlace::cli::DlrmWords dlrm;
  overlace::cli::TransformerWords transformer;
  overlace::cli::MoeWords moe;
  overlace::cli::Co2Words co2;
};

/// Subcommands of `sim` that need no schedule.
void add_sim_models(CLI::App& sim, SimModelWords* words) {
  CLI::App* t3 = sim.add_subcommand("t3", "What T3's hardware would give to the sub-layers of a model");
  t3->add_option("--model", words->t3.model, "mega-gpt-2, t-nlg, gpt-3, palm or mt-nlg")->capture_default_str();
  t3->add_option("--tp", words->t3.tp, "Ranks")->capture_default_str()->check(number_error<int64_t>);
  t3->add_option("--config", words->t3.config, "all or one configuration")->capture_default_str();
  t3->add_option("--machine", words->t3.machine, "A shipped machine or FILE.json (default: the paper's)");
  t3->add_option("--update-cost", words->t3.update_cost, "Memory time of an update, in writes");
  t3->add_option("--comm-cost", words->t3.comm_cost, "Memory time of communication's accesses, in the GEMM's");
  t3->add_option("--dram", words->t3.dram_GBps, "GB/s");
  t3->add_option("--link", words->t3.link_GBps, "GB/s");
  t3->add_option("--share", words->t3.share, "Of an iteration in these sub-layers: end to end");
  t3->add_flag("--direct", words->t3.is_direct, "Every rank reaches every other");
  t3->add_flag("--sensitivity", words->t3.is_sensitivity, "Speed-ups over a grid of the two fitted constants");
  CLI::App* validate =
      sim.add_subcommand("validate", "The models beside published numbers; 1 where a required row misses");
  validate->add_option("ids", words->validate.ids, "V1, V2, ... (default: all)");
  validate->add_option("--golden", words->validate.golden, "Folder of the published numbers")->capture_default_str();
  validate->add_option("--page", words->validate.page, "Write the table as Markdown");
  t3->add_option("--json", words->t3.json, "The same as data; - is stdout");
  validate->add_option("--json", words->validate.json, "The same as data; - is stdout");
}

/// What the graphs on any network have in common.
void add_graph_words(CLI::App* graph, overlace::cli::GraphWords* words) {
  graph
      ->add_option("--network", words->network.network,
                   "all (torus and rail), torus, rail, a blueprint such as ring(8, 25), or FILE.json")
      ->capture_default_str();
  graph->add_option("--gpus", words->network.gpus, "GPUs (default: 128, or what the network has)")
      ->check(number_error<int64_t>);
  graph->add_option("--link", words->network.link_GBps, "GB/s of a torus link or a NIC");
  graph->add_option("--machine", words->machine, "A shipped machine or FILE.json: what GPUs compute")
      ->capture_default_str();
  graph->add_option("--trace", words->trace,
                    "Timeline of the overlapped row (.pftrace, .json), or Chakra traces, one per rank (.et)");
  graph->add_option("--json", words->json, "The same as data; - is stdout");
}

void add_transformer(CLI::App& graphs, overlace::cli::TransformerWords* words) {
  CLI::App* graph = graphs.add_subcommand("transformer", "A training step: tensor, data and pipeline parallel");
  add_graph_words(graph, words);
  const auto add = [graph](const char* name, auto* value, const char* what) {
    graph->add_option(name, *value, what)->capture_default_str()->check(number_error<int64_t>);
  };
  add("--tensor", &words->run.tensor, "Ranks that share a layer");
  add("--pipeline", &words->run.pipeline, "Stages");
  add("--micro-batches", &words->run.micro_batches, "Of a replica and step");
  add("--sequences", &words->run.sequences, "Of a micro-batch");
  add("--chunks", &words->chunks, "Of a transfer that hides behind a product");
  add("--hidden", &words->model.hidden, "Width of the model");
  add("--intermediate", &words->model.intermediate, "Width between the products of the MLP");
  add("--layers", &words->model.layers, "Layers");
  add("--heads", &words->model.heads, "Attention heads");
  add("--kv-heads", &words->model.kv_heads, "Key-value heads");
  add("--sequence", &words->model.sequence, "Tokens of a sequence");
  add("--vocabulary", &words->model.vocabulary, "Tokens of the vocabulary");
  graph->add_option("--straggler", words->straggler, "One replica computes so many times as long")
      ->capture_default_str();
}

void add_moe(CLI::App& graphs, overlace::cli::MoeWords* words) {
  CLI::App* graph = graphs.add_subcommand("moe", "An expert-parallel layer: dispatch, experts, combine");
  add_graph_words(graph, words);
  const auto add = [graph](const char* name, auto* value, const char* what) {
    graph->add_option(name, *value, what)->capture_default_str()->check(number_error<int64_t>);
  };
  add("--group", &words->run.group, "Ranks that share all experts (0: all of them)");
  add("--chunks", &words->chunks, "Of the tokens, whose transfers hide behind products");
  add("--tokens", &words->model.tokens, "Of a rank");
  add("--hidden", &words->model.hidden, "Width of the model");
  add("--intermediate", &words->model.intermediate, "Width of an expert");
  add("--experts", &words->model.experts, "Experts of a group");
  add("--top-k", &words->model.top_k, "Experts of a token");
  graph->add_option("--zipf", words->run.zipf, "Popularity of experts ~ 1 / place^ZIPF; 0: all alike")
      ->capture_default_str();
  graph->add_option("--seed", words->run.seed, "Which experts are popular")
      ->capture_default_str()
      ->check(number_error<uint64_t>);
  graph->add_option("--counts", words->counts, R"(FILE.json with {"counts": [[tokens of rank for expert, ..], ..]})");
}

void add_co2(CLI::App& graphs, overlace::cli::Co2Words* words) {
  CLI::App* graph = graphs.add_subcommand("co2", "Data parallel training with local steps, CO2 and its peers");
  add_graph_words(graph, words);
  graph->add_option("--rule", words->rule, "all, ddp, local_sgd, slow_mo, diloco, co2, eager or streaming")
      ->capture_default_str();
  graph->add_option("--group", words->run.per_group, "Ranks of a replica (0: those of a host)")
      ->capture_default_str()
      ->check(number_error<int64_t>);
  const auto whole = [graph](const char* name, int* value, const char* what) {
    graph->add_option(name, *value, what)->capture_default_str()->check(number_error<int64_t>);
  };
  whole("--period", &words->run.period, "Steps of a round");
  whole("--rounds", &words->run.rounds, "Rounds; their later half is timed");
  whole("--fragments", &words->run.fragments, "Parts that streaming sends in turn");
  whole("--delay", &words->run.delay, "Steps until streaming works a part in");
  const auto number = [graph](const char* name, double* value, const char* what) {
    graph->add_option(name, *value, what)->capture_default_str();
  };
  number("--parameters", &words->run.parameters, "Of the model");
  number("--wire-bytes", &words->run.wire_bytes, "Of a parameter on the network");
  number("--step-us", &words->run.step_us, "Of an inner step");
  number("--update-us", &words->run.pass_us, "Of the outer update (< 0: 32 bytes per parameter through memory)");
  number("--all-reduce-us", &words->run.all_reduce_us, "Of all increments (< 0: messages on the network)");
  number("--sigma", &words->run.sigma, "Of the log-normal factor of each step");
  graph->add_option("--seed", words->run.seed, "Of that factor")->capture_default_str()->check(number_error<uint64_t>);
}

void add_characterise(CLI::App& sim, overlace::cli::LossWords* w) {
  CLI::App* losses = sim.add_subcommand("characterise", "What cutting and running beside each other costs");
  losses->add_option("op", w->op, "ag_gemm, gemm_rs or gemm_ar")->required();
  losses->add_option("--m", w->m, "Rows of the whole team")->required();
  losses->add_option("--n", w->n, "Columns, of one rank in ag_gemm")->required();
  losses->add_option("--k", w->k, "Depth, of one rank in gemm_rs and gemm_ar")->required();
  losses->add_option("-n,--ranks", w->ranks, "Ranks (default: the machine's)");
  losses->add_option("--degrees", w->degrees, "Parts of a shard")->capture_default_str();
  losses->add_option("--machine", w->machine, "A shipped machine or FILE.json")->capture_default_str();
  losses->add_option("--dtype", w->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
  losses->add_option("--plot", w->plot, "Both losses over the parts: .svg or .html");
  losses->add_option("--json", w->json, "The same as data; - is stdout");
  for (const char* option : {"--m", "--n", "--k", "--ranks"}) losses->get_option(option)->check(number_error<int64_t>);
}

void add_sweep_and_check(CLI::App& sim, SimModelWords* words) {
  CLI::App* sweep = sim.add_subcommand("sweep", "Schedules over lists of parameters: table, data, plot");
  overlace::cli::SweepWords* w = &words->sweep;
  sweep->add_option("op", w->op, overlace::spec::operator_names())->required();
  sweep->add_option("--m", w->m, "Rows of the whole team, such as 1024,2048")->required();
  sweep->add_option("--n", w->n, "Columns, of one rank in ag_gemm")->required();
  sweep->add_option("--k", w->k, "Depth, of one rank in gemm_rs and gemm_ar")->required();
  sweep->add_option("-n,--ranks", w->ranks, "Ranks (default: the machine's)");
  sweep->add_option("--families", w->families, "all, or a list")->capture_default_str();
  sweep->add_option("--degrees", w->degrees, "Of which the fastest counts")->capture_default_str();
  sweep->add_option("--machines", w->machines, "Shipped machines or FILE.json")->capture_default_str();
  sweep->add_option("--dtype", w->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
  sweep->add_option("--calls", w->calls, "Calls in a row; their later half is timed")
      ->capture_default_str()
      ->check(number_error<int64_t>);
  sweep->add_option("--plot", w->plot, "Lines over the first number that varies: .svg or .html");
  sweep->add_option("--json", w->json, "The same as data; - is stdout");
  add_characterise(sim, &words->losses);
  CLI::App* check = sim.add_subcommand(
      "check", "Properties that every simulation must have, on a machine; 1 where one does not hold");
  check->add_option("--machine", words->check.machine, "A shipped machine or FILE.json")->capture_default_str();
  check->add_flag("--validate", words->check.validates, "The models beside published numbers too");
  check->add_option("--golden", words->check.golden, "Folder of the published numbers")->capture_default_str();
  check->add_option("--json", words->check.json, "The same as data; - is stdout");
}

void add_graphs(CLI::App& sim, SimModelWords* words) {
  CLI::App* graphs = sim.add_subcommand("graph", "Whole steps over many GPUs");
  graphs->require_subcommand(1);
  CLI::App* dlrm = graphs->add_subcommand("dlrm", "A step of a recommendation model on 128 GPUs");
  dlrm->add_option("--network", words->dlrm.network, "all, torus, ring or rail")->capture_default_str();
  dlrm->add_option("--tables", words->dlrm.tables, "Of a GPU (default: the band over 1 to 8)");
  dlrm->add_option("--local-batch", words->dlrm.local_batch, "Samples of a GPU (default: the band over 256 to 4096)");
  for (const char* option : {"--tables", "--local-batch"}) dlrm->get_option(option)->check(number_error<int64_t>);
  dlrm->add_option("--json", words->dlrm.json, "The same as data; - is stdout");
  add_transformer(*graphs, &words->transformer);
  add_moe(*graphs, &words->moe);
  add_co2(*graphs, &words->co2);
}

int run_graph(const CLI::App& graphs, const SimModelWords& words) {
  if (graphs.got_subcommand("transformer")) return overlace::cli::sim_graph_transformer(words.transformer);
  if (graphs.got_subcommand("moe")) return overlace::cli::sim_graph_moe(words.moe);
  if (graphs.got_subcommand("co2")) return overlace::cli::sim_graph_co2(words.co2);
  return overlace::cli::sim_graph_dlrm(words.dlrm);
}

int run_sim(const CLI::App& sim, const overlace::cli::SimWords& words, const SimModelWords& models) {
  if (sim.got_subcommand("t3")) return overlace::cli::sim_t3(models.t3);
  if (sim.got_subcommand("validate")) return overlace::cli::sim_validate(models.validate);
  if (sim.got_subcommand("sweep")) return overlace::cli::sim_sweep(models.sweep);
  if (sim.got_subcommand("characterise")) return overlace::cli::sim_characterise(models.losses);
  if (sim.got_subcommand("check")) return overlace::cli::sim_check(models.check);
  if (sim.got_subcommand("graph")) return run_graph(*sim.get_subcommand("graph"), models);
  return sim.got_subcommand("run") ? overlace::cli::sim_run(words) : overlace::cli::sim_compare(words);
}

/// `explain` is `plan` with the reasons spelled out.
void add_plan(CLI::App& app, const char* name, const char* what, overlace::cli::PlanWords* words) {
  CLI::App* plan = app.add_subcommand(name, what);
  plan->add_option("op", words->op, overlace::spec::operator_names())->capture_default_str();
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
}

void add_calibrate(CLI::App& app, overlace::cli::CalibrateWords* words) {
  CLI::App* calibrate = app.add_subcommand("calibrate", "Measure this machine and write its machine file");
  calibrate->add_option("-n,--ranks", words->ranks, "Ranks (default: the GPUs, else 2 CPU ranks)");
  calibrate->add_option("--name", words->name, "Of the machine")->capture_default_str();
  calibrate->add_option("--out", words->out, "FILE.json (default: NAME.json)");
  calibrate->add_option("--backend", words->backend, "auto, cpu or cuda_peer")->capture_default_str();
  calibrate->add_option("--dtype", words->dtype, "Of products: fp32, bf16 or fp16 (default: fp32, on GPUs bf16)");
  calibrate->add_option("--minutes", words->minutes, "Time to take at most, about (default: 1, on GPUs 3)");
  calibrate->add_option("--max-residual", words->max_residual,
                        "Refuse fits whose median is further off, in % (default: 20, on GPUs 5)");
  calibrate->get_option("--ranks")->check(number_error<int64_t>);
}

int run_doctor(const DoctorWords& words) {
  const bool as_json = words.json == "-";
  overlace::cli::DoctorOptions options;
  options.link_test = !words.no_link_test;
  const overlace::base::Json report = overlace::cli::doctor(options);
  overlace::cli::print(as_json ? report.dump(2) + "\n" : overlace::cli::doctor_text(report)).or_throw();
  if (!as_json && !words.json.empty()) overlace::base::write_file(words.json, report.dump(2) + "\n").or_throw();
  const overlace::base::Json* ok = report.find("ok");
  return ok != nullptr && ok->is_bool() && ok->as_bool() ? 0 : 1;
}

int run_trace(const CLI::App& trace, const TraceWords& words) {
  if (trace.got_subcommand("diff")) return overlace::cli::trace_diff(words.diff);
  if (trace.got_subcommand("convert")) {
    overlace::cli::trace_convert(words.from, words.to).or_throw();
    return 0;
  }
  overlace::cli::print(overlace::cli::trace_info(words.from).value()).or_throw();
  return 0;
}

void log_to_stderr() {
  using overlace::base::LogLevel;
  const std::string& wanted = overlace::base::env().log;
  if (wanted == "off") return;
  const LogLevel level = wanted == "debug"   ? LogLevel::debug
                         : wanted == "info"  ? LogLevel::info
                         : wanted == "error" ? LogLevel::error
                                             : LogLevel::warn;
  const auto sink = [](LogLevel, std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  overlace::base::set_log_sink(sink, level);
}

bool is_subcommand(const std::string& word) {
  return word == "run" || word == "doctor" || word == "trace" || word == "sim" || word == "plan" || word == "explain" ||
         word == "calibrate" || word == "gnn" || word == "bench";
}

/// What is wrong with the word behind `sim graph`, if anything.
std::string graph_error(int count, char** words) {
  const auto is = [&](int i, const char* word) { return count > i && std::strcmp(words[i], word) == 0; };
  if (!is(1, "sim") || !is(2, "graph") || count < 4 || words[3][0] == '-') return {};
  for (const char* known : {"dlrm", "transformer", "moe", "co2"})
    if (is(3, known)) return {};
  return std::string("graph is ") + words[3] + ", wanted dlrm, transformer, moe or co2";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "bench") == 0) return overlace::cli::bench({argv + 2, argv + argc});
  // NOTE: what follows "--" belongs to the program that `run` starts and is not ours to parse.
  int own = 0;
  while (own < argc && std::strcmp(argv[own], "--") != 0) ++own;
  RunOptions options;
  for (int i = own + 1; i < argc; ++i) options.program.emplace_back(argv[i]);
  if (argc > 1 && argv[1][0] != '-' && !is_subcommand(argv[1]))
    return fail(Errc::invalid_argument, std::string("unknown subcommand ") + argv[1] +
                                            ", wanted run, doctor, trace, sim, plan, explain, calibrate, gnn or bench");
  if (const std::string why = graph_error(own, argv); !why.empty()) return fail(Errc::invalid_argument, why);
  CLI::App app("overlace: communication hidden behind the computation that depends on it");
  app.set_version_flag("--version", std::string("overlace ") + overlace::cli::kVersion);
  app.require_subcommand(1);
  add_run(app, &options);
  DoctorWords doctor;
  add_doctor(app, &doctor);
  TraceWords trace;
  add_trace(app, &trace);
  overlace::cli::SimWords sim;
  add_sim(app, &sim);
  SimModelWords models;
  add_sim_models(*app.get_subcommand("sim"), &models);
  add_sweep_and_check(*app.get_subcommand("sim"), &models);
  add_graphs(*app.get_subcommand("sim"), &models);
  overlace::cli::PlanWords plan;
  add_plan(app, "plan", "Which schedule an operator should take on a machine", &plan);
  add_plan(app, "explain", "The same, with losses, a timeline, and what would make another one win", &plan);
  overlace::cli::CalibrateWords calibrate;
  add_calibrate(app, &calibrate);
  overlace::cli::GnnWords gnn;
  overlace::cli::add_gnn(app, &gnn);
  app.add_subcommand("bench", "Measure workloads beside their competitors");
  try {
    app.parse(own, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    return fail(Errc::invalid_argument, e.what());
  }
  try {
    log_to_stderr();
    if (app.got_subcommand("doctor")) return run_doctor(doctor);
    if (app.got_subcommand("sim")) return run_sim(*app.get_subcommand("sim"), sim, models);
    plan.explain = app.got_subcommand("explain");
    if (plan.explain || app.got_subcommand("plan")) return overlace::cli::plan(plan);
    if (app.got_subcommand("calibrate")) return overlace::cli::calibrate(calibrate);
    if (app.got_subcommand("gnn")) return overlace::cli::run_gnn(*app.get_subcommand("gnn"), gnn);
    if (app.got_subcommand("trace")) return run_trace(*app.get_subcommand("trace"), trace);
    if (own < argc && options.program.empty())
      return fail(Errc::invalid_argument, "-- is followed by nothing, wanted a program and its arguments");
    return overlace::cli::run(options);
  } catch (...) {
    const auto status = overlace::base::status_of_current_exception();
    return fail(status.code(), status.message());
  }
}
