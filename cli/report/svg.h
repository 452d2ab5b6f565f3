// Writes SVG: every name, attribute and text goes through here, where what a reader takes for markup is escaped.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace overlace::cli {

/// A number with at most one decimal, as coordinates have them.
std::string coordinate(double value);

class SvgWriter {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  /// Attributes with an empty value are left out. Everything written until close() stands inside.
  void open(std::string_view tag, Attributes attributes);
  void close(std::string_view tag);
  /// An element that holds text, or nothing.
  void leaf(std::string_view tag, Attributes attributes, std::string_view text = {});
  std::string take() && { return std::move(out_); }

 private:
  void begin(std::string_view tag, Attributes attributes);
  void escaped(std::string_view text);

  std::string out_;
};

}  // namespace overlace::cli
