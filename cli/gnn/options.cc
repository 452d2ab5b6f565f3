// Options of `overlace gnn`.
#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/gnn/gnn.h"

namespace overlace::cli {

namespace {

void add_levels(CLI::App* app, GnnPackWords* w, const char* gpu, const char* cpu) {
  app->add_option("artefact", w->artefact, "Directory that `sample` has made")->required();
  app->add_option("--gpu-cache", w->gpu_cache, gpu)->capture_default_str();
  app->add_option("--cpu-cache", w->cpu_cache, cpu)->capture_default_str();
  app->add_option("--disk", w->disk, "Limit of packs and disk cache; 0: none")->capture_default_str();
  app->add_option("--json", w->json, "Write the result as JSON to this file; - is stdout");
}

void add_sample(CLI::App* gnn, GnnSampleWords* w) {
  CLI::App* sample = gnn->add_subcommand("sample", "Sample the batches of training epochs");
  sample->add_option("dataset", w->dataset, "Directory of the dataset")->required();
  sample->add_option("--out", w->out, "Directory of the artefact")->required();
  sample->add_option("--fanouts", w->fanouts, "In-neighbours per vertex, from the seeds outward; -1: all")
      ->delimiter(',')
      ->capture_default_str();
  sample->add_option("--batch-size", w->batch_size, "Seeds of a batch")->capture_default_str();
  sample->add_option("--epochs", w->epochs, "Training epochs sampled anew, which training takes in turn")
      ->capture_default_str();
  sample->add_option("--seed", w->seed, "Seed of all random numbers")->capture_default_str();
  sample->add_option("--splits", w->splits, "train, valid, test, separated by commas")->capture_default_str();
  sample->add_flag("--replace", w->replace, "An edge may be drawn again");
  sample->add_option("--threads", w->threads, "Threads (default: the cores); the files do not depend on it");
  sample->add_flag("--quiet", w->quiet, "No progress");
  sample->add_option("--json", w->json, "Write the result as JSON to this file; - is stdout");
}

void add_steps(CLI::App* gnn, GnnWords* words) {
  add_sample(gnn, &words->sample);
  CLI::App* plan = gnn->add_subcommand("plan", "Orders and depths ranked by the epochs they allow; nothing is written");
  add_levels(plan, &words->plan, "Memory of the GPU for caches and buffers; 0: it trains on CPUs",
             "Memory of the host for caches and buffers");
  plan->add_flag("--fit", words->plan.fits,
                 "Caches for three quarters of the memory that is free, and half of the GPU's");
  plan->add_option("--ranks", words->plan.ranks, "Ranks that train together, each with memory of these sizes")
      ->capture_default_str();
  add_gnn_rates(plan, &words->plan.rates);
  plan->add_option("--threads", words->plan.threads, "Threads (default: the cores)");
  CLI::App* pack = gnn->add_subcommand("pack", "Write the rows of each batch in the order of use; goes on if killed");
  GnnPackWords& p = words->pack;
  add_levels(pack, &p, "Rows that stay in the GPU's memory, in bytes", "Rows in the CPU's memory, in bytes");
  pack->add_option("--dataset", p.dataset, "Directory of the dataset (default: where it was sampled)");
  pack->add_option("--policy", p.policy, "belady, static, lru or none")->capture_default_str();
  pack->add_option("--order", p.order, "auto, fixed, segments or shuffle")->capture_default_str();
  pack->add_option("--segment", p.segment_batches, "Batches of a segment")->capture_default_str();
  pack->add_option("--depth", p.depth, "Batches that are read ahead")->capture_default_str();
  pack->add_option("--page", p.page_bytes, "Bytes of a page of the disk cache")->capture_default_str();
  pack->add_option("--memory", p.memory, "Limit of what is held of the features")->capture_default_str();
  pack->add_option("--ranks", p.ranks, "Ranks that train together, each with caches of these sizes")
      ->capture_default_str();
  pack->add_flag("--dry-run", p.is_dry, "Count the bytes, exactly, and write nothing");
  pack->add_flag("--quiet", p.quiet, "No progress");
  CLI::App* verify = gnn->add_subcommand("verify", "Check every checksum and index of an artefact");
  GnnVerifyWords& v = words->verify;
  verify->add_option("artefact", v.artefact, "Directory of the artefact")->required();
  verify->add_flag("--deep", v.deep, "Make every packed byte anew and compare");
  verify->add_flag("--repair", v.repairs, "Pack anew, from the dataset, the packs that are missing, cut or damaged");
  verify->add_option("--dataset", v.dataset, "Directory of the dataset (default: where it was sampled)");
  verify->add_option("--memory", v.memory, "Limit of what --repair holds of the features")->capture_default_str();
  verify->add_flag("--quiet", v.quiet, "No progress");
  verify->add_option("--json", v.json, "Write the result as JSON to this file; - is stdout");
  CLI::App* train = gnn->add_subcommand("train", "Train a model by PyTorch: python3 -m overlace.gnn.train");
  add_python_options(train, "gnn train");
}

int run_gnn(const CLI::App& gnn, const GnnWords& words) {
  if (gnn.got_subcommand("generate")) return gnn_generate(words.generate);
  if (gnn.got_subcommand("import")) return gnn_import(words.import);
  if (gnn.got_subcommand("info")) return gnn_info(words.info);
  if (gnn.got_subcommand("sample")) return gnn_sample(words.sample);
  if (gnn.got_subcommand("plan")) return gnn_plan(words.plan);
  if (gnn.got_subcommand("pack")) return gnn_pack(words.pack);
  if (gnn.got_subcommand("verify")) return gnn_verify(words.verify);
  if (gnn.got_subcommand("train")) return gnn_train(python_words(*gnn.get_subcommand("train")));
  return gnn_diskbench(words.diskbench);
}

}  // namespace

void add_gnn_rates(CLI::App* app, GnnRateWords* words) {
  app->add_option("--machine", words->machine, "Machine with figures of disk and host link: a shipped one or FILE.json")
      ->capture_default_str();
  const auto add = [app](const char* name, double* value, const char* what) {
    app->add_option(name, *value, what)->capture_default_str();
  };
  add("--compute-ms", &words->compute_ms, "Time in which a batch is computed");
  app->add_option("--link", words->link_GBps,
                  "GB/s of copies to a GPU (default: the machine's); 0: rows stay where they are");
  add("--check", &words->check_GBps, "GB/s of checksums; 0: no time");
  add("--gather", &words->gather_GBps, "GB/s of rows into their matrix and into the CPU cache; 0: no time");
}

Command add_gnn(CLI::App& app) {
  const auto shared = std::make_shared<GnnWords>();
  GnnWords* words = shared.get();
  CLI::App* gnn = app.add_subcommand("gnn", "Training on graphs whose features do not fit in memory");
  gnn->require_subcommand(1);
  CLI::App* generate = gnn->add_subcommand("generate", "Make a graph with features, labels and splits from a seed");
  GnnGenerateWords& g = words->generate;
  generate->add_option("--out", g.out, "Directory of the dataset")->required();
  generate->add_option("--model", g.model, "dcsbm or rmat")->capture_default_str();
  generate->add_option("--like", g.like, "Sizes as of papers, mag, friendster, igb or products");
  generate->add_option("--vertices", g.num_vertices, "Vertices (default: 65536, with --like 1048576)");
  generate->add_option("--dim", g.dim, "Numbers of a row (default: 128, or of --like)");
  generate->add_option("--seed", g.seed, "Seed of all random numbers")->capture_default_str();
  generate->add_option("--memory", g.memory, "Limit of what is held of edges and rows")->capture_default_str();
  generate->add_option("--threads", g.threads, "Threads (default: the cores); the files do not depend on it");
  CLI::App* import = gnn->add_subcommand("import", "Make a dataset of arrays that others wrote");
  GnnImportWords& i = words->import;
  import->add_option("from", i.from, "Directory to read")->required();
  import->add_option("--out", i.out, "Directory of the dataset");
  import->add_flag("--in-place", i.in_place, "FROM has features.npy, indptr.npy and indices.npy: describe it");
  import->add_option("--layout", i.layout, "auto, pyg, igb or ogb")->capture_default_str();
  import->add_flag("--both-directions", i.both_directions, "Store each edge as its reverse, too");
  import->add_flag("--bf16", i.bf16, "Features of 16-bit words are bf16");
  import->add_option("--classes", i.num_classes, "Classes (default: largest label + 1)");
  import->add_option("--memory", i.memory, "Limit of what is held of edges")->capture_default_str();
  add_steps(gnn, words);
  CLI::App* info = gnn->add_subcommand("info", "What a dataset or an artefact holds; files are checked by a sample");
  info->add_option("directory", words->info.dataset, "Directory of the dataset or artefact")->required();
  CLI::App* diskbench = gnn->add_subcommand("diskbench", "How fast the disk under a directory reads and writes");
  GnnDiskbenchWords& d = words->diskbench;
  diskbench->add_option("directory", d.directory, "Directory on that disk")->required();
  diskbench->add_option("--size", d.size, "Size of the file that is written and read")->capture_default_str();
  diskbench->add_option("--seconds", d.seconds, "Time of each measurement")->capture_default_str();
  diskbench->add_option("--machine", d.machine, "FILE.json: a machine that gets the figures, or where one is made");
  for (CLI::App* one : {generate, import, diskbench})
    one->add_flag("--quiet", one == generate ? g.quiet : one == import ? i.quiet : d.quiet, "No progress");
  generate->add_option("--json", g.json, "Write the result as JSON to this file; - is stdout");
  import->add_option("--json", i.json, "Write the result as JSON to this file; - is stdout");
  info->add_option("--json", words->info.json, "Write the result as JSON to this file; - is stdout");
  diskbench->add_option("--json", d.json, "Write the result as JSON to this file; - is stdout");
  return {gnn, [gnn, shared] { return run_gnn(*gnn, *shared); }};
}

}  // namespace overlace::cli
