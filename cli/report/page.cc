#include "cli/report/page.h"

namespace overlace::cli {

// Written by cmake/overlace_page.cmake from page.html.
extern const std::string_view kPageTemplate;

using base::Json;

std::string page_html(const Json& data) {
  static constexpr std::string_view kPlace = "@DATA@";
  const size_t place = kPageTemplate.find(kPlace);
  std::string out(kPageTemplate.substr(0, place));
  // JSON has these three in strings only. Escaped there, they end neither the block nor begin a comment.
  for (const char c : data.dump()) {
    if (c == '<')
      out += "\\u003c";
    else if (c == '>')
      out += "\\u003e";
    else if (c == '&')
      out += "\\u0026";
    else
      out += c;
  }
  return out.append(kPageTemplate.substr(place + kPlace.size()));
}

Json styled(std::string_view style, std::string text) {
  return Json::Object{{"style", style}, {"text", std::move(text)}};
}

Json badge(std::string text, std::string_view kind) { return Json::Object{{"badge", std::move(text)}, {"kind", kind}}; }

Json note_part(Json text) { return Json::Object{{"part", "note"}, {"text", std::move(text)}}; }

Json pairs_part(const std::vector<std::pair<std::string, Json>>& pairs) {
  Json list = Json::array();
  for (const auto& [key, value] : pairs) list.push_back(Json::Array{key, value});
  return Json::Object{{"part", "pairs"}, {"pairs", std::move(list)}};
}

Json section_block(std::string_view title, const Json& badges, Json parts) {
  return Json::Object{{"block", "section"}, {"title", title}, {"badges", badges}, {"parts", std::move(parts)}};
}

}  // namespace overlace::cli
