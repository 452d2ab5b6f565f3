#include "cli/report/report.h"

#include <algorithm>
#include <cmath>

#include "cli/report/style.h"
#include "cli/report/timeline.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

std::string percent_text(double share) { return std::isfinite(share) ? base::format("{:.0f} %", 100 * share) : "-"; }

std::string ratio_text(double serial_us, double overlapped_us) {
  return overlapped_us > 0 && serial_us > 0 ? base::format("{:.2f}x", serial_us / overlapped_us) : "-";
}

std::string emulated_badge(const Report& report) {
  if (!report.emulated) return "";
  return base::format("<span class=\"badge emulated\">emulated {}</span>",
                      escape_html(report.emulation.empty() ? "link" : report.emulation));
}

std::string header(const Report& report) {
  std::string out = base::format("<header><h1>{}</h1><p class=\"facts\">", escape_html(report.model));
  out += base::format(
      "<span class=\"badge\">{} ranks</span><span class=\"badge\">{}</span><span class=\"badge\">{}</span>",
      report.ranks, escape_html(report.backend), escape_html(report.dtype));
  out += emulated_badge(report);
  out += report.ok ? "<span class=\"badge good\">&#10003; verified</span>"
                   : "<span class=\"badge bad\">&#10007; a check failed</span>";
  return out + "</p></header>";
}

std::string tile(std::string_view name, std::string_view value, std::string_view aside) {
  return base::format(
      "<div class=\"tile\"><div class=\"name\">{}</div><div class=\"value\">{}</div><div "
      "class=\"aside\">{}</div></div>",
      name, value, aside);
}

std::string summary(const Report& report) {
  const ReportTotal& t = report.total;
  const double saved = t.serial_us - t.overlapped_us;
  std::string out = "<section class=\"tiles\" aria-label=\"Summary\">";
  out += tile("Serial", duration_text(t.serial_us), "computation, then communication");
  out += tile("Overlapped", duration_text(t.overlapped_us),
              saved >= 0 ? duration_text(saved) + " saved" : duration_text(-saved) + " lost");
  out += tile("Speed-up", ratio_text(t.serial_us, t.overlapped_us),
              t.limit_us > 0 ? base::format("limit of all layers: {}", ratio_text(t.serial_us, t.limit_us)) : "");
  out += tile("Hidden", percent_text(t.hidden), "of the communication costs no time");
  return out + "</section>";
}

/// Three bars on one scale; their text is in the columns beside.
std::string bars(const ReportSite& site, double longest_us) {
  const auto width = [&](double us) { return longest_us > 0 ? std::clamp(100 * us / longest_us, 0.0, 100.0) : 0.0; };
  std::string out = "<svg class=\"bars\" height=\"26\" aria-hidden=\"true\">";
  out += base::format("<rect class=\"bar-serial\" y=\"2\" width=\"{:.2f}%\" height=\"9\"/>", width(site.serial_us));
  out += base::format("<rect class=\"bar-overlapped\" y=\"14\" width=\"{:.2f}%\" height=\"9\"/>",
                      width(site.overlapped_us));
  if (site.limit_us > 0)
    out += base::format("<line class=\"bar-limit\" x1=\"{:.2f}%\" x2=\"{:.2f}%\" y1=\"0\" y2=\"26\"/>",
                        width(site.limit_us), width(site.limit_us));
  return out + "</svg>";
}

std::string cell(std::string_view label, std::string_view kind, std::string_view html) {
  return base::format("<td data-label=\"{}\" class=\"{}\"><div>{}</div></td>", label, kind, html);
}

std::string time_cell(std::string_view label, double us) {
  return cell(label, "number", us > 0 ? duration_text(us) : std::string("-"));
}

std::string site_table(const Report& report) {
  double longest = 0;
  for (const ReportSite& site : report.sites) longest = std::max({longest, site.serial_us, site.overlapped_us});
  std::string out =
      "<table><thead><tr><th>Site</th><th class=\"number\">Serial</th><th class=\"number\">Overlapped</th><th "
      "class=\"number\">Limit</th><th class=\"number\">Hidden</th><th class=\"bar-column\">Serial, overlapped, "
      "limit</th>"
      "<th>Schedule, and why</th></tr></thead><tbody>";
  for (const ReportSite& site : report.sites) {
    out += base::format("<tr><th scope=\"row\"><b>{}</b> {}<br><span class=\"aside\">{} x {} x {}</span></th>",
                        escape_html(site.name), escape_html(site.op), site.m, site.n, site.k);
    out += time_cell("Serial", site.serial_us) + time_cell("Overlapped", site.overlapped_us) +
           time_cell("Limit", site.limit_us);
    out += cell("Hidden", "number", percent_text(site.hidden));
    out += cell("Serial, overlapped, limit", "bar-column", bars(site, longest));
    out += cell("Schedule", "schedule",
                base::format("<code>{}</code> <span class=\"aside\">{}</span>", escape_html(site.schedule),
                             escape_html(site.why)));
    out += "</tr>";
  }
  const ReportTotal& t = report.total;
  out += "</tbody><tfoot><tr><th scope=\"row\"><b>All layers</b></th>" + time_cell("Serial", t.serial_us) +
         time_cell("Overlapped", t.overlapped_us) + time_cell("Limit", t.limit_us) +
         cell("Hidden", "number", percent_text(t.hidden)) + cell("", "bar-column", "") + cell("", "schedule", "") +
         "</tr></tfoot></table>";
  out +=
      "<p class=\"note\"><b>Limit</b>: the same computation and communication side by side, without dependence; of a "
      "site alone, and of all layers in one run, which is not the sum of the sites. "
      "<b>Hidden</b>: the share of the communication's time that the overlapped run does not spend. <b>Bars</b>: "
      "serial above overlapped, the line is the limit.</p>";
  return out;
}

std::string error_section(const Report& report) {
  std::string out = "<table class=\"plain\"><tbody>";
  out += base::format("<tr><th scope=\"row\">overlapped run</th><td>{:.3g}</td></tr>", report.error);
  out +=
      base::format("<tr><th scope=\"row\">unfused run, same precision</th><td>{:.3g}</td></tr>", report.baseline_error);
  out += base::format("<tr><th scope=\"row\">checks</th><td>{}</td></tr></tbody></table>",
                      report.ok ? "all passed" : "<b class=\"bad-text\">at least one failed</b>");
  return out + "<p class=\"note\">Largest error of the whole stack's output against its fp64 oracle.</p>";
}

std::string key_values(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string out = "<dl>";
  for (const auto& [key, value] : pairs)
    out += base::format("<div><dt>{}</dt><dd>{}</dd></div>", escape_html(key), escape_html(value));
  return out + "</dl>";
}

std::string section(std::string_view title, std::string_view badge, std::string_view body) {
  return base::format("<section><h2>{} {}</h2>{}</section>", title, badge, body);
}

}  // namespace

std::string html_report(const Report& report) {
  const std::string badge = emulated_badge(report);
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">";
  out += "<meta name=\"color-scheme\" content=\"light dark\">";
  out += base::format("<title>overlace run: {}, {} ranks, {}</title>", escape_html(report.model), report.ranks,
                      escape_html(report.backend));
  out += "<style>" + std::string(kReportStyle) + "</style></head><body><main>";
  out += header(report) + summary(report);
  out += section("What happened when", badge, timelines_html(report.serial, report.overlapped));
  if (!report.sites.empty()) out += section("Sites", badge, site_table(report));
  out += "<div class=\"columns\">" + section("Errors", "", error_section(report));
  if (!report.run.empty()) out += section("Run", "", key_values(report.run));
  if (!report.machine.empty()) out += section("Machine", "", key_values(report.machine));
  out += "</div>";
  if (!report.notes.empty()) {
    std::string list = "<ul class=\"notes\">";
    for (const std::string& note : report.notes) list += base::format("<li>{}</li>", escape_html(note));
    out += section("Notes", "", list + "</ul>");
  }
  return out + "<footer>written by <code>overlace run</code></footer></main></body></html>\n";
}

}  // namespace overlace::cli
