// Options of `overlace sim`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/sim/check.h"
#include "cli/sim/gnn.h"
#include "cli/sim/graph.h"
#include "cli/sim/losses.h"
#include "cli/sim/offload.h"
#include "cli/sim/sim.h"
#include "cli/sim/sweep.h"
#include "cli/sim/t3.h"
#include "src/spec/operators.h"

namespace overlace::cli {

namespace {

CLI::App* add_schedules(CLI::App& app, SimWords* words) {
  CLI::App* sim = app.add_subcommand("sim", "How long schedules would take on a machine, simulated");
  sim->require_subcommand(1);
  CLI::App* run = sim->add_subcommand("run", "One schedule");
  CLI::App* compare = sim->add_subcommand("compare", "All schedule families of an operator, beside bounds");
  run->add_option("--schedule", words->schedule, "FILE.json in place of --family and the shape");
  run->add_option("--family", words->family, "Schedule family")->capture_default_str();
  run->add_option("--op", words->op, spec::operator_names())->capture_default_str();
  run->add_option("--degree", words->degree, "Chunks per shard")->capture_default_str();
  run->add_option("--seeds", words->seeds, "Number of runs with noise, for p50 and p95");
  run->add_option("--trace", words->trace,
                  "Timeline: .pftrace or .perfetto-trace (Perfetto), .json (Chrome), .et (Chakra, a file per rank)");
  run->add_flag("--parts", words->parts, "Parts of fused kernels in the timeline, which a device does not report");
  compare->add_option("op", words->op, spec::operator_names())->required();
  for (CLI::App* one : {run, compare}) {
    one->add_option("--m", words->m, "Rows of the whole team");
    one->add_option("--n", words->n, "Columns, of one rank in ag_gemm");
    one->add_option("--k", words->k, "Depth, of one rank in gemm_rs and gemm_ar");
    one->add_option("--dtype", words->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
    add_fields(one, &words->fields);
    one->add_option("-n,--ranks", words->ranks, "Ranks (default: the machine's)");
    one->add_option("--machine", words->machine, kMachineWords);
    one->add_option("--calls", words->calls, "Calls in a row; their later half is timed")->capture_default_str();
    one->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
    for (const char* option : {"--m", "--n", "--k", "--ranks", "--calls"})
      one->get_option(option)->check(number_error<int64_t>);
  }
  return sim;
}

struct SimModelWords {
  T3Words t3;
  ValidateWords validate;
  SweepWords sweep;
  LossWords losses;
  CheckWords check;
  DlrmWords dlrm;
  TransformerWords transformer;
  MoeWords moe;
  Co2Words co2;
  GnnGraphWords gnn;
  OffloadGraphWords offload;
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
  t3->add_option("--share", words->t3.share, "Share of an iteration in these sub-layers, for end-to-end times");
  t3->add_flag("--direct", words->t3.is_direct, "Every rank reaches every other");
  t3->add_flag("--sensitivity", words->t3.is_sensitivity, "Speed-ups over a grid of the two fitted constants");
  CLI::App* validate =
      sim.add_subcommand("validate", "The models beside published numbers; 1 where a required row misses");
  validate->add_option("ids", words->validate.ids, "V1, V2, ... (default: all)");
  validate->add_option("--golden", words->validate.golden, "Folder of the published numbers")->capture_default_str();
  validate->add_option("--page", words->validate.page, "Write the table as Markdown");
  t3->add_option("--json", words->t3.json, "Write the result as JSON to this file; - is stdout");
  validate->add_option("--json", words->validate.json, "Write the result as JSON to this file; - is stdout");
}

/// What the graphs on any network have in common.
void add_graph_words(CLI::App* graph, GraphWords* words) {
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
  graph->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
}

void add_transformer(CLI::App& graphs, TransformerWords* words) {
  CLI::App* graph = graphs.add_subcommand("transformer", "A training step: tensor, data and pipeline parallel");
  add_graph_words(graph, words);
  const auto add = [graph](const char* name, auto* value, const char* what) {
    graph->add_option(name, *value, what)->capture_default_str()->check(number_error<int64_t>);
  };
  add("--tensor", &words->run.tensor, "Ranks that share a layer");
  add("--pipeline", &words->run.pipeline, "Stages");
  add("--micro-batches", &words->run.micro_batches, "Micro-batches of a replica in a step");
  add("--sequences", &words->run.sequences, "Sequences of a micro-batch");
  add("--chunks", &words->chunks, "Chunks of a transfer that hides behind a GEMM");
  add("--hidden", &words->model.hidden, "Width of the model");
  add("--intermediate", &words->model.intermediate, "Width between the GEMMs of the MLP");
  add("--layers", &words->model.layers, "Layers");
  add("--heads", &words->model.heads, "Attention heads");
  add("--kv-heads", &words->model.kv_heads, "Key-value heads");
  add("--sequence", &words->model.sequence, "Tokens of a sequence");
  add("--vocabulary", &words->model.vocabulary, "Tokens of the vocabulary");
  graph->add_option("--straggler", words->straggler, "One replica computes so many times as long")
      ->capture_default_str();
}

void add_moe(CLI::App& graphs, MoeWords* words) {
  CLI::App* graph = graphs.add_subcommand("moe", "An expert-parallel layer: dispatch, experts, combine");
  add_graph_words(graph, words);
  const auto add = [graph](const char* name, auto* value, const char* what) {
    graph->add_option(name, *value, what)->capture_default_str()->check(number_error<int64_t>);
  };
  add("--group", &words->run.group, "Ranks that share all experts (0: all of them)");
  add("--chunks", &words->chunks, "Chunks of the tokens, whose transfers hide behind GEMMs");
  add("--tokens", &words->model.tokens, "Tokens of a rank");
  add("--hidden", &words->model.hidden, "Width of the model");
  add("--intermediate", &words->model.intermediate, "Width of an expert");
  add("--experts", &words->model.experts, "Experts of a group");
  add("--top-k", &words->model.top_k, "Experts of a token");
  add("--shared-experts", &words->model.shared_experts, "Experts on every rank, for all of its tokens");
  graph->add_option("--zipf", words->run.zipf, "Popularity of experts ~ 1 / place^ZIPF; 0: all alike")
      ->capture_default_str();
  graph->add_option("--seed", words->run.seed, "Seed that chooses the popular experts")
      ->capture_default_str()
      ->check(number_error<uint64_t>);
  graph->add_option("--counts", words->counts,
                    R"(FILE.json with {"counts": [[copies of rank for expert, ..], ..]}, "rows", "expert_begin")");
  graph->add_option("--expert-begin", words->expert_begin,
                    "First expert of each rank, and the end (default: floor(r E / R))");
  graph->add_flag("--row-per-copy", words->run.is_row_per_copy,
                  "A row for each expert of a token, where else one goes to each rank that has any");
}

void add_co2(CLI::App& graphs, Co2Words* words) {
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
  number("--parameters", &words->run.parameters, "Parameters of the model");
  number("--wire-bytes", &words->run.wire_bytes, "Bytes of a parameter on the network");
  number("--step-us", &words->run.step_us, "Time of an inner step");
  number("--update-us", &words->run.pass_us, "Time of the outer update (< 0: 32 bytes per parameter through memory)");
  number("--all-reduce-us", &words->run.all_reduce_us,
         "Time of the all-reduce of all increments (< 0: messages on the network)");
  number("--sigma", &words->run.sigma, "Sigma of the log-normal factor of each step");
  graph->add_option("--seed", words->run.seed, "Seed of that factor")
      ->capture_default_str()
      ->check(number_error<uint64_t>);
}

void add_gnn_graph(CLI::App& graphs, GnnGraphWords* words) {
  CLI::App* graph = graphs.add_subcommand("gnn", "A training epoch of a graph network from packs, stage beside stage");
  graph->add_option("artefact", words->artefact, "Directory that `gnn pack` has filled")->required();
  graph->add_option("--packs", words->packs, "Name of the packs (default: all packs of train)");
  add_gnn_rates(graph, &words->rates);
  graph->add_option("--trace", words->trace, "Timeline of the last pipelined row (.pftrace, .json)");
  graph->add_option("--json", words->json, "Write the result as JSON to this file; - is stdout");
}

void add_graph_offload(CLI::App& graphs, OffloadGraphWords* words) {
  CLI::App* graph = graphs.add_subcommand("offload", "Passes over layers that do not fit, as they are planned");
  add_offload_words(graph, words);
  graph->add_option("--passes", words->passes, "Passes; some of their later half are timed")
      ->capture_default_str()
      ->check(number_error<int64_t>);
  graph->add_option("--slots", words->slots, "Slots for layers, on the device and between disk and link")
      ->capture_default_str()
      ->check(number_error<int64_t>);
  graph->add_option("--trace", words->trace, "Timeline of the overlapped row (.pftrace, .json)");
}

void add_characterise(CLI::App& sim, LossWords* w) {
  CLI::App* losses = sim.add_subcommand("characterise", "What cutting and running beside each other costs");
  losses->add_option("op", w->op, "ag_gemm, gemm_rs or gemm_ar")->required();
  losses->add_option("--m", w->m, "Rows of the whole team")->required();
  losses->add_option("--n", w->n, "Columns, of one rank in ag_gemm")->required();
  losses->add_option("--k", w->k, "Depth, of one rank in gemm_rs and gemm_ar")->required();
  losses->add_option("-n,--ranks", w->ranks, "Ranks (default: the machine's)");
  losses->add_option("--degrees", w->degrees, "Parts of a shard")->capture_default_str();
  losses->add_option("--machine", w->machine, kMachineWords);
  losses->add_option("--dtype", w->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
  losses->add_option("--plot", w->plot, "Both losses over the parts: .svg or .html");
  losses->add_option("--json", w->json, "Write the result as JSON to this file; - is stdout");
  for (const char* option : {"--m", "--n", "--k", "--ranks"}) losses->get_option(option)->check(number_error<int64_t>);
}

void add_sweep_and_check(CLI::App& sim, SimModelWords* words) {
  CLI::App* sweep = sim.add_subcommand("sweep", "Schedules over lists of parameters: table, data, plot");
  SweepWords* w = &words->sweep;
  sweep->add_option("op", w->op, spec::operator_names())->required();
  sweep->add_option("--m", w->m, "Rows of the whole team, such as 1024,2048")->required();
  sweep->add_option("--n", w->n, "Columns, of one rank in ag_gemm")->required();
  sweep->add_option("--k", w->k, "Depth, of one rank in gemm_rs and gemm_ar")->required();
  sweep->add_option("-n,--ranks", w->ranks, "Ranks (default: the machine's)");
  sweep->add_option("--families", w->families, "all, or a list")->capture_default_str();
  sweep->add_option("--degrees", w->degrees, "Chunks per shard; the fastest counts")->capture_default_str();
  sweep->add_option("--machines", w->machines,
                    "Shipped machines or FILE.json (default: H200s, by the number of ranks)");
  sweep->add_option("--dtype", w->dtype, "fp64, fp32, fp16 or bf16")->capture_default_str();
  add_fields(sweep, &w->fields);
  sweep->add_option("--calls", w->calls, "Calls in a row; their later half is timed")
      ->capture_default_str()
      ->check(number_error<int64_t>);
  sweep->add_option("--plot", w->plot, "Lines over the first number that varies: .svg or .html");
  sweep->add_option("--json", w->json, "Write the result as JSON to this file; - is stdout");
  add_characterise(sim, &words->losses);
  CLI::App* check = sim.add_subcommand(
      "check", "Properties that every simulation must have, on a machine; 1 where one does not hold");
  check->add_option("--machine", words->check.machine, "A shipped machine or FILE.json")->capture_default_str();
  check->add_flag("--validate", words->check.validates, "The models beside published numbers too");
  check->add_option("--golden", words->check.golden, "Folder of the published numbers")->capture_default_str();
  check->add_option("--json", words->check.json, "Write the result as JSON to this file; - is stdout");
}

void add_graphs(CLI::App& sim, SimModelWords* words) {
  CLI::App* graphs = sim.add_subcommand("graph", "Whole steps over many GPUs");
  graphs->require_subcommand(1);
  CLI::App* dlrm = graphs->add_subcommand("dlrm", "A step of a recommendation model on 128 GPUs");
  dlrm->add_option("--network", words->dlrm.network, "all, torus, ring or rail")->capture_default_str();
  dlrm->add_option("--tables", words->dlrm.tables, "Tables of a GPU (default: the band over 1 to 8)");
  dlrm->add_option("--local-batch", words->dlrm.local_batch, "Samples of a GPU (default: the band over 256 to 4096)");
  dlrm->add_option("--machine", words->dlrm.machine,
                   "A shipped machine or FILE.json: a step by simulated schedules, too (default: assumed rates alone)");
  for (const char* option : {"--tables", "--local-batch"}) dlrm->get_option(option)->check(number_error<int64_t>);
  dlrm->add_option("--json", words->dlrm.json, "Write the result as JSON to this file; - is stdout");
  add_transformer(*graphs, &words->transformer);
  add_moe(*graphs, &words->moe);
  add_co2(*graphs, &words->co2);
  add_gnn_graph(*graphs, &words->gnn);
  add_graph_offload(*graphs, &words->offload);
}

int run_graph(const CLI::App& graphs, const SimModelWords& words) {
  if (graphs.got_subcommand("transformer")) return sim_graph_transformer(words.transformer);
  if (graphs.got_subcommand("moe")) return sim_graph_moe(words.moe);
  if (graphs.got_subcommand("co2")) return sim_graph_co2(words.co2);
  if (graphs.got_subcommand("gnn")) return sim_graph_gnn(words.gnn);
  if (graphs.got_subcommand("offload")) return sim_graph_offload(words.offload);
  return sim_graph_dlrm(words.dlrm);
}

int run_sim(const CLI::App& sim, const SimWords& words, const SimModelWords& models) {
  if (sim.got_subcommand("t3")) return sim_t3(models.t3);
  if (sim.got_subcommand("validate")) return sim_validate(models.validate);
  if (sim.got_subcommand("sweep")) return sim_sweep(models.sweep);
  if (sim.got_subcommand("characterise")) return sim_characterise(models.losses);
  if (sim.got_subcommand("check")) return sim_check(models.check);
  if (sim.got_subcommand("graph")) return run_graph(*sim.get_subcommand("graph"), models);
  return sim.got_subcommand("run") ? sim_run(words) : sim_compare(words);
}

}  // namespace

Command add_sim(CLI::App& app) {
  const auto words = std::make_shared<SimWords>();
  const auto models = std::make_shared<SimModelWords>();
  CLI::App* sim = add_schedules(app, words.get());
  add_sim_models(*sim, models.get());
  add_sweep_and_check(*sim, models.get());
  add_graphs(*sim, models.get());
  return {sim, [sim, words, models] { return run_sim(*sim, *words, *models); }};
}

}  // namespace overlace::cli
