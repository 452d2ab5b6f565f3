#include "cli/run/outputs.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <limits>
#include <system_error>
#include <thread>

#include "cli/report/report.h"
#include "src/base/file.h"
#include "src/model/npy.h"

namespace overlace::cli {
namespace {

using base::Status;

std::string cpu_name() {
  const auto info = base::read_file("/proc/cpuinfo");
  if (!info.ok()) return "unknown";
  const size_t key = info->find("model name");
  const size_t colon = info->find(": ", key);
  if (key == std::string::npos || colon == std::string::npos) return "unknown";
  return info->substr(colon + 2, info->find('\n', colon) - colon - 2);
}

double or_nan(const std::optional<double>& value) { return value ? *value : std::numeric_limits<double>::quiet_NaN(); }

Report make_report(const RunOutputs& outputs) {
  const RunResult& r = outputs.result;
  Report report;
  report.model = r.model;
  report.ranks = r.ranks;
  report.backend = r.backend;
  report.dtype = dtype_name(r.dtype);
  report.emulated = r.is_emulated();
  if (r.is_emulated()) report.emulation = "link " + r.link;
  report.run = {{"part of a layer", r.part},
                {"layers", base::format("{}", r.layers)},
                {"tokens", base::format("{}", r.tokens)},
                {"sequence length", base::format("{}", r.sequence_length)},
                {"seed", base::format("{}", r.seed)},
                {"repetitions", base::format("{}", r.repetitions)},
                {"GEMM by", r.provider},
                {"overlace", r.version}};
  if (r.weights)
    report.run.push_back(
        {"device memory of a rank", base::format("{} bytes, {} of {} layers stream from {}", r.weights->device_bytes,
                                                 r.weights->streamed_layers, r.layers, r.weights->source)});
  if (r.activations)
    report.run.push_back(
        {"activations of a rank in host memory", base::format("{} bytes", r.activations->resting_bytes)});
  for (const SiteResult& s : r.sites) {
    report.sites.push_back({s.name, s.op.op, s.op.m, s.op.n, s.op.k, s.times.serial_us, s.times.overlapped_us,
                            s.times.limit_us, or_nan(s.times.hidden()), s.chosen, s.reason});
  }
  report.total = {r.total_serial_us, r.total_overlapped_us, r.stack_limit_us, or_nan(r.total_hidden())};
  report.ok = r.ok;
  report.error = r.error;
  report.baseline_error = r.baseline_error;
  report.serial = outputs.serial;
  report.overlapped = outputs.overlapped;
  struct utsname system {};
  ::uname(&system);
  report.machine = {{"CPU", cpu_name()},
                    {"cores", base::format("{}", std::thread::hardware_concurrency())},
                    {"kernel", base::format("{} {}", system.sysname, system.release)}};
  report.notes = {"Times of sites are medians over repetitions of the maximum over ranks, all from one run.",
                  "Hidden is (serial - overlapped) / min(compute alone, communication alone), not clipped.",
                  "Errors are the largest deviation from an fp64 oracle of the whole stack, in units of its rms."};
  if (!r.ok) report.notes.push_back("WRONG: " + r.why_not);
  return report;
}

volatile sig_atomic_t held_signal = 0;
void hold(int number) { held_signal = number; }

/// Ctrl-C between a temporary file and its rename would leave the former behind: it takes effect afterwards.
class HoldSignals {
 public:
  HoldSignals() {
    struct sigaction action {};
    action.sa_handler = hold;
    for (size_t i = 0; i < 2; ++i) ::sigaction(kNumbers[i], &action, &before_[i]);
  }
  HoldSignals(const HoldSignals&) = delete;
  HoldSignals& operator=(const HoldSignals&) = delete;
  ~HoldSignals() {
    for (size_t i = 0; i < 2; ++i) ::sigaction(kNumbers[i], &before_[i], nullptr);
    if (held_signal != 0) ::raise(held_signal);
  }

 private:
  static constexpr int kNumbers[2] = {SIGINT, SIGTERM};
  struct sigaction before_[2] = {};
};

void keep_first(Status* first, Status next) {
  if (first->ok()) *first = std::move(next);
}

}  // namespace

Status check_writable(const char* option, const std::string& path) {
  if (path.empty() || path == "-") return {};
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return base::error(Errc::io, "{}: {} is a directory, wanted a file", option, path);
    if (::access(path.c_str(), W_OK) != 0) return base::error(Errc::io, "{}: {} cannot be written", option, path);
    if (!S_ISREG(info.st_mode)) return {};
  }
  const size_t slash = path.find_last_of('/');
  const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (::stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return base::error(Errc::io, "{}: {} cannot be written: there is no directory {}", option, path, directory);
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    return base::error(Errc::io, "{}: {} cannot be written: directory {} takes no new files", option, path, directory);
  return {};
}

Status print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return {};
  return base::error(Errc::io, "cannot write to stdout: {}", std::generic_category().message(errno));
}

base::Json with_schema(std::string_view name, base::Json data) {
  base::Json::Object members = {{"schema", base::format("overlace.{}/1", name)}};
  if (data.is_array()) return members.emplace_back("rows", std::move(data)), base::Json(std::move(members));
  for (auto& member : data.as_object()) members.push_back(std::move(member));
  return members;
}

Status write_result(const base::Json& data, std::string_view text, const std::string& target) {
  if (target.empty()) return print(text);
  const std::string json = data.dump(2) + "\n";
  if (target == "-") return print(json);
  OVERLACE_TRY(print(text));
  return base::write_file(target, json);
}

Status write_outputs(const RunOptions& o, const RunOutputs& outputs) {
  const HoldSignals until_written;
  const RunResult& result = outputs.result;
  Status status;
  if (!o.quiet && o.json != "-") keep_first(&status, print(to_table(result)));
  const std::string json = to_json(result).dump(2) + "\n";
  if (o.json == "-") {
    keep_first(&status, print(json));
  } else if (!o.json.empty()) {
    keep_first(&status, base::write_file(o.json, json));
  }
  if (!o.output.empty()) {
    keep_first(&status, model::write_npy(o.output, result.tokens, outputs.hidden, outputs.hidden_states.data()));
  }
  if (!o.trace.empty()) {
    base::Trace both = outputs.serial;
    both.merge(outputs.overlapped);
    keep_first(&status, base::write_trace(both, o.trace));
  }
  if (!o.report.empty()) keep_first(&status, base::write_file(o.report, html_report(make_report(outputs))));
  return status;
}

}  // namespace overlace::cli
