#include "cli/sim/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/report/timeline.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

// Distinguishable without colour vision (Okabe and Ito); then the same dashed.
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"};
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

  std::string draw(const std::string& x_label, const std::string& y_label) {
    std::string out = text(kLeft, 20, panel_.title, "start", "bold");
    if (x_.empty()) return out + text(kWidth / 2, kHeight / 2, "no point", "middle", "normal");
    points_ = x_values();
    x_ = x_.padded(points_.size() > 1 ? 1.06 : 1.5);
    y_ = y_.padded(1.12);
    for (const double v : ticks(y_)) {
      out += rule(kLeft, y(v), kWidth - kRight, y(v), "#dddddd");
      out += text(kLeft - 6, y(v) + 4, number(v), "end", "normal");
    }
    for (const double v : points_) {
      out += rule(x(v), kTop, x(v), kHeight - kBottom, "#eeeeee");
      out += text(x(v), kHeight - kBottom + 16, number(v), "middle", "normal");
    }
    out += rule(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#444444");
    out += rule(kLeft, kTop, kLeft, kHeight - kBottom, "#444444");
    out += text((kLeft + kWidth - kRight) / 2, kHeight - 10, panel_.x_label.empty() ? x_label : panel_.x_label,
                "middle", "normal");
    out += base::format("<text transform=\"translate({:.1f},{:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                        left_ + 14, top_ + (kTop + kHeight - kBottom) / 2, escape_html(y_label));
    for (const PlotLine& line : panel_.lines) out += draw_line(line);
    return out;
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
  std::string text(double at_x, double at_y, const std::string& words, const char* anchor, const char* weight) const {
    return base::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-weight=\"{}\">{}</text>\n",
                        left_ + at_x, top_ + at_y, anchor, weight, escape_html(words));
  }
  std::string rule(double x1, double y1, double x2, double y2, const char* color) const {
    return base::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", left_ + x1,
                        top_ + y1, left_ + x2, top_ + y2, color);
  }
  std::string draw_line(const PlotLine& line) const {
    const auto found = static_cast<size_t>(std::find(names_.begin(), names_.end(), line.name) - names_.begin());
    const std::string color = line.is_bound ? "#888888" : kColors[found % std::size(kColors)];
    const bool is_dashed = line.is_bound || found >= std::size(kColors);
    std::string points, marks;
    for (size_t i = 0; i < line.x.size(); ++i) {
      const double at_x = left_ + x(line.x[i]), at_y = top_ + y(line.y[i]);
      points += base::format("{}{:.1f},{:.1f}", i == 0 ? "" : " ", at_x, at_y);
      marks += base::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"><title>{}: {} at {}</title></circle>\n", at_x,
          at_y, color, escape_html(line.name), number(line.y[i]), number(line.x[i]));
    }
    return base::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}/>\n{}", points,
                        color, is_dashed ? " stroke-dasharray=\"5 3\"" : "", marks);
  }

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
  const size_t rows = (panels.size() + columns - 1) / columns, entries = names.size() + bounds.size();
  const double legend = 210, title_height = 30, width = static_cast<double>(columns) * kWidth + legend;
  const double height =
      title_height + std::max(static_cast<double>(rows) * kHeight, 24 + 18 * static_cast<double>(entries));
  std::string out = base::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"12\" y=\"21\" font-size=\"15\" font-weight=\"bold\">{2}</text>\n",
      width, height, escape_html(title));
  for (size_t i = 0; i < panels.size(); ++i) {
    const double left = static_cast<double>(i % columns) * kWidth;
    const double top = title_height + static_cast<double>(i / columns) * kHeight;
    out += Panel(panels[i], left, top, names).draw(x_label, y_label);
  }
  for (size_t i = 0; i < entries; ++i) {
    const bool is_bound = i >= names.size();
    const double left = static_cast<double>(columns) * kWidth + 12;
    const double top = title_height + 24 + 18 * static_cast<double>(i);
    out += base::format(
        "<line x1=\"{0:.0f}\" y1=\"{1:.0f}\" x2=\"{2:.0f}\" y2=\"{1:.0f}\" stroke=\"{3}\" stroke-width=\"2\"{4}/>\n"
        "<text x=\"{5:.0f}\" y=\"{6:.0f}\">{7}</text>\n",
        left, top, left + 24, is_bound ? "#888888" : kColors[i % std::size(kColors)],
        is_bound || i >= std::size(kColors) ? " stroke-dasharray=\"5 3\"" : "", left + 30, top + 4,
        escape_html(is_bound ? bounds[i - names.size()] : names[i]));
  }
  return out + "</svg>\n";
}

std::string plot_html(const std::string& title, const std::string& svg, const std::string& text) {
  return base::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>body {{ "
      "font-family: "
      "sans-serif; margin: 2em; }} svg {{ max-width: 100%; height: auto; }} pre {{ overflow-x: auto; "
      "}}</style></head>\n"
      "<body>\n{1}<pre>\n{2}</pre>\n</body></html>\n",
      escape_html(title), svg, escape_html(text));
}

}  // namespace overlace::cli
