#include "cli/sim/gnn.h"

#include "cli/gnn/gnn.h"
#include "cli/run/outputs.h"
#include "cli/trace/trace.h"
#include "src/base/format.h"
#include "src/base/json.h"
#include "src/gnn/store/artefact.h"

namespace overlace::cli {
namespace {

using base::Json;

std::vector<gnn::PackEntry> chosen(const GnnGraphWords& words, const gnn::Manifest& manifest) {
  std::vector<gnn::PackEntry> out;
  std::string known;
  for (const gnn::PackEntry& entry : manifest.packs) {
    if (entry.split != gnn::Split::train) continue;
    known += (known.empty() ? "" : ", ") + entry.name;
    if (words.packs.empty() || words.packs == entry.name) out.push_back(entry);
  }
  if (out.empty())
    base::invalid_argument("{}: packs are \"{}\", wanted packs of train: {}", words.artefact, words.packs,
                           known.empty() ? "there are none, overlace gnn pack writes them" : known)
        .or_throw();
  return out;
}

Json row_of(const gnn::PackEntry& entry, std::string_view way, const study::GnnTime& time) {
  const auto epochs = static_cast<double>(entry.epochs);
  return Json::Object{{"packs", entry.name},
                      {"policy", gnn::name_of(entry.policy)},
                      {"way", std::string(way)},
                      {"depth", entry.depth},
                      {"epoch_s", time.us * 1e-6 / epochs},
                      {"bound_s", time.bound_us * 1e-6 / epochs},
                      {"disk_s", time.disk_us * 1e-6 / epochs},
                      {"link_s", time.link_us * 1e-6 / epochs},
                      {"train_s", time.train_us * 1e-6 / epochs},
                      {"exposed_s", time.exposed_us() * 1e-6 / epochs},
                      {"bytes_read", entry.bytes_read / entry.epochs}};
}

}  // namespace

gnn::Prediction predicted(const std::string& artefact, const gnn::Manifest& manifest, const gnn::PackEntry& packs) {
  const gnn::SelectedTrace trace = gnn::SelectedTrace::open(artefact, manifest, packs, true).value();
  gnn::LevelOptions options;
  options.gpu_rows = packs.gpu_rows;
  options.cpu_rows = packs.cpu_rows;
  options.policy = packs.policy;
  options.order = {packs.order, packs.segment_batches};
  options.depth = static_cast<int>(packs.depth);
  options.row_bytes = manifest.row_bytes;
  options.epoch_batches = trace.epoch_batches();
  options.disk.max_rows = packs.disk_rows;
  options.disk.page_bytes = packs.page_bytes;
  return gnn::predict(trace.trace(), options).value();
}

std::vector<study::GnnItem> gnn_items(const gnn::Prediction& prediction, const gnn::EpochRates& rates) {
  const std::vector<gnn::ItemTimes> times = gnn::item_times(prediction, rates);
  std::vector<study::GnnItem> out;
  for (size_t i = 0; i < times.size(); ++i) {
    const gnn::ItemTimes& t = times[i];
    const gnn::ItemBytes& item = prediction.items[i];
    const int64_t copied = item.extent + item.pages + item.cpu_rows * prediction.options.row_bytes;
    out.push_back({t.read_us, t.check_us, t.page_us, t.page_check_us, t.link_us, t.gather_us, t.admit_us, t.train_us,
                   t.is_restore, item.extent + item.pages, rates.link_GBps > 0 && !t.is_restore ? copied : 0});
  }
  return out;
}

int sim_graph_gnn(const GnnGraphWords& words) {
  const GnnRates rates = rates_of(words.rates);
  if (!words.trace.empty()) check_timeline_name(words.trace).or_throw();
  const gnn::Manifest manifest = gnn::read_manifest(words.artefact).value();
  std::string text =
      base::format("{:<16} {:<8} {:<11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>12}\n", "packs", "policy", "stages",
                   "epoch s", "bound s", "disk s", "link s", "train s", "exposed s", "read");
  Json list = Json::array();
  for (const gnn::PackEntry& entry : chosen(words, manifest)) {
    const std::vector<study::GnnItem> items = gnn_items(predicted(words.artefact, manifest, entry), rates.epoch);
    for (const study::GnnWay way : {study::GnnWay::sequential, study::GnnWay::pipelined, study::GnnWay::free}) {
      base::Trace timeline;
      const bool is_shown = way == study::GnnWay::pipelined && !words.trace.empty();
      const study::GnnRun run{.way = way, .depth = static_cast<int>(entry.depth)};
      const study::GnnTime time = study::gnn_epoch(items, run, is_shown ? &timeline : nullptr).value();
      if (is_shown) write_timeline(timeline, words.trace).or_throw();
      const std::string_view name = study::kGnnWays[static_cast<size_t>(way)];
      const double s = 1e-6 / static_cast<double>(entry.epochs);
      text += base::format("{:<16} {:<8} {:<11} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>10.3f} {:>12}\n",
                           entry.name, gnn::name_of(entry.policy), name, time.us * s, time.bound_us * s,
                           time.disk_us * s, time.link_us * s, time.train_us * s, time.exposed_us() * s,
                           gigabytes(entry.bytes_read / entry.epochs));
      list.push_back(row_of(entry, name, time));
    }
  }
  text += "of one training epoch; exposed: the trainer waits\n" + rates.text();
  Json result = with_schema("sim_graph_gnn", std::move(list));
  rates.add_to(&result);
  write_result(result, text, words.json).or_throw();
  return 0;
}

}  // namespace overlace::cli
