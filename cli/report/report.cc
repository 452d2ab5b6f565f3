#include "cli/report/report.h"

#include <algorithm>
#include <cmath>

#include "cli/report/page.h"
#include "cli/report/timeline.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

using base::Json;

std::string percent_text(double share) { return std::isfinite(share) ? base::format("{:.0f} %", 100 * share) : "-"; }

std::string ratio_text(double serial_us, double overlapped_us) {
  return overlapped_us > 0 && serial_us > 0 ? base::format("{:.2f}x", serial_us / overlapped_us) : "-";
}

/// Empty, or the badge that stands wherever numbers are.
Json emulated_badges(const Report& report) {
  if (!report.emulated) return Json::array();
  return Json::Array{badge("emulated " + (report.emulation.empty() ? "link" : report.emulation), "emulated")};
}

Json facts(const Report& report) {
  Json list = Json::array();
  for (const std::string& fact : {base::format("{} ranks", report.ranks), report.backend, report.dtype})
    list.push_back(badge(fact));
  const Json emulated = emulated_badges(report);
  for (const Json& one : emulated.as_array()) list.push_back(one);
  list.push_back(report.ok ? badge("verified", "check good") : badge("a check failed", "check bad"));
  return list;
}

Json tile(std::string_view name, std::string value, std::string note) {
  return Json::Object{{"name", name}, {"value", std::move(value)}, {"note", std::move(note)}};
}

/// Noise may put the overlapped run below the limit, which is a run of its own.
std::string limit_text(const ReportTotal& t) {
  if (t.limit_us <= 0) return "";
  const std::string ratio = ratio_text(t.serial_us, t.limit_us);
  return t.overlapped_us < t.limit_us ? base::format("at the limit of all layers, whose own run measured {}", ratio)
                                      : base::format("limit of all layers: {}", ratio);
}

Json summary(const Report& report) {
  const ReportTotal& t = report.total;
  const double saved = t.serial_us - t.overlapped_us;
  Json tiles = Json::Array{tile("Serial", duration_text(t.serial_us), "all layers: computation, then communication"),
                           tile("Overlapped", duration_text(t.overlapped_us),
                                "all layers: " + duration_text(std::abs(saved)) + (saved < 0 ? " lost" : " saved")),
                           tile("Speed-up", ratio_text(t.serial_us, t.overlapped_us), limit_text(t)),
                           tile("Hidden", percent_text(t.hidden), "of the communication of sites timed one by one")};
  return Json::Object{{"block", "tiles"}, {"tiles", std::move(tiles)}};
}

/// Two bars and a mark on one scale; their text is in the columns beside.
Json bars(const ReportSite& site, double longest_us) {
  const auto at = [&](double us, std::string_view kind) -> Json {
    const double share = longest_us > 0 ? std::clamp(100 * us / longest_us, 0.0, 100.0) : 0.0;
    return Json::Object{{"at", share}, {"kind", kind}};
  };
  Json marks = site.limit_us > 0 ? Json::Array{at(site.limit_us, "limit")} : Json::Array{};
  return Json::Object{{"bars", Json::Array{at(site.serial_us, "serial"), at(site.overlapped_us, "overlapped")}},
                      {"marks", std::move(marks)}};
}

std::string time_text(double us) { return us > 0 ? duration_text(us) : "-"; }

Json site_table(const Report& report) {
  const auto column = [](std::string_view title, std::string_view kind) -> Json {
    return Json::Object{{"title", title}, {"kind", kind}};
  };
  double longest = 0;
  for (const ReportSite& site : report.sites) longest = std::max({longest, site.serial_us, site.overlapped_us});
  Json rows = Json::array();
  for (const ReportSite& site : report.sites) {
    const std::string size = base::format("{} x {} x {}", site.m, site.n, site.k);
    rows.push_back(Json::Object{
        {"name", Json::Array{styled("b", site.name), " " + site.op, styled("aside below", size)}},
        {"cells", Json::Array{time_text(site.serial_us), time_text(site.overlapped_us), time_text(site.limit_us),
                              percent_text(site.hidden), bars(site, longest),
                              Json::Array{styled("code", site.schedule), " ", styled("aside", site.why)}}}});
  }
  const ReportTotal& t = report.total;
  Json foot = Json::Object{{"name", styled("b", "All layers")},
                           {"cells", Json::Array{time_text(t.serial_us), time_text(t.overlapped_us),
                                                 time_text(t.limit_us), percent_text(t.hidden), "", ""}}};
  return Json::Object{
      {"part", "table"},
      {"columns", Json::Array{column("Site", ""), column("Serial", "number"), column("Overlapped", "number"),
                              column("Limit", "number"), column("Hidden", "number"),
                              column("Serial, overlapped, limit", "bars"), column("Schedule, and why", "schedule")}},
      {"rows", std::move(rows)},
      {"foot", std::move(foot)}};
}

Json site_note() {
  return note_part(Json::Array{
      styled("b", "Limit"),
      ": computation and communication side by side, without dependence; a site's limit is that of the site alone, and "
      "that of all layers comes from one run, which is not the sum of the sites. ",
      styled("b", "Hidden"), ": the share of the communication's time that the overlapped run does not spend. ",
      styled("b", "Bars"), ": serial above overlapped, the line is the limit."});
}

Json error_section(const Report& report) {
  Json parts =
      Json::Array{pairs_part({{"overlapped run", base::format("{:.3g}", report.error)},
                              {"unfused run in this precision", base::format("{:.3g}", report.baseline_error)},
                              {"checks", report.ok ? Json("all passed") : styled("bad-text", "at least one failed")}}),
                  note_part("Largest error of the whole stack's output against its fp64 oracle.")};
  return section_block("Errors", Json::array(), std::move(parts));
}

Json pairs_section(std::string_view title, const std::vector<std::pair<std::string, std::string>>& pairs) {
  const std::vector<std::pair<std::string, Json>> texts(pairs.begin(), pairs.end());
  return section_block(title, Json::array(), Json::Array{pairs_part(texts)});
}

}  // namespace

Json report_data(const Report& report) {
  const Json badges = emulated_badges(report);
  Json blocks = Json::Array{
      summary(report), section_block("What happened when", badges, timeline_parts(report.serial, report.overlapped))};
  if (!report.sites.empty())
    blocks.push_back(section_block("Sites", badges, Json::Array{site_table(report), site_note()}));
  Json columns = Json::Array{error_section(report)};
  if (!report.run.empty()) columns.push_back(pairs_section("Run", report.run));
  if (!report.machine.empty()) columns.push_back(pairs_section("Machine", report.machine));
  blocks.push_back(Json::Object{{"block", "columns"}, {"sections", std::move(columns)}});
  if (!report.notes.empty()) {
    Json items = Json::array();
    for (const std::string& note : report.notes) items.push_back(note);
    const Json list = Json::Object{{"part", "list"}, {"items", std::move(items)}};
    blocks.push_back(section_block("Notes", Json::array(), Json::Array{list}));
  }
  return Json::Object{
      {"title", base::format("overlace run: {}, {} ranks, {}", report.model, report.ranks, report.backend)},
      {"heading", report.model},
      {"badges", facts(report)},
      {"blocks", std::move(blocks)},
      {"footer", Json::Array{"written by ", styled("code", "overlace run")}}};
}

std::string html_report(const Report& report) { return page_html(report_data(report)); }

}  // namespace overlace::cli
