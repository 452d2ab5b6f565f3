#include "cli/sim/validate.h"

#include "cli/run/outputs.h"
#include "src/base/file.h"
#include "src/study/validate/validate.h"

namespace overlace::cli {

int sim_validate(const ValidateWords& words) {
  const std::vector<study::ValidationRow> rows = study::validate(words.golden, words.ids).value();
  const std::string json = study::validation_json(rows).dump(2) + "\n";
  print(words.json == "-" ? json : study::validation_table(rows)).or_throw();
  if (!words.json.empty() && words.json != "-") base::write_file(words.json, json).or_throw();
  if (!words.page.empty()) base::write_file(words.page, study::validation_page(rows)).or_throw();
  return study::has_required_miss(rows) ? 1 : 0;
}

}  // namespace overlace::cli
