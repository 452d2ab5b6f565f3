// The pages that overlace writes: one template (page.html, compiled in) and one JSON value (docs/design/reports.md).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/json.h"

namespace overlace::cli {

/// One self-contained page that shows `data`. Nothing in `data` can end its block or become markup.
std::string page_html(const base::Json& data);

/// Text with a style of the template: "b", "code", "aside", ...
base::Json styled(std::string_view style, std::string text);
base::Json badge(std::string text, std::string_view kind = "");
/// The parts of a section.
base::Json note_part(base::Json text);
base::Json pairs_part(const std::vector<std::pair<std::string, base::Json>>& pairs);
base::Json section_block(std::string_view title, const base::Json& badges, base::Json parts);

}  // namespace overlace::cli
