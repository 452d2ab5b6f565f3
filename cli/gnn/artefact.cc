// `overlace gnn sample|plan|pack|verify|train`: from a dataset to batches.
#include "src/gnn/store/artefact.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "cli/gnn/gnn.h"
#include "cli/problem.h"
#include "cli/progress.h"
#include "cli/run/outputs.h"
#include "src/gnn/dataset/dataset.h"

namespace overlace::cli {
namespace {

using base::Json;

template <class T, size_t N>
T word_of(const std::string& option, const std::string& word, const std::pair<const char*, T> (&known)[N]) {
  std::string wanted;
  for (const auto& [name, value] : known) {
    if (word == name) return value;
    wanted += (wanted.empty() ? "" : ", ") + std::string(name);
  }
  base::invalid_argument("{} is {}, wanted one of {}", option, word, wanted).or_throw();
  return {};
}

std::vector<gnn::Split> splits_of(const std::string& text) {
  constexpr std::pair<const char*, gnn::Split> kKnown[] = {
      {"train", gnn::Split::train}, {"valid", gnn::Split::valid}, {"test", gnn::Split::test}};
  std::vector<gnn::Split> splits;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    splits.push_back(word_of("--splits", text.substr(at, comma - at), kKnown));
    at = comma + 1;
  }
  return splits;
}

gnn::CachePolicy policy_of(const std::string& word) {
  constexpr std::pair<const char*, gnn::CachePolicy> kKnown[] = {{"belady", gnn::CachePolicy::belady},
                                                                 {"static", gnn::CachePolicy::hottest},
                                                                 {"lru", gnn::CachePolicy::lru},
                                                                 {"none", gnn::CachePolicy::none}};
  return word_of("--policy", word, kKnown);
}

/// A bar whose steps are named as they begin.
class Steps {
 public:
  Steps(bool quiet, double steps) : progress_(stderr, shows_progress(STDERR_FILENO, quiet), steps) {}
  gnn::StepProgress taker() {
    return [this](std::string_view what, double share) {
      if (what != last_) progress_.begin(last_ = what, 1);
      progress_.update(share);
    };
  }
  void clear() { progress_.clear(); }

 private:
  Progress progress_;
  std::string last_;
};

/// Where a dataset is: as given, else as the artefact remembers.
gnn::Dataset dataset_of(const std::string& given, const std::string& artefact) {
  const std::string path = given.empty() ? gnn::read_manifest(artefact).value().directory : given;
  return gnn::Dataset::open(path).value();
}

/// Training epochs that read a pack's bytes.
int64_t passes(const gnn::PackEntry& packs) { return packs.split == gnn::Split::train ? packs.epochs : 1; }

std::string manifest_text(const std::string& directory, const gnn::Manifest& m) {
  std::string text = directory + "\n";
  text += line("vertices", base::format("{} x {} {}, rows of {} B", m.num_vertices, m.dim, m.dtype, m.row_bytes));
  for (const gnn::TraceEntry& t : m.traces)
    text += line(t.epoch == 0 ? gnn::split_name(t.split) : base::format("{} {}", gnn::split_name(t.split), t.epoch),
                 base::format("{} batches, {} input rows, {}", t.batches, t.input_rows, gigabytes(t.bytes)));
  for (const gnn::PackEntry& p : m.packs)
    text += line("packs " + p.name,
                 base::format("{}, caches of {} and {} rows: {} on disk, {} read per training epoch",
                              gnn::name_of(p.policy), p.gpu_rows, p.cpu_rows,
                              gigabytes(p.packs_bytes + p.disk_cache_bytes), gigabytes(p.bytes_read / passes(p))));
  return text;
}

int show(const std::string& directory, const gnn::Manifest& manifest, const std::string& target) {
  const Json json = with_schema("gnn_artefact", *Json::parse(gnn::manifest_json(manifest)));
  write_result(json, manifest_text(directory, manifest), target).or_throw();
  return 0;
}

}  // namespace

int gnn_sample(const GnnSampleWords& words) {
  const gnn::Dataset dataset = gnn::Dataset::open(words.dataset).value();
  gnn::SampleRequest request;
  request.sampler = {words.fanouts, words.batch_size, words.seed, words.replace};
  request.splits = splits_of(words.splits);
  request.epochs = words.epochs;
  request.threads = words.threads;
  Steps steps(words.quiet, static_cast<double>(request.splits.size() +
                                               static_cast<size_t>(words.epochs > 1 ? words.epochs - 1 : 0)));
  request.progress = steps.taker();
  const gnn::Manifest manifest = gnn::sample_artefact(dataset, words.out, request).value();
  steps.clear();
  return show(words.out, manifest, words.json);
}

int gnn_pack(const GnnPackWords& words) {
  const gnn::Dataset dataset = dataset_of(words.dataset, words.artefact);
  gnn::ArtefactPackRequest request;
  request.policy = policy_of(words.policy);
  request.gpu_bytes = parse_size("--gpu-cache", words.gpu_cache, true);
  request.cpu_bytes = parse_size("--cpu-cache", words.cpu_cache, true);
  request.disk_bytes = parse_size("--disk", words.disk, true);
  request.memory_bytes = parse_size("--memory", words.memory);
  request.page_bytes = words.page_bytes;
  request.depth = words.depth;
  request.ranks = words.ranks;
  request.is_dry = words.is_dry;
  request.is_automatic_order = words.order == "auto";
  if (!request.is_automatic_order) {
    constexpr std::pair<const char*, gnn::BatchOrder> kKnown[] = {{"fixed", gnn::BatchOrder::fixed},
                                                                  {"segments", gnn::BatchOrder::segments},
                                                                  {"shuffle", gnn::BatchOrder::shuffle}};
    request.order.order = word_of("--order", words.order, kKnown);
    if (request.order.order == gnn::BatchOrder::segments) request.order.segment_batches = words.segment_batches;
  }
  const gnn::Manifest sampled = gnn::read_manifest(words.artefact).value();
  const auto splits = std::count_if(std::begin(gnn::kSplits), std::end(gnn::kSplits),
                                    [&](gnn::Split split) { return sampled.trace(split) != nullptr; });
  Steps steps(words.quiet, 2.0 * static_cast<double>(splits) * static_cast<double>(std::max<int64_t>(words.ranks, 1)));
  request.progress = steps.taker();
  const gnn::Manifest manifest = gnn::pack_artefact(dataset, words.artefact, request).value();
  steps.clear();
  return show(words.artefact, manifest, words.json);
}

int gnn_verify(const GnnVerifyWords& words) {
  std::optional<gnn::Dataset> dataset;
  if (words.deep || words.repairs) dataset = dataset_of(words.dataset, words.artefact);
  const double packs = static_cast<double>(gnn::read_manifest(words.artefact).value().packs.size());
  Steps steps(words.quiet, std::max(1.0, packs * (1 + (words.deep ? 1 : 0) + (words.repairs ? 2 : 0))));
  std::vector<std::string> repaired;
  if (words.repairs)
    repaired =
        gnn::repair_artefact(*dataset, words.artefact, parse_size("--memory", words.memory), steps.taker()).value();
  const gnn::VerifyReport report =
      gnn::verify_artefact(words.artefact, words.deep ? &*dataset : nullptr, steps.taker()).value();
  steps.clear();
  std::string text;
  Json names = Json::array();
  for (const std::string& name : repaired) {
    text += base::format("packs {} were damaged and are made anew\n", name);
    names.push_back(name);
  }
  text += words.artefact + (words.deep ? ": as made of its dataset\n" : ": whole\n") +
          line("files", base::format("{}, {}", report.files, gigabytes(report.bytes))) +
          line("checked", base::format("{} extents, {} pages of the disk cache", report.extents, report.pages));
  const Json json = Json::Object{{"files", report.files}, {"bytes", report.bytes}, {"extents", report.extents},
                                 {"pages", report.pages}, {"deep", words.deep},    {"repaired", std::move(names)}};
  write_result(with_schema("gnn_verify", json), text, words.json).or_throw();
  return 0;
}

int gnn_train(const std::vector<std::string>& words) {
  std::vector<std::string> args = {"python3", "-m", "overlace.gnn.train"};
  args.insert(args.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  ::execvp("python3", pointers.data());
  base::error(Errc::not_supported, "python3 cannot be started: {}", std::strerror(errno)).or_throw();
  return 1;
}

bool is_artefact(const std::string& directory) {
  std::error_code ignored;
  return std::filesystem::exists(directory + "/manifest.json", ignored);
}

int gnn_artefact_info(const GnnInfoWords& words) {
  const gnn::Manifest manifest = gnn::read_manifest(words.dataset).value();
  for (const gnn::PackEntry& entry : manifest.packs) gnn::open_plan(words.dataset, manifest, entry).status().or_throw();
  return show(words.dataset, manifest, words.json);
}

}  // namespace overlace::cli
