#include "cli/report/svg.h"

#include "src/base/format.h"

namespace overlace::cli {

std::string coordinate(double value) { return base::format("{:.1f}", value); }

void SvgWriter::begin(std::string_view tag, Attributes attributes) {
  out_.append("<").append(tag);
  for (const auto& [name, value] : attributes) {
    if (value.empty()) continue;
    out_.append(" ").append(name).append("=\"");
    escaped(value);
    out_ += '"';
  }
}

void SvgWriter::open(std::string_view tag, Attributes attributes) {
  begin(tag, attributes);
  out_ += ">\n";
}

void SvgWriter::close(std::string_view tag) { out_.append("</").append(tag).append(">\n"); }

void SvgWriter::leaf(std::string_view tag, Attributes attributes, std::string_view text) {
  begin(tag, attributes);
  if (text.empty()) {
    out_ += "/>\n";
    return;
  }
  out_ += '>';
  escaped(text);
  out_.append("</").append(tag).append(">\n");
}

void SvgWriter::escaped(std::string_view text) {
  for (const char c : text) {
    if (c == '&')
      out_ += "&amp;";
    else if (c == '<')
      out_ += "&lt;";
    else if (c == '>')
      out_ += "&gt;";
    else if (c == '"')
      out_ += "&quot;";
    else
      out_ += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;  // no reader takes other control characters
  }
}

}  // namespace overlace::cli
