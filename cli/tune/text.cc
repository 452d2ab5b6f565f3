#include <algorithm>
#include <cmath>

#include "cli/run/outputs.h"
#include "cli/tune/tune.h"
#include "cli/word_list.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

using base::Json;

/// The geometric mean of all gains that were measured.
double mean_gain(const TuneResult& result) {
  double sum = 0;
  for (const Tuned& one : result.tuned) sum += std::log(one.gain());
  return result.tuned.empty() ? 1 : std::exp(sum / static_cast<double>(result.tuned.size()));
}

Json candidate_json(const plan::Candidate& candidate, double us) {
  Json out = Json::object();
  out.set("family", candidate.family).set("degree", candidate.degree).set("us", us);
  return out;
}

std::string count_text(size_t count, const char* what) {
  return base::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

std::string tune_text(const TuneReport& report) {
  const TuneResult& result = report.result;
  std::string out = base::format("machine {}: {}\n\n", report.machine, report.origin);
  std::vector<std::vector<std::string>> rows = {
      {"problem", "site", "auto took", "takes now", "us", "now us", "library us", "gain"}};
  size_t kept = 0, changed = 0;
  for (size_t i = 0; i < result.tuned.size(); ++i) {
    const Tuned& one = result.tuned[i];
    kept += one.was_kept ? 1 : 0;
    changed += one.usual == one.tuned ? 0 : 1;
    rows.push_back({one.op.to_string(), report.problems[i].name, to_string(one.usual), to_string(one.tuned),
                    base::format("{:.1f}", one.usual_us), base::format("{:.1f}", one.tuned_us),
                    base::format("{:.1f}", one.library_us), base::format("{:.2f}x", one.gain())});
  }
  if (!result.tuned.empty()) out += aligned(rows, 4) + "\n";
  out += base::format("{} in {:.1f} s: {} measured, {} measured before", count_text(result.tuned.size(), "problem"),
                      report.seconds, result.tuned.size() - kept, kept);
  if (!result.tuned.empty())
    out += base::format("; auto changes at {}, {:.3f}x in the geometric mean of all", changed, mean_gain(result));
  out += "\n";
  if (!result.left.empty())
    out += base::format("{} left, as --seconds were over: the same command goes on\n",
                        count_text(result.left.size(), "problem"));
  return out + base::format("kept in {}: programs with OVERLACE_PLAN_CACHE={} take them\n", report.cache, report.cache);
}

Json tune_json(const TuneReport& report) {
  const TuneResult& result = report.result;
  Json tuned = Json::array(), left = Json::array();
  for (size_t i = 0; i < result.tuned.size(); ++i) {
    const Tuned& one = result.tuned[i];
    Json row = Json::object();
    row.set("problem", one.op.to_string()).set("site", report.problems[i].name);
    row.set("measured_before", one.was_kept);
    row.set("auto", candidate_json(one.usual, one.usual_us)).set("tuned", candidate_json(one.tuned, one.tuned_us));
    row.set("library_us", one.library_us).set("gain", one.gain());
    tuned.push_back(std::move(row));
  }
  for (const spec::OpSpec& one : result.left) left.push_back(one.to_string());
  Json out = Json::object();
  out.set("machine", report.machine).set("origin", report.origin);
  out.set("cache", report.cache).set("seconds", report.seconds).set("mean_gain", mean_gain(result));
  out.set("tuned", std::move(tuned)).set("left", std::move(left));
  return with_schema("tune", std::move(out));
}

}  // namespace overlace::cli
