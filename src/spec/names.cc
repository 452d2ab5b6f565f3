#include "src/spec/names.h"

#include <charconv>

#include "src/base/format.h"

namespace overlace::spec {

std::string text_of(const Param& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* real = std::get_if<double>(&value)) return base::format("{}", *real);
  return std::to_string(std::get<int64_t>(value));
}

std::optional<NamedFamily> parse_family(std::string_view text) {
  const size_t colon = text.find(':');
  NamedFamily out{std::string(text.substr(0, colon))};
  if (out.family.empty()) return std::nullopt;
  if (colon == std::string_view::npos) return out;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, out.degree);
  if (error != std::errc() || stop != end || out.degree < 1) return std::nullopt;
  return out;
}

}  // namespace overlace::spec
