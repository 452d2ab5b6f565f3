#include "cli/trace/trace.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "cli/report/timeline.h"
#include "cli/run/outputs.h"
#include "src/base/file.h"
#include "src/sim/trace/chakra.h"
#include "src/sim/trace/kineto.h"

namespace overlace::cli {
namespace {

using base::Span;
using base::Trace;

struct LaneSummary {
  int64_t spans = 0, busy_ns = 0, bytes = 0;  // busy: waits are not work
  double flops = 0;
};

/// All instances of a task: "qkv push[s=0,p=1]" and "qkv push[s=1,p=0]" are "qkv push".
struct TaskSummary {
  int64_t spans = 0;
  double us = 0, longest_us = 0;
};

struct Summary {
  std::map<std::pair<int, std::string>, LaneSummary> lanes;                        // of rank and lane
  std::vector<std::pair<std::pair<std::string, std::string>, TaskSummary>> tasks;  // task and kind; most time first
  std::map<int, int64_t> exposed_ns;  // communication that nothing hides, by rank
  int64_t extent_ns = 0;
};

/// "gemm[1][2]" is an instance of "gemm"; "[pack]" and "void foo(float [3])" are names.
std::string task_of(const std::string& name) {
  size_t end = name.size();
  while (end > 0 && name[end - 1] == ']') {
    size_t begin = end - 1;
    for (int depth = 1; depth > 0 && begin > 0;) {
      --begin;
      depth += name[begin] == ']' ? 1 : name[begin] == '[' ? -1 : 0;
    }
    if (begin == 0) break;
    end = begin;
  }
  return name.substr(0, end);
}

Summary summary_of(const Trace& trace) {
  Summary out;
  out.extent_ns = extent_ns(trace);
  std::map<std::pair<int, std::string>, Intervals> busy;
  std::map<std::pair<std::string, std::string>, TaskSummary> tasks;
  for (const Span& span : trace.spans) {
    LaneSummary& lane = out.lanes[{span.rank, span.lane}];
    ++lane.spans;
    lane.bytes += span.bytes;
    lane.flops += span.flops;
    if (span.category != "wait") busy[{span.rank, span.lane}].push_back({span.begin_ns, span.end_ns});
    TaskSummary& task = tasks[{task_of(span.name), span.category}];
    ++task.spans;
    // NOTE: unsigned, as the ends of a foreign span may lie further apart than an int64_t can say.
    const uint64_t ns = static_cast<uint64_t>(span.end_ns) - static_cast<uint64_t>(span.begin_ns);
    task.us += static_cast<double>(ns) * 1e-3;
    task.longest_us = std::max(task.longest_us, static_cast<double>(ns) * 1e-3);
    out.exposed_ns[span.rank] = 0;
  }
  for (auto& [key, intervals] : busy) out.lanes[key].busy_ns = total_ns(united(std::move(intervals)));
  for (auto& [rank, ns] : out.exposed_ns) ns = total_ns(exposed_communication(trace, rank));
  out.tasks.assign(tasks.begin(), tasks.end());
  std::stable_sort(out.tasks.begin(), out.tasks.end(),
                   [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  return out;
}

std::string rate_text(double amount, int64_t ns, std::string_view unit) {
  if (amount <= 0 || ns <= 0) return "-";
  return base::format("{:.3g} {}", amount / static_cast<double>(ns), unit);  // per ns: G per s
}

double us_of(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

std::string time_text(int64_t ns) { return duration_text(us_of(ns)); }

/// 0 to 100 of the whole, by length of the union of spans.
int percent_of(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<int>((100.0 * static_cast<double>(part)) / static_cast<double>(whole) + 0.5) : 0;
}

constexpr std::string_view kChakra = ".et";
constexpr size_t kMostEmptyFiles = 256, kShownTasks = 20;

/// NAME.et and 3: NAME.3.et
std::string chakra_path(const std::string& path, size_t rank) {
  return base::format("{}.{}{}", path.substr(0, path.size() - kChakra.size()), rank, kChakra);
}

/// False too where nobody can say, as for a name that is too long: reading says why.
bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

base::Result<Trace> load_chakra(const std::string& path) {
  std::vector<std::string> files;
  if (is_there(path) || !is_there(chakra_path(path, 0))) {
    base::Result<std::string> bytes = base::read_file(path);
    if (!bytes.ok()) return bytes.status();
    files.push_back(std::move(*bytes));
  }
  for (size_t rank = 0; files.size() == rank && is_there(chakra_path(path, rank)); ++rank) {
    base::Result<std::string> bytes = base::read_file(chakra_path(path, rank));
    if (!bytes.ok()) return bytes.status();
    files.push_back(std::move(*bytes));
  }
  return sim::from_chakra(files, path);
}

/// A file for each rank up to the last one; those of more ranks that were written before would be read as well.
base::Status write_chakra(const Trace& trace, const std::string& path) {
  std::set<int> ranks;
  for (const Span& span : trace.spans) ranks.insert(span.rank);
  for (const base::Arrow& arrow : trace.arrows) ranks.insert({arrow.from_rank, arrow.to_rank});
  const size_t count = ranks.empty() ? 0 : static_cast<size_t>(*ranks.rbegin()) + 1;
  if (const size_t empty = count - ranks.size(); empty > kMostEmptyFiles)
    return base::invalid_argument("{}: {} of {} ranks have nothing, wanted at most {}: Chakra has a file per rank",
                                  path, empty, count, kMostEmptyFiles);
  if (is_there(path))
    return base::invalid_argument("{}: it is there and would be read in place of {}, wanted another name", path,
                                  chakra_path(path, 0));
  const std::vector<std::string> files = sim::to_chakra(trace);
  for (size_t rank = 0; rank < files.size(); ++rank)
    OVERLACE_TRY(base::write_file(chakra_path(path, rank), files[rank]));
  for (size_t rank = files.size(); is_there(chakra_path(path, rank)); ++rank) {
    std::error_code error;
    if (!std::filesystem::remove(chakra_path(path, rank), error) && error)
      return base::error(Errc::io, "{}: {}, wanted to remove the trace of more ranks that was there",
                         chakra_path(path, rank), error.message());
  }
  return {};
}

}  // namespace

std::string describe_trace(const Trace& trace) {
  const Summary summary = summary_of(trace);
  const int64_t whole = summary.extent_ns;
  std::string out =
      base::format("{}{}\n", trace.title.empty() ? "(no title)" : trace.title, trace.emulated ? "  [emulated]" : "");
  out += base::format("{} ranks, {} lanes, {} spans, {} signals, {}\n", summary.exposed_ns.size(), summary.lanes.size(),
                      trace.spans.size(), trace.arrows.size(), time_text(whole));
  if (trace.spans.empty()) return out;
  out += base::format("\n{:<6} {:<16} {:>7} {:>10} {:>6} {:>14} {:>14}\n", "rank", "lane", "spans", "busy", "busy %",
                      "moved", "computed");
  for (const auto& [key, lane] : summary.lanes)
    out += base::format("{:<6} {:<16} {:>7} {:>10} {:>6} {:>14} {:>14}\n", key.first, key.second, lane.spans,
                        time_text(lane.busy_ns), percent_of(lane.busy_ns, whole),
                        rate_text(static_cast<double>(lane.bytes), lane.busy_ns, "GB/s"),
                        rate_text(lane.flops, lane.busy_ns, "GFLOP/s"));
  out += base::format("\n{:<30} {:<10} {:>7} {:>10} {:>10}\n", "task", "kind", "spans", "all", "longest");
  for (size_t i = 0; i < std::min(summary.tasks.size(), kShownTasks); ++i) {
    const auto& [key, task] = summary.tasks[i];
    out += base::format("{:<30} {:<10} {:>7} {:>10} {:>10}\n", key.first, key.second, task.spans,
                        duration_text(task.us), duration_text(task.longest_us));
  }
  if (summary.tasks.size() > kShownTasks) out += base::format("({} more)\n", summary.tasks.size() - kShownTasks);
  out += "\nexposed communication\n";
  for (const auto& [rank, exposed] : summary.exposed_ns)
    out += base::format("{:<6} {:>10} {:>5} %\n", rank, time_text(exposed), percent_of(exposed, whole));
  return out;
}

base::Json trace_json(const Trace& trace) {
  using base::Json;
  const Summary summary = summary_of(trace);
  Json ranks = Json::array(), lanes = Json::array(), tasks = Json::array();
  for (const auto& [rank, exposed_ns] : summary.exposed_ns)
    ranks.push_back(Json::Object{{"rank", rank}, {"exposed_us", us_of(exposed_ns)}});
  for (const auto& [key, lane] : summary.lanes)
    lanes.push_back(Json::Object{{"rank", key.first},
                                 {"lane", key.second},
                                 {"spans", lane.spans},
                                 {"busy_us", us_of(lane.busy_ns)},
                                 {"bytes", lane.bytes},
                                 {"flops", lane.flops}});
  for (const auto& [key, task] : summary.tasks)
    tasks.push_back(Json::Object{{"task", key.first},
                                 {"kind", key.second},
                                 {"spans", task.spans},
                                 {"us", task.us},
                                 {"longest_us", task.longest_us}});
  return with_schema("trace_info", Json::Object{{"title", trace.title},
                                                {"emulated", trace.emulated},
                                                {"duration_us", us_of(summary.extent_ns)},
                                                {"spans", static_cast<int64_t>(trace.spans.size())},
                                                {"signals", static_cast<int64_t>(trace.arrows.size())},
                                                {"ranks", std::move(ranks)},
                                                {"lanes", std::move(lanes)},
                                                {"tasks", std::move(tasks)}});
}

base::Result<Trace> load_trace(const std::string& path) {
  if (path.ends_with(kChakra)) return load_chakra(path);
  base::Result<std::string> bytes = base::read_file(path);
  if (!bytes.ok()) return bytes.status();
  const size_t first = bytes->find_first_not_of(" \t\r\n");
  if (first != std::string::npos && ((*bytes)[first] == '{' || (*bytes)[first] == '[')) {
    const base::Result<base::Json> json = base::Json::parse(*bytes, path);
    if (json.ok() && sim::is_foreign_chrome(*json)) return sim::parse_kineto(*json, path);
  }
  return base::parse_trace(*bytes, path);
}

base::Status check_timeline_name(const std::string& path) {
  for (const std::string_view ending :
       {std::string_view(".json"), std::string_view(".pftrace"), std::string_view(".perfetto-trace"), kChakra})
    if (path.ends_with(ending)) return {};
  return base::invalid_argument("trace file {}: wanted a name that ends in .json, .pftrace, .perfetto-trace or .et",
                                path);
}

base::Status write_timeline(const Trace& trace, const std::string& path) {
  if (!path.ends_with(kChakra)) return base::write_trace(trace, path);
  return write_chakra(trace, path);
}

int trace_info(const std::string& path, const std::string& json) {
  const Trace trace = load_trace(path).value();
  write_result(trace_json(trace), path + "\n" + describe_trace(trace), json).or_throw();
  return 0;
}

base::Status trace_convert(const std::string& from, const std::string& to) {
  OVERLACE_TRY(check_timeline_name(to));
  base::Result<Trace> trace = load_trace(from);
  if (!trace.ok()) return trace.status();
  return write_timeline(*trace, to);
}

}  // namespace overlace::cli
