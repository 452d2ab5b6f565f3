#include "cli/run/result.h"

#include <algorithm>

#include "cli/run/outputs.h"
#include "cli/run/plan.h"
#include "cli/word_list.h"
#include "src/base/format.h"
#include "src/model/layer_stream.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

using base::Json;

// Two measurements of the same thing differ by more than this part of it, so a share of less says nothing.
constexpr double kNoRoom = 0.02;

/// Families of some operators carry a suffix, which the column beside them says already.
std::string without_suffix(const spec::Schedule& schedule) {
  return std::string(spec::without_suffix(schedule.op, schedule.family));
}

std::string percent(const std::optional<double>& share) {
  return share ? base::format("{:.0f} %", 100 * *share) : std::string("-");
}

/// Zero stands for what was not timed, because the result was wrong.
std::string microseconds(double us) {
  if (us == 0) return "-";
  return us >= 100 ? base::format("{:.0f}", us) : base::format("{:.1f}", us);
}

Json number_or_null(double us) { return us == 0 ? Json() : Json(us); }

Json site_json(const SiteResult& site) {
  const SiteTimes& t = site.times;
  const auto hidden = t.hidden();
  Json out = Json::object();
  out.set("name", site.name);
  out.set("op", site.op.op);
  out.set("m", site.op.m);
  out.set("n", site.op.n);
  out.set("k", site.op.k);
  out.set("layers", site.layers);
  if (site.experts) {
    out.set("experts", site.experts->count);
    out.set("top_k", site.experts->per_token);
    out.set("load", number_or_null(site.experts->load));
  }
  out.set("schedule", site.chosen);
  out.set("serial_us", number_or_null(t.serial_us));
  out.set("overlapped_us", number_or_null(t.overlapped_us));
  out.set("limit_us", number_or_null(t.limit_us));
  out.set("hidden", hidden ? Json(*hidden) : Json());
  out.set("reason", site.reason);
  out.set("library_us", number_or_null(t.library_us));
  out.set("compute_us", number_or_null(t.compute_us));
  out.set("comm_us", number_or_null(t.comm_us));
  return out;
}

Json weights_json(const std::optional<WeightsResult>& weights) {
  if (!weights) return {};
  const auto hidden = weights->hidden();
  Json out = Json::object();
  out.set("source", weights->source);
  out.set("device_bytes", weights->device_bytes);
  out.set("layer_bytes", weights->layer_bytes);
  out.set("resident_layers", weights->resident_layers);
  out.set("streamed_layers", weights->streamed_layers);
  out.set("transfer_us", number_or_null(weights->transfer_us));
  out.set("waited_us", hidden ? Json(weights->waited_us) : Json());
  out.set("disk_us", hidden ? Json(weights->disk_us) : Json());
  out.set("hidden", hidden ? Json(*hidden) : Json());
  out.set("binds", hidden ? Json(weights->binds()) : Json());
  return out;
}

std::string waited_text(double transfer_us, double waited_us) {
  return base::format("{} us a pass, of which the layers wait {} us", microseconds(transfer_us),
                      waited_us == 0 ? "0" : microseconds(waited_us));
}

std::string weights_line(const WeightsResult& w) {
  const int64_t layers = w.resident_layers + w.streamed_layers;
  if (w.streamed_layers == 0) return base::format("weights: all {} layers fit into {} bytes\n", layers, w.device_bytes);
  const std::string what = base::format("weights: {} of {} layers of {} bytes stream from {}", w.streamed_layers,
                                        layers, w.layer_bytes, w.source);
  if (!w.hidden()) return what + "\n";
  return base::format("{}, {}; {} binds\n", what, waited_text(w.transfer_us, w.waited_us), w.binds());
}

Json activations_json(const std::optional<ActivationsResult>& activations) {
  if (!activations) return {};
  const auto hidden = activations->hidden();
  Json out = Json::object();
  out.set("resting_bytes", activations->resting_bytes);
  out.set("transfer_us", number_or_null(activations->transfer_us));
  out.set("waited_us", hidden ? Json(activations->waited_us) : Json());
  out.set("hidden", hidden ? Json(*hidden) : Json());
  return out;
}

std::string activations_line(const ActivationsResult& a) {
  const std::string what = base::format("activations: {} bytes of a rank rest in host memory", a.resting_bytes);
  return a.hidden() ? base::format("{}, {}\n", what, waited_text(a.transfer_us, a.waited_us)) : what + "\n";
}

}  // namespace

std::optional<double> ActivationsResult::hidden() const {
  if (transfer_us <= 0) return std::nullopt;
  return (transfer_us - waited_us) / transfer_us;
}

std::optional<double> WeightsResult::hidden() const {
  if (streamed_layers == 0 || transfer_us <= 0) return std::nullopt;
  return (transfer_us - waited_us) / transfer_us;
}

std::string WeightsResult::binds() const {
  constexpr double kNoise = 0.05;
  if (waited_us <= kNoise * transfer_us) return "compute";
  return disk_us > transfer_us / 2 ? "disk" : "host memory";
}

std::optional<double> SiteTimes::hidden() const {
  const double side = std::min(compute_us, comm_us);
  if (side <= kNoRoom * serial_us) return std::nullopt;
  return (serial_us - overlapped_us) / side;
}

double RunResult::sites_limit_us() const {
  double room_us = 0;
  for (const SiteResult& site : sites)
    if (!site.experts) room_us += static_cast<double>(site.layers) * (site.times.serial_us - site.times.limit_us);
  return total_serial_us - room_us;
}

std::optional<double> RunResult::total_hidden() const {
  double saved_us = 0, side_us = 0;
  for (const SiteResult& site : sites) {
    if (!site.times.hidden()) continue;
    const auto times = static_cast<double>(site.layers);
    saved_us += times * (site.times.serial_us - site.times.overlapped_us);
    side_us += times * std::min(site.times.compute_us, site.times.comm_us);
  }
  if (side_us <= 0) return std::nullopt;
  return saved_us / side_us;
}

SiteResult experts_site(const RunPlan& plan) {
  const model::Experts& experts = plan.config.experts;
  SiteResult out;
  out.name = out.op.op = "moe";
  out.op.m = model::micro_batches(plan.problem, 0, 1).front().tokens;
  out.op.n = experts.intermediate;
  out.op.k = plan.config.hidden;
  out.layers = plan.config.expert_layers(plan.problem.layers);
  out.chosen = spec::kLibrary;
  out.reason = base::format("the only way: {} of {} experts for each token, and nothing of the exchange is hidden",
                            experts.per_token, experts.count);
  out.experts = ExpertsResult{experts.count, experts.per_token};
  return out;
}

std::string schedule_name(const spec::Schedule& schedule) {
  const std::string family = without_suffix(schedule);
  const auto q = schedule.params.find("q");
  const int64_t* degree = q == schedule.params.end() ? nullptr : std::get_if<int64_t>(&q->second);
  return degree == nullptr || *degree == 1 ? family : base::format("{}:{}", family, *degree);
}

Json to_json(const RunResult& r) {
  Json sites = Json::array();
  for (const SiteResult& site : r.sites) sites.push_back(site_json(site));
  const auto hidden = r.total_hidden();
  Json total = Json::object();
  total.set("serial_us", number_or_null(r.total_serial_us));
  total.set("overlapped_us", number_or_null(r.total_overlapped_us));
  total.set("limit_us", number_or_null(r.sites_limit_us()));
  total.set("stack_limit_us", number_or_null(r.stack_limit_us));
  total.set("hidden", hidden ? Json(*hidden) : Json());
  Json out = Json::object();
  out.set("ok", r.ok);
  out.set("backend", r.backend);
  out.set("emulated", r.is_emulated());
  out.set("ranks", r.ranks);
  out.set("model", r.model);
  out.set("sites", std::move(sites));
  out.set("total", std::move(total));
  out.set("error", r.error);
  out.set("baseline_error", r.baseline_error);
  out.set("error_limit", r.error_limit);
  out.set("why_not", r.why_not);
  out.set("link", r.link);
  out.set("hosts", r.hosts);
  out.set("part", r.part);
  out.set("layers", r.layers);
  out.set("tokens", r.tokens);
  out.set("sequence_length", r.sequence_length);
  out.set("micro_batch", r.micro_batch);
  out.set("weights", weights_json(r.weights));
  out.set("activations", activations_json(r.activations));
  out.set("dtype", dtype_name(r.dtype));
  out.set("seed", r.seed);
  out.set("repetitions", r.repetitions);
  out.set("gemm", r.provider);
  out.set("version", r.version);
  return with_schema("run", std::move(out));
}

std::string to_table(const RunResult& r) {
  const std::string together = r.micro_batch > 0 ? base::format(", micro-batches of {}", r.micro_batch) : "";
  std::string out = base::format("{}  {}{} layer{}, {} tokens in sequences of {}{}, {}\n", r.model,
                                 r.part == "moe" ? "router and experts of " : "", r.layers, r.layers == 1 ? "" : "s",
                                 r.tokens, r.sequence_length, together, dtype_name(r.dtype));
  const std::string hosts = r.hosts > 1 ? base::format(" on {} hosts", r.hosts) : "";
  out += base::format("{} rank{}{}, backend {}, GEMM by {}\n", r.ranks, r.ranks == 1 ? "" : "s", hosts, r.backend,
                      r.provider);
  if (r.is_emulated()) {
    out += base::format("EMULATED link between ranks: {} per direction; all times below are with it\n", r.link);
  }
  std::vector<std::vector<std::string>> rows = {
      {"site", "operator", "M x N x K", "schedule", "serial us", "overlapped us", "limit us", "hidden"}};
  for (const SiteResult& s : r.sites) {
    rows.push_back({s.name, s.op.op, base::format("{}x{}x{}", s.op.m, s.op.n, s.op.k), s.chosen,
                    microseconds(s.times.serial_us), microseconds(s.times.overlapped_us),
                    microseconds(s.times.limit_us), percent(s.times.hidden())});
  }
  rows.push_back({"all layers", "", "", "", microseconds(r.total_serial_us), microseconds(r.total_overlapped_us),
                  microseconds(r.stack_limit_us), percent(r.total_hidden())});
  if (r.weights) {
    const WeightsResult& w = *r.weights;
    rows.push_back({"weights", w.source, base::format("{} x {} B", w.streamed_layers, w.layer_bytes),
                    w.hidden() ? w.binds() + " binds" : "-", microseconds(w.transfer_us),
                    w.hidden() ? base::format("{:.1f}", w.waited_us) : "-", "-", percent(w.hidden())});
  }
  if (r.activations) {
    const ActivationsResult& a = *r.activations;
    rows.push_back({"activations", "host", base::format("{} B", a.resting_bytes), "-", microseconds(a.transfer_us),
                    a.hidden() ? base::format("{:.1f}", a.waited_us) : "-", "-", percent(a.hidden())});
  }
  out += "\n" + aligned(rows, 4) + "\n";
  if (r.weights) out += weights_line(*r.weights);
  if (r.activations) out += activations_line(*r.activations);
  for (const SiteResult& s : r.sites) out += base::format("{}: {}\n", s.name, s.reason);
  out += base::format("largest error / rms of the fp64 oracle: {:.3g} overlapped, {:.3g} unfused, {:.3g} allowed\n",
                      r.error, r.baseline_error, r.error_limit);
  out += r.ok ? std::string("ok\n") : base::format("WRONG: {}\n", r.why_not);
  return out;
}

}  // namespace overlace::cli
