// bench_gather_rows: random rows of a table in a GPU's memory, in pinned memory of the host and in a peer's memory,
// beside one copy of as many bytes from there:
//   bench_gather_rows [--sources device,pinned,peer] [--rows 64,128,...] [--table-mib N] [--out-mib N]
//                     [--repetitions N] [--burst-ms X] [--out records.jsonl] [--git COMMIT] [--verify-only]
// GB/s are bytes of the output. Exit 0: all ways gave the rows; 1: one did not; 3: no GPU.
#include <algorithm>
#include <cstdio>

#include "bench/common/arguments.h"
#include "bench/common/protocol.h"
#include "bench/common/record.h"
#include "bench/gather_rows/ways.h"
#include "overlace/error.h"
#include "src/base/statistics.h"

namespace overlace::bench {
namespace {

using base::Json;

struct Options {
  std::vector<std::string> sources = {"device", "pinned", "peer"};
  std::vector<std::string> rows = {"64", "128", "256", "400", "512", "1024", "2048", "4096"};
  int table_mib = 2048, out_mib = 64, repetitions = 7;
  double burst_ms = 20;
  bool verify_only = false;
  RunFacts run;
};

/// Share of the plain copy that rows of at least kTargetBytes are to reach (G9 of docs/results/goals.md).
struct Source {
  const char* name;
  RowsOn where;
  double share;
};
constexpr Source kSources[] = {
    {"device", RowsOn::device, 0.80}, {"pinned", RowsOn::pinned, 0.85}, {"peer", RowsOn::peer, 0.85}};
constexpr int64_t kTargetBytes = 512;

Options parse(int argc, char** argv) {
  Options o;
  Arguments arguments(&o.run);
  arguments.add("--sources", &o.sources);
  arguments.add("--rows", &o.rows);
  arguments.add("--table-mib", &o.table_mib, 1);
  arguments.add("--out-mib", &o.out_mib, 1);
  arguments.add("--repetitions", &o.repetitions, 1);
  arguments.add("--burst-ms", &o.burst_ms, 0.1);
  arguments.add("--verify-only", &o.verify_only);
  arguments.parse(argc, argv);
  if (o.table_mib < 2 * o.out_mib)
    throw_error(Errc::invalid_argument,
                base::format("--table-mib is {}, wanted at least {}, twice --out-mib", o.table_mib, 2 * o.out_mib));
  return o;
}

const Source& source_of(const std::string& name) {
  for (const Source& source : kSources)
    if (name == source.name) return source;
  throw_error(Errc::invalid_argument, base::format("--sources has {}, wanted device, pinned or peer", name));
}

int64_t row_bytes_of(const std::string& text) {
  for (int64_t bytes = 4; bytes <= 65536; bytes += 4)
    if (text == std::to_string(bytes)) return bytes;
  throw_error(Errc::invalid_argument, base::format("--rows has {}, wanted multiples of 4, 4 to 65536", text));
}

/// One GPU as the protocol sees it.
class Solo final : public Crew {
 public:
  explicit Solo(Gpu& gpu) : gpu_(gpu) {}
  base::Status synchronize() override { return gpu_.synchronize(); }
  base::Status barrier() override { return {}; }
  base::Result<double> max_over_ranks(double mine) override { return mine; }
  base::Status record_begin() override { return gpu_.record_begin(); }
  base::Status record_end() override { return gpu_.record_end(); }
  base::Result<double> elapsed_us() override { return gpu_.elapsed_us(); }
  ClockSample clocks() override { return gpu_.clocks(); }

 private:
  Gpu& gpu_;
};

class Ways final : public Subject {
 public:
  Ways(Tables& tables, std::vector<Way> ways) : tables_(tables), ways_(std::move(ways)) {}
  base::Status enqueue(size_t which, int turn) override { return tables_.enqueue(ways_[which], turn); }
  base::Result<std::string> verify(size_t which, Check* check) override {
    const auto wrong = tables_.wrong_words(ways_[which]);
    if (!wrong.ok()) return wrong.status();
    check->sampled = 1;
    check->max_error = static_cast<double>(*wrong);
    return *wrong == 0 ? std::string() : base::format("{} words are wrong", *wrong);
  }

 private:
  Tables& tables_;
  std::vector<Way> ways_;
};

struct Case {
  const Source& source;
  int64_t row_bytes = 0, bytes = 0;
  std::vector<Entrant> entrants;
  Outcome outcome;

  double gbps(const Entrant& x) const {
    return x.is_timed() ? static_cast<double>(bytes) / base::median(x.samples_us) * 1e-3 : 0;
  }
  double target() const { return row_bytes >= kTargetBytes ? source.share * gbps(entrants[0]) : 0; }
};

void print(const Case& c) {
  const double plain = c.gbps(c.entrants[0]);
  for (const Entrant& x : c.entrants) {
    std::printf("%-8s %6ld B  %-17s", c.source.name, static_cast<long>(c.row_bytes), x.name.c_str());
    if (!x.is_timed()) {
      std::printf(" %s %s\n", x.status.c_str(), x.reason.c_str());
      continue;
    }
    std::printf(" %9.1f GB/s  %6.1f %% of the copy", c.gbps(x), 100 * c.gbps(x) / plain);
    if (x.name == "overlace" && c.target() > 0)
      std::printf("  >= %.0f %% %s", 100 * c.source.share, c.gbps(x) >= c.target() ? "yes" : "NO");
    std::printf("\n");
  }
  std::fflush(stdout);
}

std::vector<Json> records_of(const Case& c, const Options& o, const RecordHead& head) {
  std::vector<Json> records;
  for (const Entrant& x : c.entrants) {
    Json shape = Json::object(), method = Json::object(), flags = Json::array(), verify = Json::object();
    shape.set("name", c.source.name).set("what", base::format("rows of {} B, {} MiB", c.row_bytes, o.out_mib));
    method.set("repetitions", o.repetitions).set("n", x.calls).set("lead_in", 0.2);
    if (c.outcome.unsettled) flags.push_back("unsettled");
    const bool is_attested = std::all_of(x.clocks.begin(), x.clocks.end(), [](const ClockSample& s) { return s.ok; });
    if (!is_attested || x.clocks.empty()) flags.push_back("unattested");
    verify.set("ok", x.status == "ok").set("oracle", "every word, by its place in the table");
    Json record = new_record(head, "gather_rows", std::move(shape), x.name);
    record.set("team", 1).set("launch", "stream").set("method", method);
    record.set("data", base::format("uniform words, uniform ids of a table of {} MiB", o.table_mib));
    record.set("bytes", c.bytes).set("target", x.name == "overlace" ? c.target() : 0.0);
    record.set("flags", flags).set("status", x.status).set("verify", verify);
    if (!x.reason.empty()) record.set("reason", x.reason);
    if (!x.clocks.empty()) record.set("clocks", clocks_json(x.clocks));
    if (x.is_timed()) record.set("time_us", time_json(x.samples_us)).set("host_us", base::median(x.host_us));
    records.push_back(std::move(record));
  }
  return records;
}

/// How many ways gave wrong rows.
int run_source(const Source& source, const Options& o, Gpu& gpu, const RecordHead& head) {
  const int64_t out_bytes = int64_t{o.out_mib} << 20;
  const auto tables = Tables::create(source.where, int64_t{o.table_mib} << 20, out_bytes, gpu).value();
  std::vector<Way> ways = {Way::plain, Way::overlace, Way::few_ctas};
  std::vector<Entrant> entrants = {{"plain"}, {"overlace"}, {base::format("overlace_{}_ctas", kFewCtas)}};
  if (source.where == RowsOn::pinned) {
    ways.push_back(Way::cpu);
    entrants.push_back({"cpu_gather"});
  }
  ProtocolOptions protocol;
  protocol.repetitions = o.repetitions;
  protocol.burst_ms = o.burst_ms;
  protocol.warm_s = 0.2;
  protocol.settle_s = 1;
  protocol.least_calls = 8;
  protocol.verify_only = o.verify_only;
  Solo crew(gpu);
  int wrong = 0;
  for (const std::string& text : o.rows) {
    Case c{source, row_bytes_of(text), 0, entrants, {}};
    c.bytes = tables->draw(c.row_bytes).value();
    Ways subject(*tables, ways);
    c.outcome = run_case(&c.entrants, subject, crew, protocol).value();
    print(c);
    append_records(o.run, records_of(c, o, head)).or_throw();
    wrong += c.outcome.wrong;
  }
  return wrong;
}

int run_main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  std::vector<const Source*> sources;
  for (const std::string& name : o.sources) sources.push_back(&source_of(name));
  for (const std::string& text : o.rows) (void)row_bytes_of(text);
  if (cuda_devices() == 0) {
    std::fprintf(stderr, "bench_gather_rows: no usable GPU\n");
    return 3;
  }
  const auto gpu = Gpu::open(0).value();
  const RecordHead head{o.run, machine_json(*gpu, cuda_devices())};
  int wrong = 0;
  for (const Source* source : sources) {
    if (source->where == RowsOn::peer && cuda_devices() < 2) {
      std::printf("peer     absent: one GPU, wanted two\n");
      continue;
    }
    wrong += run_source(*source, o, *gpu, head);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace overlace::bench

int main(int argc, char** argv) {
  return overlace::bench::run_program("bench_gather_rows", argc, argv, overlace::bench::run_main);
}
