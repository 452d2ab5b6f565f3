#include "cli/words_gnn.h"

#include <CLI/CLI.hpp>

namespace overlace::cli {

void add_gnn(CLI::App& app, GnnWords* words) {
  CLI::App* gnn = app.add_subcommand("gnn", "Datasets for training on graphs whose features do not fit in memory");
  gnn->require_subcommand(1);
  CLI::App* generate = gnn->add_subcommand("generate", "Make a graph with features, labels and splits from a seed");
  GnnGenerateWords& g = words->generate;
  generate->add_option("--out", g.out, "Directory of the dataset")->required();
  generate->add_option("--model", g.model, "dcsbm or rmat")->capture_default_str();
  generate->add_option("--like", g.like, "Sizes as of papers, mag, friendster, igb or products");
  generate->add_option("--vertices", g.num_vertices, "Vertices (default: 65536, with --like 1048576)");
  generate->add_option("--dim", g.dim, "Numbers of a row (default: 128, or of --like)");
  generate->add_option("--seed", g.seed, "Of all random numbers")->capture_default_str();
  generate->add_option("--memory", g.memory, "Limit of what is held of edges and rows")->capture_default_str();
  generate->add_option("--threads", g.threads, "Threads (default: the cores); the files do not depend on it");
  CLI::App* import = gnn->add_subcommand("import", "Make a dataset of arrays that others wrote");
  GnnImportWords& i = words->import;
  import->add_option("from", i.from, "Directory to read")->required();
  import->add_option("--out", i.out, "Directory of the dataset");
  import->add_flag("--in-place", i.in_place, "FROM has features.npy, indptr.npy and indices.npy: describe it");
  import->add_option("--layout", i.layout, "auto, pyg or igb")->capture_default_str();
  import->add_flag("--both-directions", i.both_directions, "Store each edge as its reverse, too");
  import->add_flag("--bf16", i.bf16, "Features of 16-bit words are bf16");
  import->add_option("--classes", i.num_classes, "Classes (default: largest label + 1)");
  import->add_option("--memory", i.memory, "Limit of what is held of edges")->capture_default_str();
  CLI::App* info = gnn->add_subcommand("info", "What a dataset holds; its files are checked by a sample");
  info->add_option("dataset", words->info.dataset, "Directory of the dataset")->required();
  CLI::App* diskbench = gnn->add_subcommand("diskbench", "How fast the disk under a directory reads and writes");
  GnnDiskbenchWords& d = words->diskbench;
  diskbench->add_option("directory", d.directory, "Directory on that disk")->required();
  diskbench->add_option("--size", d.size, "Of the file that is written and read")->capture_default_str();
  diskbench->add_option("--seconds", d.seconds, "Of each measurement")->capture_default_str();
  for (CLI::App* one : {generate, import, diskbench})
    one->add_flag("--quiet", one == generate ? g.quiet : one == import ? i.quiet : d.quiet, "No progress");
  generate->add_option("--json", g.json, "The same as data; - is stdout");
  import->add_option("--json", i.json, "The same as data; - is stdout");
  info->add_option("--json", words->info.json, "The same as data; - is stdout");
  diskbench->add_option("--json", d.json, "The same as data; - is stdout");
}

int run_gnn(const CLI::App& gnn, const GnnWords& words) {
  if (gnn.got_subcommand("generate")) return gnn_generate(words.generate);
  if (gnn.got_subcommand("import")) return gnn_import(words.import);
  if (gnn.got_subcommand("info")) return gnn_info(words.info);
  return gnn_diskbench(words.diskbench);
}

}  // namespace overlace::cli
