#include "cli/gnn/gnn.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/host_rates.h"
#include "cli/problem.h"
#include "cli/progress.h"
#include "cli/run/outputs.h"
#include "src/base/env.h"
#include "src/base/json.h"
#include "src/gnn/dataset/import.h"
#include "src/gnn/generate/generate.h"
#include "src/io/alignment.h"
#include "src/io/measure.h"

namespace overlace::cli {
namespace {

using base::Json;

Json dataset_json(const gnn::Description& d) { return *Json::parse(gnn::description_json(d)); }

std::string dataset_text(const gnn::Description& d) {
  return line("vertices", base::format("{}", d.num_vertices)) + line("edges", base::format("{}", d.num_edges)) +
         line("classes", base::format("{}", d.num_classes)) +
         line("features", base::format("{} x {}, rows of {} B, {}", dtype_name(d.features.dtype), d.features.dim,
                                       d.features.row_bytes, gigabytes(d.features.bytes))) +
         line("id", d.id);
}

int made(const gnn::Described& described, const std::string& directory, const std::string& target) {
  Json json = dataset_json(described.description);
  json.set("isolated", described.isolated).set("unlabelled", described.unlabelled).set("nan_rows", described.nan_rows);
  std::string text =
      directory + "\n" + dataset_text(described.description) + line("isolated", base::format("{}", described.isolated));
  if (described.unlabelled > 0) text += line("unlabelled", base::format("{}", described.unlabelled));
  if (described.nan_rows > 0) text += line("rows with NaN", base::format("{}", described.nan_rows));
  write_result(with_schema("gnn_made", std::move(json)), text, target).or_throw();
  return 0;
}

std::string point_text(const io::StoragePoint& p) {
  const std::string key = base::format("{} KiB at {}", p.request_bytes >> 10, p.depth);
  return line(key, p.is_random ? base::format("{:.1f} kIOPS, {:.3f} GB/s", p.kIOPS(), p.GBps())
                               : base::format("{:.3f} GB/s", p.GBps()));
}

/// Figures as a machine file has them, and each measurement.
Json storage_json(const io::StorageFigures& figures) {
  Json points = Json::array();
  for (const auto* list : {&figures.in_order, &figures.at_random})
    for (const io::StoragePoint& p : *list)
      points.push_back(Json::Object{{"request_bytes", p.request_bytes},
                                    {"depth", p.depth},
                                    {"random", p.is_random},
                                    {"GBps", p.GBps()},
                                    {"kIOPS", p.kIOPS()}});
  spec::Machine machine;
  machine.storage = storage_of(figures);
  const Json text = Json::parse(spec::to_json(machine)).value();
  return Json::Object{{"engine", figures.engine},
                      {"direct", figures.is_direct},
                      {"storage", *text.find("storage")},
                      {"points", std::move(points)}};
}

}  // namespace

int gnn_generate(const GnnGenerateWords& words) {
  gnn::GenerateOptions options;
  if (!words.like.empty()) options = gnn::like(words.like).value();
  options.model = words.model;
  if (words.num_vertices != 0) options.num_vertices = words.num_vertices;
  if (words.dim != 0) options.dim = words.dim;
  options.seed = words.seed;
  options.threads = words.threads;
  options.memory_bytes = parse_size("--memory", words.memory);
  Progress progress(stderr, shows_progress(STDERR_FILENO, words.quiet), 1);
  progress.begin("generate", 1);
  options.progress = [&](double share) { progress.update(share); };
  const gnn::Described described = gnn::generate(options, words.out).value();
  progress.clear();
  return made(described, words.out, words.json);
}

namespace {

bool is_ogb(const std::string& folder) {
  const auto exists = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(folder + name, ignored);
  };
  return exists("/raw/data.npz") || exists("/raw/edge.csv.gz");
}

/// Arrays of OGB's compressed files, by python3 -m overlace.gnn.unpack_ogb, which says itself what is wrong; its
/// status.
int unpack_ogb(const std::string& from, const std::string& to) {
  std::vector<std::string> args = {"python3", "-m", "overlace.gnn.unpack_ogb", from, to};
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, "python3", nullptr, nullptr, pointers.data(), base::environment_block());
  if (failed != 0)
    base::error(Errc::not_supported, "python3 cannot be started: {}; wanted it to unpack OGB's files",
                std::strerror(failed))
        .or_throw();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int gnn_import(const GnnImportWords& words) {
  if (words.in_place != words.out.empty())
    base::invalid_argument("--out is \"{}\"{}", words.out,
                           words.in_place ? ", wanted none: --in-place describes FROM itself" : ", wanted a directory")
        .or_throw();
  if (words.in_place) {
    gnn::DescribeOptions options;
    options.num_classes = words.num_classes;
    options.bf16 = words.bf16;
    return made(gnn::describe(words.from, options).value(), words.from, words.json);
  }
  gnn::ImportOptions options;
  options.layout = words.layout;
  options.both_directions = words.both_directions;
  options.bf16 = words.bf16;
  options.num_classes = words.num_classes;
  options.memory_bytes = parse_size("--memory", words.memory);
  std::string from = words.from;
  std::error_code ignored;
  const bool is_packed = words.layout == "ogb" || (words.layout == "auto" && is_ogb(words.from));
  if (is_packed) {
    from = words.out + ".unpacked-ogb";  // a run that is killed leaves it, and the next one makes it anew
    std::filesystem::remove_all(from, ignored);
    if (const int status = unpack_ogb(words.from, from); status != 0) return status;
    options.layout = "pyg";
  }
  Progress progress(stderr, shows_progress(STDERR_FILENO, words.quiet), 3);
  std::string last;
  options.progress = [&](std::string_view what, double share) {
    if (what != last) progress.begin(last = what, 1);
    progress.update(share);
  };
  const auto described = gnn::import_dataset(from, words.out, options);
  if (is_packed) std::filesystem::remove_all(from, ignored);
  progress.clear();
  return made(described.value(), words.out, words.json);
}

int gnn_info(const GnnInfoWords& words) {
  if (is_artefact(words.dataset)) return gnn_artefact_info(words);
  const gnn::Dataset dataset = gnn::Dataset::open(words.dataset).value();
  Json json = dataset_json(dataset.description());
  std::string text = words.dataset + "\n" + dataset_text(dataset.description());
  Json splits = Json::object();
  for (const gnn::Split split : gnn::kSplits) {
    const auto count = std::visit([](auto ids) { return static_cast<int64_t>(ids.size()); }, dataset.split(split));
    splits.set(gnn::split_name(split), count);
    text += line(gnn::split_name(split), base::format("{}", count));
  }
  json.set("splits", std::move(splits));
  write_result(with_schema("gnn_dataset", std::move(json)), text, words.json).or_throw();
  return 0;
}

int gnn_diskbench(const GnnDiskbenchWords& words) {
  if (!words.machine.empty()) check_storage_file(words.machine);
  io::MeasureOptions options;
  options.file_bytes = parse_size("--size", words.size);
  options.seconds = words.seconds;
  Progress progress(stderr, shows_progress(STDERR_FILENO, words.quiet), 1);
  progress.begin("write", 1);
  options.progress = [&](std::string_view, double share) { progress.update(share); };
  const io::StorageFigures figures = io::measure_storage(words.directory, options).value();
  progress.clear();
  if (!words.machine.empty()) write_storage(words.machine, storage_of(figures));
  std::string text =
      base::format("{}: engine {}, {}\n", words.directory, figures.engine,
                   figures.is_direct ? "past the page cache" : "THROUGH THE PAGE CACHE: not the rates of the disk");
  text += line("write", base::format("{:.3f} GB/s", figures.write.GBps()));
  for (const io::StoragePoint& point : figures.in_order) text += point_text(point);
  for (const io::StoragePoint& point : figures.at_random) text += point_text(point);
  text += line("a page alone", base::format("{:.1f} us", figures.start_us));
  write_result(with_schema("gnn_diskbench", storage_json(figures)), text, words.json).or_throw();
  return 0;
}

std::string line(std::string_view key, std::string_view value) { return base::format("  {:<16} {}\n", key, value); }

std::string gigabytes(int64_t bytes) { return base::format("{:.3f} GB", static_cast<double>(bytes) / 1e9); }

}  // namespace overlace::cli
