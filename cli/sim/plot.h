// Lines over a parameter, as SVG.
#pragma once

#include <string>
#include <vector>

namespace overlace::cli {

struct PlotLine {
  std::string name;
  std::vector<double> x, y;  // > 0: both axes are logarithmic
  bool is_bound = false;     // grey, dashed
};
struct PlotPanel {
  std::string title;
  std::vector<PlotLine> lines;
  std::string x_label = {};  // where it is not that of all panels
};

/// Panels side by side, three to a row; a name has one colour in all of them. Panels without points say so.
std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<PlotPanel>& panels);
/// A page (cli/report/page.h) that shows such a picture above preformatted text.
std::string plot_html(const std::string& title, const std::string& svg, const std::string& text);

}  // namespace overlace::cli
