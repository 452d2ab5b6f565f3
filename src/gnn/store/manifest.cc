#include "src/gnn/store/manifest.h"

#include "src/gnn/dataset/dataset.h"
#include "src/gnn/json_members.h"

namespace overlace::gnn {
namespace {

using base::Json;

constexpr int64_t kFormat = 1;
constexpr const char* kFile = "manifest.json";

base::Status read_split(const Members& members, Split* out) {
  return members.word("split", {{"train", Split::train}, {"valid", Split::valid}, {"test", Split::test}}, out);
}

base::Status read_sampler(const Json* object, const std::string& where, SamplerOptions* out) {
  const Members sampler(object, where);
  OVERLACE_TRY(sampler.check_keys({"fanouts", "batch_size", "seed", "replace"}));
  const Json::Array* fanouts = nullptr;
  OVERLACE_TRY(sampler.array("fanouts", &fanouts));
  for (const Json& fanout : *fanouts) {
    if (!fanout.is_int() || fanout.as_int() < -1 || fanout.as_int() > int64_t{1} << 30)
      return base::invalid_argument("{}: a fanout is {}, wanted an integer >= -1", where, fanout.dump());
    out->fanouts.push_back(static_cast<int32_t>(fanout.as_int()));
  }
  std::string seed;
  OVERLACE_TRY(sampler.integer("batch_size", 1, &out->batch_size));
  OVERLACE_TRY(sampler.text("seed", &seed));
  for (const char digit : seed) {
    if (digit < '0' || digit > '9' || seed.size() > 20)
      return base::invalid_argument("{}: seed is \"{}\", wanted digits", where, seed.substr(0, 64));
    out->seed = out->seed * 10 + static_cast<uint64_t>(digit - '0');
  }
  return sampler.boolean("replace", &out->replace);
}

base::Status read_trace(const Json& object, const std::string& where, TraceEntry* out) {
  const Members trace(&object, where);
  OVERLACE_TRY(trace.check_keys({"split", "epoch", "file", "bytes", "batches", "input_rows", "crc32c"}));
  OVERLACE_TRY(read_split(trace, &out->split));
  if (trace.find("epoch") != nullptr) OVERLACE_TRY(trace.integer("epoch", 0, &out->epoch));
  OVERLACE_TRY(trace.file("file", kFile, &out->file));
  OVERLACE_TRY(trace.integer("bytes", 0, &out->bytes));
  OVERLACE_TRY(trace.integer("batches", 1, &out->batches));
  OVERLACE_TRY(trace.integer("input_rows", 1, &out->input_rows));
  int64_t sum = 0;
  OVERLACE_TRY(trace.integer("crc32c", 0, &sum));
  out->sum = static_cast<uint32_t>(sum);
  return {};
}

base::Status read_pack(const Json& object, const std::string& where, PackEntry* out) {
  const Members pack(&object, where);
  OVERLACE_TRY(pack.check_keys({"name",      "split",         "order",       "policy",      "segment_batches",
                                "gpu_rows",  "cpu_rows",      "depth",       "page_bytes",  "disk_rows",
                                "blow_up",   "feature_bytes", "bytes_read",  "packs_bytes", "disk_cache_bytes",
                                "hot_bytes", "plan_bytes",    "plan_crc32c", "epochs",      "rank",
                                "ranks"}));
  OVERLACE_TRY(pack.file("name", kFile, &out->name));
  OVERLACE_TRY(read_split(pack, &out->split));
  OVERLACE_TRY(pack.word(
      "order", {{"fixed", BatchOrder::fixed}, {"segments", BatchOrder::segments}, {"shuffle", BatchOrder::shuffle}},
      &out->order));
  OVERLACE_TRY(pack.word("policy",
                         {{"none", CachePolicy::none},
                          {"static", CachePolicy::hottest},
                          {"lru", CachePolicy::lru},
                          {"belady", CachePolicy::belady}},
                         &out->policy));
  int64_t sum = 0;
  const std::pair<const char*, int64_t*> integers[] = {{"segment_batches", &out->segment_batches},
                                                       {"gpu_rows", &out->gpu_rows},
                                                       {"cpu_rows", &out->cpu_rows},
                                                       {"depth", &out->depth},
                                                       {"page_bytes", &out->page_bytes},
                                                       {"feature_bytes", &out->feature_bytes},
                                                       {"bytes_read", &out->bytes_read},
                                                       {"packs_bytes", &out->packs_bytes},
                                                       {"disk_cache_bytes", &out->disk_cache_bytes},
                                                       {"hot_bytes", &out->hot_bytes},
                                                       {"plan_bytes", &out->plan_bytes},
                                                       {"plan_crc32c", &sum},
                                                       {"disk_rows", &out->disk_rows}};
  for (const auto& [key, value] : integers) OVERLACE_TRY(pack.integer(key, 0, value));
  out->plan_sum = static_cast<uint32_t>(sum);
  OVERLACE_TRY(pack.number("blow_up", &out->blow_up));
  // Artefacts of one sampled epoch and one rank may leave these out.
  if (pack.find("epochs") != nullptr) OVERLACE_TRY(pack.integer("epochs", 1, &out->epochs));
  if (pack.find("rank") != nullptr) OVERLACE_TRY(pack.integer("rank", 0, &out->rank));
  if (pack.find("ranks") != nullptr) OVERLACE_TRY(pack.integer("ranks", 1, &out->ranks));
  if (out->ranks > kMaxRanks || out->rank >= out->ranks)
    return base::invalid_argument("{}: rank is {} of {}, wanted one of at most {}", where, out->rank, out->ranks,
                                  kMaxRanks);
  const std::string name = pack_name(out->order, out->split, out->rank, out->ranks);
  if (out->name != name) return base::invalid_argument("{}: name is \"{}\", wanted \"{}\"", where, out->name, name);
  return {};
}

Json sampler_json(const SamplerOptions& sampler) {
  Json fanouts = Json::array();
  for (const int32_t fanout : sampler.fanouts) fanouts.push_back(fanout);
  // NOTE: a seed has 64 bits, an integer of JSON one less.
  return Json::Object{{"fanouts", fanouts},
                      {"batch_size", sampler.batch_size},
                      {"seed", base::format("{}", sampler.seed)},
                      {"replace", sampler.replace}};
}

Json trace_json(const TraceEntry& t) {
  return Json::Object{
      {"split", split_name(t.split)}, {"epoch", t.epoch},           {"file", t.file},          {"bytes", t.bytes},
      {"batches", t.batches},         {"input_rows", t.input_rows}, {"crc32c", int64_t{t.sum}}};
}

Json pack_json(const PackEntry& p) {
  return Json::Object{{"name", p.name},
                      {"split", split_name(p.split)},
                      {"epochs", p.epochs},
                      {"rank", p.rank},
                      {"ranks", p.ranks},
                      {"order", name_of(p.order)},
                      {"policy", name_of(p.policy)},
                      {"segment_batches", p.segment_batches},
                      {"gpu_rows", p.gpu_rows},
                      {"cpu_rows", p.cpu_rows},
                      {"depth", p.depth},
                      {"page_bytes", p.page_bytes},
                      {"disk_rows", p.disk_rows},
                      {"blow_up", p.blow_up},
                      {"feature_bytes", p.feature_bytes},
                      {"bytes_read", p.bytes_read},
                      {"packs_bytes", p.packs_bytes},
                      {"disk_cache_bytes", p.disk_cache_bytes},
                      {"hot_bytes", p.hot_bytes},
                      {"plan_bytes", p.plan_bytes},
                      {"plan_crc32c", int64_t{p.plan_sum}}};
}

}  // namespace

const TraceEntry* Manifest::trace(Split split, int64_t epoch) const {
  for (const TraceEntry& entry : traces)
    if (entry.split == split && entry.epoch == epoch) return &entry;
  return nullptr;
}

int64_t Manifest::sampled_epochs(Split split) const {
  int64_t epochs = 0;
  while (trace(split, epochs) != nullptr) ++epochs;
  return epochs;
}

const PackEntry* Manifest::pack(std::string_view name) const {
  for (const PackEntry& entry : packs)
    if (entry.name == name) return &entry;
  return nullptr;
}

std::string pack_name(BatchOrder order, Split split, int64_t rank, int64_t ranks) {
  std::string name = name_of(order);
  if (split != Split::train) name += base::format("-{}", split_name(split));
  return ranks == 1 ? name : name + base::format("-r{}of{}", rank, ranks);
}

std::string manifest_json(const Manifest& m) {
  Json traces = Json::array(), packs = Json::array();
  for (const TraceEntry& trace : m.traces) traces.push_back(trace_json(trace));
  for (const PackEntry& pack : m.packs) packs.push_back(pack_json(pack));
  const Json json = Json::Object{{"overlace_gnn", kFormat},
                                 {"kind", "artefact"},
                                 {"dataset", Json::Object{{"id", m.dataset},
                                                          {"directory", m.directory},
                                                          {"num_vertices", m.num_vertices},
                                                          {"num_classes", m.num_classes},
                                                          {"dtype", m.dtype},
                                                          {"dim", m.dim},
                                                          {"row_bytes", m.row_bytes}}},
                                 {"sampling", sampler_json(m.sampler)},
                                 {"traces", traces},
                                 {"packs", packs}};
  return json.dump(2) + "\n";
}

base::Result<Manifest> parse_manifest(std::string_view text, std::string_view source) {
  const auto json = Json::parse(text, source);
  if (!json.ok()) return base::invalid_argument("{}", json.status().message());
  const std::string where(source);
  const Members top(&*json, where);
  OVERLACE_TRY(top.check_keys({"overlace_gnn", "kind", "dataset", "sampling", "traces", "packs"}));
  int64_t format = 0;
  std::string kind;
  OVERLACE_TRY(top.integer("overlace_gnn", 1, &format));
  if (format != kFormat)
    return base::error(Errc::version_mismatch, "{}: overlace_gnn is {}, wanted {}", where, format, kFormat);
  OVERLACE_TRY(top.text("kind", &kind));
  if (kind != "artefact") return base::invalid_argument("{}: kind is \"{}\", wanted \"artefact\"", where, kind);
  Manifest m;
  const Members dataset(top.find("dataset"), where + ": dataset");
  OVERLACE_TRY(dataset.check_keys({"id", "directory", "num_vertices", "num_classes", "dtype", "dim", "row_bytes"}));
  OVERLACE_TRY(dataset.text("id", &m.dataset));
  OVERLACE_TRY(dataset.text("directory", &m.directory));
  OVERLACE_TRY(dataset.integer("num_vertices", 1, &m.num_vertices));
  OVERLACE_TRY(dataset.integer("num_classes", 0, &m.num_classes));
  OVERLACE_TRY(dataset.text("dtype", &m.dtype));
  OVERLACE_TRY(dataset.integer("dim", 1, &m.dim));
  OVERLACE_TRY(dataset.integer("row_bytes", 1, &m.row_bytes));
  OVERLACE_TRY(read_sampler(top.find("sampling"), where + ": sampling", &m.sampler));
  const Json::Array *traces = nullptr, *packs = nullptr;
  OVERLACE_TRY(top.array("traces", &traces));
  for (const Json& trace : *traces)
    OVERLACE_TRY(read_trace(trace, base::format("{}: traces[{}]", where, m.traces.size()), &m.traces.emplace_back()));
  OVERLACE_TRY(top.array("packs", &packs));
  for (const Json& pack : *packs)
    OVERLACE_TRY(read_pack(pack, base::format("{}: packs[{}]", where, m.packs.size()), &m.packs.emplace_back()));
  return m;
}

}  // namespace overlace::gnn
