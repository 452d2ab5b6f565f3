// `overlace gnn plan`: caches, order and depth for the memory that there is.
#include <algorithm>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/doctor/machine.h"
#include "cli/gnn/gnn.h"
#include "cli/problem.h"
#include "cli/run/outputs.h"
#include "src/gnn/plan/tune.h"
#include "src/gnn/store/artefact.h"

namespace overlace::cli {
namespace {

using base::Json;

/// Bytes read, of all ranks, and seconds are those of one training epoch of `epochs`.
Json tuned_json(const gnn::Tuned& t, int64_t epochs) {
  if (!t.refused.empty()) return Json::Object{{"depth", t.request.options.depth}, {"refused", t.refused}};
  const gnn::Prediction& p = t.prediction;
  return Json::Object{{"order", gnn::name_of(p.options.order.order)},
                      {"segment_batches", p.options.order.segment_batches},
                      {"policy", gnn::name_of(p.options.policy)},
                      {"depth", p.options.depth},
                      {"page_bytes", p.options.disk.page_bytes},
                      {"gpu_rows", std::ssize(p.plan.start.gpu)},
                      {"cpu_rows", std::ssize(p.plan.start.cpu)},
                      {"bytes_read", t.bytes_read / epochs},
                      {"bytes_on_disk", t.bytes_on_disk},
                      {"blow_up", p.plan.blow_up},
                      {"memory_gpu", t.request.gpu_bytes > 0 ? p.memory.gpu() : 0},
                      {"memory_cpu", gnn::host_bytes(p, t.request)},
                      {"epoch_s", t.time.us * 1e-6 / static_cast<double>(epochs)},
                      {"bound_s", t.bound.seconds() / static_cast<double>(epochs)},
                      {"sequential_s", t.time.sequential_us() * 1e-6 / static_cast<double>(epochs)},
                      {"binds", t.bound.binds()}};
}

/// Bytes of GPU and host for each of the ranks, by --fit or as they were told.
std::pair<int64_t, int64_t> memory_of(const GnnPackWords& words) {
  const int64_t gpu = parse_size("--gpu-cache", words.gpu_cache, true);
  const int64_t cpu = parse_size("--cpu-cache", words.cpu_cache, true);
  if (!words.fits) return {gpu, cpu};
  if (gpu != 0 || cpu != 0)
    base::invalid_argument("--fit with --gpu-cache {} and --cpu-cache {}, wanted neither of them", words.gpu_cache,
                           words.cpu_cache)
        .or_throw();
  const MemoryFacts host = memory_facts();
  int64_t gpu_bytes = 0;
  for (const GpuFacts& one : gpu_facts())
    gpu_bytes = gpu_bytes == 0 ? one.memory_bytes : std::min(gpu_bytes, one.memory_bytes);
  const int64_t free = std::min(host.available_bytes, host.limit_bytes.value_or(host.available_bytes));
  return {gpu_bytes / 2, free / 4 * 3 / words.ranks};
}

/// The words of `overlace gnn pack` for what was planned.
std::vector<std::string> pack_words(const GnnPackWords& words, const gnn::Tuned& t) {
  const gnn::LevelOptions& o = t.prediction.options;
  const auto bytes = [&](const auto& rows) { return std::to_string(std::ssize(rows) * o.row_bytes); };
  std::vector<std::string> out = {"overlace",    "gnn",
                                  "pack",        words.artefact,
                                  "--gpu-cache", bytes(t.prediction.plan.start.gpu),
                                  "--cpu-cache", bytes(t.prediction.plan.start.cpu),
                                  "--policy",    gnn::name_of(o.policy),
                                  "--order",     gnn::name_of(o.order.order),
                                  "--depth",     std::to_string(o.depth)};
  const auto add = [&](const char* option, std::string value) { out.insert(out.end(), {option, std::move(value)}); };
  if (o.order.order == gnn::BatchOrder::segments) add("--segment", std::to_string(o.order.segment_batches));
  if (t.request.disk_bytes > 0) {
    add("--disk", std::to_string(t.request.disk_bytes));
    add("--page", std::to_string(o.disk.page_bytes));
  }
  if (words.ranks > 1) add("--ranks", std::to_string(words.ranks));
  return out;
}

/// What each rank goes through, and that many training epochs of it.
struct Shares {
  std::vector<gnn::SelectedTrace> traces;
  int64_t epochs = 1;
};

Shares shares_of(const GnnPackWords& words, const gnn::Manifest& manifest) {
  gnn::PackEntry packs;
  packs.epochs = manifest.sampled_epochs(gnn::Split::train);
  packs.ranks = words.ranks;
  if (packs.epochs == 0)
    base::invalid_argument("{}: split train is not sampled, wanted it, see overlace gnn sample", words.artefact)
        .or_throw();
  Shares out;
  out.epochs = packs.epochs;
  for (packs.rank = 0; packs.rank < words.ranks; ++packs.rank)
    out.traces.push_back(gnn::SelectedTrace::open(words.artefact, manifest, packs, packs.rank == 0).value());
  return out;
}

std::string ranked_text(const std::vector<gnn::Tuned>& ranked, int64_t epochs) {
  std::string text = base::format("{:<9} {:>7} {:<7} {:>5} {:>12} {:>12} {:>9}  {}\n", "order", "segment", "policy",
                                  "depth", "read", "on disk", "epoch", "binds");
  for (const gnn::Tuned& t : ranked) {
    const gnn::LevelOptions& o = t.prediction.options;
    text +=
        t.refused.empty()
            ? base::format("{:<9} {:>7} {:<7} {:>5} {:>12} {:>12} {:>7.2f} s  {}\n", gnn::name_of(o.order.order),
                           o.order.segment_batches, gnn::name_of(o.policy), o.depth, gigabytes(t.bytes_read / epochs),
                           gigabytes(t.bytes_on_disk), t.time.us * 1e-6 / static_cast<double>(epochs), t.bound.binds())
            : base::format("depth {}: {}\n", t.request.options.depth, t.refused);
  }
  return text;
}

}  // namespace

int gnn_plan(const GnnPackWords& words) {
  const gnn::Manifest manifest = gnn::read_manifest(words.artefact).value();
  if (words.ranks < 1 || words.ranks > gnn::kMaxRanks)
    base::invalid_argument("--ranks is {}, wanted 1 to {}", words.ranks, gnn::kMaxRanks).or_throw();
  gnn::FitRequest request;
  std::tie(request.gpu_bytes, request.cpu_bytes) = memory_of(words);
  request.disk_bytes = parse_size("--disk", words.disk, true);
  const Shares shares = shares_of(words, manifest);
  std::vector<const gnn::InputTrace*> traces;
  for (const gnn::SelectedTrace& share : shares.traces) traces.push_back(&share.trace());
  request.options.row_bytes = manifest.row_bytes;
  request.options.epoch_batches = shares.traces.front().epoch_batches();
  const int threads = words.threads > 0 ? words.threads : static_cast<int>(std::thread::hardware_concurrency());
  const GnnRates rates = rates_of(words.rates);
  const std::vector<gnn::Tuned> ranked =
      gnn::tune(traces, gnn::candidates_of(request, request.options.epoch_batches), rates.epoch, std::max(threads, 1))
          .value();
  Json rows = Json::array(), pack = Json::array();
  for (const gnn::Tuned& t : ranked) rows.push_back(tuned_json(t, shares.epochs));
  std::string text = ranked_text(ranked, shares.epochs);
  text += base::format("memory: {} of the host, {}\n", gigabytes(request.cpu_bytes),
                       request.gpu_bytes > 0 ? gigabytes(request.gpu_bytes) + " of the GPU" : "no GPU");
  text += rates.text();
  if (ranked.front().refused.empty()) {
    text += "the first one:";
    for (std::string& word : pack_words(words, ranked.front())) {
      text += " " + word;
      pack.push_back(std::move(word));
    }
    text += "\n";
  }
  Json result = with_schema("gnn_plan", std::move(rows));
  rates.add_to(&result);
  result.set("memory", Json::Object{{"gpu_bytes", request.gpu_bytes}, {"cpu_bytes", request.cpu_bytes}});
  result.set("pack", std::move(pack));
  write_result(result, text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
