#include <algorithm>
#include <cmath>

#include "cli/run/outputs.h"
#include "cli/tune/tune.h"
#include "cli/word_list.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

using base::Json;

/// Of all that was measured.
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

std::string tune_text(const TuneResult& result) {
  std::string out = base::format("machine {}: {}\n\n", result.machine, result.origin);
  std::vector<std::vector<std::string>> rows = {
      {"problem", "site", "auto took", "takes now", "us", "now us", "library us", "gain"}};
  size_t kept = 0, changed = 0;
  for (const Tuned& one : result.tuned) {
    kept += one.is_kept ? 1 : 0;
    changed += one.usual == one.tuned ? 0 : 1;
    rows.push_back({one.problem.op.to_string(), one.problem.name, to_string(one.usual), to_string(one.tuned),
                    base::format("{:.1f}", one.usual_us), base::format("{:.1f}", one.tuned_us),
                    base::format("{:.1f}", one.library_us), base::format("{:.2f}x", one.gain())});
  }
  if (!result.tuned.empty()) out += aligned(rows, 4) + "\n";
  out += base::format("{} in {:.1f} s: {} measured, {} measured before", count_text(result.tuned.size(), "problem"),
                      result.seconds, result.tuned.size() - kept, kept);
  if (!result.tuned.empty())
    out += base::format("; auto changes at {}, {:.3f}x in the geometric mean of all", changed, mean_gain(result));
  out += "\n";
  if (!result.left.empty())
    out += base::format("{} left, as --seconds were over: the same command goes on\n",
                        count_text(result.left.size(), "problem"));
  return out + base::format("kept in {}: programs with OVERLACE_PLAN_CACHE={} take them\n", result.cache, result.cache);
}

Json tune_json(const TuneResult& result) {
  Json tuned = Json::array(), left = Json::array();
  for (const Tuned& one : result.tuned) {
    Json row = Json::object();
    row.set("problem", one.problem.op.to_string()).set("site", one.problem.name).set("measured_before", one.is_kept);
    row.set("auto", candidate_json(one.usual, one.usual_us)).set("tuned", candidate_json(one.tuned, one.tuned_us));
    row.set("library_us", one.library_us).set("gain", one.gain());
    tuned.push_back(std::move(row));
  }
  for (const TuneProblem& one : result.left) left.push_back(one.op.to_string());
  Json out = Json::object();
  out.set("machine", result.machine).set("origin", result.origin);
  out.set("cache", result.cache).set("seconds", result.seconds).set("mean_gain", mean_gain(result));
  out.set("tuned", std::move(tuned)).set("left", std::move(left));
  return with_schema("tune", std::move(out));
}

}  // namespace overlace::cli
