#include "cli/sim/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/report/page.h"
#include "cli/report/svg.h"
#include "src/base/ceil_div_pod.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

// Distinguishable without colour vision (Okabe and Ito); then the same dashed.
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
constexpr const char *kBoundColor = "#888888", *kDashes = "5 3";
constexpr double kWidth = 400, kHeight = 300, kLeft = 62, kRight = 14, kTop = 34, kBottom = 46;
constexpr int kColumns = 3;

struct Range {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  void add(double v) {
    least = std::min(least, v);
    most = std::max(most, v);
  }
  bool empty() const { return !(least <= most); }
  /// One value alone gets room around it.
  Range padded(double factor) const { return {least / factor, most * factor}; }
  double share(double v) const { return (std::log(v) - std::log(least)) / (std::log(most) - std::log(least)); }
};

std::string number(double v) {
  if (v >= 1e6) return base::format("{:.3g}M", v / 1e6);
  if (v >= 1e4) return base::format("{:.3g}k", v / 1e3);
  return base::format("{:.4g}", v);
}

/// 1, 2 and 5 times powers of ten within the range; fewer where there are many, multiples of such a number where there
/// are hardly any.
std::vector<double> ticks(const Range& range) {
  std::vector<double> out;
  for (const auto& steps : {std::vector<double>{1, 2, 5}, std::vector<double>{1}}) {
    out.clear();
    for (double power = std::pow(10, std::floor(std::log10(range.least))); power <= range.most; power *= 10)
      for (const double step : steps)
        if (power * step >= range.least && power * step <= range.most) out.push_back(power * step);
    if (out.size() <= 7) break;
  }
  if (out.size() > 2 || !(range.most > range.least)) return out;
  const double wanted = (range.most - range.least) / 5, power = std::pow(10, std::floor(std::log10(wanted)));
  const double step = power * (wanted / power > 5 ? 10 : wanted / power > 2 ? 5 : wanted / power > 1 ? 2 : 1);
  out.clear();
  for (double k = std::ceil(range.least / step); k * step <= range.most; ++k) out.push_back(k * step);
  return out;
}

class Panel {
 public:
  Panel(const PlotPanel& panel, double left, double top, const std::vector<std::string>& names)
      : panel_(panel), left_(left), top_(top), names_(names) {
    for (const PlotLine& line : panel.lines) {
      for (const double v : line.x) x_.add(v);
      for (const double v : line.y) y_.add(v);
    }
  }

  void draw(const std::string& x_label, const std::string& y_label, SvgWriter* out) {
    out_ = out;
    text(kLeft, 20, panel_.title, "start", "bold");
    if (x_.empty()) return text(kWidth / 2, kHeight / 2, "no point", "middle", "normal");
    points_ = x_values();
    x_ = x_.padded(points_.size() > 1 ? 1.06 : 1.5);
    y_ = y_.padded(1.12);
    for (const double v : ticks(y_)) {
      rule(kLeft, y(v), kWidth - kRight, y(v), "#dddddd");
      text(kLeft - 6, y(v) + 4, number(v), "end", "normal");
    }
    for (const double v : points_) {
      rule(x(v), kTop, x(v), kHeight - kBottom, "#eeeeee");
      text(x(v), kHeight - kBottom + 16, number(v), "middle", "normal");
    }
    rule(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#444444");
    rule(kLeft, kTop, kLeft, kHeight - kBottom, "#444444");
    text((kLeft + kWidth - kRight) / 2, kHeight - 10, panel_.x_label.empty() ? x_label : panel_.x_label, "middle",
         "normal");
    const double middle = top_ + (kTop + kHeight - kBottom) / 2;
    out_->leaf("text",
               {{"transform", base::format("translate({:.1f},{:.1f}) rotate(-90)", left_ + 14, middle)},
                {"text-anchor", "middle"}},
               y_label);
    for (const PlotLine& line : panel_.lines) draw_line(line);
  }

 private:
  double x(double v) const { return kLeft + x_.share(v) * (kWidth - kLeft - kRight); }
  double y(double v) const { return kHeight - kBottom - y_.share(v) * (kHeight - kTop - kBottom); }
  /// Values that are there, as long as they can be told apart.
  std::vector<double> x_values() const {
    std::vector<double> all;
    for (const PlotLine& line : panel_.lines) all.insert(all.end(), line.x.begin(), line.x.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all.size() <= 8 ? all : ticks(x_);
  }
  void text(double at_x, double at_y, const std::string& words, const char* anchor, const char* weight) const {
    out_->leaf("text",
               {{"x", coordinate(left_ + at_x)},
                {"y", coordinate(top_ + at_y)},
                {"text-anchor", anchor},
                {"font-weight", weight}},
               words);
  }
  void rule(double x1, double y1, double x2, double y2, const char* color) const {
    out_->leaf("line", {{"x1", coordinate(left_ + x1)},
                        {"y1", coordinate(top_ + y1)},
                        {"x2", coordinate(left_ + x2)},
                        {"y2", coordinate(top_ + y2)},
                        {"stroke", color}});
  }
  void draw_line(const PlotLine& line) const {
    const auto found = static_cast<size_t>(std::find(names_.begin(), names_.end(), line.name) - names_.begin());
    const std::string color = line.is_bound ? kBoundColor : kColors[found % std::size(kColors)];
    std::string points;
    for (size_t i = 0; i < line.x.size(); ++i)
      points += base::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", left_ + x(line.x[i]), top_ + y(line.y[i]));
    out_->leaf("polyline", {{"points", points},
                            {"fill", "none"},
                            {"stroke", color},
                            {"stroke-width", "1.6"},
                            {"stroke-dasharray", line.is_bound || found >= std::size(kColors) ? kDashes : ""}});
    for (size_t i = 0; i < line.x.size(); ++i) {
      out_->open("circle", {{"cx", coordinate(left_ + x(line.x[i]))},
                            {"cy", coordinate(top_ + y(line.y[i]))},
                            {"r", "2.5"},
                            {"fill", color}});
      out_->leaf("title", {}, base::format("{}: {} at {}", line.name, number(line.y[i]), number(line.x[i])));
      out_->close("circle");
    }
  }

  SvgWriter* out_ = nullptr;
  const PlotPanel& panel_;
  double left_, top_;
  const std::vector<std::string>& names_;
  Range x_, y_;
  std::vector<double> points_;
};

}  // namespace

std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<PlotPanel>& panels) {
  std::vector<std::string> names, bounds;
  for (const PlotPanel& panel : panels)
    for (const PlotLine& line : panel.lines) {
      std::vector<std::string>& list = line.is_bound ? bounds : names;
      if (std::find(list.begin(), list.end(), line.name) == list.end()) list.push_back(line.name);
    }
  const size_t columns = std::clamp<size_t>(panels.size(), 1, kColumns);
  const size_t rows = base::ceil_div(panels.size(), columns), entries = names.size() + bounds.size();
  const double legend = 210, title_height = 30, width = static_cast<double>(columns) * kWidth + legend;
  const double height =
      title_height + std::max(static_cast<double>(rows) * kHeight, 24 + 18 * static_cast<double>(entries));
  SvgWriter out;
  out.open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                   {"width", base::format("{:.0f}", width)},
                   {"height", base::format("{:.0f}", height)},
                   {"viewBox", base::format("0 0 {:.0f} {:.0f}", width, height)},
                   {"font-family", "sans-serif"},
                   {"font-size", "12"}});
  out.leaf("rect", {{"width", "100%"}, {"height", "100%"}, {"fill", "white"}});
  out.leaf("text", {{"x", "12"}, {"y", "21"}, {"font-size", "15"}, {"font-weight", "bold"}}, title);
  for (size_t i = 0; i < panels.size(); ++i) {
    const double left = static_cast<double>(i % columns) * kWidth;
    const double top = title_height + static_cast<double>(i / columns) * kHeight;
    Panel(panels[i], left, top, names).draw(x_label, y_label, &out);
  }
  for (size_t i = 0; i < entries; ++i) {
    const bool is_bound = i >= names.size();
    const double left = static_cast<double>(columns) * kWidth + 12;
    const double top = title_height + 24 + 18 * static_cast<double>(i);
    out.leaf("line", {{"x1", coordinate(left)},
                      {"y1", coordinate(top)},
                      {"x2", coordinate(left + 24)},
                      {"y2", coordinate(top)},
                      {"stroke", is_bound ? kBoundColor : kColors[i % std::size(kColors)]},
                      {"stroke-width", "2"},
                      {"stroke-dasharray", is_bound || i >= std::size(kColors) ? kDashes : ""}});
    out.leaf("text", {{"x", coordinate(left + 30)}, {"y", coordinate(top + 4)}},
             is_bound ? bounds[i - names.size()] : names[i]);
  }
  out.close("svg");
  return std::move(out).take();
}

std::string plot_html(const std::string& title, const std::string& svg, const std::string& text) {
  using base::Json;
  Json parts = Json::Array{Json::Object{{"part", "picture"}, {"svg", svg}}};
  Json table = Json::Array{Json::Object{{"part", "pre"}, {"text", text}}};
  return page_html(Json::Object{{"title", title},
                                {"heading", title},
                                {"badges", Json::array()},
                                {"blocks", Json::Array{section_block("Picture", Json::array(), std::move(parts)),
                                                       section_block("Numbers", Json::array(), std::move(table))}},
                                {"footer", Json::Array{"written by ", styled("code", "overlace sim")}}});
}

}  // namespace overlace::cli
